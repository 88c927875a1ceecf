"""A last checkpoint when the driver is told to end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.data import SharedBlock

_log = logging.getLogger("orca")


@contextmanager
def stopping_on_sigterm() -> Iterator[SharedBlock | None]:
    """On SIGTERM training inside ends after its step, with a checkpoint, and then this process ends.

    A second SIGTERM ends it at once. A handler of the user's is left alone, and other threads than the first have none.

    Yields:
        What tells the workers; see ``is_told``. None: they are not told.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield None
        return
    block = SharedBlock(64)
    flag = block.array("uint8", (1,))

    def hear(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        flag[0] = 1
        _log.warning("SIGTERM: training ends after this step, with a checkpoint")

    signal.signal(signal.SIGTERM, hear)
    try:
        yield block
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if flag[0]:
            os.kill(os.getpid(), signal.SIGTERM)


def is_told(block: SharedBlock | None) -> bool:
    """Whether the driver has got a SIGTERM; workers may learn it in different steps."""
    return block is not None and bool(block.array("uint8", (1,))[0])

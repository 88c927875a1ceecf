"""Warnings about code of the user's that takes long on a worker, while it runs.

Example:
    >>> from orca.phases import phase
    >>> with phase("data_creator"):
    ...     rows = list(range(3))
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import InvalidArgumentError

__all__ = ["phase"]

_log = logging.getLogger("orca")


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Warns after ``ORCA_SLOW_PHASE`` seconds (30), and then each time that it took twice as long.

    On a worker the warning goes to the driver's log, with the rank.
    """
    seconds = _seconds()
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch,
        args=(name, seconds, threading.get_ident(), done),
        name="orca-phase",
        daemon=True,
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _seconds() -> float:
    text = os.environ.get("ORCA_SLOW_PHASE", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 86400:
        raise InvalidArgumentError(
            f"ORCA_SLOW_PHASE={text!r} is not a number of seconds from 0.01 to 86400; give after how "
            "long to warn"
        )
    return seconds


def _watch(name: str, wait: float, thread: int, done: threading.Event) -> None:
    spent = 0.0
    while not done.wait(wait):
        spent += wait
        _log.warning("%s has run for %g s and has not returned; it is %s", name, spent, _at(thread))
        wait = spent


def _at(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "nowhere"
    last = traceback.extract_stack(frame)[-1]
    return f"in {last.name}, {last.filename}:{last.lineno}"

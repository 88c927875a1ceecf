"""Functions of the user's that make something once a machine, such as a download.

Example:
    >>> from orca.creators import once_a_node
    >>> with once_a_node():
    ...     rows = list(range(3))
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca import running
from orca.data.arrays import SharedBlock, receive_block
from orca.objects import allgather_object

__all__ = ["once_a_node"]

_log = logging.getLogger("orca")

_AT_WORK, _DONE, _FAILED = range(3)
_LOOK = 0.01
_LONGEST = 1800.0


@contextmanager
def once_a_node() -> Iterator[None]:
    """The first worker of each machine goes ahead; the others follow when it is done, together.

    Nobody waits for one that talks to the others inside (with a collective), or takes half an hour.
    All ranks call it. Those behind one that fails do not go on.
    """
    if running.world_size() == 1:
        yield
        return
    state = _shared_state()
    if running.local_rank() > 0:
        _await(state)
        yield
        return

    def let_others_in() -> None:
        state[0] = _DONE

    try:
        with running.before_collectives(let_others_in):
            yield
    except BaseException:
        state[0] = _FAILED
        raise
    state[0] = _DONE


def _shared_state() -> Any:
    """A number that the workers of this machine share; 0 at first."""
    mine = SharedBlock(1) if running.local_rank() == 0 else None
    made = allgather_object((running.node(), mine._hold.id if mine else None))
    number = next(id for node, id in made if node == running.node() and id is not None)
    block = mine or receive_block(number)
    running.barrier()  # Until then only its maker keeps it.
    return block.array("uint8", (1,))


def _await(state: Any) -> None:
    # No collective: its wait would be reported as that of a job that hangs.
    end = time.monotonic() + _LONGEST
    while state[0] == _AT_WORK:
        if time.monotonic() > end:
            _log.warning(
                "the first worker of this machine has made its data for %g s; the others begin",
                _LONGEST,
            )
            return
        time.sleep(_LOOK)
    if state[0] == _FAILED:
        running.barrier()  # Ends with the call, which fails.

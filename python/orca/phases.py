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
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orca.errors import InvalidArgumentError

__all__ = ["phase"]

_log = logging.getLogger("orca")


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Warns after ``ORCA_SLOW_PHASE`` seconds (30), and then each time that it took twice as long.

    On a worker the warning goes to the driver's log, with the rank.
    """
    seconds = _seconds()
    mine = _Phase(name, threading.get_ident(), time.monotonic(), seconds)
    _watcher.begin(mine)
    try:
        yield
    finally:
        _watcher.end(mine)


@dataclass(eq=False)
class _Phase:
    name: str
    thread: int
    began: float
    patience: float  # After so many seconds the next warning is due.

    @property
    def due(self) -> float:
        return self.began + self.patience


class _Watcher:
    """Looks after all phases of this process, in one thread.

    Phases begin and end without waking it: it never sleeps longer than the shortest one may take.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # All below are guarded by it.
        self._running: dict[_Phase, None] = {}
        self._has_thread = False
        self._wakes = 0.0
        self._longest = 0.0  # That it sleeps.

    def begin(self, phase: _Phase) -> None:
        """Looks after one more."""
        with self._changed:
            self._running[phase] = None
            self._longest = phase.patience
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._watch, name="orca-phase", daemon=True).start()
            elif phase.due < self._wakes:  # Others had more patience.
                self._changed.notify()

    def end(self, phase: _Phase) -> None:
        """It has ended."""
        with self._changed:
            self._running.pop(phase, None)

    def _watch(self) -> None:
        while True:
            for phase in self._overdue():
                _log.warning(
                    "%s has run for %g s and has not returned; it is %s",
                    phase.name,
                    phase.patience / 2,  # It has been doubled.
                    _at(phase.thread),
                )

    def _overdue(self) -> list[_Phase]:
        """Sleeps until a warning is due, or there is nothing better to do."""
        with self._changed:
            now = time.monotonic()
            self._wakes = min([now + self._longest, *(phase.due for phase in self._running)])
            self._changed.wait(max(self._wakes - now, 0.0))
            now = time.monotonic()
            found = [phase for phase in self._running if phase.due <= now]
            for phase in found:
                phase.patience *= 2
            return found


_watcher = _Watcher()


def _watch_anew() -> None:
    global _watcher
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_watch_anew)  # Threads stay with the parent.


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


def _at(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "nowhere"
    last = traceback.extract_stack(frame)[-1]
    return f"in {last.name}, {last.filename}:{last.lineno}"

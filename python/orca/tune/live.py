"""Shows a study while it goes on: a table on a terminal, else a line of the log now and then."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from orca._native import _core

_log = logging.getLogger("orca")
_PERIOD = 0.2  # Seconds.


@contextlib.contextmanager
def shown(
    study: Any, trials: float, seconds: float | None = None, *, by_best_report: bool = False
) -> Iterator[None]:
    """Shows how far a study is until the block ends, and then its table.

    Args:
        study: Of the engine.
        trials: How many there will be; infinity: nobody knows.
        seconds: After which no trial is started.
        by_best_report: Whether a trial counts by the best of its reports.
    """
    stream = sys.stderr
    is_terminal = _is_terminal(stream)
    monitor = _core.TuneMonitor(
        study,
        0 if math.isinf(trials) else int(trials),
        seconds or 0.0,
        is_terminal,
        by_best_report,
        time.monotonic(),
    )
    screen = _Screen(stream, monitor) if is_terminal else None
    ends = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(monitor, screen, ends), name="orca-table", daemon=True
    )
    with screen.shared() if screen is not None else contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
            table = monitor.table()
            # An error's traceback holds what is here, and the study holds its file.
            del study, monitor
            if screen is not None:
                screen.end()
    if screen is not None:
        stream.write(table)
        stream.flush()
    elif _log.isEnabledFor(logging.INFO):
        _log.info("%s", table.rstrip())


def _is_terminal(stream: Any) -> bool:
    """Whether it is one, and that to which the engine writes its log."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return bool(stream.isatty()) and stream.fileno() == 2
    return False


def _watch(monitor: Any, screen: _Screen | None, ends: threading.Event) -> None:
    while not ends.wait(_PERIOD):
        if screen is not None:
            screen.draw()
        elif text := monitor.show(time.monotonic(), 80, 24):
            _log.info("%s", text.rstrip())


class _Screen:
    """A terminal that has the table below all that others write to it."""

    def __init__(self, stream: Any, monitor: Any) -> None:
        self._stream, self._monitor = stream, monitor
        self._footer = _core.LogFooter()
        self._lock = threading.RLock()
        self._is_inside = False  # Whether somebody's line is not complete.

    def draw(self) -> None:
        columns, rows = shutil.get_terminal_size()
        # Without our lock: it waits for the study, and who has that may be about to write.
        text = self._monitor.show(time.monotonic(), columns, rows)
        with self._lock:
            if text and not self._is_inside:
                self._footer.show(text)

    def end(self) -> None:
        """Forgets the study: nothing is drawn any more."""
        self._monitor = None

    def clear(self) -> None:
        with self._lock:
            self._stream.flush()
            self._footer.clear()

    def write(self, stream: Any, text: str) -> int:
        """What somebody writes to ``stream``: above the table."""
        with self._lock:
            self.clear()
            written = int(stream.write(text))
            stream.flush()
            if text:
                self._is_inside = not text.endswith("\n")
            return written

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Until the block ends, what this process writes to the terminal goes through here."""
        before = (sys.stdout, sys.stderr)
        mine = {
            id(stream): _Through(stream, self)
            for stream in before
            if getattr(stream, "isatty", lambda: False)()
        }
        handlers = [
            (handler, handler.stream)
            for logger in (logging.root, _log)
            for handler in logger.handlers
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in mine
        ]
        sys.stdout = mine.get(id(before[0]), before[0])
        sys.stderr = mine.get(id(before[1]), before[1])
        for handler, stream in handlers:
            handler.setStream(mine[id(stream)])
        try:
            yield
        finally:
            for handler, stream in handlers:
                handler.setStream(stream)
            # What somebody else has put in their place stays.
            if isinstance(sys.stdout, _Through):
                sys.stdout = before[0]
            if isinstance(sys.stderr, _Through):
                sys.stderr = before[1]
            self.clear()


class _Through:
    """A stream whose text comes above the table."""

    def __init__(self, stream: Any, screen: _Screen) -> None:
        self._stream, self._screen = stream, screen

    def write(self, text: str) -> int:
        return self._screen.write(self._stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

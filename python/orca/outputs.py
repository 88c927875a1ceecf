"""What of a function's output the driver shows."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from orca import running
from orca.context import UNSHOWN
from orca.errors import InvalidArgumentError


class _Unshown(io.TextIOBase):
    """Standard output and error in lines that only the run's log has."""

    def __init__(self) -> None:
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(None, lines):
            running.log(UNSHOWN, logging.INFO, line)
        return len(text)

    def close(self) -> None:
        if not self.closed:
            self.write("\n")
        super().close()


@contextmanager
def output(level: int | None, *, shown: bool) -> Iterator[None]:
    """What a function on a worker logs and prints inside.

    Args:
        level: The least that it logs; None: as in the driver.
        shown: Whether the driver shows it. Else only the run's log has it; see ``orca logs``. What libraries
            of C write is shown in any case.
    """
    root = logging.getLogger()
    if level is not None:
        root.setLevel(level)  # The next function has the driver's again.
    if shown or not running.is_inside():
        yield
        return
    out = _Unshown()
    handlers, root.handlers[:] = list(root.handlers), [logging.StreamHandler(out)]
    try:
        with redirect_stdout(out), redirect_stderr(out):
            yield
    finally:
        root.handlers[:] = handlers
        out.close()


def read_level(level: Any) -> int | None:
    """A level of logging, or its name, as a number.

    Example:
        >>> read_level("warning")
        30
    """
    number = logging.getLevelName(level.upper()) if isinstance(level, str) else level
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise InvalidArgumentError(
            f"log_level must be a level of logging such as logging.INFO, got {level!r}"
        )
    return number

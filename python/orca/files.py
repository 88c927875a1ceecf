"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_whole"]


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file beside ``path``, and puts it in its place when it is complete.

    Args:
        path: The file; its folder is made.
        write: Writes the content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # A machine that stops leaves the old file or the new one.
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

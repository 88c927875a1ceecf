"""Files that are there as a whole or not at all."""
# ruff: noqa: PTH103, PTH105, PTH108 - trials write thousands of small files, and a Path takes as long as its file.

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from orca._native import _core
from orca.errors import UnavailableError

__all__ = [
    "append",
    "check_archive",
    "make_lasting",
    "read_sealed",
    "sealed",
    "write_content",
    "write_whole",
]

_SEAL = b"\norca crc32 "


def check_archive(path: str | os.PathLike[str]) -> None:
    """Compares the checksums of a file of ``torch.save`` or ``numpy.savez``, which their readers do not.

    Raises:
        UnavailableError: The file is damaged; the message names it.
        FileNotFoundError: There is no such file.
    """
    try:
        _core.check_zip_file(os.fspath(path))
    except UnavailableError:
        os.stat(path)  # noqa: PTH116 - raises what callers expect of a file that is gone.
        raise


def sealed(content: bytes) -> bytes:
    """Content with its checksum at its end, for formats that have none and whose readers stop before it."""
    return content + _SEAL + f"{zlib.crc32(content):08x}".encode()


def read_sealed(path: Path) -> bytes:
    """The content of a file of ``sealed`` content. Where other programs wrote it, there is nothing to compare.

    Raises:
        UnavailableError: The file is damaged; the message names it.
    """
    found = path.read_bytes()
    content, seal, said = found.rpartition(_SEAL)
    if not seal:
        return found
    if said != f"{zlib.crc32(content):08x}".encode():
        raise UnavailableError(
            f"{path} is damaged: its {len(content)} bytes have the checksum {zlib.crc32(content):08x} "
            f"instead of {said.decode(errors='replace')}; use another copy of it, or write it again"
        )
    return content


def make_lasting(path: Path) -> None:
    """Waits until a file is on the disk, if it is still there."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *, is_lasting: bool = True
) -> None:
    """Writes a file beside ``path``, and puts it in its place when it is complete.

    Args:
        path: The file; its folder is made.
        write: Writes the content.
        is_lasting: Whether a machine that stops leaves the old file or the new one; else only a process that is
            killed does, until ``make_lasting``.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            file = beside.open("wb")
        except FileNotFoundError:  # To look first would take longer.
            path.parent.mkdir(parents=True, exist_ok=True)
            file = beside.open("wb")
        with file:
            write(file)
            if is_lasting:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_content(path: str, content: Any, *, is_lasting: bool = True) -> None:
    """As ``write_whole``, where all of it is there."""
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        try:
            append(beside, content, is_lasting=is_lasting, begins=True)
        except FileNotFoundError:  # To look first would take longer.
            os.makedirs(folder, exist_ok=True)
            append(beside, content, is_lasting=is_lasting, begins=True)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def append(path: str, content: Any, *, is_lasting: bool = False, begins: bool = False) -> None:
    """Adds to a file.

    Args:
        path: The file; its folder is there.
        content: What to add.
        is_lasting: Whether to wait until it is on the disk.
        begins: Whether what was in the file is dropped.
    """
    how = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if begins else os.O_APPEND)
    file = os.open(path, how, 0o666)
    try:
        left = memoryview(content).cast("B")
        while left:
            left = left[os.write(file, left) :]
        if is_lasting:
            os.fsync(file)
    finally:
        os.close(file)

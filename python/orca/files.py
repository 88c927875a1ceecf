"""Files that are there as a whole or not at all, and folders that no other user can change."""
# ruff: noqa: PTH103 - trials write thousands of small files, and a Path takes as long as its file.

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from orca._native import _core
from orca.errors import ResourceExhaustedError, UnavailableError

__all__ = [
    "cache",
    "check_archive",
    "home",
    "is_own",
    "make_lasting",
    "make_private",
    "read_sealed",
    "sealed",
    "write_content",
    "write_whole",
]

_SEAL = b"\norca crc32 "
_FOR_ALL = "/tmp"  # Where a user without a home directory has a folder.


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


def home() -> Path:
    """Orca's folder of this user: ``$ORCA_HOME``, else ``.orca`` in the home directory. See ``make_private``."""
    if given := os.environ.get("ORCA_HOME"):
        return Path(given)
    user = _user_folder()
    return Path(f"{user}/.orca" if user else f"{_FOR_ALL}/orca-{os.geteuid()}")


def cache() -> Path:
    """Where to keep what can be made again: ``$XDG_CACHE_HOME``, else ``.cache`` in the home directory."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given)
    user = _user_folder()
    return Path(user, ".cache") if user else home() / "cache"


def _user_folder() -> str:
    """The home directory; empty for a number without a name, in a container say."""
    if given := os.environ.get("HOME"):
        return given
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_dir
    return ""


def make_private(path: str | os.PathLike[str]) -> Path:
    """Makes a folder, and its parents, with mode 0700. One that is there already must be safe from other users.

    Returns:
        Its absolute path.

    Raises:
        UnavailableError: It is a link, belongs to another user, or others may change it; or a folder on the way that
            lies where all users may write, as ``/tmp``, belongs to another user.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    is_open = False  # Whether any user could have made the next one.
    for part in [*reversed(path.parents), path]:
        if not os.path.lexists(part):
            with contextlib.suppress(FileExistsError):
                part.mkdir(0o700)
        found = part.lstat()
        if (is_open or part == path) and found.st_uid not in (0, os.geteuid()):
            raise UnavailableError(
                f"{part} belongs to another user ({_name_of(found.st_uid)}); give a folder of your own"
            )
        if stat.S_ISLNK(found.st_mode):
            if part == path:
                raise UnavailableError(f"{path} is a link; give the folder that it leads to")
            found = part.stat()
        is_open = bool(found.st_mode & stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode):
        raise UnavailableError(f"{path} is not a folder; give another path")
    if is_open and not found.st_mode & stat.S_ISVTX:
        raise UnavailableError(
            f"every user may change {path} (mode {stat.S_IMODE(found.st_mode):04o}); run chmod go-w {path}"
        )
    return path


def is_own(file: Any) -> bool:
    """Whether no other user could have written an open file, or put another one in its place."""
    found = os.fstat(file.fileno())
    # Where it is, and not where links of its name lead to by now.
    folder = Path(f"/proc/self/fd/{file.fileno()}").readlink().parent.stat()
    return (
        found.st_uid == os.geteuid()
        and not _others_may_write(found)
        and folder.st_uid in (0, os.geteuid())
        and (not _others_may_write(folder) or bool(folder.st_mode & stat.S_ISVTX))
    )


def _others_may_write(found: os.stat_result) -> bool:
    """A group with the user's number is the user's own; of any other group there may be more members."""
    writers = stat.S_IWOTH if found.st_gid == os.geteuid() else stat.S_IWOTH | stat.S_IWGRP
    return bool(found.st_mode & writers)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def make_lasting(path: Path) -> None:
    """Waits until a file and its name are on the disk, if it is still there."""
    for each in (path, path.parent):
        try:
            file = os.open(each, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_whole(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    is_lasting: bool = True,
    is_private: bool = True,
) -> None:
    """Writes a file without a name, and puts it in the place of ``path`` when it is complete.

    Threads and processes may write to one path: the last one wins. A process that is killed leaves nothing.

    Args:
        path: The file; its folder is made.
        write: Writes the content.
        is_lasting: Whether a machine that stops leaves the old file or the new one; else only a process that is
            killed does, until ``make_lasting``.
        is_private: Whether other users cannot read it; else the umask decides, as for a file that the user asked for.
    """
    with _new_file(os.fspath(path), is_private) as file:
        with open(file.fileno(), "wb", closefd=False) as stream:
            write(stream)
        file.commit(is_lasting)


def write_content(path: str, content: Any, *, is_lasting: bool = True) -> None:
    """As ``write_whole``, where all of it is there."""
    with _new_file(path, is_private=True) as file:
        left = memoryview(content).cast("B")
        while left:
            left = left[os.write(file.fileno(), left) :]
        file.commit(is_lasting)


@contextlib.contextmanager
def _new_file(path: str, is_private: bool) -> Iterator[Any]:
    """A file that is gone unless it is committed. What fails is an OSError that names the path."""
    try:
        try:
            file = _core.AtomicFile(path, is_private)
        except UnavailableError:  # To look first would take longer.
            folder = os.path.dirname(path) or "."
            if os.path.lexists(folder):
                raise
            os.makedirs(folder, exist_ok=True)
            file = _core.AtomicFile(path, is_private)
        try:
            yield file
        finally:
            file.close()
    except ResourceExhaustedError as error:
        raise UnavailableError(str(error)) from error
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise

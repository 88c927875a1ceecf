"""Copies of trials' folders in another place, made while they grow."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from orca.data import file

__all__ = ["Mirror"]

_log = logging.getLogger("orca")
_LONGEST_PAUSE = 60.0  # Seconds between attempts to reach a place that cannot be reached.
_LAST_WAIT = 600.0  # Seconds for the last copies.


class Mirror:
    """Keeps copies of folders up to date, in a thread of its own.

    A file is there as a whole or not at all, as it was at some moment. Nothing here raises because of the other place: the first failure is a
    warning, then it is tried again, and what is missing at the end is an error in the log.

    Args:
        remote: Where the copies are: a path, or ``file://``, ``hdfs://``, ``s3://`` and whatever fsspec knows.
    """

    def __init__(self, remote: str) -> None:
        self._remote = remote
        self._place: tuple[Any, str] | None = None
        # What is there of each folder: names, with sizes and times.
        self._copied: dict[Path, dict[str, tuple[int, int]]] = {}
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._waiting: dict[Path, None] = {}  # Folders, in the order of their changes.
        self._is_closing = False
        self._error: Exception | None = None  # Of the last attempt.
        self._has_warned = False
        self._thread = threading.Thread(target=self._work, name="orca-mirror", daemon=True)
        self._thread.start()

    def note(self, folder: Path) -> None:
        """Something in it has changed."""
        with self._changed:
            self._waiting[folder] = None
            self._changed.notify_all()

    def close(self, timeout: float = _LAST_WAIT) -> bool:
        """Waits for the last copies; returns whether all are there, else the log has an error."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            if not self._thread.is_alive() and not self._waiting:
                return True
            why = self._error or f"the copies took longer than {timeout:.0f} s"
            _log.error(
                "%d folders of trials are not complete in %s: %s; they are whole here: %s",
                len(self._waiting) + self._thread.is_alive(),
                self._remote,
                why,
                ", ".join(str(folder) for folder in list(self._waiting)[:4]),
            )
            return False

    # --- the thread

    def _work(self) -> None:
        pause = 1.0
        while (folder := self._next()) is not None:
            try:
                self._update(folder)
            except Exception as error:
                if not self._tell(folder, error):
                    return
                self._wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = 1.0

    def _next(self) -> Path | None:
        """A folder that has changed; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._is_closing:
                    return None
                self._changed.wait(60)
            folder = next(iter(self._waiting))
            del self._waiting[folder]
            return folder

    def _tell(self, folder: Path, error: Exception) -> bool:
        """Notes a failure; returns whether to go on."""
        with self._changed:
            self._waiting[folder] = None
            self._error = error
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "cannot copy %s to remote_dir %s: %s; the search goes on, and it is tried again",
                    folder,
                    self._remote,
                    error,
                )
            self._place = None  # Perhaps a new connection works.
            return not self._is_closing

    def _wait(self, pause: float) -> None:
        deadline = time.monotonic() + pause
        with self._changed:
            while not self._is_closing and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _update(self, folder: Path) -> None:
        if self._place is None:
            self._place = file.where(self._remote)
        filesystem, root = self._place
        target = f"{root.rstrip('/')}/{folder.name}"
        if folder not in self._copied:
            filesystem.create_dir(target, recursive=True)
        copied = self._copied.setdefault(folder, {})
        # What is being written has another name until it is whole.
        present = {p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")}
        for name in sorted(present):
            try:
                state = (folder / name).stat()
                seen = (state.st_size, state.st_mtime_ns)
                if copied.get(name) == seen:
                    continue
                content = (folder / name).read_bytes()
            except FileNotFoundError:  # Somebody has just removed it.
                continue
            _put(filesystem, content, target, name)
            copied[name] = seen
        for name in copied.keys() - present:
            filesystem.delete_file(f"{target}/{name}")
            del copied[name]


def _put(filesystem: Any, content: bytes, folder: str, name: str) -> None:
    target = f"{folder}/{name}"
    if not file.has_folders(filesystem):
        with filesystem.open_output_stream(target, compression=None) as stream:
            stream.write(content)
        return
    beside = f"{folder}/.{name}.part"
    with filesystem.open_output_stream(beside, compression=None) as stream:
        stream.write(content)
    try:
        filesystem.move(beside, target)
    except OSError:  # HDFS moves nothing onto a file.
        filesystem.delete_file(target)
        filesystem.move(beside, target)

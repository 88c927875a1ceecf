"""Files by their path, wherever they are: on this machine, ``hdfs://`` or ``s3://``, as far as pyarrow reaches them.

Example:
    >>> import tempfile
    >>> from orca.data import file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = file.write_text(f"file://{folder}/a.txt", "one two")
    ...     file.open_text(f"{folder}/a.txt")
    ['one two']
"""

from __future__ import annotations

import functools
import glob
import importlib
import importlib.util
import io
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from orca.errors import FailedPreconditionError, InvalidArgumentError

_log = logging.getLogger("orca")
_HADOOP = ("hdfs://", "viewfs://")


def open_text(path: str) -> list[str]:
    """The lines of a file, without the space around them."""
    return [line.strip() for line in _read(path).decode().splitlines()]


def open_image(path: str) -> Any:
    """An image of PIL."""
    try:
        pillow = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ImportError("open_image needs Pillow; run 'pip install pillow'") from error
    image = pillow.open(io.BytesIO(_read(path)))
    image.load()
    return image


def load_numpy(path: str) -> Any:
    """What ``numpy.save`` or ``numpy.savez`` wrote, without running code of the file."""
    return np.load(io.BytesIO(_read(path)), allow_pickle=False)


def exists(path: str) -> bool:
    """Whether there is a file or a folder."""
    filesystem, inside = where(path)
    return bool(filesystem.get_file_info(inside).type != _fs().FileType.NotFound)


def is_file(path: str) -> bool:
    """Whether it is a file."""
    filesystem, inside = where(path)
    return bool(filesystem.get_file_info(inside).is_file)


def listdir(path: str) -> list[str]:
    """The names in a folder."""
    filesystem, inside = where(path)
    return sorted(info.base_name for info in filesystem.get_file_info(_fs().FileSelector(inside)))


def makedirs(path: str) -> None:
    """Makes a folder, and those above it."""
    filesystem, inside = where(path)
    filesystem.create_dir(inside, recursive=True)


def rmdir(path: str) -> None:
    """Removes a folder with all that is in it."""
    filesystem, inside = where(path)
    filesystem.delete_dir(inside)


def write_text(path: str, text: str) -> int:
    """Writes a file; returns the number of characters."""
    filesystem, inside = where(path)
    with filesystem.open_output_stream(inside) as stream:
        stream.write(text.encode())
    return len(text)


def open_input(path: str) -> Any:
    """A file to read, with ``peek``."""
    filesystem, inside = where(path)
    return io.BufferedReader(filesystem.open_input_file(inside))


def open_local(path: str) -> Any:
    """A file of this machine to read, with its descriptor."""
    return Path(where(path)[1]).open("rb")


def is_local(path: str) -> bool:
    """Whether it is on this machine."""
    return bool(where(path)[0].type_name.removeprefix("py::fsspec+") == "local")


def open_output(path: str) -> Any:
    """A file to write."""
    filesystem, inside = where(path)
    return filesystem.open_output_stream(inside, compression=None)


def can_move(path: str) -> bool:
    """Whether folders there can be moved at once: object stores have none."""
    return has_folders(where(path)[0])


def has_folders(filesystem: Any) -> bool:
    """Whether files are seen while they are written, and can be moved: on object stores they appear when they are closed."""
    kind = filesystem.type_name.removeprefix("py::fsspec+")  # Or pyarrow's own.
    return kind in ("local", "hdfs", "viewfs")


def move(source: str, target: str) -> None:
    """Gives a file or a folder another name."""
    filesystem, inside = where(source)
    filesystem.move(inside, where(target)[1])


# --- copies; 0: done, -1: not, and the log says why


def put_local_file_to_remote(
    local_path: str, remote_path: str, filemode: int | None = None, over_write: bool = False
) -> int:
    """Copies a file to anywhere."""

    def copy() -> None:
        if not over_write and exists(remote_path) and "://" in remote_path:
            raise FileExistsError(f"{remote_path} exists already; give over_write=True")
        _copy(str(local_path), remote_path)
        if filemode is not None and "://" not in remote_path.removeprefix("file://"):
            Path(remote_path.removeprefix("file://")).chmod(filemode)

    return _tried(copy, f"cannot put {local_path} to {remote_path}")


def put_local_dir_to_remote(local_dir: str, remote_dir: str) -> int:
    """Copies the files of a folder, not those of folders in it."""
    names = [f for f in sorted(Path(local_dir).iterdir()) if f.is_file()]
    return _put_all([(f, f.name) for f in names], remote_dir)


def put_local_dir_tree_to_remote(local_dir: str, remote_dir: str, over_write: bool = False) -> int:
    """Copies a folder with all that is in it."""
    root = Path(local_dir)
    names = [f for f in sorted(root.rglob("*")) if f.is_file()]
    return _put_all([(f, str(f.relative_to(root))) for f in names], remote_dir)


def put_local_files_with_prefix_to_remote(
    local_path_prefix: str, remote_dir: str, over_write: bool = False
) -> int:
    """Copies the files whose paths begin so."""
    names = [Path(f) for f in sorted(glob.glob(f"{glob.escape(local_path_prefix)}*"))]  # noqa: PTH207
    return _put_all([(f, f.name) for f in names if f.is_file()], remote_dir)


def get_remote_file_to_local(remote_path: str, local_path: str, over_write: bool = False) -> int:
    """Copies a file from anywhere."""
    what = f"cannot get {remote_path} to {local_path}"
    return _tried(lambda: _copy(remote_path, str(local_path)), what)


def get_remote_dir_to_local(remote_dir: str, local_dir: str, over_write: bool = False) -> int:
    """Copies the files of a folder."""
    return _get_all(remote_dir, local_dir, "")


def get_remote_files_with_prefix_to_local(
    remote_path_prefix: str, local_dir: str, over_write: bool = False
) -> int:
    """Copies the files whose paths begin so."""
    folder, _, prefix = remote_path_prefix.rpartition("/")
    return _get_all(folder, local_dir, prefix)


# --- functions of local files, for any


def enable_multi_fs_load_static(load_func: Callable[..., Any]) -> Callable[..., Any]:
    """For ``f(path, ...)``, which reads: gets what is elsewhere first."""

    @functools.wraps(load_func)
    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        with _fetched(path) as local:
            return load_func(local, *args, **kwargs)

    return load


def enable_multi_fs_load(load_func: Callable[..., Any]) -> Callable[..., Any]:
    """For a method ``f(self, path, ...)`` that reads."""

    @functools.wraps(load_func)
    def load(obj: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        with _fetched(path) as local:
            return load_func(obj, local, *args, **kwargs)

    return load


def enable_multi_fs_save(save_func: Callable[..., Any]) -> Callable[..., Any]:
    """For a method ``f(self, path, ...)`` that writes: puts it where it belongs afterwards."""

    @functools.wraps(save_func)
    def save(obj: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if _is_local(path):
            return save_func(obj, path.removeprefix("file://"), *args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / PurePosixPath(path).name
            result = save_func(obj, str(local), *args, **kwargs)
            if local.is_dir():
                put_local_dir_tree_to_remote(str(local), path)
            else:
                _copy(str(local), path)
            return result

    return save


# --- inside


def _fs() -> Any:
    try:
        return importlib.import_module("pyarrow.fs")
    except ModuleNotFoundError as error:
        raise ImportError("orca.data.file needs pyarrow; run 'pip install pyarrow'") from error


def _is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")


def where(path: str) -> tuple[Any, str]:
    """The file system of pyarrow that a path belongs to, and the path inside of it."""
    if _is_local(path):
        local = Path(path.removeprefix("file://")).absolute()
        return _fs().LocalFileSystem(), str(local)
    fs = _fs()
    try:
        filesystem, inside = fs.FileSystem.from_uri(path)
    except ValueError as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
        return _by_fsspec(fs, path)
    except OSError as error:
        if not path.startswith(_HADOOP) or "load lib" not in str(error):
            raise
        if importlib.util.find_spec("hdfs_native") is None:
            raise FailedPreconditionError(
                f"nothing here reaches {path}: run 'pip install hdfs-native fsspec', which needs no Java, or set "
                f"JAVA_HOME, HADOOP_HOME and CLASSPATH for Hadoop's libhdfs ({str(error).splitlines()[0]})"
            ) from error
        return _by_fsspec(fs, path)
    return filesystem, inside


def _by_fsspec(fs: Any, path: str) -> tuple[Any, str]:
    """What pyarrow does not reach itself."""
    scheme = path.partition("://")[0]
    try:
        known = importlib.import_module("fsspec")
        filesystem, inside = known.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise InvalidArgumentError(
            f"{scheme}:// of {path} is not known: {error}; install fsspec and what it names"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), inside


def _read(path: str) -> bytes:
    filesystem, inside = where(path)
    with filesystem.open_input_stream(inside, compression=None) as stream:
        data: bytes = stream.read()
    return data


def _copy(source: str, target: str) -> None:
    (from_system, from_path), (to_system, to_path) = where(source), where(target)
    with (
        from_system.open_input_stream(from_path, compression=None) as stream,
        to_system.open_output_stream(to_path, compression=None) as output,
    ):
        while data := stream.read(8 << 20):
            output.write(data)


def _tried(action: Callable[[], Any], what: str) -> int:
    try:
        action()
    except Exception as error:
        _log.error("%s: %s", what, error)
        return -1
    return 0


def _put_all(files: list[tuple[Path, str]], remote_dir: str) -> int:
    def put() -> None:
        makedirs(remote_dir)
        for path, name in files:
            target = f"{remote_dir.rstrip('/')}/{name}"
            if "/" in name:
                makedirs(target.rpartition("/")[0])
            _copy(str(path), target)

    return _tried(put, f"cannot put files to {remote_dir}")


def _get_all(remote_dir: str, local_dir: str, prefix: str) -> int:
    def get() -> None:
        Path(local_dir).mkdir(parents=True, exist_ok=True)
        for name in listdir(remote_dir):
            source = f"{remote_dir.rstrip('/')}/{name}"
            if name.startswith(prefix) and is_file(source):
                _copy(source, str(Path(local_dir) / name))

    return _tried(get, f"cannot get files of {remote_dir}")


class _fetched:  # noqa: N801
    """A local path with what is at another one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder: Any = None

    def __enter__(self) -> str:
        if _is_local(self._path):
            return self._path.removeprefix("file://")
        self._folder = tempfile.TemporaryDirectory()
        local = Path(self._folder.name) / PurePosixPath(self._path.rstrip("/")).name
        if is_file(self._path):
            _copy(self._path, str(local))
        else:
            get_remote_dir_to_local(self._path, str(local))
        return str(local)

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

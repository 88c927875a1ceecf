"""Finds the torch plugin, or builds it.

The plugin is compiled against one torch. A build tree has it for the torch of its environment; an
installed package has its sources, and the first import compiles them into the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

import orca
from orca.files import cache

__all__ = ["load_plugin", "use_kernels"]

_NAME = "_orca_c10d"
_MINIMUM = (2, 13)
_BUILD_SECONDS = 600


def _say(message: str) -> None:
    print(f"orca: {message}", file=sys.stderr, flush=True)


def _torch_version() -> str:
    return str(torch.__version__).split("+")[0]


def _file_name() -> str:
    return _NAME + str(sysconfig.get_config_var("EXT_SUFFIX"))


def _native_dir() -> Path:
    return Path(orca.__file__).parent / "_native"


def _source_dirs() -> tuple[Path, Path]:
    """Where the plugin's sources and the header of the engine are: in a package, in a checkout."""
    packed = _native_dir() / "plugin_src"
    if packed.is_dir():
        return packed, packed / "include"
    checkout = Path(orca.__file__).resolve().parents[2]
    return checkout / "plugins/torch", checkout / "include"


def _sources() -> list[Path]:
    folder, include = _source_dirs()
    files = sorted([*folder.glob("*.cc"), *folder.glob("*.h")])
    header = include / "orca/plugin_api.h"
    if not files or not header.is_file():
        raise ImportError(
            f"no torch plugin for torch {torch.__version__} on Python "
            f"{sysconfig.get_python_version()}, and no sources to build it from in {folder}; "
            "reinstall orca-ml"
        )
    return [*files, header]


def _cache_dir() -> Path:
    """A folder that changes with everything that the plugin is made of."""
    digest = hashlib.sha256(str(torch.__version__).encode())
    for file in _sources():
        digest.update(file.name.encode() + file.read_bytes())
    tag = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return cache() / "orca" / f"torch-{_torch_version()}-{tag}-{digest.hexdigest()[:16]}"


def _compiler() -> list[str]:
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise ImportError(
        f"no C++ compiler to build the torch plugin for torch {torch.__version__} with; install "
        "one (Debian, Ubuntu: apt install g++ python3-dev) or set CXX"
    )


def _command(source: Path, output: Path) -> list[str]:
    engine = sorted(_native_dir().glob("liborca.so.*"), key=lambda path: len(path.name))
    if not engine:
        raise ImportError(f"liborca.so is missing in {_native_dir()}; reinstall orca-ml")
    folder, include = _source_dirs()
    root = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    # torch's libraries and the engine are in the process before the plugin is: no search path.
    return [
        *_compiler(),
        *("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        *("-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"),
        *(f"-I{folder}", f"-I{include}", f"-isystem{root / 'include'}"),
        *(f"-isystem{root / 'include/torch/csrc/api/include'}",),
        *(f"-isystem{sysconfig.get_path('include')}", str(source), "-o", str(output)),
        *(str(engine[0]), f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
    ]


def _compile(folder: Path) -> None:
    """Compiles all files at once, beside ``folder``, and renames: it is there whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as name:
        work = Path(name)
        source = work / "plugin.cc"
        files = [file for file in _sources() if file.suffix == ".cc"]
        source.write_text("".join(f'#include "{file}"\n' for file in files))
        made = work / "made"
        made.mkdir()
        command = _command(source, made / _file_name())
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
            )
        except OSError as error:
            raise ImportError(f"cannot run the C++ compiler {command[0]}: {error}") from error
        if done.returncode != 0:
            last = "\n".join(done.stderr.strip().splitlines()[-15:])
            raise ImportError(
                f"building the torch plugin for torch {torch.__version__} failed:\n{last}\n"
                "It needs a compiler for C++20 (g++ 11, clang 14 or newer; CXX chooses one) and "
                "the headers of Python (Debian, Ubuntu: apt install g++ python3-dev)."
            )
        made.rename(folder)


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Holds a lock between processes: ranks of one host import at the same time."""
    limit = time.monotonic() + _BUILD_SECONDS
    with lock.open("w") as file:
        said = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    _say("waiting for another process that builds the torch plugin ...")
                    said = True
                if time.monotonic() > limit:
                    raise ImportError(
                        f"another process holds {lock} for {_BUILD_SECONDS} s; end it and try again"
                    ) from None
                time.sleep(0.1)
        yield


def _check_owner(folder: Path) -> None:
    """Code is not loaded from a folder that others can write."""
    state = folder.stat()
    if state.st_uid not in (os.getuid(), 0) or state.st_mode & 0o022:
        raise ImportError(
            f"{folder} belongs to somebody else or can be written by others; remove it, or set "
            "XDG_CACHE_HOME to a folder of your own"
        )


def _build() -> Path:
    folder = _cache_dir()
    made = folder / _file_name()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_owner(folder.parent)
        if made.is_file():
            return made
        lock = folder.with_name(folder.name + ".lock")
        with _only_one(lock):
            if not made.is_file():
                _say(
                    f"building the torch plugin for torch {_torch_version()} (once, about 40 s) ..."
                )
                begin = time.monotonic()
                _compile(folder)
                _say(f"built in {time.monotonic() - begin:.0f} s: {made}")
    except OSError as error:
        raise ImportError(
            f"cannot write the torch plugin to {folder.parent}: {error}; set XDG_CACHE_HOME to a "
            "folder that can be written"
        ) from error
    return made


def _is_known() -> bool:
    major, minor = (int(part) for part in _torch_version().split(".")[:2])
    return (major, minor) >= _MINIMUM


def _check_version() -> None:
    if not _is_known():
        raise ImportError(
            f"orca.distributed needs torch {_MINIMUM[0]}.{_MINIMUM[1]} or newer, this is "
            f"{torch.__version__}; run: pip install -U torch"
        )


def load_plugin() -> ModuleType:
    """Returns the plugin's module for the torch that is imported; builds it where it is missing.

    Raises:
        ImportError: It can neither be found nor built; says what to do.
    """
    if loaded := sys.modules.get(_NAME):
        return loaded
    _check_version()
    return _load(_found() or _build())


def use_kernels() -> None:
    """Has the engine compute what torch is slow at (``plugins/torch/kernels.h``), where the plugin is built already."""
    try:
        if _is_known() and (file := _found() or _built()) is not None:
            _load(file).use_kernels(True)
    except ImportError as error:  # Everything works without them.
        _say(f"torch computes its convolutions itself: {error}")


def _found() -> Path | None:
    file = _native_dir() / f"torch-{_torch_version()}" / _file_name()
    return file if file.is_file() else None


def _built() -> Path | None:
    folder = _cache_dir()
    if not folder.is_dir():
        return None
    _check_owner(folder.parent)
    return folder / _file_name()


def _load(file: Path) -> ModuleType:
    if loaded := sys.modules.get(_NAME):
        return loaded
    spec = importlib.util.spec_from_file_location(_NAME, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module; remove it and import again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_NAME] = module
    return module

"""Workers: how they are born, and how they run the functions of ``orca.run``.

An agent starts ``main`` in a fresh process, the nursery. It imports one framework, runs nothing, and forks a worker
whenever the agent asks for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import io
import itertools
import json
import logging
import os
import pickle
import random
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from orca import context, running
from orca._native import _core
from orca.errors import (
    AbortedError,
    OrcaError,
    PeerLostError,
    UnauthenticatedError,
    UnavailableError,
    WaitTimeoutError,
)
from orca.pickles import dumps, loads

_INTERRUPT = signal.SIGUSR2
# What may only be the consequence of another rank's end.
_ECHOES = (PeerLostError, AbortedError, UnauthenticatedError, UnavailableError, WaitTimeoutError)


class Cancelled(BaseException):
    """Ends the function of a call that was cancelled. Not an ``Exception``: nobody catches it by accident."""


def main() -> NoReturn:
    """Runs the nursery until its agent is gone."""
    nursery = _core.Nursery()
    preloaded = list(filter(None, os.environ.get("ORCA_PRELOAD", "").split(",")))
    for name in preloaded:
        framework, _, part = name.partition("-")
        try:
            importlib.import_module(f"orca.adapters.{framework}.{part or 'worker'}")
        except Exception:
            # It only saves time: who needs it imports it again, and learns what is wrong with it.
            traceback.print_exc()
    for name in ("cloudpickle", "numpy.random", "orca.comm"):
        importlib.import_module(name)
    _blas.extend(_Blas.loaded())
    for name, value in json.loads(os.environ["ORCA_BEFORE"]).items():
        _set_variable(name, value)
    # What the imports left is not looked at again, here or in a worker: that would copy its pages.
    gc.freeze()
    found = versions(preloaded)
    nursery.ready(_threads(), found)
    while (birth := nursery.next()) is not None:
        try:
            pid = os.fork()
        except OSError as error:
            nursery.cannot_fork(birth.worker, error.errno or 0)
        else:
            if pid == 0 and birth.worker:
                _live(birth)
            elif pid == 0:  # The nursery's spare.
                nursery.become_spare(birth)
                nursery.ready(_threads(), found)
            else:
                nursery.forked(birth.worker, pid)
        del birth
    os._exit(0)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _live(birth: Any) -> NoReturn:
    code = 1
    try:
        gc.enable()
        birth.settle()
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), line_buffering=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w"), line_buffering=True, errors="backslashreplace"
        )
        faulthandler.enable(sys.stderr)
        context.explain_absence(
            "a function on a worker has no Orca context; call orca.run() in the driver, or "
            "orca.init_orca_context() here"
        )
        native = _core.Worker(birth)
        # After the engine's own handler, which it calls: both stacks are printed.
        faulthandler.register(signal.SIGUSR1, _core.stack_output(), all_threads=True, chain=True)
        _Worker(native).work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _adapters() -> list[ModuleType]:
    """What the worker has to do with the frameworks that are loaded here, by whomever."""
    names = [name for name in context.FRAMEWORKS if name in sys.modules]
    return [_adapter(name) for name in names]


@functools.cache
def _adapter(name: str) -> ModuleType:
    return importlib.import_module(f"orca.adapters.{name}.worker")


class _Blas:
    """A library of numpy's or scipy's, which reads the environment only once, in the nursery."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._calls: list[tuple[Any, Any]] = []
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_")):
            get, change = (
                f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")
            )
            with contextlib.suppress(AttributeError):
                self._calls.append((getattr(library, get), getattr(library, change)))

    def set_threads(self, threads: int) -> None:
        """It starts them at once: only where that changes something."""
        for get, change in self._calls:
            if get() != threads:
                change(threads)

    @staticmethod
    def loaded() -> list[_Blas]:
        """All that this process has loaded."""
        mapped = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
        return [_Blas(path) for path in {words[-1] for words in mapped if "openblas" in words[-1]}]


_blas: list[_Blas] = []  # What the nursery has loaded.


class _ToDriver(logging.Handler):
    """Sends log records to the driver, which handles them as its own."""

    def __init__(self, native: Any) -> None:
        super().__init__()
        self._native = native

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._native.log(_sendable(record.name), record.levelno, _sendable(self.format(record)))
        except Exception:
            self.handleError(record)


class _Worker:
    def __init__(self, native: Any) -> None:
        self._native = native
        self._pickled = b""
        self._setting: dict[str, Any] = {}
        self._place: tuple[Any, ...] | None = None
        self._threads = 0
        self._cpus = os.sched_getaffinity(0)
        self._inside = False  # the user's function
        self._overridden: dict[str, str | None] = {}  # what the environment had before the task
        random.seed()
        np.random.seed()
        logging.getLogger().addHandler(_ToDriver(native))
        signal.signal(_INTERRUPT, self._interrupt)
        native.interrupt_with(int(_INTERRUPT))

    def work(self) -> None:
        """Runs tasks until it is told to leave."""
        while (task := self._native.next()) is not None:
            self._run(task)
            del task

    def _interrupt(self, _signal: int, _frame: Any) -> None:
        if self._inside and self._native.cancelled():
            raise Cancelled

    def _run(self, task: Any) -> None:
        try:
            parts, shards = self._call(task)
        except BaseException as error:
            self._failed(error)
        else:
            self._native.done(parts, shards)
        finally:
            running.leave()

    def _call(self, task: Any) -> tuple[list[Any], list[Any]]:
        running.enter(task, self._native)
        setting, call, *buffers = task.take_parts()
        self._settle(bytes(setting))
        self._take_place(task)
        try:
            self._inside = True
            self._interrupt(0, None)  # Before this line a signal does nothing.
            function, args, kwargs = loads([call, *buffers], self._native.shards)
            result = function(*args, **kwargs)
        finally:
            self._inside = False
            self._clean_up()
        return dumps(result, home=self._native.shards)

    def _clean_up(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # Whatever the function made of it.
                stream.flush()
        for adapter in _adapters():
            try:
                adapter.end()
            except Exception:
                logging.getLogger("orca").warning("after a function", exc_info=True)

    def _settle(self, pickled: bytes) -> None:
        """The driver's environment, paths and directory."""
        if pickled != self._pickled:
            self._pickled = pickled
            self._setting = pickle.loads(pickled)
            self._place = None
            changes = self._setting["environment"]
            for name in self._overridden.keys() - changes.keys():
                _set_variable(name, self._overridden.pop(name))
            for name, value in changes.items():
                self._overridden.setdefault(name, os.environ.get(name))
                _set_variable(name, value)
        # The function before may have changed these.
        if sys.path != self._setting["path"]:
            sys.path[:] = self._setting["path"]
        if _directory() != self._setting["directory"]:
            os.chdir(self._setting["directory"])
        if logging.getLogger().level != self._setting["log_level"]:
            logging.getLogger().setLevel(self._setting["log_level"])

    def _take_place(self, task: Any) -> None:
        """This task's rank, processors and threads, unless they are as before."""
        address, _, port = task.master.rpartition(":")
        # Each call has a port of its own.
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address.strip("[]"), port
        place = (task.rank, task.world, task.local_rank, task.local_world, task.threads, task.cpus)
        if place == self._place:
            return
        os.environ |= {
            "RANK": str(task.rank),
            "WORLD_SIZE": str(task.world),
            "LOCAL_RANK": str(task.local_rank),
            "LOCAL_WORLD_SIZE": str(task.local_world),
            "OMP_NUM_THREADS": str(task.threads),
        }
        os.sched_setaffinity(0, task.cpus or self._cpus)
        if task.threads != self._threads:
            # Later there may be others, which functions have loaded.
            for library in _blas if self._threads == 0 else _Blas.loaded():
                library.set_threads(task.threads)
            self._threads = task.threads
            for adapter in _adapters():
                adapter.begin(task.threads)
        self._place = place

    def _failed(self, error: BaseException) -> None:
        name, message, text, parts = failure_of(error, __file__)
        echo = isinstance(error, (Cancelled, *_ECHOES))
        self._native.failed(name, message, text, echo, isinstance(error, PeerLostError), parts)


def failure_of(error: BaseException, caller: str) -> tuple[str, str, str, list[Any]]:
    """The name of an exception that a function raised, what it says, its traceback, and itself where it can be sent.

    Args:
        error: The exception.
        caller: The file that called the function: its frames are left out.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == caller:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    try:
        notes = getattr(error, "__notes__", ())
        cancelled = isinstance(error, Cancelled)
        message = "it was cancelled" if cancelled else "; ".join([str(error), *notes])
    except Exception:
        message = "(its text cannot be had)"
    try:
        parts, _ = dumps(error)
    except Exception:
        parts = []
    name = type(error).__qualname__
    if type(error).__module__ != "builtins" and not isinstance(error, OrcaError):
        name = f"{type(error).__module__}.{name}"
    return _sendable(name), _sendable(message), _sendable(text), parts


def _directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - every call asks, and a Path takes ten times as long.
    except OSError:  # Somebody removed it.
        return None


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _sendable(text: str) -> str:
    """Without lone surrogates, which UTF-8 cannot have."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def versions(frameworks: list[str]) -> dict[str, str]:
    """What a driver and its workers must have in common: pickles and byte code are of one version."""
    found = {"Python": "{}.{}".format(*sys.version_info)}
    for name in frameworks:
        if name in sys.modules:
            found[name] = str(sys.modules[name].__version__)
    return found


def nursery_environment(frameworks: list[str]) -> dict[str, str]:
    """What a nursery's environment has beside the driver's own."""
    changes = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    # Whoever asks for GPUs while torch is imported must not start CUDA: a fork would not have it.
    changes["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # TensorFlow imports pandas, and that a pyarrow whose allocator would have a thread of its own.
    changes["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    if "keras" in frameworks:
        changes["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
    changes |= {"ORCA_PRELOAD": ",".join(frameworks), "ORCA_SYS_PATH": json.dumps(sys.path)}
    ours = [*changes, "ORCA_NURSERY", "ORCA_BEFORE"]
    return changes | {"ORCA_BEFORE": json.dumps({name: os.environ.get(name) for name in ours})}


def nursery_command() -> list[str]:
    """How a nursery is started: the same interpreter, with the same paths."""
    program = (
        # Imports make much that stays, and a fifth of their time is spent looking for what does not.
        "import gc; gc.disable(); import json, os, sys; sys.path[:] = json.loads(os.environ.pop('ORCA_SYS_PATH')); "
        "from orca.worker import main; main()"
    )
    return [sys.executable, "-c", program]

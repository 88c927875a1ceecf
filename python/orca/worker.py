"""Workers: how they are born, and how they run the functions of ``orca.run``.

An agent starts ``main`` in a fresh process, the nursery. It imports one framework, runs nothing, and forks a worker
whenever the agent asks for one.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import json
import logging
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from orca import running
from orca._native import _core
from orca.errors import (
    AbortedError,
    OrcaError,
    PeerLostError,
    UnauthenticatedError,
    UnavailableError,
    WaitTimeoutError,
)

_INTERRUPT = signal.SIGUSR2
# What may only be the consequence of another rank's end.
_ECHOES = (PeerLostError, AbortedError, UnauthenticatedError, UnavailableError, WaitTimeoutError)


class Cancelled(BaseException):
    """Ends the function of a call that was cancelled. Not an ``Exception``: nobody catches it by accident."""


def main() -> NoReturn:
    """Runs the nursery until its agent is gone."""
    nursery = _core.Nursery()
    frameworks = [name for name in os.environ.get("ORCA_PRELOAD", "").split(",") if name]
    adapters = [importlib.import_module(f"orca.adapters.{name}.worker") for name in frameworks]
    importlib.import_module("cloudpickle")
    nursery.ready(_threads())
    gc.collect()
    gc.freeze()
    while (birth := nursery.next()) is not None:
        pid = os.fork()
        if pid == 0:
            _live(birth, [adapter.begin for adapter in adapters])
        nursery.forked(birth.worker, pid)
        del birth
    os._exit(0)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _live(birth: Any, begins: list[Callable[[int], None]]) -> NoReturn:
    code = 1
    try:
        birth.settle()
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), line_buffering=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w"), line_buffering=True, errors="backslashreplace"
        )
        faulthandler.enable(sys.stderr)
        native = _core.Worker(birth)
        # After the engine's own handler, which it calls: both stacks are printed.
        faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True, chain=True)
        _Worker(native, begins).work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class _ToDriver(logging.Handler):
    """Sends log records to the driver, which handles them as its own."""

    def __init__(self, native: Any) -> None:
        super().__init__()
        self._native = native

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._native.log(record.name, record.levelno, self.format(record))
        except Exception:
            self.handleError(record)


class _Worker:
    def __init__(self, native: Any, begins: list[Callable[[int], None]]) -> None:
        self._native = native
        self._begins = begins
        self._setting = b""
        self._place: tuple[Any, ...] | None = None
        self._cpus = os.sched_getaffinity(0)
        self._inside = False  # the user's function
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
            parts = self._call(task)
        except BaseException as error:
            self._failed(error)
        else:
            self._native.done(parts)
        finally:
            running.leave()

    def _call(self, task: Any) -> list[Any]:
        running.enter(task, self._native)
        setting, call, *buffers = task.take_parts()
        self._settle(bytes(setting))
        self._take_place(task)
        try:
            self._inside = True
            function, args, kwargs = pickle.loads(call, buffers=buffers)
            result = function(*args, **kwargs)
        finally:
            self._inside = False
        return running.dumps(result)

    def _settle(self, pickled: bytes) -> None:
        """The driver's environment, paths and directory, unless they are as before."""
        if pickled == self._setting:
            return
        self._setting = pickled
        setting = pickle.loads(pickled)
        for name, value in setting["environment"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.path[:] = setting["path"]
        os.chdir(setting["directory"])
        logging.getLogger().setLevel(setting["log_level"])
        self._place = None

    def _take_place(self, task: Any) -> None:
        """This task's rank, processors and threads, unless they are as before."""
        place = (task.rank, task.world, task.local_rank, task.local_world, task.threads, task.cpus)
        if place == self._place:
            return
        address, _, port = task.master.rpartition(":")
        os.environ |= {
            "RANK": str(task.rank),
            "WORLD_SIZE": str(task.world),
            "LOCAL_RANK": str(task.local_rank),
            "LOCAL_WORLD_SIZE": str(task.local_world),
            "MASTER_ADDR": address.strip("[]"),
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": str(task.threads),
        }
        os.sched_setaffinity(0, task.cpus or self._cpus)
        if self._place is None or self._place[4] != task.threads:
            for begin in self._begins:
                begin(task.threads)
        self._place = place

    def _failed(self, error: BaseException) -> None:
        cancelled = isinstance(error, Cancelled)
        echo = cancelled or isinstance(error, _ECHOES)
        # The first frames are this file's.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
        try:
            parts = running.dumps(error)
        except Exception:
            parts = []
        name = type(error).__qualname__
        if type(error).__module__ != "builtins" and not isinstance(error, OrcaError):
            name = f"{type(error).__module__}.{name}"
        self._native.failed(
            name, "it was cancelled" if cancelled else str(error), text, echo, parts
        )


def nursery_environment(frameworks: list[str]) -> dict[str, str]:
    """What a nursery's environment has beside the driver's own."""
    one = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    return one | {"ORCA_PRELOAD": ",".join(frameworks), "ORCA_SYS_PATH": json.dumps(sys.path)}


def nursery_command() -> list[str]:
    """How a nursery is started: the same interpreter, with the same paths."""
    program = (
        "import json, os, sys; sys.path[:] = json.loads(os.environ.pop('ORCA_SYS_PATH')); "
        "from orca.worker import main; main()"
    )
    return [sys.executable, "-c", program]

"""Runs checks on groups of real processes.

A check is a plain function of a module ``checks_*``. The processes start once a session (importing
torch takes seconds) and form a fresh process group for every check.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

__all__ = ["RankError", "RankPool", "free_port", "open_sockets", "plain"]

GRACE_SECONDS = 15.0


class RankError(AssertionError):
    """A check failed on some rank; holds what each rank said."""


@dataclass(frozen=True)
class Task:
    """What one process does: a check in a group of its own."""

    module: str
    function: str
    rank: int
    world: int
    backend: str | None
    store: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)


def free_port() -> int:
    """A port that nobody has, of those that the system gives to nobody who asks for any."""
    for attempt in range(1000):
        port = 10000 + (os.getpid() * 31 + attempt) % 20000
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RankError("no port of 127.0.0.1 is free: end what listens on 10000 to 29999")


def plain(value: Any) -> Any:
    """Turns tensors into (type, shape, numbers), so that results can be sent and compared."""
    if type(value).__module__.startswith("torch") and hasattr(value, "detach"):
        tensor = value.detach()
        if tensor.layout is not sys.modules["torch"].strided:
            tensor = tensor.to_dense()
        kind = str(tensor.dtype).removeprefix("torch.")
        numbers = tensor.float() if kind.startswith("float8") else tensor
        return kind, list(tensor.shape), numbers.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def open_sockets() -> set[str]:
    """The sockets that this process holds."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def _run(task: Task) -> Any:
    import torch.distributed as dist

    check = getattr(importlib.import_module(task.module), task.function)
    if task.backend is None:
        return plain(check(rank=task.rank, world=task.world, store=task.store, **task.arguments))
    before = open_sockets()
    options = dict(task.options)
    if task.backend == "orca":
        import orca.distributed

        if task.settings:
            options["pg_options"] = orca.distributed.Options(**task.settings)
    dist.init_process_group(
        task.backend,
        store=dist.FileStore(task.store, task.world),
        rank=task.rank,
        world_size=task.world,
        timeout=timedelta(seconds=options.pop("timeout", 30)),
        **options,
    )
    try:
        result = plain(check(**task.arguments))
    finally:
        dist.destroy_process_group()
        gc.collect()
    left = open_sockets() - before
    if task.backend == "orca" and left:
        raise AssertionError(f"sockets are left after the group was destroyed: {left}")
    return result


def _serve(connection: Connection) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if task is None:
            return
        try:
            answer = ("ok", _run(task))
        except BaseException:
            answer = ("error", traceback.format_exc())
        connection.send(answer)


class RankPool:
    """Processes that run checks. One check at a time."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="orca-test-"))
        self._count = 0

    def pids(self) -> set[int]:
        """The processes that may be there between two tests."""
        return {process.pid for process, _ in self._ranks if process.pid is not None}

    def sockets(self) -> set[str]:
        """This process's ends of the connections to them."""
        open_ends = [end.fileno() for _, end in self._ranks if not end.closed]
        return {str(Path(f"/proc/self/fd/{end}").readlink()) for end in open_ends}

    def close(self) -> None:
        """Ends the processes."""
        for _, connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.send(None)
        for process, connection in self._ranks:
            process.join(GRACE_SECONDS)
            connection.close()
        self._discard(range(len(self._ranks)))
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self,
        check: Callable[..., Any],
        backend: str | None,
        world: int,
        *,
        ranks: Iterable[int] | None = None,
        dies: Iterable[int] = (),
        timeout: float = 60.0,
        options: dict[str, Any] | None = None,
        settings: Sequence[dict[str, Any]] = (),
        **arguments: Any,
    ) -> dict[int, Any]:
        """Runs ``check`` on every rank and returns what each returned.

        Args:
            check: A function of a module that the processes can import.
            backend: The process group's backend; None: the check gets rank, world and store.
            world: How many ranks the group has.
            ranks: Those that take part; the others never come.
            dies: Ranks that end in the check; their result is None.
            timeout: Seconds for all.
            options: More for init_process_group; "timeout" is in seconds.
            settings: Orca's options, one dict a rank.
            **arguments: For the check.

        Raises:
            RankError: A rank raised, died or did not answer.
        """
        chosen = sorted(range(world) if ranks is None else ranks)
        self._start(max(chosen) + 1)
        self._count += 1
        store = str(self._folder / f"store-{self._count}")
        for rank in chosen:
            self._ranks[rank][1].send(
                Task(
                    check.__module__,
                    check.__name__,
                    rank,
                    world,
                    backend,
                    store,
                    options or {},
                    settings[rank] if settings else {},
                    arguments,
                )
            )
        answers = self._collect(set(chosen), set(dies), timeout)
        errors = {rank: text for rank, (kind, text) in answers.items() if kind == "error"}
        for rank in dies:
            if answers[rank][0] == "died":
                self._discard([rank])
        if errors:
            # The others may still wait for those that failed.
            self._discard(range(len(self._ranks)))
            raise RankError(
                "\n".join(f"--- rank {r}\n{text}" for r, text in sorted(errors.items()))
            )
        return {rank: value for rank, (_, value) in answers.items()}

    def _start(self, count: int) -> None:
        for index in range(len(self._ranks), count):
            self._ranks.append(self._spawn(index))
        for index, (process, _) in enumerate(self._ranks):
            if not process.is_alive():
                self._discard([index])
                self._ranks[index] = self._spawn(index)

    def _spawn(self, index: int) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ORCA_LOG": "warn"}
        before = {name: os.environ.get(name) for name in quiet}
        os.environ.update(quiet)
        try:
            process = self._context.Process(target=_serve, args=(theirs,), name=f"rank-{index}")
            process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()
        return process, ours

    def _collect(
        self, open_ranks: set[int], dies: set[int], timeout: float
    ) -> dict[int, tuple[str, Any]]:
        answers: dict[int, tuple[str, Any]] = {}
        deadline = time.monotonic() + timeout
        while open_ranks:
            left = deadline - time.monotonic()
            by_connection = {self._ranks[rank][1]: rank for rank in open_ranks}
            ready = wait(list(by_connection), max(left, 0.0))
            if not ready:
                for rank in sorted(open_ranks):
                    answers[rank] = ("error", f"no answer within the limit{self._stacks(rank)}")
                return answers
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = by_connection[connection]
                try:
                    answers[rank] = connection.recv()
                except (EOFError, ConnectionError):
                    kind = "died" if rank in dies else "error"
                    answers[rank] = (kind, None if kind == "died" else "the process died")
                open_ranks.discard(rank)
                if answers[rank][0] == "error":
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return answers

    def _stacks(self, rank: int) -> str:
        process = self._ranks[rank][0]
        if process.pid is None or not process.is_alive():
            return "; it is dead"
        os.kill(process.pid, signal.SIGUSR1)  # Its stacks go to stderr.
        process.join(0.5)
        return "; its stacks are in stderr"

    def _discard(self, indices: Iterable[int]) -> None:
        for index in indices:
            process, connection = self._ranks[index]
            if process.is_alive():
                process.kill()
            process.join(GRACE_SECONDS)
            connection.close()

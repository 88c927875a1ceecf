"""Functions that the tests of ``orca.run`` run on workers."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import orca
from processes import pss


def who() -> tuple[int, int, int, int]:
    return orca.rank(), orca.world_size(), orca.local_rank(), orca.local_world_size()


def rank_and_pid() -> tuple[int, int]:
    return orca.rank(), os.getpid()


def says_that_it_runs(folder: str) -> None:
    """A file a rank, whose name is its number and whose text is its process."""
    path = Path(folder, f"rank-{orca.rank()}")
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def hangs(folder: str) -> None:
    says_that_it_runs(folder)
    time.sleep(60)


def steps(folder: str, count: int, seconds: float) -> int:
    """So many steps with a collective."""
    says_that_it_runs(folder)
    done = 0
    for _ in range(count):
        select.select([], [], [], seconds)  # libfaketime has broken Python's time.sleep
        orca.barrier()
        done += 1
    return done


def waits_for_all(folder: str) -> None:
    """As most functions do when a rank dies: the others are in a collective."""
    says_that_it_runs(folder)
    if orca.rank() == orca.world_size() - 1:
        time.sleep(60)
    orca.barrier()


def counts(folder: str) -> int:
    """One more begin of this rank; returns how many there were."""
    path = Path(folder, f"begins-{orca.rank()}")
    with path.open("a") as file:
        file.write("x")
    return len(path.read_text())


def dies_once(folder: str, dying: int) -> tuple[int, int, int]:
    """Rank ``dying`` of the first attempt kills itself when all have met."""
    mark = Path(folder, "died")
    first = not mark.exists()
    orca.barrier()
    if first:
        if orca.rank() == dying:
            mark.touch()
            os.kill(os.getpid(), 9)
        Path(folder, f"survivor-{orca.rank()}").write_text(str(os.getpid()))
        orca.barrier()
    orca.barrier()
    return orca.rank(), orca.world_size(), os.getpid()


def dies_always(folder: str) -> None:
    counts(folder)
    os.kill(os.getpid(), 9)


def raises_on(rank: int, folder: str) -> None:
    counts(folder)
    if orca.rank() == rank:
        raise KeyError("on purpose")
    orca.barrier()


def changes_what_it_got(array: np.ndarray) -> float:
    before = float(array.sum())
    array += orca.rank() + 1
    orca.barrier()
    assert float(array.sum()) == before + array.size * (orca.rank() + 1)
    return before


def memory_with(array: np.ndarray | None) -> tuple[int, float]:
    """Pss while all ranks have read all of ``array``."""
    total = 0.0 if array is None else float(array.sum())
    orca.barrier()
    mine = pss()
    orca.barrier()
    return mine, total


def every_collective() -> dict[str, Any]:
    rank, world = orca.rank(), orca.world_size()
    mine = np.full(3, rank + 1.0)
    found = {
        "allreduce": orca.allreduce(mine.copy()),
        "max": orca.allreduce(mine.copy(), "max"),
        "broadcast": orca.broadcast(mine.copy(), root=1),
        "allgather": np.array(orca.allgather(mine)),
        "alltoall": np.array(orca.alltoall(np.arange(world) + 10.0 * rank)),
        "reduce_scatter": np.array(orca.reduce_scatter(np.arange(world, dtype=float))),
    }
    found["reduce"] = orca.reduce(mine.copy(), root=0)
    found["gather"] = orca.gather(mine, root=0)
    orca.barrier()
    in_place = np.ones(5)
    assert orca.allreduce(in_place) is in_place
    return found


def torch_in_place() -> list[float]:
    import torch

    tensor = torch.full((4,), orca.rank() + 1.0)
    where = tensor.data_ptr()
    orca.allreduce(tensor)
    assert tensor.data_ptr() == where
    return tensor.tolist()


def torch_distributed(leave: bool) -> list[float]:
    import torch
    import torch.distributed as dist

    import orca.distributed  # noqa: F401

    dist.init_process_group("orca")
    tensor = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    if leave:
        dist.destroy_process_group()
    return tensor.tolist()


def blas_threads() -> list[int]:
    """Of numpy's library, when it can tell."""
    import threadpoolctl

    np.ones((300, 300)) @ np.ones((300, 300))
    found = threadpoolctl.threadpool_info()
    return [entry["num_threads"] for entry in found if entry["internal_api"] == "openblas"]


def torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def prints() -> None:
    print("to output")
    print("to errors", file=sys.stderr)
    print("without an end", end="")


def logs() -> None:
    log = logging.getLogger("some.library")
    log.debug("too low")
    log.warning("beware of %s", "rank")
    try:
        raise ValueError("inner")
    except ValueError:
        log.exception("it failed")
    log.error("a lone \udc80 surrogate")


def floods(lines: int) -> None:
    for number in range(lines):
        print(f"{number:05} " + "x" * 60)


def floods_and_aborts(lines: int) -> None:
    floods(lines)
    os.abort()


def holds_the_gil(milliseconds: int) -> int:
    """A function of C that keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(milliseconds * 1000)
    return orca.rank()


def segfaults() -> None:
    ctypes.string_at(0)


def unsayable() -> None:
    raise ValueError("a lone \udc80 surrogate")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def mute() -> None:
    raise MuteError


def stubborn(folder: str) -> None:
    """Does not stop when it is asked to."""
    says_that_it_runs(folder)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except BaseException:
            continue


def tidies_up(folder: str) -> None:
    """Writes a file when it is stopped."""
    try:
        says_that_it_runs(folder)
        time.sleep(60)
    finally:
        time.sleep(0.1)
        Path(folder, f"tidy-{orca.rank()}").touch()


def starts_children(folder: str) -> None:
    """Children of all sorts: in the worker's group, and in a session of their own."""
    import subprocess

    subprocess.Popen(["sleep", "61"])
    subprocess.Popen(["sleep", "62"], start_new_session=True)
    says_that_it_runs(folder)
    time.sleep(60)


def meets(folder: str, mine: str, other: str) -> None:
    """Two calls that wait for one another."""
    Path(folder, mine).touch()
    end = time.monotonic() + 10
    while not Path(folder, other).exists():
        assert time.monotonic() < end
        time.sleep(0.002)


def dies_once_and_lingers(folder: str) -> tuple[int, int]:
    """Rank 2 dies; rank 1 takes its time to stop, rank 0 does not."""
    mark = Path(folder, "died")
    if not mark.exists():
        says_that_it_runs(folder)
        orca.barrier()
        if orca.rank() == 2:
            mark.touch()
            os.kill(os.getpid(), 9)
        try:
            time.sleep(60)
        finally:
            if orca.rank() == 1:
                Path(folder, "lingers").touch()
                time.sleep(0.15)
    return orca.rank(), orca.world_size()

"""Shards and stores in functions that ``orca.run`` runs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orca
from orca.data import ArrayStore, Shard
from orca.errors import ResourceExhaustedError, WorkerFailedError
from processes import SAFETY_SECONDS, descendants


@pytest.fixture
def context() -> Iterator[None]:
    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


def shard_files() -> dict[str, int]:
    """The descriptors of shards' memory that processes of this test have, by program."""
    found: dict[str, int] = {}
    for pid in {os.getpid()} | descendants(os.getpid()):
        process = Path(f"/proc/{pid}")
        try:
            status = (process / "status").read_text()
            links = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
        except OSError:
            continue
        name = status.split()[1]
        count = sum("orca-shard" in link for link in links)
        if count:
            found[name] = found.get(name, 0) + count
    return found


def own_memory(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array lies in memory that is mapped from a shard."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
        if begin <= address < end:
            return "orca-shard" in line
    return False


def test_a_shard_that_a_worker_has_is_the_same_in_the_next_function(context: None) -> None:
    def keep(given: ArrayStore) -> int:
        import builtins

        known: list[ArrayStore] = builtins.__dict__.setdefault("kept", [])
        known.append(given)
        return len({id(each.shards[0]) for each in known})

    store = ArrayStore()
    store.put({"x": np.arange(3)})
    assert [orca.run(keep, (store,), workers=1)[0] for _ in range(3)] == [1, 1, 1]
    other = ArrayStore()
    other.put({"x": np.arange(3)})
    assert orca.run(keep, (other,), workers=1) == [2]


def test_workers_read_what_the_driver_put(context: None) -> None:
    shard = Shard({"x": np.arange(100_000), "name": ["a"] * 100_000})

    def read(given: Shard) -> tuple[int, str, bool]:
        view = given.view()
        return int(view["x"].sum()), view["name"][7], own_memory(view["x"])

    expected = (99_999 * 50_000, "a", True)
    assert orca.run(read, args=(shard,), workers=3) == [expected] * 3
    assert orca.run(lambda: read(shard), workers=2) == [expected] * 2


@pytest.mark.slow
def test_a_context_inside_of_a_worker_has_shards_of_its_own(context: None) -> None:
    outer = [Shard(np.full(100, i)) for i in range(5)]

    def inside() -> tuple[int, int, Shard]:
        with orca.init_orca_context("local", cores=1):
            made = orca.run(lambda: Shard(np.full(100, 77)), workers=1)[0]
            seen = orca.run(lambda: int(outer[1].view().sum()), workers=1)[0]
            return int(made.view().sum()), seen, made

    made, seen, shard = orca.run(inside, workers=1)[0]
    assert (made, seen) == (7700, 100)
    assert shard.view().sum() == 7700
    assert outer[4].view().sum() == 400


def test_a_store_that_was_there_before_the_context_moves_into_it() -> None:
    store = ArrayStore()
    for part in np.array_split(np.arange(1000), 4):
        store.put({"y": part})

    def rows() -> list[int]:
        batches = store.batches(7, seed=1, rank=orca.rank(), world_size=orca.world_size())
        return [y for batch in batches for y in batch["y"].tolist()]

    with orca.init_orca_context("local", cores=2):
        seen = [y for part in orca.run(rows, workers=3) for y in part]
        assert sorted(seen) == list(range(1000))
        assert shard_files().get("orca", 0) == 4
    assert sorted(y for batch in store.batches(9) for y in batch["y"]) == list(range(1000))


def test_what_workers_return_is_not_copied(context: None) -> None:
    def make(rows: int) -> dict[str, Any]:
        return {"rank": orca.rank(), "shard": Shard(np.full(rows, orca.rank()))}

    results = orca.run(make, args=(10_000,), workers=3)
    for rank, result in enumerate(results):
        assert result["rank"] == rank
        assert own_memory(result["shard"].view())
        assert (result["shard"].view() == rank).all()
    shards = [result["shard"] for result in results]
    sums = orca.run(lambda: [int(shard.view().sum()) for shard in shards], workers=2)
    assert sums == [[0, 10_000, 20_000]] * 2


@pytest.mark.slow
def test_memory_is_used_again(context: None) -> None:
    for _ in range(20):
        shard = Shard(np.zeros(100_000))
        orca.run(lambda given: given.view().sum(), args=(shard,), workers=2)
        del shard
        gc.collect()
    assert shard_files()["orca"] <= 4


@pytest.mark.slow
def test_a_worker_that_dies_takes_nothing_with_it(context: None) -> None:
    """F01, O5"""
    shard = Shard(np.arange(1000))

    def die() -> None:
        mine = [Shard(np.zeros(100_000)) for _ in range(3)]
        assert shard.view().sum() == 999 * 500
        assert len(mine) == 3
        os.kill(os.getpid(), 9)

    for _ in range(4):
        with pytest.raises(WorkerFailedError, match="SIGKILL"):
            orca.run(die, workers=1)
    assert orca.run(lambda: int(shard.view().sum()), workers=1) == [999 * 500]
    assert shard_files()["orca"] <= 8


@pytest.mark.slow
def test_a_future_keeps_the_shards_of_its_call(context: None) -> None:
    shard = Shard(np.arange(1000))

    def late(given: Shard) -> int:
        time.sleep(0.3)
        return int(given.view().sum())

    future = orca.submit(late, (shard,), workers=2)
    del shard
    gc.collect()
    for _ in range(3):
        Shard(np.zeros(1000, np.int64))
    assert future.result(SAFETY_SECONDS) == [999 * 500] * 2


@pytest.mark.slow
def test_what_fits_neither_into_memory_nor_into_a_file_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F25"""
    monkeypatch.setenv("ORCA_SPILL", "/dev/shm")
    with orca.init_orca_context("local", cores=1, memory="64m"):
        with pytest.raises(ResourceExhaustedError, match=r"64\.0 MiB for shards.*/dev/shm"):
            Shard(np.zeros(100 << 20, np.uint8))
        Shard(np.zeros(1 << 20, np.uint8))


@pytest.mark.slow
def test_a_shard_outlives_its_context() -> None:
    with orca.init_orca_context("local", cores=1):
        mine = Shard(np.arange(10))
        theirs = orca.run(lambda: Shard(np.arange(20)), workers=1)[0]
        never_opened = orca.run(lambda: Shard(np.arange(20)), workers=1)[0]
        assert theirs.view().sum() == 190
    assert mine.view().sum() == 45
    assert theirs.view().sum() == 190
    with pytest.raises(orca.OrcaError, match="stopped"):
        never_opened.view()
    with orca.init_orca_context("local", cores=1):
        assert orca.run(lambda: int(mine.view().sum()), workers=1) == [45]

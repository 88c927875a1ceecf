"""Data creators: one download a machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import checks_estimator as checks
import orca
from orca.creators import once_a_node

pytestmark = pytest.mark.slow

WORKERS = 8


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


def loader(batch_size: int) -> Any:
    return DataLoader(TensorDataset(*map(torch.from_numpy, checks.rows(24))), batch_size)


def note(folder: Path, text: str) -> None:
    with (folder / "notes").open("a") as file:
        file.write(f"{text}\n")


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().split()


class Downloads:
    """Makes a file unless it is there, in no hurry."""

    def __init__(self, folder: Path, act: Callable[[], None] = lambda: None) -> None:
        self.folder, self.act = folder, act

    def __call__(self, config: dict[str, Any], batch_size: int) -> Any:
        note(self.folder, f"begun-{orca.local_rank()}")
        self.act()
        if not (self.folder / "data").exists():
            time.sleep(0.2)
            note(self.folder, "downloaded")
            (self.folder / "data").touch()
        return loader(batch_size)


def test_eight_workers_download_once(tmp_path: Path) -> None:
    made = checks.estimator(WORKERS)
    stats = made.fit(Downloads(tmp_path), epochs=2, batch_size=24)
    assert stats[0]["num_samples"] == 24
    found = notes(tmp_path)
    assert found[:2] == ["begun-0", "downloaded"]
    assert sorted(found[2:]) == [f"begun-{rank}" for rank in range(1, WORKERS)]


def test_the_others_run_together(tmp_path: Path) -> None:
    """Each waits until all others are inside: one after the other, they would wait for ever."""

    def meets() -> bool:
        with once_a_node():
            (tmp_path / f"in-{orca.rank()}").touch()
            end = time.monotonic() + 30
            while orca.rank() and len(list(tmp_path.glob("in-*"))) < WORKERS:
                assert time.monotonic() < end
                time.sleep(0.001)
        return True

    assert orca.run(meets, workers=WORKERS) == [True] * WORKERS


def test_an_error_of_the_first_reaches_the_user_and_nobody_else_begins(tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError("no route to the host of the data")

    with pytest.raises(orca.WorkerFailedError, match="no route to the host of the data") as caught:
        checks.estimator(WORKERS).fit(Downloads(tmp_path, fails), batch_size=24)
    assert caught.value.rank == 0
    assert notes(tmp_path) == ["begun-0"]


def test_the_death_of_the_first_ends_the_wait(tmp_path: Path) -> None:
    def dies() -> None:
        os.kill(os.getpid(), 9)

    with pytest.raises(orca.WorkerFailedError, match="SIGKILL"):
        checks.estimator(4).fit(Downloads(tmp_path, dies), batch_size=24, on_failure="raise")
    assert notes(tmp_path) == ["begun-0"]


@pytest.mark.parametrize("collective", [orca.barrier, lambda: orca.allreduce(torch.ones(1))])
def test_a_creator_may_talk_to_the_others(tmp_path: Path, collective: Any) -> None:
    """As those do that keep the others waiting themselves."""
    stats = checks.estimator(4).fit(Downloads(tmp_path, collective), batch_size=24)
    assert stats[0]["num_samples"] == 24
    assert sorted(n for n in notes(tmp_path) if n != "downloaded") == [
        f"begun-{rank}" for rank in range(4)
    ]


def test_a_single_worker_has_nobody_to_wait_for(tmp_path: Path) -> None:
    stats = checks.estimator(1).fit(Downloads(tmp_path), batch_size=24)
    assert stats[0]["num_samples"] == 24
    assert notes(tmp_path) == ["begun-0", "downloaded"]

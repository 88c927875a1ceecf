"""Shards beyond the memory for them, which lie in files."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orca
from checks_estimator import OPTIMIZERS
from orca.data import Shard, SparkXShards, XShards
from orca.learn.pytorch import Estimator
from processes import agent_of, memory_cgroup

pytestmark = pytest.mark.slow

FEATURES = 2048
MEMORY = 8 << 20


@pytest.fixture
def spill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a disk, where shards go; nothing is ever seen in it."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    monkeypatch.setenv("ORCA_SPILL", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    shutil.rmtree(folder)


def bytes_in_files(spill: Path) -> int:
    """What the agent keeps there."""
    found = 0
    for descriptor in Path(f"/proc/{agent_of(os.getpid())}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It is closed meanwhile.
            if str(descriptor.readlink()).startswith(str(spill)):
                found += descriptor.stat().st_size
    return found


def net(config: dict[str, Any]) -> torch.nn.Module:
    return torch.nn.Linear(FEATURES, 3)


def estimator() -> Any:
    return Estimator.from_torch(
        model=net,
        optimizer=OPTIMIZERS["adam"],
        loss=torch.nn.CrossEntropyLoss(),
        workers_per_node=2,
    )


def rows() -> tuple[Any, Any]:
    """Five times the memory."""
    random = np.random.default_rng(0)
    count = 5 * MEMORY // (4 * FEATURES)
    x = random.standard_normal((count, FEATURES), np.float32)
    return x, random.integers(0, 3, count)


def train(as_shards: bool) -> tuple[dict[str, Any], Any, Any]:
    x, y = rows()
    data = {"x": x, "y": y}
    made = estimator()
    given = XShards.partition(data, 10) if as_shards else data
    stats = made.fit(given, epochs=2, batch_size=64, seed=5)
    return made.get_model().state_dict(), made.predict(XShards.partition({"x": x}, 6)), stats


@pytest.mark.parametrize("as_shards", [True, False])
def test_training_on_five_times_the_memory_gives_the_same_bits(
    as_shards: bool, spill: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with orca.init_orca_context("local", cores=2):
        expected, predicted, expected_stats = train(as_shards)
        expected_rows = [shard["prediction"] for shard in predicted.collect()]
        assert bytes_in_files(spill) == 0
    with orca.init_orca_context("local", cores=2, memory=MEMORY):
        found, predicted, stats = train(as_shards)
        assert bytes_in_files(spill) >= 4 * MEMORY
        found_rows = [shard["prediction"] for shard in predicted.collect()]
        del predicted
        assert orca.run(lambda: os.getpid(), workers=1)
    for name in expected:
        assert torch.equal(found[name], expected[name])
    for a, b in zip(found_rows, expected_rows, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [s["train_loss"] for s in stats] == [s["train_loss"] for s in expected_stats]
    assert caplog.text.count(f"go to files in {spill}") == 1


def test_predictions_larger_than_the_memory_are_shards_in_files(spill: Path) -> None:
    """And a worker that makes many of them makes several shards."""
    x = np.random.default_rng(1).standard_normal((45_000, 4), np.float32)
    model = torch.nn.Linear(4, 800)
    with orca.init_orca_context("local", cores=2, memory=MEMORY):
        made = Estimator.from_torch(
            model=model,
            optimizer=OPTIMIZERS["sgd"],
            loss=torch.nn.MSELoss(),
            workers_per_node=2,
        )
        found = made.predict(XShards.partition({"x": x}, 7), batch_size=1000)
        assert isinstance(found, SparkXShards)
        assert bytes_in_files(spill) > 45_000 * 800 * 4 - MEMORY
        expected = model(torch.from_numpy(x)).detach().numpy()
        shards = found.collect()
        assert [len(shard["x"]) for shard in shards] == [6429] * 4 + [6428] * 3
        np.testing.assert_allclose(
            np.concatenate([shard["prediction"] for shard in shards]), expected, atol=1e-5
        )
        np.testing.assert_array_equal(np.concatenate([shard["x"] for shard in shards]), x)
        del shards, found
        Shard(np.zeros(1))
        assert bytes_in_files(spill) < MEMORY


def test_workers_read_files_and_transform_them_into_files(spill: Path) -> None:
    with orca.init_orca_context("local", cores=2, memory=MEMORY):
        data = np.arange(6 << 20, dtype=np.int32)
        shards = XShards.partition({"x": data}, 12)
        doubled = shards.transform_shard(lambda shard: {"x": shard["x"] * 2})
        assert bytes_in_files(spill) > 32 << 20
        joined = np.concatenate([shard["x"] for shard in doubled.collect()])
        np.testing.assert_array_equal(joined, data * 2)
        totals = shards.transform_shard(lambda shard: {"x": shard["x"][:1]}).collect()
        assert [int(total["x"][0]) for total in totals] == [i << 19 for i in range(12)]


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup (v1) of 640 MB below our own."""
    with memory_cgroup(640 << 20) as folder:
        yield folder


def test_data_three_times_the_cgroups_memory_trains(small_cgroup: Path, spill: Path) -> None:
    """F07: pages of files are given back; nobody is killed."""
    script = Path(__file__).with_name("scripts_spill.py")
    done = subprocess.run(
        [sys.executable, str(script), str(small_cgroup), str(3 * (640 << 20))],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "go to files in" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("trained on 1920 MB"), done.stdout

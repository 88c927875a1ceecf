"""AutoEstimator: data is loaded once for many trials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orca
from orca.adapters.torch.tuning import TorchData, _Noting
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator

pytestmark = pytest.mark.slow
WORKERS = 2


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    orca.init_orca_context("local", cores=WORKERS)
    yield
    orca.stop_orca_context()


def search(folder: Path, data: Any, space: dict[str, Any], **changes: Any) -> AutoEstimator:
    est = AutoEstimator.from_torch(
        model_creator=changes.pop("model", lambda config: nn.Linear(4, 1)),
        optimizer="SGD",
        loss=nn.MSELoss(),
        logs_dir=str(folder),
        name=changes.pop("name", "test"),
    )
    est.fit(data, validation_data=data, metric="mse", search_space=space, **changes)
    return est


class Creator:
    """Leaves a file for every call."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __call__(self, config: dict[str, Any]) -> DataLoader[Any]:
        name = f"call-{os.getpid()}-{len(list(Path(self._folder).glob('call-*')))}"
        (Path(self._folder) / name).touch()
        draws = np.random.default_rng(0)
        x = torch.from_numpy(draws.normal(size=(64, 4))).float()
        rows = TensorDataset(x, x.sum(dim=1, keepdim=True))
        return DataLoader(rows, batch_size=config["batch_size"], shuffle=True)


def test_what_a_creator_loaded_serves_all_trials_of_a_worker(tmp_path: Path) -> None:
    space = {"lr": hp.loguniform(1e-3, 1e-1), "batch_size": 16}
    est = search(tmp_path, Creator(tmp_path), space, n_sampling=8, epochs=3, seed=1)
    assert [trial.state for trial in est.trials] == ["finished"] * 8
    assert len(list(tmp_path.glob("call-*"))) <= WORKERS


def test_a_creator_is_called_again_for_other_values_of_what_it_reads(tmp_path: Path) -> None:
    class Reads(Creator):
        def __call__(self, config: dict[str, Any]) -> DataLoader[Any]:
            loader = super().__call__(config)
            assert loader.batch_size == config["batch_size"]
            return loader

    sizes = [8, 16, 32, 64]
    space = {"lr": 0.01, "batch_size": hp.grid_search(sizes)}
    search(tmp_path, Reads(tmp_path), space, epochs=2)
    assert len(list(tmp_path.glob("call-*"))) >= len(sizes)


def test_trials_learn_the_same_whoever_loaded_their_rows(tmp_path: Path) -> None:
    space = {"lr": hp.loguniform(1e-3, 1e-1), "batch_size": 16}
    given: dict[str, Any] = {"n_sampling": 4, "epochs": 3, "seed": 5}
    first = search(tmp_path, Creator(tmp_path), space, name="first", **given)
    again = search(tmp_path, Creator(tmp_path), space, name="again", **given)
    assert [trial.reports for trial in first.trials] == [trial.reports for trial in again.trials]


class Signed(nn.Linear):
    """Leaves a file for every process that makes one."""

    def __init__(self, folder: str) -> None:
        super().__init__(4, 1)
        (Path(folder) / f"process-{os.getpid()}").touch()


@pytest.mark.parametrize("reuse", [True, False])
def test_trials_have_processes_of_their_own_where_that_is_wanted(
    reuse: bool, tmp_path: Path
) -> None:
    where = str(tmp_path)
    rows = np.ones((64, 4), np.float32)
    space = {"lr": hp.loguniform(1e-3, 1e-1), "batch_size": 16}
    found = []
    for name, again in (("one", reuse), ("other", True)):
        est = search(
            tmp_path,
            (rows, rows[:, :1]),
            space,
            model=lambda config: Signed(where),
            name=name,
            n_sampling=6,
            epochs=2,
            seed=3,
            reuse_workers=again,
        )
        found.append([trial.reports for trial in est.trials])
        if name == "one":
            processes = len(list(tmp_path.glob("process-*")))
            assert processes <= 2 * WORKERS if reuse else processes >= 6
    assert found[0] == found[1]


def test_what_reads_a_configuration_is_noted() -> None:
    given = {"a": 1, "b": {"c": 2}, "d": 3}

    def reads(function: Any) -> set[str]:
        config = _Noting(given)
        function(config)
        return config.read

    everything = {"a", "b", "d"}
    assert reads(lambda config: None) == set()
    assert reads(lambda config: config["a"]) == {"a"}
    assert reads(lambda config: config.get("z", 1)) == {"z"}
    assert reads(lambda config: "z" in config) == {"z"}
    assert reads(lambda config: config["b"]["c"]) == {"b"}
    for whole in (
        dict,
        list,
        sorted,
        repr,
        len,
        lambda config: {**config},
        lambda config: dict(**config),
        lambda config: {}.update(config),
        lambda config: config | {"a": 2},
        lambda config: config.copy(),
        lambda config: list(config.items()),
        lambda config: list(config.values()),
        lambda config: config == given,
        __import__("json").dumps,
        __import__("copy").deepcopy,
        __import__("pickle").dumps,
    ):
        assert reads(whole) >= everything, whole


class Weighing(nn.Linear):
    """Notes how much memory is this process's own: not of a file that others may map, too."""

    def __init__(self, folder: str) -> None:
        super().__init__(1024, 1)
        self._folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        own = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
        (Path(self._folder) / f"own-{os.getpid()}").write_text(str(own))
        return super().forward(x)


def test_arrays_are_in_memory_once(tmp_path: Path) -> None:
    own = {}
    for name, count in (("small", 1 << 10), ("large", 1 << 15)):
        folder = tmp_path / name
        folder.mkdir()
        where = str(folder)
        rows = np.ones((count, 1024), np.float32)  # The large one has 128 MiB.
        space = {"lr": 1e-6, "batch_size": 256, "n": hp.grid_search([1, 2])}
        search(
            folder, (rows, rows[:, :1]), space, model=lambda config, where=where: Weighing(where)
        )
        own[name] = max(int(path.read_text()) for path in folder.glob("own-*"))
    # Batches of 1 MiB, and what the allocator keeps.
    assert own["large"] - own["small"] < 64 << 10


def test_loaders_with_a_state_are_not_shared(tmp_path: Path) -> None:
    folder = tmp_path

    def creator(config: dict[str, Any]) -> DataLoader[Any]:
        loader = Creator(folder)(config)
        return DataLoader(
            loader.dataset, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1)
        )

    made = TorchData(creator, nn.MSELoss(), {}).of({"batch_size": 16})
    assert made({}, 1) is not made({}, 1)
    made = TorchData(Creator(folder), nn.MSELoss(), {}).of({"batch_size": 16})
    assert made({}, 1) is made({}, 1)

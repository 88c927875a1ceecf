"""AutoEstimator: data is loaded once for many trials."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orca.adapters.torch.tuning import TorchData
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.automl.model.base_pytorch_model import PytorchModelBuilder
from orca.automl.reads import NotingDict
from orca.automl.search import SearchEngineFactory
from orca.data import XShards
from orca.errors import FailedPreconditionError, InvalidArgumentError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]
WORKERS = 2


def search(folder: Path, data: Any, space: dict[str, Any], **changes: Any) -> AutoEstimator:
    est = AutoEstimator.from_torch(
        model_creator=changes.pop("model", lambda config: nn.Linear(4, 1)),
        optimizer="SGD",
        loss=changes.pop("loss", nn.MSELoss()),
        logs_dir=str(folder),
        name=changes.pop("name", "test"),
    )
    given = {"validation_data": data, "metric": "mse", "search_space": space} | changes
    est.fit(data, **given)
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
        config = NotingDict(given)
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
        space = {"lr": hp.grid_search([1e-6, 2e-6]), "batch_size": 256}
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

    made = TorchData(creator, {}).source({"batch_size": 16}, has_classes=False).loader
    assert made({}, 1) is not made({}, 1)
    made = TorchData(Creator(folder), {}).source({"batch_size": 16}, has_classes=False).loader
    assert made({}, 1) is made({}, 1)


def columns() -> dict[str, np.ndarray]:
    x = np.random.default_rng(2).normal(size=(64, 4))
    return {"x": x, "y": x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0}


def kinds(rows: dict[str, np.ndarray]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The same rows in all ways, and what ``fit`` takes with them."""
    names = {"feature_cols": "x", "label_cols": "y"}
    frame = pd.DataFrame({"x": list(rows["x"]), "y": rows["y"]})
    return {
        "tuple": ((rows["x"], rows["y"]), {}),
        "dict": (rows, {}),
        "shards": (XShards.partition(rows, num_shards=2), {}),
        "frame": (frame, names),
    }


@pytest.mark.parametrize("is_class", [False, True])
def test_rows_of_all_kinds_give_the_same_trial(is_class: bool, tmp_path: Path) -> None:
    rows = columns()
    changes: dict[str, Any] = {}
    if is_class:
        rows["y"] = (rows["y"] > 0).astype(np.int32)
        changes = {
            "metric": "accuracy",
            "loss": nn.CrossEntropyLoss(),
            "model": lambda config: nn.Linear(4, 2),
        }
    found = {}
    for name, (data, more) in kinds(rows).items():
        space = {"lr": 0.1, "batch_size": 64}
        est = search(tmp_path, data, space, name=name, epochs=5, seed=1, **changes, **more)
        found[name] = est.trials[0].reports
    assert len(set(map(str, found.values()))) == 1, found


def test_one_column_of_numbers_is_a_feature(tmp_path: Path) -> None:
    rows = columns()
    frame = pd.DataFrame({"x": rows["x"][:, 1], "y": rows["x"][:, 1] * 3})
    est = search(
        tmp_path,
        frame,
        {"lr": 0.1, "batch_size": 16},
        model=lambda config: nn.Linear(1, 1),
        feature_cols="x",
        label_cols="y",
        epochs=20,
        seed=1,
    )
    assert est.get_best_model().weight.item() == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("kind", ["tuple", "shards", "frame"])
def test_creators_find_the_sizes_of_the_data_then_and_later(kind: str, tmp_path: Path) -> None:
    data, more = kinds(columns())[kind]

    def model(config: dict[str, Any]) -> nn.Module:
        return nn.Linear(config["input_feature_num"], config["output_feature_num"])

    space = {"lr": hp.choice([0.01]), "batch_size": 16}
    for count in (1, 2):
        est = search(
            tmp_path, data, space, model=model, n_sampling=count, resume="auto", seed=1, **more
        )
        assert est.get_best_model().weight.shape == (1, 4)
        assert est.get_best_config() == {"lr": 0.01, "batch_size": 16}
    builder = PytorchModelBuilder(model, "SGD", "MSELoss")
    engine = SearchEngineFactory.create_engine(backend="ray", logs_dir=str(tmp_path), name="engine")
    engine.compile(
        data,
        builder,
        validation_data=data,
        metric="mse",
        search_space=space,
        metric_mode="min",
        **more,
    )
    engine.run()
    best = engine.get_best_trial()
    built = builder.build(best.config)
    built.restore(best.model_path)
    assert built.model.weight.shape == (1, 4)


@pytest.mark.parametrize("how", ["instance", "name", "creator"])
def test_labels_stay_integers_however_the_loss_is_given(how: str, tmp_path: Path) -> None:
    loss = {
        "instance": nn.CrossEntropyLoss(),
        "name": "CrossEntropyLoss",
        "creator": lambda config: nn.CrossEntropyLoss(label_smoothing=config["smooth"]),
    }[how]
    rows = columns()
    data = rows["x"], (rows["y"] > 0).astype(np.int64)
    given: dict[str, Any] = {"model": lambda config: nn.Linear(4, 2), "metric": "accuracy"}
    space = {"lr": 0.1, "batch_size": 16, "smooth": hp.grid_search([0.0, 0.1])}
    if how != "creator":  # Nothing else reads it.
        space |= {"lr": hp.grid_search([0.1, 0.2])}
        del space["smooth"]
    est = search(tmp_path, data, space, loss=loss, **given)
    assert [trial.state for trial in est.trials] == ["finished", "finished"]
    built = PytorchModelBuilder(given["model"], "SGD", loss).build({"smooth": 0.0, "lr": 0.1})
    assert built.fit_eval(data, data, metric="accuracy", batch_size=16, epochs=5)["accuracy"] > 0.7


def test_a_creator_may_take_losses_of_classes_and_of_values(tmp_path: Path) -> None:
    rows = columns()
    data = rows["x"], (rows["y"] > 0).astype(np.int64)
    est = search(
        tmp_path,
        data,
        {"lr": 0.1, "batch_size": 16, "outputs": hp.grid_search([1, 2])},
        model=lambda config: nn.Linear(4, config["outputs"]),
        loss=lambda config: nn.MSELoss() if config["outputs"] == 1 else nn.CrossEntropyLoss(),
        metric="accuracy",
        epochs=3,
    )
    assert [trial.state for trial in est.trials] == ["finished", "finished"]


def test_models_and_rows_in_the_place_of_creators_are_told(tmp_path: Path) -> None:
    space = {"lr": 0.1, "batch_size": 16}
    data = columns()["x"], columns()["y"]
    with pytest.raises(InvalidArgumentError, match=r"model_creator is a model, a Linear.*lambda"):
        search(tmp_path, data, space, model=nn.Linear(4, 1))
    with pytest.raises(FailedPreconditionError, match=r"tuple of arrays; return a .*DataLoader"):
        search(tmp_path, lambda config: data, space)
    with pytest.raises(FailedPreconditionError, match=r"NoneType; return a .*DataLoader"):
        search(tmp_path, lambda config: None, space, name="nothing")
    with pytest.raises(FailedPreconditionError, match=r"DataFrame; return a .*DataLoader"):
        search(tmp_path, lambda config: pd.DataFrame({"x": data[1]}), space, name="frame")


# --- what a trial reads of its configuration


def pairs(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    return x, x.sum(axis=1)


@pytest.mark.parametrize("optimizer", ["Adam", torch.optim.Adam])
def test_learning_rate_is_the_rate_of_an_optimizer_that_is_no_creator(
    optimizer: Any, tmp_path: Path
) -> None:
    found = []
    for name in ("lr", "learning_rate"):
        est = AutoEstimator.from_torch(
            model_creator=lambda config: nn.Linear(4, 1),
            optimizer=optimizer,
            loss=nn.MSELoss(),
            logs_dir=str(tmp_path),
            name=name,
        )
        space = {name: hp.grid_search([1e-7, 0.1]), "batch_size": 16}
        given = {"validation_data": pairs(), "metric": "mse", "seed": 1}
        est.fit(pairs(), epochs=2, search_space=space, **given)
        assert est.get_best_config()[name] == 0.1
        found.append([trial.reports for trial in est.trials])
    assert found[0] == found[1]
    both = {"lr": 0.1, "learning_rate": 0.1, "batch_size": 16}
    with pytest.raises(InvalidArgumentError, match="both 'lr' and 'learning_rate'"):
        AutoEstimator.from_torch(
            model_creator=print, optimizer=optimizer, loss=nn.MSELoss(), logs_dir=str(tmp_path)
        ).fit(pairs(), search_space=both, **given)


def test_a_key_that_nothing_reads_is_an_error_that_names_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    est = AutoEstimator.from_torch(
        model_creator=lambda config: nn.Linear(4, 1),
        optimizer="SGD",
        loss=nn.MSELoss(),
        logs_dir=str(tmp_path),
    )
    space = {"lr": 0.1, "batch_size": 16, "hiden": hp.choice([8, 16]), "droput": 0.1}
    message = (
        "'droput', 'hiden' of search_space had no effect: nothing has read it in any of 2 trials"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        est.fit(
            pairs(), validation_data=pairs(), metric="mse", search_space=space, n_sampling=3, seed=1
        )
    assert isinstance(est.get_best_model(), nn.Linear)  # What was found is not lost.
    (early,) = (text for text in caplog.messages if "has read no" in text)
    assert early.endswith("has read no 'droput', 'hiden' of search_space")


def test_a_key_that_not_even_a_function_reads_is_an_error(tmp_path: Path) -> None:
    est = AutoEstimator.from_torch(
        model_creator=lambda config: nn.Linear(4, 1),
        optimizer="SGD",
        loss=nn.MSELoss(),
        logs_dir=str(tmp_path),
    )
    space = {
        "lr": hp.sample_from(lambda spec: 0.1 * spec.config["base"]),
        "base": hp.choice([1, 2]),
        "hiden": 8,
        "batch_size": 16,
    }
    with pytest.raises(InvalidArgumentError, match="'hiden' of search_space had no effect"):
        est.fit(pairs(), validation_data=pairs(), metric="mse", search_space=space, seed=1)


def test_an_optimizer_of_another_model_fails_its_trials(tmp_path: Path) -> None:
    def optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(nn.Linear(7, 5).parameters(), config["lr"])

    est = AutoEstimator.from_torch(
        model_creator=lambda config: nn.Linear(4, 1),
        optimizer=optimizer,
        loss=nn.MSELoss(),
        logs_dir=str(tmp_path),
    )
    with pytest.raises(
        FailedPreconditionError, match="SGD updates 2 tensors that the model does not have"
    ):
        est.fit(
            pairs(),
            validation_data=pairs(),
            metric="mse",
            search_space={"lr": 0.1, "batch_size": 16},
            n_sampling=2,
        )


@pytest.mark.parametrize("root", ["bigdl", "zoo"])
def test_under_the_old_roots_a_key_that_nothing_reads_is_a_warning(
    root: str, tmp_path: Path
) -> None:
    module = importlib.import_module(f"{root}.orca.automl.auto_estimator")
    est = module.AutoEstimator.from_torch(
        model_creator=lambda config: nn.Linear(4, 1),
        optimizer="SGD",
        loss="MSELoss",
        logs_dir=str(tmp_path),
    )
    space = {"lr": 0.1, "batch_size": 16, "hiden": hp.choice([8, 16])}
    with pytest.warns(UserWarning, match="'hiden' of search_space had no effect"):
        est.fit(pairs(), validation_data=pairs(), metric="mse", search_space=space, seed=1)
    assert est.get_best_config()["lr"] == 0.1


class Late(nn.Linear):
    """Reads its configuration while it is trained."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(4, 1)
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.config["late"]


def everything(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(len({**config} and [1, 2, 3, 4]), 1)


def some(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(4, 1, bias=config["bias"] if config["kind"] == "b" else True)


def columns_of(config: dict[str, Any]) -> DataLoader[Any]:
    x, y = pairs(config["rows"])
    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)[:, None]), 16)


@pytest.mark.parametrize(
    ("changes", "data", "space"),
    [
        ({"model_creator": Late}, pairs(), {"late": hp.choice([1.0, 2.0])}),
        ({"model_creator": everything}, pairs(), {"any": hp.choice([1, 2])}),
        (
            {"model_creator": some},
            pairs(),
            {"kind": hp.grid_search(["a", "b"]), "bias": hp.choice([True, False])},
        ),
        (
            {"loss": lambda config: nn.HuberLoss(delta=config["delta"])},
            pairs(),
            {"delta": hp.uniform(1, 2)},
        ),
        ({}, columns_of, {"rows": hp.grid_search([32, 64, 64, 32])}),
        ({"model_creator": everything}, pairs(), {"size_float": hp.uniform(1, 2)}),
        (
            {},
            pairs(),
            {"base": hp.choice([1, 2]), "lr": hp.sample_from(lambda s: 0.1 * s.config.base)},
        ),
    ],
    ids=["late", "all", "condition", "loss", "data", "float", "function"],
)
def test_what_some_trial_reads_somewhere_is_no_error(
    changes: dict[str, Any], data: Any, space: dict[str, Any], tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "model_creator": lambda config: nn.Linear(4, 1),
        "optimizer": "SGD",
        "loss": nn.MSELoss(),
        "logs_dir": str(tmp_path),
    }
    est = AutoEstimator.from_torch(**(given | changes))
    space = {"lr": 0.01} | space | ({} if callable(data) else {"batch_size": 16})
    est.fit(data, validation_data=data, search_space=space, metric="mse", n_sampling=2, seed=1)
    assert est.get_best_model() is not None

"""AutoEstimator: what its trials learn, which wins, and what bad calls say."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orca
from orca.automl import hp, metrics
from orca.automl.auto_estimator import AutoEstimator
from orca.errors import FailedPreconditionError, InvalidArgumentError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


def rows(count: int = 256, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 4))
    return x, x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0


def linear(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(4, 1)


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config["lr"])


def auto(folder: Path, **changes: Any) -> AutoEstimator:
    given: dict[str, Any] = {
        "model_creator": linear,
        "optimizer": sgd,
        "loss": nn.MSELoss(),
        "logs_dir": str(folder),
        "name": "test",
    }
    return AutoEstimator.from_torch(**(given | changes))


SPACE = {"lr": hp.grid_search([1e-5, 0.1]), "batch_size": 32}


def test_the_better_rate_wins_and_its_model_is_the_one_that_was_measured(tmp_path: Path) -> None:
    est = auto(tmp_path)
    validation = rows(64, seed=1)
    est.fit(rows(), epochs=3, validation_data=validation, metric="mse", search_space=SPACE, seed=1)
    assert [trial.state for trial in est.trials] == ["finished", "finished"]
    assert est.get_best_config() == {"lr": 0.1, "batch_size": 32}
    model = est.get_best_model()
    with torch.no_grad():
        found = model(torch.from_numpy(validation[0]).float()).numpy()[:, 0]
    assert metrics.MSE(validation[1], found) == pytest.approx(est.get_best_trial().value, rel=1e-5)
    assert est.get_best_trial().value < 0.01


def test_a_trial_learns_what_plain_torch_learns(tmp_path: Path) -> None:
    x, y = rows(96)
    est = auto(tmp_path, loss="MSELoss", optimizer="SGD")
    est.fit(
        (x, y),
        epochs=2,
        validation_data=(x, y),
        metric="mae",
        search_space={"lr": 0.05, "batch_size": 96, "unused": hp.choice([1])},
        seed=3,
    )
    torch.manual_seed(3)
    model = linear({})
    optimizer = sgd(model, {"lr": 0.05})
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()[:, None]
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    for mine, theirs in zip(est.get_best_model().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def loader(config: dict[str, Any]) -> DataLoader[Any]:
    x, y = rows()
    labels = (y > 0).astype(np.int64)
    dataset = TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(labels))
    return DataLoader(dataset, batch_size=config["batch_size"], shuffle=True)


def classifier(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, config["width"]),
        nn.ReLU(),
        nn.Linear(config["width"], 2),
        nn.LogSoftmax(dim=1),
    )


def test_creators_of_loaders_names_and_accuracy_as_in_the_seed(tmp_path: Path) -> None:
    est = auto(
        tmp_path,
        model_creator=classifier,
        loss=nn.NLLLoss(),
        optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=config["lr"]),
        resources_per_trial={"cpu": 2},
    )
    space = {
        "width": hp.grid_search([8, 16]),
        "lr": hp.loguniform(0.005, 0.02),
        "batch_size": hp.choice([16, 32]),
    }
    est.fit(
        data=loader,
        validation_data=loader,
        search_space=space,
        n_sampling=2,
        epochs=3,
        metric="accuracy",
    )
    assert len(est.trials) == 4
    assert sorted(trial.config["width"] for trial in est.trials) == [8, 8, 16, 16]
    assert set(est.get_best_config()) == set(space)
    assert est.get_best_trial().value > 0.9
    assert isinstance(est.get_best_model(), nn.Sequential)


def test_the_seeds_calls_without_validation_data(tmp_path: Path) -> None:
    for number, more in enumerate(
        (
            {"search_alg": "bayesopt"},
            {
                "search_alg": "skopt",
                "scheduler": "AsyncHyperBand",
                "scheduler_params": {
                    "max_t": 50,
                    "grace_period": 1,
                    "reduction_factor": 3,
                    "brackets": 3,
                },
            },
        )
    ):
        est = auto(tmp_path, name=f"seed{number}")
        with pytest.warns(UserWarning, match="training rows"):
            est.fit(
                loader_of_values,
                search_space={"lr": hp.uniform(0.001, 0.1), "height": hp.uniform(-100, 100)},
                metric="mean_loss",
                mode="min",
                n_sampling=3,
                **more,
            )
        assert len(est.trials) == 3
        assert est.get_best_trial().value == min(trial.value for trial in est.trials)


def loader_of_values(config: dict[str, Any]) -> DataLoader[Any]:
    x, y = rows()
    return DataLoader(
        TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y).float()[:, None]),
        batch_size=32,
    )


class Fragile(nn.Linear):
    def __init__(self, how: str) -> None:
        super().__init__(4, 1)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "raises":
            raise ValueError("for the test")
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x) * (float("nan") if self.how == "nan" else 1)


@pytest.mark.parametrize("how", ["raises", "dies", "nan"])
def test_a_failed_trial_is_kept_and_never_wins(how: str, tmp_path: Path) -> None:
    est = auto(tmp_path, model_creator=lambda config: Fragile(config["how"]))
    given = {
        "validation_data": rows(64),
        "metric": "mse",
        "search_space": {"how": hp.grid_search([how, "well"]), "lr": 0.01, "batch_size": 64},
    }
    est.fit(rows(), **given)
    assert sorted(trial.state for trial in est.trials) == ["failed", "finished"]
    assert est.get_best_config()["how"] == "well"
    (text,) = tmp_path.glob("test/*/error.txt")
    said = {"raises": "for the test", "dies": "SIGKILL", "nan": "not finite"}[how]
    assert said in text.read_text() or (how == "nan" and "nan" in text.read_text())
    est = auto(tmp_path, model_creator=lambda config: Fragile(how), name="all")
    with pytest.raises(FailedPreconditionError, match="1 of 1 trials failed"):
        est.fit(rows(), **(given | {"search_space": {"lr": 0.01, "batch_size": 64}}))


class Shooting(nn.Linear):
    """Knows the answer, and raises in its second epoch."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.load_state_dict(
            {"weight": torch.tensor([[1.0, -2.0, 0.5, 0.0]]), "bias": torch.ones(1)}
        )
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            if self.steps > 256 // 32:
                raise ValueError("too good to be true")
        return super().forward(x)


def test_what_an_earlier_run_found_stays_the_best_when_a_better_trial_fails(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    for samples in (1, 2):
        est = auto(tmp_path, model_creator=lambda _: Shooting() if flag.exists() else linear({}))
        est.fit(
            rows(),
            epochs=3,
            validation_data=rows(64),
            metric="mse",
            search_space={"lr": hp.uniform(1e-5, 1e-4), "batch_size": 32},
            n_sampling=samples,
            seed=1,
            resume="auto",
        )
        flag.touch()
    assert [trial.state for trial in est.trials] == ["finished", "failed"]
    assert est.trials[1].reports[0][1] < est.trials[0].value
    assert est.get_best_trial().number == 0


@pytest.mark.parametrize(
    ("scheduler", "params"),
    [
        ("async_hyperband", {"max_t": 9, "reduction_factor": 3}),
        ("hyperband", {"max_t": 9, "reduction_factor": 3}),
        (
            "pbt",
            {"perturbation_interval": 2, "hyperparam_mutations": {"lr": [0.001, 0.01, 0.1]}},
        ),
    ],
)
def test_schedulers_stop_pause_and_clone(
    scheduler: str, params: dict[str, Any], tmp_path: Path
) -> None:
    est = auto(tmp_path)
    est.fit(
        rows(),
        epochs=9,
        validation_data=rows(64, seed=1),
        metric="mse",
        search_space={"lr": hp.loguniform(1e-5, 0.1), "batch_size": 64},
        n_sampling=9,
        scheduler=scheduler,
        scheduler_params=params,
        seed=5,
    )
    lengths = [len(trial.reports) for trial in est.trials]
    assert len(lengths) == 9
    if scheduler == "pbt":
        assert [trial.reports[-1][0] for trial in est.trials] == [9] * 9
        assert len({trial.config["lr"] for trial in est.trials}) < 9  # Some took over another's.
        assert est.get_best_trial().value < 0.2
    else:
        assert sum(lengths) < 9 * 8
        assert max(lengths) == 9
        assert est.get_best_trial().value < 1.0


def test_the_log_folder_is_that_of_ray_tune(tmp_path: Path) -> None:
    est = auto(tmp_path)
    est.fit(rows(), epochs=2, validation_data=rows(64), metric="rmse", search_space=SPACE)
    folders = sorted((tmp_path / "test").glob("train_func_*"))
    assert len(folders) == 2
    for folder, trial in zip(folders, est.trials, strict=True):
        assert json.loads((folder / "params.json").read_text())["lr"] == trial.config["lr"]
        lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
        assert [line["training_iteration"] for line in lines] == [1, 2]
        assert [line["rmse"] for line in lines] == [value for _, value in trial.reports]
        assert lines[-1]["best_rmse"] == min(line["rmse"] for line in lines)
        with (folder / "progress.csv").open() as file:
            assert [float(row["rmse"]) for row in csv.DictReader(file)] == [
                v for _, v in trial.reports
            ]
        assert (folder / "best.ckpt").exists()


def test_a_threshold_ends_a_trial(tmp_path: Path) -> None:
    est = auto(tmp_path)
    est.fit(
        rows(),
        epochs=50,
        validation_data=rows(64),
        metric=lambda truth, found: float(np.mean((truth - found) ** 2)),
        metric_mode="min",
        metric_threshold=0.05,
        search_space={"lr": 0.1, "batch_size": 32},
    )
    (trial,) = est.trials
    assert trial.state == "finished"
    assert len(trial.reports) < 50
    assert trial.reports[-1][1] <= 0.05
    assert all(value > 0.05 for _, value in trial.reports[:-1])


SCRIPT = """
import os, sys
import numpy as np, torch
from torch import nn
import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
def main():
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 4)); y = x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0
    orca.init_orca_context("local", cores=1)
    est = AutoEstimator.from_torch(model_creator=lambda config: nn.Linear(4, 1), optimizer="SGD", loss=nn.MSELoss(),
                                   logs_dir=sys.argv[1], name="killed")
    est.fit((x, y), epochs=3, validation_data=(x, y), metric="mse", n_sampling=8, seed=4, resume="auto",
            search_space={"lr": hp.loguniform(1e-4, 0.1), "batch_size": 64}, search_alg="tpe")
    model = est.get_best_model()
    print([(t.config, t.state, t.reports) for t in est.trials], est.get_best_config(), model.weight.tolist())
    orca.stop_orca_context()
main()
"""


def test_a_search_that_is_killed_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(SCRIPT)

    def start(folder: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    whole = start("whole").communicate(timeout=180)[0]
    assert "finished" in whole
    process = start("killed")
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "killed").glob("killed/train_func_*"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    assert start("killed").communicate(timeout=180)[0] == whole
    assert start("killed").communicate(timeout=180)[0] == whole  # Nothing is left to do.


def test_an_interrupt_stops_a_search_which_can_go_on(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(
        SCRIPT.replace("epochs=3", "epochs=300").replace("n_sampling=8", "n_sampling=200")
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "logs")], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "logs").glob("killed/train_func_*/result.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]


def test_bad_calls_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="valid torch optimizer name"):
        auto(tmp_path, optimizer="Adamm")
    with pytest.raises(InvalidArgumentError, match="valid torch loss name"):
        auto(tmp_path, loss="MSE")
    with pytest.raises(InvalidArgumentError, match="cpu"):
        auto(tmp_path, resources_per_trial={"cpu": 0})
    est = auto(tmp_path)
    good: dict[str, Any] = {"validation_data": rows(64), "metric": "mse", "search_space": SPACE}
    for changes, message in (
        ({"metric": "mze"}, "metric mze is not supported"),
        ({"metric": lambda a, b: 0.0}, "`metric_mode`"),
        ({"metric_mode": "least"}, r"one of \['min', 'max'\]"),
        ({"metric_mode": "max", "mode": "min"}, "differ"),
        ({"search_space": None}, "search_space"),
        ({"validation_data": None}, "You must input validation data!"),
        ({"search_alg": 3}, "search_alg should be of type str. Got int"),
        ({"search_alg": "tpee"}, "known"),
        ({"scheduler": "hyperbond"}, "hyperband"),
        ({"epochs": 0}, "epochs 0"),
        ({"search_alg": "tpe"}, "[Gg]rid"),
    ):
        with pytest.raises(RuntimeError, match=message):
            est.fit(rows(), **(good | changes))
    with pytest.raises(FailedPreconditionError, match="call fit first"):
        est.get_best_model()
    est.fit(rows(), **good)  # A fit that failed its checks may be repeated.
    with pytest.raises(RuntimeError, match="has already been fitted"):
        est.fit(rows(), **good)
    est = auto(tmp_path, name="sizes")
    with pytest.raises(FailedPreconditionError, match="batch_size"):
        est.fit(rows(), **(good | {"search_space": {"lr": 0.1}}))
    est = auto(tmp_path, name="model", model_creator=lambda config: 3)
    with pytest.raises(FailedPreconditionError, match="You must create a torch model"):
        est.fit(rows(), **good)


@pytest.mark.parametrize("root", ["bigdl", "zoo"])
def test_the_old_roots_have_it(root: str, tmp_path: Path) -> None:
    import importlib

    module = importlib.import_module(f"{root}.orca.automl.auto_estimator")
    assert (
        importlib.import_module(f"{root}.orca.automl.metrics").Evaluator.get_metric_mode("r2")
        == "max"
    )
    est = module.AutoEstimator.from_torch(
        model_creator=linear, optimizer="SGD", loss="MSELoss", logs_dir=str(tmp_path)
    )
    est.fit(rows(), validation_data=rows(64), metric="r2", search_space=SPACE)
    assert est.get_best_config()["lr"] == 0.1


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    example = Path(__file__).parents[2] / "examples" / name
    done = subprocess.run(
        [sys.executable, str(example), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_example_runs(tmp_path: Path) -> None:
    done = run_example(
        "auto_estimator.py", "--trials", "4", "--epochs", "3", "--logs", str(tmp_path)
    )
    assert done.stdout.startswith("accuracy ")
    assert "training on" not in done.stderr
    assert done.stderr.count("epochs: best accuracy") == 4


def test_the_examples_of_the_old_documentation_run(tmp_path: Path) -> None:
    said = run_example("zoo_auto_lenet.py", "--rows", "1000", "--logs", str(tmp_path)).stdout
    assert "\nLeNet with {'fc1_hidden_size': " in said
    assert len(list(tmp_path.glob("lenet_mnist/train_func_*"))) == 4
    said = run_example("zoo_auto_search.py", "--samples", "4", "--logs", str(tmp_path)).stdout
    assert "\nbayesopt: {'width': " in said
    assert "of 4 trials were stopped early" in said

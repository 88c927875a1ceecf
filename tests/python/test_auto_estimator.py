"""AutoEstimator: what its trials learn, and which wins."""

from __future__ import annotations

import csv
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orca
from orca import running
from orca.automl import hp, metrics
from orca.automl.auto_estimator import AutoEstimator
from orca.errors import FailedPreconditionError
from processes import huge, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


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
    weights = list(tmp_path.rglob("best.ckpt"))
    assert len(weights) == 2
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in weights)
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
        search_space={"lr": 0.05, "batch_size": hp.choice([96])},
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


class Scaled(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.scale = config["scale"]

    def forward(self, output: Any, target: Any) -> Any:
        return self.scale * nn.functional.mse_loss(output, target)


@pytest.mark.parametrize(
    ("loss", "space"),
    [
        (nn.MSELoss, {}),
        (nn.functional.mse_loss, {}),
        (lambda output, target: ((output - target) ** 2).mean(), {}),
        (lambda config: nn.MSELoss(), {}),
        (Scaled, {"scale": 1.0}),
    ],
)
def test_a_loss_may_be_a_class_a_function_or_a_creator(
    loss: Any, space: dict[str, Any], tmp_path: Path
) -> None:
    found = []
    for name, each in (("given", loss), ("plain", nn.MSELoss())):
        est = auto(tmp_path, loss=each, name=name)
        est.fit(
            rows(64),
            validation_data=rows(32),
            metric="mse",
            search_space={"lr": 0.1, "batch_size": 32, **(space if name == "given" else {})},
            seed=3,
        )
        found.append(est.get_best_trial().value)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.functional.cross_entropy])
def test_losses_of_classes_get_integers(loss: Any, tmp_path: Path) -> None:
    x, y = rows(64)
    labels = (y > 0).astype(np.int64)
    est = auto(tmp_path, loss=loss, model_creator=lambda config: nn.Linear(4, 2))
    est.fit(
        (x, labels),
        validation_data=(x, labels),
        metric="accuracy",
        search_space={"lr": 0.5, "batch_size": 32},
        epochs=3,
        seed=1,
    )
    assert est.get_best_trial().value > 0.8


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
        seed=1,
    )
    assert len(est.trials) == 4
    assert sorted(trial.config["width"] for trial in est.trials) == [8, 8, 16, 16]
    assert set(est.get_best_config()) == set(space)
    assert est.get_best_trial().value > 0.9
    assert isinstance(est.get_best_model(), nn.Sequential)


def reads_height(config: dict[str, Any]) -> nn.Module:
    assert abs(config["height"]) <= 100
    return linear(config)


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
        est = auto(tmp_path, name=f"seed{number}", model_creator=reads_height)
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


class Noting(nn.Linear):
    """Leaves what it was made of in a file."""

    def __init__(self, config: dict[str, Any], folder: str) -> None:
        super().__init__(4, 1)
        self.config = config
        (Path(folder) / f"config-{os.getpid()}").write_text(json.dumps(config, sort_keys=True))


def test_names_for_searchers_of_floats_are_replaced_by_what_they_stand_for(tmp_path: Path) -> None:
    space = {
        "lr": 0.01,
        "bayes_feature_hour": hp.uniform(0.6, 0.9),
        "bayes_feature_day of week": 0.5,
        "bayes_feature_month": hp.uniform(0.1, 0.4),
        "batch_size_log": hp.uniform(5.2, 5.8),
        "layers_float": hp.uniform(3.1, 3.9),
        "mixed_float": "no number",
    }
    folder = str(tmp_path)
    est = auto(tmp_path, model_creator=lambda config: Noting(config, folder))
    est.fit(rows(), validation_data=rows(64), metric="mse", search_space=space)
    seen = est.get_best_model().config
    batch_size = int(2 ** est.get_best_config()["batch_size_log"])
    assert 36 <= batch_size < 56
    own = {k: v for k, v in seen.items() if not k.endswith(("_feature_num", "_seq_len"))}
    assert own == {
        "lr": 0.01,
        "selected_features": json.dumps(["hour", "day of week"]),
        "batch_size": batch_size,
        "layers": 3,
        "mixed_float": "no number",
    }
    # Those of the workers, too; the search itself keeps its names.
    assert {path.read_text() for path in tmp_path.glob("config-*")} == {
        json.dumps(seen, sort_keys=True)
    }
    assert set(est.get_best_config()) == set(space)


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


class Gated(nn.Module):
    """Its outputs are finite whatever its weights are; its mask is not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num(torch.sigmoid(self.linear(x)))


@pytest.mark.filterwarnings("ignore:there is no validation_data")
@pytest.mark.parametrize("how", ["outputs", "weights", "training"])
def test_what_the_last_step_ruined_never_wins(how: str, tmp_path: Path) -> None:
    creator = (lambda config: nn.Linear(4, 2)) if how == "outputs" else (lambda config: Gated())
    est = auto(tmp_path, model_creator=creator, loss=nn.CrossEntropyLoss())
    data = rows(40)[0], np.array([1, 1] + 38 * [0])
    measured = {} if how == "training" else {"validation_data": data, "metric": "accuracy"}
    space = {"lr": hp.grid_search([1e39, 1e-6]), "batch_size": 40}
    est.fit(data, search_space=space, retries=3, **measured)
    assert [(trial.state, trial.retries) for trial in est.trials] == [
        ("failed", 0),
        ("finished", 0),
    ]
    assert est.get_best_config()["lr"] == 1e-6


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


def test_a_clone_that_weights_do_not_fit_fails_and_the_search_goes_on(tmp_path: Path) -> None:
    est = auto(tmp_path, model_creator=classifier, loss=nn.NLLLoss())
    est.fit(
        loader,
        validation_data=loader,
        epochs=4,
        metric="accuracy",
        search_space={"width": hp.grid_search([2, 3, 4, 5]), "lr": 0.1, "batch_size": 64},
        scheduler="pbt",
        scheduler_params={
            "perturbation_interval": 1,
            "quantile_fraction": 0.5,
            "synch": True,
            "resample_probability": 0,
            "hyperparam_mutations": {"width": [2, 3, 4, 5]},
        },
        seed=1,
    )
    states = [trial.state for trial in est.trials]
    assert "failed" in states
    assert "finished" in states
    failed = est.trials[states.index("failed")]
    assert "this is the state of another model: '0.weight' is (" in failed.error
    assert est.get_best_trial().state == "finished"


@pytest.mark.parametrize("most", [1, 2])
def test_as_many_trials_run_at_once_as_the_searcher_allows(most: int, tmp_path: Path) -> None:
    def model(config: dict[str, Any]) -> nn.Module:
        (tmp_path / f"begun-{config['lr']}").touch()
        begun = len(list(tmp_path.glob("begun-*")))
        ended = len(list(tmp_path.glob("test/train_func_*/best.ckpt")))
        assert begun - ended <= most
        deadline = time.monotonic() + 60
        while begun < most and time.monotonic() < deadline:  # The other one is to come.
            begun = len(list(tmp_path.glob("begun-*")))
        assert begun >= most
        return linear(config)

    est = auto(tmp_path, model_creator=model)
    est.fit(
        rows(),
        validation_data=rows(64),
        metric="mse",
        search_space={"lr": hp.uniform(0, 0.1), "batch_size": 64},
        n_sampling=6,
        search_alg="hyperopt",
        search_alg_params={"max_concurrent": most},
    )
    assert [trial.state for trial in est.trials] == ["finished"] * 6, est.trials[-1].error


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


def _linear_beside_few_others(config: dict[str, Any]) -> nn.Module:
    gc.disable()  # On the worker.
    alive, kept, _ = _count_trials()
    assert alive == kept + 1 <= 4, (alive, kept)  # The one that begins is not kept yet.
    return nn.Linear(4, 1)


def _count_trials() -> tuple[int, int, int]:
    from orca.adapters.torch import trial_epochs

    alive = sum(isinstance(each, trial_epochs._Trial) for each in gc.get_objects())
    return alive, len(trial_epochs._trials), len(trial_epochs._sources)


def _enable_collector() -> None:
    gc.enable()


def test_workers_keep_the_memory_of_a_few_trials_only(tmp_path: Path) -> None:
    orca.run(gc.collect, workers=2)  # What earlier tests left in cycles: a traceback, say.
    search = auto(tmp_path, model_creator=_linear_beside_few_others)
    space = {"lr": hp.uniform(0.01, 0.1), "batch_size": 64}
    search.fit(
        rows(),
        validation_data=rows(),
        metric="mse",
        search_space=space,
        n_sampling=24,
        raise_on_failed_trial=True,
    )
    assert orca.run(_count_trials, workers=2) == [(0, 0, 0)] * 2  # And none behind the search.
    orca.run(_enable_collector, workers=2)


def _parent() -> int:
    import torch

    assert float(torch.ones(3) @ torch.ones(3)) == 3  # It works as ever.
    return os.getppid()


def test_processes_that_come_and_go_are_forked_from_huge_pages() -> None:
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip("this kernel has no MADV_COLLAPSE")

    def fork() -> int:
        with running.fresh_workers():
            nursery: int = orca.run(_parent, workers=1, threads=1)[0]
        return nursery

    nursery = fork()
    for _ in range(40):
        assert fork() == nursery
    wait_until(lambda: huge(fork()) > (32 << 20), "its memory is in huge pages")


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
        seed=1,
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


INTERRUPT = """
import glob, signal, threading, time
def interrupt():
    while not glob.glob(sys.argv[1] + "/killed/train_func_*/result.json"):
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=interrupt).start()
main()
"""


@pytest.mark.parametrize("thread", ["any", "another"])
def test_an_interrupt_stops_a_search_which_can_go_on(thread: str, tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    text = SCRIPT.replace("epochs=3", "epochs=300").replace("n_sampling=8", "n_sampling=200")
    if thread == "another":  # The kernel may give a signal to any of them.
        text = text.removesuffix("main()\n") + INTERRUPT
    script.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "logs")], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "logs").glob("killed/train_func_*/result.json")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if thread == "any":
            process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.communicate()


def test_what_is_asked_for_when_all_trials_failed_says_why(tmp_path: Path) -> None:
    est = auto(tmp_path, model_creator=lambda config: Fragile("raises"))
    space = {"lr": hp.grid_search([0.1, 0.2]), "batch_size": 64}
    said = r"2 of 2 trials failed; the first one, trial 0:.*ValueError: for the test"
    with pytest.raises(FailedPreconditionError, match="(?s)" + said):
        est.fit(rows(), validation_data=rows(64), metric="mse", search_space=space)
    for ask in (est.get_best_model, est.get_best_config, est.get_best_trial):
        with pytest.raises(FailedPreconditionError, match="(?s)there is no best trial: " + said):
            ask()
    with pytest.raises(RuntimeError, match="has already been fitted"):
        est.fit(rows(), validation_data=rows(64), metric="mse", search_space=space)


def test_what_was_found_before_an_interrupt_is_there(tmp_path: Path) -> None:
    def stop() -> None:
        wait_until(lambda: any(tmp_path.glob("*/*_00002/best.ckpt")), "the third trial reports")
        os.kill(os.getpid(), signal.SIGINT)

    est = auto(tmp_path)
    space = {"lr": hp.uniform(0.01, 0.1), "batch_size": 64}
    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        est.fit(rows(), 3, rows(64), metric="mse", search_space=space, n_sampling=-1)
    stopper.join(60)
    assert len(est.trials) >= 3
    assert est.get_best_trial().reports
    assert isinstance(est.get_best_model(), nn.Linear)


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
    est.fit(rows(), validation_data=rows(64), metric="r2", search_space=SPACE, seed=1)
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

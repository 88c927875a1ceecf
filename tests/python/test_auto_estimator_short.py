"""AutoEstimator: trials that are so short that a worker makes some of them in one call."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca.adapters.torch.tuning import TorchSpec
from orca.automl import hp, trial_search
from orca.automl.auto_estimator import AutoEstimator
from orca.automl.trial_search import Search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

TRIALS = 60


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trials were made in each call for several, on however slow a machine."""
    found: list[int] = []
    real = TorchSpec.make_ahead

    def make_ahead(trials: list[Any]) -> None:
        found.append(len(trials))
        real(trials)

    monkeypatch.setattr(TorchSpec, "make_ahead", staticmethod(make_ahead))
    monkeypatch.setattr(trial_search, "_CALL", 10.0)
    return found


def search(
    folder: Path,
    creator: Callable[[dict[str, Any]], nn.Module],
    resources: dict[str, int] | None = None,
    **changes: Any,
) -> AutoEstimator:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(8, 2)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    est = AutoEstimator.from_torch(
        model_creator=lambda config: creator(dict(config)),  # That reads all of it.
        optimizer="SGD",
        loss=nn.MSELoss(),
        logs_dir=str(folder),
        resources_per_trial=resources,
        name="s",
    )
    given: dict[str, Any] = {
        "epochs": 1,
        "validation_data": (x, y),
        "metric": "mse",
        "search_space": {"n": hp.grid_search(list(range(TRIALS))), "lr": 0.1, "batch_size": 4},
        "search_alg": "random",
        "seed": 1,
    }
    est.fit((x, y), **(given | changes))
    return est


def line(_config: dict[str, Any]) -> nn.Module:
    return nn.Linear(2, 1)


def test_they_are_what_they_are_alone(tmp_path: Path, calls: list[int]) -> None:
    space = {"lr": hp.loguniform(1e-3, 0.5), "batch_size": hp.choice([2, 4])}
    given: dict[str, Any] = {"search_space": space, "n_sampling": TRIALS}
    together = search(tmp_path / "a", line, **given)
    assert max(calls) > 1
    made = len(calls)
    alone = search(tmp_path / "b", line, trial_timeout=60, **given)
    assert len(calls) == made
    assert [trial.state for trial in together.trials] == ["finished"] * TRIALS
    assert [(t.config, t.reports) for t in together.trials] == [
        (t.config, t.reports) for t in alone.trials
    ]
    for ours, theirs in zip(together.best_trials(), alone.best_trials(), strict=True):
        assert ours[0].number == theirs[0].number
        assert ours[1].read_bytes() == theirs[1].read_bytes()
        names = {path.name.split(".")[0] for path in ours[1].parent.iterdir()}
        assert names == {"best", "events", "params", "progress", "result"}
    assert len(list((tmp_path / "a/s_leaderboard").iterdir())) == TRIALS
    assert len(list((tmp_path / "b/s_leaderboard").iterdir())) == TRIALS


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 2},
        {"search_alg": "tpe", "search_space": {"lr": hp.uniform(0.01, 0.1), "batch_size": 4}},
        {"scheduler": "async_hyperband"},
        {"retries": 1},
        {"reuse_workers": False, "search_space": {"lr": hp.uniform(0, 0.1), "batch_size": 4}},
    ],
)
def test_where_something_is_decided_between_them_each_is_made_alone(
    changes: dict[str, Any], tmp_path: Path, calls: list[int]
) -> None:
    est = search(tmp_path, line, **({"n_sampling": 8 if "lr" in str(changes) else 1} | changes))
    assert not calls
    assert {trial.state for trial in est.trials} <= {"finished", "pruned"}


def test_one_that_raises_does_so_once_and_alone(tmp_path: Path, calls: list[int]) -> None:
    notes = tmp_path / "notes"

    def creator(config: dict[str, Any]) -> nn.Module:
        with notes.open("a") as file:
            file.write(f"{config['n']}\n")
        if config["n"] % 7 == 3:
            raise ValueError(f"for the test, {config['n']}")
        return nn.Linear(2, 1)

    est = search(tmp_path, creator)
    assert max(calls) > 1
    assert Counter(map(int, notes.read_text().split())) == Counter(range(TRIALS))
    for trial in est.trials:
        number = trial.config["n"]
        if number % 7 != 3:
            assert trial.state == "finished"
            continue
        assert trial.state == "failed"
        assert f"raised ValueError: for the test, {number}\n" in trial.error
        assert "in creator" in trial.error
        folder = est.folder_of(trial)
        assert folder is not None
        assert (folder / "error.txt").read_text() == trial.error


def test_one_that_is_not_finite_fails(tmp_path: Path, calls: list[int]) -> None:
    def creator(config: dict[str, Any]) -> nn.Module:
        model = nn.Linear(2, 1)
        if config["n"] % 10 == 9:
            nn.init.constant_(model.weight, torch.nan)
        return model

    est = search(tmp_path, creator)
    assert max(calls) > 1
    failed = [trial.config["n"] for trial in est.trials if trial.state == "failed"]
    assert failed == list(range(9, TRIALS, 10))
    assert all("not finite" in trial.error for trial in est.trials if trial.state == "failed")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_takes_its_worker_along_is_the_only_one_that_fails(
    sent: signal.Signals, tmp_path: Path, calls: list[int]
) -> None:
    def creator(config: dict[str, Any]) -> nn.Module:
        if config["n"] == 40:
            os.kill(os.getpid(), sent)
        return nn.Linear(2, 1)

    est = search(tmp_path, creator)
    assert max(calls) > 1
    states = {trial.config["n"]: trial.state for trial in est.trials}
    assert states == {n: "failed" if n == 40 else "finished" for n in range(TRIALS)}


def test_each_begins_in_the_directory_of_the_program(tmp_path: Path, calls: list[int]) -> None:
    below = tmp_path / "below"
    below.mkdir()
    way = os.path.relpath(below)

    def creator(_config: dict[str, Any]) -> nn.Module:
        os.chdir(way)  # Again would lead elsewhere.
        return nn.Linear(2, 1)

    est = search(tmp_path, creator)
    assert max(calls) > 1
    assert [trial.state for trial in est.trials] == ["finished"] * TRIALS


def test_a_space_that_ends_early_is_exhausted(tmp_path: Path, calls: list[int]) -> None:
    space = {"n": hp.randint(0, 30), "lr": 0.1, "batch_size": 4}
    est = search(tmp_path, line, search_space=space, n_sampling=-1)
    assert max(calls) > 1
    assert sorted(trial.config["n"] for trial in est.trials) == list(range(30))


@pytest.mark.parametrize("limit", ["max_concurrent", "cpu"])
def test_no_more_compute_at_a_time_than_are_allowed(
    limit: str, tmp_path: Path, calls: list[int]
) -> None:
    mark = tmp_path / "mark"

    def creator(_config: dict[str, Any]) -> nn.Module:
        mark.mkdir()  # Raises while another one is at it.
        time.sleep(0.001)
        mark.rmdir()
        return nn.Linear(2, 1)

    of_one = {"max_concurrent": 1} if limit == "max_concurrent" else None
    cores = {"cpu": 2} if limit == "cpu" else None
    est = search(tmp_path, creator, cores, search_alg_params=of_one)
    assert max(calls) > 1
    assert [trial.state for trial in est.trials] == ["finished"] * TRIALS


def test_threads_that_wait_do_not_wake_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = Search._room

    def room(*given: Any) -> int:
        looks.append(given)
        return real(*given)

    def creator(_config: dict[str, Any]) -> nn.Module:
        time.sleep(0.5)  # Two compute, and the spare threads wait.
        return nn.Linear(2, 1)

    monkeypatch.setattr(Search, "_room", room)
    space = {"n": hp.grid_search([1, 2, 3, 4]), "lr": 0.1, "batch_size": 4}
    search(tmp_path, creator, search_space=space)
    assert len(looks) < 100

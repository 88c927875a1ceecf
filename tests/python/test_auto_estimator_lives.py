"""Trials with several lives: clones of PBT, configurations that change, searches that lie beside each other."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca.automl import hp, metrics
from orca.automl.auto_estimator import AutoEstimator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

RATES = [0.001, 0.05, 0.7, 1.05, 1.2]  # The last two drive weights away.


def rows(count: int = 128, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(count, 4)).astype(np.float32)
    return x, (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0).astype(np.float32)


def auto(folder: Path, **changes: Any) -> AutoEstimator:
    given: dict[str, Any] = {
        "model_creator": lambda config: nn.Linear(4, 1),
        "optimizer": lambda model, config: torch.optim.SGD(
            model.parameters(), lr=config["net"]["lr"]
        ),
        "loss": nn.MSELoss(),
        "logs_dir": str(folder),
        "name": "test",
        "resources_per_trial": {"cpu": 2},  # One at a time: what a scheduler sees is the same.
    }
    return AutoEstimator.from_torch(**(given | changes))


def fit(est: AutoEstimator, **changes: Any) -> AutoEstimator:
    given: dict[str, Any] = {
        "epochs": 8,
        "validation_data": rows(64, seed=1),
        "metric": "mse",
        "search_space": {"net": {"lr": hp.choice(RATES), "unused": 3}, "batch_size": 64},
        "n_sampling": 6,
        "seed": 3,
    }
    est.fit(rows(), **(given | changes))
    return est


PBT: dict[str, Any] = {
    "scheduler": "pbt",
    "scheduler_params": {
        "perturbation_interval": 1,
        "resample_probability": 0.5,
        "hyperparam_mutations": {"net": {"lr": RATES}},
    },
}


def test_the_best_epoch_of_any_life_has_its_weights_and_its_configuration(tmp_path: Path) -> None:
    # All drive weights away: what a trial had before it was cloned may be its best.
    rates = [1.02, 1.05, 1.1, 1.2]
    space = {"net": {"lr": hp.uniform(1.02, 1.2), "unused": 3}, "batch_size": 64}
    pbt = {"perturbation_interval": 1, "hyperparam_mutations": {"net": {"lr": rates}}}
    est = fit(auto(tmp_path), search_space=space, scheduler="pbt", scheduler_params=pbt)
    x, y = rows(64, seed=1)
    before = 0
    with sqlite3.connect(tmp_path / "test/study.db") as file:
        for trial, weights in est.best_trials():
            lines = (weights.parent / "result.json").read_text().splitlines()
            best = min(json.loads(line)["mse"] for line in lines)
            model = nn.Linear(4, 1)
            model.load_state_dict(torch.load(weights, weights_only=True))
            with torch.no_grad():
                found = model(torch.from_numpy(x)).numpy()[:, 0]
            assert metrics.MSE(y, found) == pytest.approx(best, rel=1e-5)
            # What the trial was told to run with when it reported that.
            ((config,),) = file.execute(
                "SELECT config FROM events WHERE trial = ?1 AND config != '' AND sequence < "
                "(SELECT min(sequence) FROM reports WHERE trial = ?1 AND value = ?2) "
                "ORDER BY sequence DESC LIMIT 1",
                (trial.number, best),
            )
            assert trial.config["net"] == {"lr": json.loads(config)["net/lr"], "unused": 3}
            before += trial.config != est.trials[trial.number].config
    assert before > 0  # Some were better before they were cloned.
    assert est.get_best_trial().config == est.get_best_config() == est.best_trials()[0][0].config
    with torch.no_grad():
        found = est.get_best_model()(torch.from_numpy(x)).numpy()[:, 0]
    assert metrics.MSE(y, found) == pytest.approx(est.get_best_trial().value, rel=1e-5)


def test_what_pbt_did_is_in_files_and_can_be_run_again(tmp_path: Path) -> None:
    est = fit(auto(tmp_path), **PBT)
    lines = (tmp_path / "test/pbt_global.txt").read_text().splitlines()
    assert len(lines) == sum(trial.clones for trial in est.trials) > 0
    policy = max(
        (tmp_path / "test").glob("pbt_policy_*.txt"), key=lambda path: len(path.read_text())
    )
    changes = [json.loads(line) for line in policy.read_text().splitlines()]
    assert len(changes) > 1
    for earlier, later in itertools.pairwise(changes):
        assert later[1] == earlier[0]  # Each from the one before.
    used = tmp_path / "used"

    def optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        with used.open("a") as file:
            file.write(f"{config['net']['lr']}\n")
        return torch.optim.SGD(model.parameters(), lr=config["net"]["lr"])

    again = auto(tmp_path, name="again", optimizer=optimizer)
    fit(
        again,
        n_sampling=1,
        scheduler="pbt_replay",
        scheduler_params={"policy_file": str(policy)},
    )
    assert [trial.state for trial in again.trials] == ["finished"]
    assert [step for step, _ in again.trials[0].reports] == list(range(1, 9))
    rates = [changes[0][4]["net/lr"], *(change[5]["net/lr"] for change in changes)]
    changed = [rate for rate, _ in itertools.groupby(rates)]  # A change may change nothing.
    assert [float(line) for line in used.read_text().splitlines()] == changed


def test_searches_beside_each_other_keep_their_trials_apart(tmp_path: Path) -> None:
    space = {"net": {"lr": hp.uniform(0.01, 0.02)}, "batch_size": 64}
    first = fit(auto(tmp_path), epochs=4, n_sampling=3, search_space=space)
    second = fit(auto(tmp_path), epochs=1, n_sampling=2, search_space=space, seed=4)
    assert len(first.best_trials()) == 3
    third = fit(auto(tmp_path), epochs=1, n_sampling=3, search_space=space, seed=4, resume="auto")
    for est, number in ((second, 2), (third, 3)):
        assert len(est.best_trials()) == number
        for trial, weights in est.best_trials():
            assert len((weights.parent / "result.json").read_text().splitlines()) == 1
            assert est.folder_of(trial) == weights.parent
    mine = {weights for _, weights in first.best_trials()}
    assert mine.isdisjoint(weights for _, weights in third.best_trials())
    assert [t.config for t in third.trials][:2] == [t.config for t in second.trials]


def test_nothing_of_stopped_trials_stays_open(tmp_path: Path) -> None:
    def open_files() -> int:
        links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        return sum(str(tmp_path) in link and "tfevents" in link for link in links)

    most, is_over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.wait(0.002):
            with contextlib.suppress(OSError):  # One has just been closed.
                most = max(most, open_files())

    watcher = threading.Thread(target=watch)
    watcher.start()
    space = {"net": {"lr": hp.uniform(0.01, 0.2)}, "batch_size": 64}
    est = auto(tmp_path)
    try:
        fit(
            est,
            epochs=9,
            search_space=space,
            n_sampling=27,
            scheduler="hyperband",
            scheduler_params={"max_t": 9, "reduction_factor": 3},
        )
    finally:
        is_over.set()
        watcher.join()
    assert [trial.state for trial in est.trials].count("pruned") > 10
    assert 1 <= most < 18  # Those of two brackets; there are 27 trials.
    assert open_files() == 0


def test_a_search_that_goes_on_copies_what_is_missing_there(tmp_path: Path) -> None:
    space = {"net": {"lr": hp.uniform(0.01, 0.02)}, "batch_size": 64}
    remote = tmp_path / "remote"
    fit(auto(tmp_path, remote_dir=str(remote)), epochs=1, n_sampling=2, search_space=space)
    assert len(list(remote.glob("*/best.ckpt"))) == 2
    shutil.rmtree(remote)
    fit(
        auto(tmp_path, remote_dir=str(remote)),
        epochs=1,
        n_sampling=3,
        search_space=space,
        resume="auto",
    )
    assert len(list(remote.glob("*/best.ckpt"))) == 3


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import torch
from torch import nn
import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator

class Counted(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("epochs", torch.zeros(()))
    def forward(self, x):
        if self.training:
            self.epochs += 1
        return super().forward(x)

def act(x):
    return x

def main():
    random = np.random.default_rng(0)
    x = random.normal(size=(128, 4)).astype("float32"); y = (x @ np.array([1.0, -2.0, 0.5, 0.0])).astype("float32")
    orca.init_orca_context("local", cores=2)
    est = AutoEstimator.from_torch(model_creator=lambda config: Counted(), optimizer="SGD", loss=nn.MSELoss(),
                                   logs_dir=sys.argv[1], name="killed")
    timer = threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    begin = time.monotonic()
    est.fit((x, y), epochs=12, validation_data=(x, y), metric="mse", n_sampling=6, seed=4, resume="auto",
            search_space={"lr": hp.uniform(1e-3, 1e-2), "batch_size": 128, "act": act, "shape": (1, 2)},
            scheduler="pbt", scheduler_params={"perturbation_interval": 2, "hyperparam_mutations": {"lr": hp.uniform(1e-3, 1e-2)}})
    timer.cancel()
    assert est.get_best_config()["act"] is act
    assert est.get_best_config()["shape"] == (1, 2)
    assert sum(trial.clones for trial in est.trials) > 0
    for trial, weights in est.best_trials():
        assert trial.reports[-1] == (12, trial.value), trial  # Every epoch is better than the one before.
        assert int(torch.load(weights, weights_only=True)["epochs"]) == 12, trial
    print(time.monotonic() - begin)
    orca.stop_orca_context()
main()
"""


@pytest.mark.long
def test_clones_have_the_weights_of_their_step_whenever_the_search_is_killed(
    tmp_path: Path,
) -> None:
    script = tmp_path / "search.py"
    script.write_text(SCRIPT)

    def run(folder: str, seconds: float) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / folder), str(seconds)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    code, took = run("whole", 1000)
    assert code == 0, took
    moments = random.Random(5)
    kills = 0
    for _ in range(3):
        code, text = run("killed", moments.uniform(0.2, 0.7) * float(took))
        assert code in (0, -signal.SIGKILL), text
        kills += code != 0
        if code == 0:
            break
    code, text = run("killed", 1000)
    assert code == 0, text
    assert kills > 0

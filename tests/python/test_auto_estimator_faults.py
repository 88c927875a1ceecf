"""AutoEstimator: trials that hang, stop or die, and searches whose program is killed."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import checks_search
import mutants
from launcher import free_port
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.tune import Study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def rows(count: int = 128, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(count, 4))
    return x, x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0


class Troubled(nn.Linear):
    """Does something bad in the first step of an epoch, as often as there is no file for it."""

    def __init__(self, how: str, folder: str, times: int) -> None:
        super().__init__(4, 1)
        self.how, self.folder, self.times = how, folder, times
        self.register_buffer("calls", torch.zeros(()))  # Goes with the trial to other workers.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        # Two steps an epoch: in the second one.
        if self.training and int(self.calls) == 3 and self.how != "well":
            for number in range(self.times):
                mark = Path(self.folder) / f"{self.how}-{number}"
                if mark.exists():
                    continue
                mark.touch()
                if self.how == "hangs":
                    time.sleep(600)
                if self.how == "stops":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if self.how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError(f"for the test, {'abc'[number]}")
        return super().forward(x)


def auto(folder: Path, times: int = 1, **changes: Any) -> AutoEstimator:
    where = str(folder)
    given: dict[str, Any] = {
        "model_creator": lambda config: Troubled(config["how"], where, times),
        "optimizer": "SGD",
        "loss": nn.MSELoss(),
        "logs_dir": where,
        "name": "test",
    }
    return AutoEstimator.from_torch(**(given | changes))


def fit(est: AutoEstimator, how: list[str], **changes: Any) -> None:
    space = {"how": hp.grid_search(how), "lr": 0.05, "batch_size": 64}
    given: dict[str, Any] = {
        "epochs": 4,
        "validation_data": rows(64, seed=1),
        "metric": "mse",
        "search_space": space,
        "seed": 1,
    }
    est.fit(rows(), **(given | changes))


@pytest.mark.parametrize("how", ["hangs", "stops", "dies", "raises"])
def test_f47_a_trial_in_trouble_fails_and_the_other_ends(how: str, tmp_path: Path) -> None:
    est = auto(tmp_path, times=99)
    # Those that are dead or stopped are noticed without a limit.
    fit(est, [how, "well"], trial_timeout=20 if how == "hangs" else None)
    by_how = {trial.config["how"]: trial for trial in est.trials}
    assert by_how["well"].state == "finished"
    assert by_how[how].state == "failed"
    assert 1 <= len(by_how[how].reports) < 4
    assert est.get_best_config()["how"] == "well"
    if how == "hangs":
        assert "its time is over" in by_how[how].error
    (text,) = tmp_path.glob("test/*/error.txt")
    assert text.read_text() == by_how[how].error


@pytest.mark.parametrize("how", ["hangs", "stops", "dies", "raises"])
def test_f47_a_trial_in_trouble_is_run_again_from_its_last_epoch(how: str, tmp_path: Path) -> None:
    est = auto(tmp_path, times=1)
    fit(est, [how, "well"], retries=2, trial_timeout=20)
    by_how = {trial.config["how"]: trial for trial in est.trials}
    assert [trial.state for trial in est.trials] == ["finished"] * 2
    assert by_how[how].retries == 1
    assert [step for step, _ in by_how[how].reports] == [1, 2, 3, 4]
    # The first epoch was not made again.
    (folder,) = tmp_path.glob(f"test/train_func_*_{by_how[how].number:05d}")
    lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [line["training_iteration"] for line in lines] == [1, 2, 3, 4]
    assert not list(tmp_path.glob("test/*/state-*"))


def test_a_trial_that_was_run_again_learned_what_it_would_have_learned(tmp_path: Path) -> None:
    found = {}
    for how in ("well", "dies"):
        est = auto(tmp_path, name=how, optimizer="Adam")
        fit(est, [how], retries=1)
        found[how] = est.trials[0].reports
    assert found["dies"] == found["well"]


def test_the_same_error_again_is_the_last_one(tmp_path: Path) -> None:
    est = auto(tmp_path, model_creator=lambda config: nn.Linear(3, 1))
    with pytest.raises(FailedPreconditionError, match="1 of 1 trials failed"):
        fit(est, ["well"], retries=50)
    assert est.trials[0].retries == 1


def test_what_is_not_finite_is_not_tried_again(tmp_path: Path) -> None:
    est = auto(tmp_path)
    space = {"how": "well", "lr": hp.grid_search([1e30, 0.01]), "batch_size": 64}
    fit(est, [], search_space=space, retries=5)
    assert sorted(trial.state for trial in est.trials) == ["failed", "finished"]
    assert [trial.retries for trial in est.trials] == [0, 0]
    assert est.get_best_config()["lr"] == 0.01


def test_a_search_that_failed_closes_its_study(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="1 of 1 trials failed") as held:
        fit(auto(tmp_path, times=99), ["raises"])
    est = auto(tmp_path, times=0)
    fit(est, ["raises"])
    assert [trial.state for trial in est.trials] == ["finished"]
    assert held.tb is not None  # And with it the frames of the first search.


def test_a_study_that_was_closed_says_so(tmp_path: Path) -> None:
    space = {"x": hp.uniform(0.0, 1.0)}
    study = Study(space, storage=tmp_path / "study.db", seed=1)
    study.optimize(lambda config: config["x"], 2, quiet=True)
    study.close()
    with pytest.raises(FailedPreconditionError, match="the study was closed; open its file again"):
        study.ask()
    again = Study(space, storage=tmp_path / "study.db", resume="auto")
    assert len(again) == 2
    again.close()


def test_bad_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="trial_timeout -1"):
        fit(auto(tmp_path), ["well"], trial_timeout=-1)
    with pytest.raises(InvalidArgumentError, match="retries"):
        fit(auto(tmp_path), ["well"], retries=-1)


def test_an_older_search_is_known_and_not_counted(tmp_path: Path) -> None:
    space = {"how": "well", "lr": hp.loguniform(1e-4, 1e-1), "batch_size": 64}
    fit(auto(tmp_path, name="old"), [], search_space=space, n_sampling=4)
    est = auto(tmp_path, name="new")
    fit(est, [], search_space=space, n_sampling=3, search_alg="tpe", warm_start=tmp_path / "old")
    assert len(est.trials) == 7
    assert len(list(tmp_path.glob("new/train_func_*"))) == 3
    assert est.get_best_trial().number >= 4
    assert est.get_best_model() is not None


def test_the_state_of_the_experiment_is_that_of_ray_tune(tmp_path: Path) -> None:
    est = auto(tmp_path, times=9)
    fit(est, ["well", "raises"])
    (path,) = (tmp_path / "test").glob("experiment_state-*.json")
    trials = [json.loads(text) for text in json.loads(path.read_text())["checkpoints"]]
    assert [trial["status"] for trial in trials] == ["TERMINATED", "ERROR"]
    for trial, mine in zip(trials, est.trials, strict=True):
        assert trial["config"] == mine.config
        assert trial["last_result"]["training_iteration"] == mine.reports[-1][0]
        assert trial["metric_analysis"]["mse"]["last"] == mine.reports[-1][1]
        lines = (Path(trial["logdir"]) / "result.json").read_text().splitlines()
        assert json.loads(lines[-1])["mse"] == mine.reports[-1][1]
    assert Path(trials[1]["error_file"]).exists()


# --- the agent is killed


def check(name: str, *arguments: str, mutant: str = "none") -> subprocess.CompletedProcess[str]:
    """A check in a program of its own."""
    return subprocess.run(
        [sys.executable, checks_search.__file__, name, *arguments],
        env=mutants.environment(mutant),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("who", ["local", "objective"])
def test_f51_a_search_whose_agent_is_killed_raises_and_its_trials_run_later(
    who: str, tmp_path: Path
) -> None:
    done = check(who, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"end of {who}\n")


def test_f51_a_search_that_blames_its_trials_for_a_killed_agent_is_noticed(tmp_path: Path) -> None:
    done = check("local", str(tmp_path), mutant="lost-context")
    assert done.returncode == 1
    assert "FailedPreconditionError: 5 of 5 trials failed" in done.stderr


def test_f51_trials_of_a_machine_that_is_lost_run_again_on_another_one(tmp_path: Path) -> None:
    secret, address = tmp_path / "secret", f"127.0.0.1:{free_port()}"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    program = [sys.executable, "-c", "from orca.cli import main; main()", "agent"]
    command = [*program, "--join", address, "--secret-file", str(secret)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    agents = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    try:
        done = check("joined", str(tmp_path), address, str(secret))
        assert done.returncode == 0, done.stderr
        assert sorted(agent.wait(60) for agent in agents) == [-signal.SIGKILL, 0]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


# --- the program is killed

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from torch import nn
import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
SCHEDULERS = {
    "pbt": {"perturbation_interval": 2, "hyperparam_mutations": {"lr": [0.001, 0.01, 0.1]}},
    "hyperband": {"max_t": 9, "reduction_factor": 3},
    "median_stopping_rule": {"grace_period": 2},
}
def main():
    random = np.random.default_rng(0)
    x = random.normal(size=(128, 4)); y = x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0
    orca.init_orca_context("local", cores=1)
    est = AutoEstimator.from_torch(model_creator=lambda config: nn.Linear(4, 1), optimizer="Adam", loss=nn.MSELoss(),
                                   logs_dir=sys.argv[1], name="killed")
    timer = threading.Timer(float(sys.argv[3]), os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    begin = time.monotonic()
    est.fit((x, y), epochs=9, validation_data=(x, y), metric="mse", n_sampling=6, seed=4, resume="auto",
            search_space={"lr": hp.loguniform(1e-4, 0.1), "batch_size": 64},
            scheduler=sys.argv[2], scheduler_params=SCHEDULERS[sys.argv[2]])
    timer.cancel()
    print(time.monotonic() - begin)
    model = est.get_best_model()
    for trial in est.trials:
        print(trial.number, trial.config, trial.state, trial.clones, trial.reports)
    print(est.get_best_config(), model.weight.tolist())
    orca.stop_orca_context()
main()
"""


@pytest.mark.parametrize(
    "scheduler",
    [
        "pbt",
        pytest.param("hyperband", marks=pytest.mark.long),
        pytest.param("median_stopping_rule", marks=pytest.mark.long),
    ],
)
def test_a_search_with_paused_trials_is_killed_at_any_moment(
    scheduler: str, tmp_path: Path
) -> None:
    script = tmp_path / "search.py"
    script.write_text(SCRIPT)

    def run(folder: str, seconds: float) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / folder), scheduler, str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout

    code, whole = run("whole", 1000)
    assert code == 0
    took, whole = whole.split("\n", 1)
    moments = random.Random(7)
    kills, limit = 0, 0.5 * float(took)
    for _ in range(24):
        code, _ = run("killed", moments.uniform(0.02, 1) * limit)
        kills += code == -signal.SIGKILL
        if kills == 3:
            break
        if (
            code == 0
        ):  # The machine has become faster: once more from the beginning, with less time.
            shutil.rmtree(tmp_path / "killed")
            kills, limit = 0, 0.5 * limit
    assert kills == 3
    code, text = run("killed", 1000)
    assert code == 0
    assert text.split("\n", 1)[1] == whole
    with sqlite3.connect(tmp_path / "killed/killed/study.db") as file:
        rows = file.execute("SELECT trial, count(*) FROM events WHERE kind IN (4, 5, 6) GROUP BY 1")
        assert rows.fetchall() == [(number, 1) for number in range(6)]
    assert not list(tmp_path.glob("killed/killed/*/state-*"))

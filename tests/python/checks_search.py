"""Searches whose agents are killed, as programs of their own: ``checks_search.py <check> FOLDER [ADDRESS SECRET]``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mutants
import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.errors import ContextLostError
from orca.tune import Study
from processes import agent_of

EPOCHS, STEPS = 3, 2
TRIALS = {"first": ["fatal", "a", "b", "c", "d"], "later": ["a", "b", "c", "fatal", "d"]}


class Fatal(nn.Linear):
    """Kills its agent in the second epoch, unless a file says that it has done so."""

    def __init__(self, name: str, agent: int, mark: Path) -> None:
        super().__init__(4, 1)
        self.is_fatal, self.agent, self.mark = name == "fatal", agent, mark
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        if self.is_fatal and int(self.calls) == STEPS + 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(self.agent or _grandparent(), signal.SIGKILL)
            time.sleep(600)
        return super().forward(x)


def _grandparent() -> int:
    """The agent of a worker's own machine: its parent is the nursery."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(") ")[2].split()[1])


def search(folder: Path, agent: int) -> AutoEstimator:
    mark = folder / "killed"
    return AutoEstimator.from_torch(
        model_creator=lambda config: Fatal(config["name"], agent, mark),
        optimizer="SGD",
        loss=nn.MSELoss(),
        logs_dir=str(folder),
        name="test",
    )


def fit(est: AutoEstimator, names: list[str], retries: int) -> list[Any]:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(64 * STEPS, 4)).astype(np.float32)
    y = x.sum(1)
    space = {"name": hp.grid_search(names), "lr": 0.05, "batch_size": 64}
    est.fit(
        (x, y),
        EPOCHS,
        (x, y),
        metric="mse",
        search_space=space,
        seed=1,
        resume="auto",
        retries=retries,
    )
    return found(est)


def found(est: AutoEstimator) -> list[Any]:
    return [(t.config["name"], t.state, t.reports, t.retries) for t in est.trials]


def undisturbed(folder: Path, names: list[str]) -> list[Any]:
    (folder / "killed").parent.mkdir()
    (folder / "killed").touch()
    return fit(search(folder, 1), names, 0)


def local(folder: Path) -> None:
    """The only agent: the search ends, and goes on in another context."""
    for moment, cores, retries in (("first", 1, 0), ("later", 2, 2)):
        names = TRIALS[moment]
        orca.init_orca_context("local", cores=cores)
        whole = undisturbed(folder / f"whole-{moment}", names)
        where = folder / moment
        where.mkdir()
        agent = agent_of(os.getpid())
        est = search(where, agent)
        with pytest.raises(ContextLostError, match=r'(?s)killed by signal 9.*resume="auto"'):
            fit(est, names, retries)
        states = [state for _, state, _, _ in found(est)]
        assert "running" in states, states
        assert "failed" not in states, states
        assert ("finished" in states) == (moment == "later"), states
        assert not list(where.glob("test/*/error.txt"))
        with pytest.raises(ContextLostError):  # Before there is a new context; that loses nothing.
            fit(search(where, agent), names, retries)
        orca.stop_orca_context()
        orca.init_orca_context("local", cores=cores)
        assert fit(search(where, agent), names, retries) == whole
        orca.stop_orca_context()


def objective(folder: Path) -> None:
    """A function that a study minimizes, which runs others on workers."""
    orca.init_orca_context("local", cores=1)
    agent = agent_of(os.getpid())

    kills: list[int] = []

    def value(config: dict[str, int]) -> int:
        if config["x"] == 3 and len(kills) < parallel:
            kills.append(agent)
            os.kill(agent, signal.SIGKILL)
        return int(orca.run(pow, (config["x"], 2), workers=1)[0])

    def study() -> Study:
        space = {"x": hp.grid_search([1, 2, 3, 4])}
        file = folder / f"{parallel}.db"
        return Study(space, seed=1, storage=file, resume="auto", retries=1)

    for parallel in (1, 2):
        first = study()
        with pytest.raises(ContextLostError):
            first.optimize(value, 4, parallel=parallel, quiet=True)
        assert {trial.state for trial in first.trials} == {"finished", "running"}
        first.close()
        orca.stop_orca_context()
        orca.init_orca_context("local", cores=1)
        agent = agent_of(os.getpid())
        second = study()
        second.optimize(value, 4, quiet=True)
        states = [(trial.value, trial.state, trial.retries) for trial in second.trials]
        assert states == [(float(x * x), "finished", 0) for x in (1, 2, 3, 4)], states
        second.close()
    orca.stop_orca_context()


def joined(folder: Path, address: str, secret: str) -> None:
    """One of two agents: its trials run again on the other machine, and nothing counts as a failure."""
    names = TRIALS["later"]
    orca.init_orca_context("join", num_nodes=2, address=address, secret_file=secret)
    whole = undisturbed(folder / "whole", names)
    where = folder / "disturbed"
    where.mkdir()
    assert fit(search(where, 0), names, 0) == whole
    assert not list(where.glob("test/*/error.txt"))
    orca.stop_orca_context()


CHECKS = {"local": local, "objective": objective, "joined": joined}


if __name__ == "__main__":
    mutants.mutate()
    CHECKS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    print("end of", sys.argv[1])

"""Workers that die while each trains a copy of the weights: training goes on from the last checkpoint, with the same bits."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orca
from orca.errors import WorkerFailedError
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.trigger import EveryEpoch, SeveralIteration
from test_recovery import BATCH, STEPS, Net, _random_kills, data, trained

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]
OWN = {"elementwise": False}


class Counts(Callback):
    """Writes down which steps were made, and how often."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_train_iter(self, runner: Any) -> None:
        step = runner.epochs * STEPS + runner.batch_idx
        (self.folder / f"{step}.{orca.rank()}.{time.monotonic_ns()}").touch()


def steps_made(folder: Path, rank: int = 0) -> list[int]:
    names = [file.name.split(".") for file in folder.iterdir()]
    return sorted(int(step) for step, whose, _ in names if int(whose) == rank)


def again(tmp_path: Path, when: dict[int, int], trigger: Any, **more: Any) -> tuple[Any, list[int]]:
    """What ``trained`` finds with checkpoints and deaths, and the steps that rank 0 made."""
    folder, made = tmp_path / f"models.{time.monotonic_ns()}", tmp_path / f"{time.monotonic_ns()}"
    made.mkdir()
    options = {
        "checkpoint_trigger": trigger,
        "more_callbacks": [Counts(made)],
        **more.pop("options", {}),
    }
    found = trained(tmp_path, when, model_dir=str(folder), options=options, **more)
    return found, steps_made(made)


WAYS = {
    "adam": {"optimizer": lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01), **OWN},
    "lbfgs": {"optimizer": lambda m, _: torch.optim.LBFGS(m.parameters(), lr=0.01, max_iter=2)},
    "schedule": {
        "optimizer": lambda m, _: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
        "scheduler_creator": lambda o, _: torch.optim.lr_scheduler.StepLR(o, 7, 0.9),
        "scheduler_step_freq": "batch",
        **OWN,
    },
}


@pytest.mark.product
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", WAYS)
def test_training_goes_on_from_the_last_checkpoint(tmp_path, name, workers):
    way = {"workers": workers, **WAYS[name]}
    expected = trained(tmp_path, **way)
    last = workers - 1
    for when in ({13: last}, {13: 0, 14: last, STEPS - 1: 0, STEPS + 13: last}):
        found, made = again(tmp_path, when, SeveralIteration(6), **way)
        assert found == expected, when
        assert set(made) == set(range(2 * STEPS))
        if 0 not in when.values():  # Who writes may die before the file is whole.
            assert made.count(0) == 1  # It went on behind a checkpoint.


def test_without_checkpoints_it_begins_anew(tmp_path):
    expected = trained(tmp_path, **OWN)
    for when in ({0: 1}, {9: 0, STEPS + 8: 1}):
        assert trained(tmp_path, when, **OWN) == expected, when


def test_the_second_fit_begins_where_the_first_ended(tmp_path):
    expected = trained(tmp_path, fits=2, epochs=1, **OWN)
    assert trained(tmp_path, {0: 1, 4: 0}, fits=2, epochs=1, **OWN) == expected
    # Checkpoints of the first fit are not the second one's.
    found, _ = again(tmp_path, {2: 1, 9: 0}, SeveralIteration(6), fits=2, epochs=1, **OWN)
    assert found == expected


def test_loaders_go_on_behind_the_rows_that_were_used(tmp_path):
    given = DataLoader(
        TensorDataset(*map(torch.from_numpy, data())), batch_size=BATCH, shuffle=True
    )
    expected = trained(tmp_path, given=given, **OWN)
    found, _ = again(tmp_path, {9: 0, STEPS + 8: 1}, SeveralIteration(5), given=given, **OWN)
    assert found == expected


def test_kills_at_any_moment_change_no_bit(tmp_path):
    expected = trained(tmp_path, **OWN)
    for seed in range(8):
        kills = lambda folder, seed=seed: _random_kills(folder, seed, 5)  # noqa: E731
        found, _ = again(tmp_path, {}, SeveralIteration(4), kills=kills, **OWN)
        assert found == expected, seed


class Loop(MainCallback):
    """A training loop of the user's, with random numbers."""

    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()


def test_a_loop_of_the_users_goes_on_at_an_epochs_begin(tmp_path):
    loop = {"more_callbacks": [Loop()]}
    expected = trained(tmp_path, epochs=3, options=loop)
    when = {STEPS + 8: 1, STEPS + 9: 0, 2 * STEPS + 3: 1}
    assert trained(tmp_path, when, epochs=3, options=loop) == expected
    # A checkpoint in the middle of an epoch is none for a loop that cannot begin there.
    for trigger, begun in ((EveryEpoch(), 1), (SeveralIteration(9), 4)):
        made, folder = tmp_path / f"{begun}", tmp_path / f"models.{begun}"
        made.mkdir()
        options = {"more_callbacks": [Loop(), Counts(made)], "checkpoint_trigger": trigger}
        found = trained(tmp_path, when, epochs=3, options=options, model_dir=str(folder))
        assert found == expected
        assert steps_made(made, 1).count(0) == begun


@pytest.mark.parametrize("more", [OWN, {"callbacks": [Loop()]}])
def test_a_step_that_kills_whoever_makes_it_is_an_error(tmp_path, more):
    class Deadly(Callback):
        def after_train_iter(self, runner: Any) -> None:
            if runner.batch_idx == 8 and orca.rank() == 1:
                os.kill(os.getpid(), signal.SIGSEGV)

    callbacks = [*more.get("callbacks", ()), Deadly()]
    made = Estimator.from_torch(
        model=Net(),
        optimizer=lambda m, _: torch.optim.Adam(m.parameters()),
        loss=nn.MSELoss(),
        workers_per_node=2,
        elementwise=more.get("elementwise"),
    )
    with pytest.raises(
        WorkerFailedError, match=r"rank 1 died three times in a row while it made step (9|10)"
    ):
        made.fit(data(), batch_size=BATCH, callbacks=callbacks, max_restarts=50)

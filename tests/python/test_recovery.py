"""Workers that die while they train: another takes their place, and the weights are the same to the last bit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
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
from orca.errors import InvalidArgumentError, WorkerFailedError
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from orca.learn.pytorch.callbacks.lr_scheduler import LRSchedulerCallback
from orca.learn.trigger import SeveralIteration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]
ROWS, BATCH = 613, 20
STEPS = -(-ROWS // BATCH)


class Net(nn.Module):
    """Has what a step can depend on: weights, buffers, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.norm = nn.Linear(9, 30), nn.BatchNorm1d(30)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(30, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))[:, 0]


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(3).normal(size=(ROWS, 9)).astype(np.float32)
    return x, (x.sum(1) + 0.1 * x[:, 0] ** 2).astype(np.float32)


class Dies(Callback):
    """Kills its worker at certain steps, once each; and writes down who lives."""

    def __init__(self, folder: Path, when: dict[int, int], how: int = signal.SIGKILL) -> None:
        self.folder, self.when, self.how, self.step = folder, when, how, 0

    def before_run(self, runner: Any) -> None:
        (self.folder / f"pid.{os.getpid()}").touch()

    def after_train_iter(self, runner: Any) -> None:
        step = runner.epochs * STEPS + runner.batch_idx
        mark = self.folder / f"killed.{step}"
        if self.when.get(step) == orca.rank() and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), self.how)


def two_workers(**more: Any) -> Any:
    """An Estimator that nobody has trained."""
    return Estimator.from_torch(
        model=Net(),
        optimizer=lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        workers_per_node=2,
        **more,
    )


def trained(
    tmp_path: Path,
    when: dict[int, int] | None = None,
    *,
    workers: int = 2,
    optimizer: Any = lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01),
    given: Any = None,
    how: int = signal.SIGKILL,
    model: Any = Net,
    epochs: int = 2,
    fits: int = 1,
    kills: Any = None,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[str, list[Any]]:
    """A digest of all that was learned, and the statistics."""
    folder = tmp_path / str(time.monotonic_ns())
    folder.mkdir()
    estimator = Estimator.from_torch(
        model=model(), optimizer=optimizer, loss=nn.MSELoss(), workers_per_node=workers, **more
    )
    stats: list[Any] = []
    with kills(folder) if kills else contextlib.nullcontext():
        options = dict(options or {})
        callbacks = options.pop("more_callbacks", [])
        for number in range(fits):
            last = number + 1 == fits
            stats += estimator.fit(
                data() if given is None else given,
                epochs=epochs,
                batch_size=BATCH,
                seed=11,
                callbacks=[*callbacks, Dies(folder, (when or {}) if last else {}, how)],
                **({"max_restarts": 100} | options),
            )
    digest = hashlib.sha256()
    state = estimator.get_state_dict()
    for value in (*_tensors(state["models"]), *_tensors(state["optimizers"])):
        digest.update(value.numpy().tobytes())
    stats = [{k: v for k, v in epoch.items() if "time" not in k} for epoch in stats]
    estimator.shutdown()
    return digest.hexdigest(), stats


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree.detach().contiguous()
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


OPTIMIZERS = {
    "sgd": lambda m, _: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9),
    "adamw": lambda m, _: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "rmsprop": lambda m, _: torch.optim.RMSprop(m.parameters(), lr=0.001, centered=True),
    "nadam": lambda m, _: torch.optim.NAdam(m.parameters(), lr=0.01),
    "groups": lambda m, _: torch.optim.Adam(
        [{"params": m.first.parameters()}, {"params": [*m.norm.parameters(), *m.last.parameters()], "lr": 0.1}],
        lr=0.01,
    ),
}  # fmt: skip


@pytest.mark.product
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_worker_that_is_killed_changes_no_bit(tmp_path, name, workers):
    optimizer = OPTIMIZERS[name]
    expected = trained(tmp_path, workers=workers, optimizer=optimizer)
    # In the middle, at the last step of an epoch, and at the first one of the next.
    when = {4: workers - 1, 5: 0, STEPS - 1: 0, STEPS: workers - 1, 2 * STEPS - 1: 0}
    assert trained(tmp_path, when, workers=workers, optimizer=optimizer) == expected


@pytest.mark.parametrize("schedule", [lambda epoch: 0.5**epoch, lambda epoch, lr: lr * 0.5])
def test_rates_of_a_callback_are_set_once_an_epoch(tmp_path, schedule):
    more = {"options": {"more_callbacks": [LRSchedulerCallback(schedule)]}}
    expected = trained(tmp_path, epochs=3, **more)
    when = {0: 1, 4: 0, STEPS: 1, STEPS + 9: 0, 2 * STEPS - 1: 1}
    assert trained(tmp_path, when, epochs=3, **more) == expected


@pytest.mark.parametrize("freq", ["batch", "epoch"])
def test_schedulers_go_on_where_they_were(tmp_path, freq):
    more = {
        "scheduler_creator": lambda o, _: torch.optim.lr_scheduler.StepLR(o, 7, 0.9),
        "scheduler_step_freq": freq,
    }
    expected = trained(tmp_path, **more)
    assert trained(tmp_path, {9: 0, 21: 1, STEPS + 3: 0}, **more) == expected


def test_loaders_go_on_behind_the_rows_that_were_used(tmp_path):
    tensors = TensorDataset(*map(torch.from_numpy, data()))
    given = DataLoader(tensors, batch_size=BATCH, shuffle=True)
    expected = trained(tmp_path, given=given)
    assert trained(tmp_path, {3: 0, 17: 1, STEPS + 8: 1}, given=given) == expected
    creator = lambda config, batch_size: DataLoader(tensors, batch_size=10, shuffle=True)  # noqa: E731
    expected = trained(tmp_path, given=creator)
    assert trained(tmp_path, {3: 0, 17: 1, STEPS + 8: 1}, given=creator) == expected


def test_the_second_fit_goes_on_from_the_first(tmp_path):
    expected = trained(tmp_path, fits=2, epochs=1)
    for when in ({0: 0}, {0: 1, 1: 0, 12: 1}):
        assert trained(tmp_path, when, fits=2, epochs=1) == expected


def test_all_workers_at_once(tmp_path):
    expected = trained(tmp_path)

    class Everybody(Dies):
        def after_train_iter(self, runner: Any) -> None:
            step = runner.epochs * STEPS + runner.batch_idx
            mark = self.folder / f"killed.{step}.{orca.rank()}"
            if step in (8, STEPS + 2) and not mark.exists():
                mark.touch()
                orca.barrier()
                os.kill(os.getpid(), signal.SIGKILL)

    folder = tmp_path / "all"
    folder.mkdir()
    estimator = two_workers()
    estimator.fit(
        data(), epochs=2, batch_size=BATCH, seed=11, callbacks=[Everybody(folder, {})], max_restarts=9
    )  # fmt: skip
    digest = hashlib.sha256()
    state = estimator.get_state_dict()
    for value in (*_tensors(state["models"]), *_tensors(state["optimizers"])):
        digest.update(value.numpy().tobytes())
    assert digest.hexdigest() == expected[0]


@contextlib.contextmanager
def _random_kills(folder: Path, seed: int, most: int) -> Iterator[None]:
    """Kills workers at any moment."""
    chance, over = random.Random(seed), threading.Event()

    def kill() -> None:
        for _ in range(most):
            if over.wait(chance.uniform(0.005, 0.12)):
                return
            pids = [int(file.suffix[1:]) for file in folder.glob("pid.*")]
            alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            if alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(alive), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", ["adam", *OPTIMIZERS])
def test_kills_at_any_moment_change_no_bit(tmp_path, name):
    optimizer = OPTIMIZERS.get(name, lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01))
    expected = trained(tmp_path, optimizer=optimizer)
    for seed in range(8):
        kills = lambda folder, seed=seed: _random_kills(folder, seed, 6)  # noqa: E731
        assert trained(tmp_path, optimizer=optimizer, kills=kills) == expected, seed


def test_a_worker_that_is_told_to_leave_finishes_its_step(tmp_path):
    expected = trained(tmp_path)
    assert trained(tmp_path, {6: 1, 20: 0}, how=signal.SIGTERM) == expected


def test_the_others_go_on_without_it(tmp_path):
    _, stats = trained(tmp_path, {6: 1}, workers=3, options={"on_failure": "shrink"})
    assert [epoch["epoch"] for epoch in stats] == [1, 2]
    assert stats[0]["train_loss"] > stats[1]["train_loss"]


def test_too_many_deaths_are_an_error(tmp_path):
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        trained(tmp_path, {3: 0, 4: 1}, options={"max_restarts": 1})
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        trained(tmp_path, {3: 0}, options={"on_failure": "raise"})


def test_what_the_users_code_raises_is_raised_at_once(tmp_path):
    class Raises(Callback):
        def after_train_iter(self, runner: Any) -> None:
            (tmp_path / f"{os.getpid()}.{time.monotonic_ns()}").touch()
            if runner.batch_idx == 3:
                raise ZeroDivisionError("mine")

    estimator = two_workers()
    with pytest.raises(WorkerFailedError, match="mine"):
        estimator.fit(data(), epochs=1, batch_size=BATCH, callbacks=[Raises()])
    assert len(list(tmp_path.iterdir())) <= 8  # Nobody began anew.


def test_a_step_that_kills_whoever_makes_it_is_an_error(tmp_path):
    class Deadly(Callback):
        def before_train_iter(self, runner: Any) -> None:
            if runner.batch_idx == 5 and orca.rank() == 1:
                (tmp_path / f"{time.monotonic_ns()}").touch()
                os.kill(os.getpid(), signal.SIGSEGV)

    estimator = two_workers()
    with pytest.raises(
        WorkerFailedError, match="rank 1 died three times in a row while it made step 6"
    ):
        estimator.fit(data(), epochs=1, batch_size=BATCH, callbacks=[Deadly()], max_restarts=50)
    assert len(list(tmp_path.iterdir())) == 3


def _program(
    folder: Path, slow: int, workers: int, every: int = 3, way: str = "shared"
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    script = Path(__file__).with_name("scripts_resume.py")
    command = [sys.executable, str(script), str(folder), str(slow), str(workers)]
    command += [str(every), way]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("workers", "slow"), [(1, 5), (2, 20), (2, 40)])
def test_a_program_that_is_killed_goes_on_in_the_middle_of_an_epoch(tmp_path, workers, slow):
    whole = _program(tmp_path / "whole", 0, workers)
    expected = whole.communicate(timeout=120)[0]
    killed = _program(tmp_path / "killed", slow, workers)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "reached").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)  # Some steps more, of which the last ones are in no checkpoint.
    killed.kill()
    killed.communicate(timeout=60)
    again = _program(tmp_path / "killed", 0, workers)
    assert again.communicate(timeout=120)[0] == expected
    assert json.loads(expected)["losses"][0][1] == ROWS


@pytest.mark.parametrize("way", ["shared", "copies", "blocks"])
@pytest.mark.parametrize(("workers", "every"), [(1, 0), (2, 0), (2, 1000)])
def test_a_program_that_gets_a_sigterm_leaves_a_last_checkpoint(tmp_path, workers, every, way):
    told = _program(tmp_path / "told", 5, workers, every, way)
    deadline = time.monotonic() + 60
    while not (tmp_path / "told" / "reached").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    told.terminate()
    assert told.communicate(timeout=60)[0] == ""
    assert told.returncode == -signal.SIGTERM
    (written,) = (tmp_path / "told").glob("models/*/model.*")
    assert int(written.suffix[1:]) >= 5
    whole = _program(tmp_path / "whole", 0, workers, every, way)
    again = _program(tmp_path / "told", 0, workers, every, way)
    assert again.communicate(timeout=120)[0] == whole.communicate(timeout=120)[0]


def test_resume_is_auto_and_has_a_place(tmp_path):
    estimator = Estimator.from_torch(
        model=Net(), optimizer=lambda m, _: torch.optim.Adam(m.parameters()), loss=nn.MSELoss()
    )
    with pytest.raises(InvalidArgumentError, match=r"give from_torch\(model_dir=\)"):
        estimator.fit(data(), resume="auto")
    with pytest.raises(InvalidArgumentError, match="resume='yes' is not known"):
        estimator.fit(data(), resume="yes")


class Sometimes(nn.Module):
    """Parts of it get their first gradient late, and lose it again; its buffers lie in any order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.extra, self.last = nn.Linear(9, 12), nn.Linear(9, 12), nn.Linear(12, 1)
        self.register_buffer("turned", torch.arange(108.0).reshape(12, 9).t() / 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) + (x @ self.turned) * 0.01
        # By the rows alone, so that a step can be made again.
        if float(x.detach()[0, 0]) > 0.4:
            hidden = hidden + self.extra(x)
        return self.last(torch.tanh(hidden))[:, 0]


@pytest.mark.parametrize("name", ["adam", "sgd", "rmsprop"])
def test_parameters_that_are_used_sometimes_keep_their_state(tmp_path, name):
    optimizer = OPTIMIZERS.get(name, lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01))
    options = {"optimizer": optimizer, "model": Sometimes}
    expected = trained(tmp_path, **options)
    for when in ({1: 0}, {6: 1}, {3: 1, 12: 0, 13: 1, 25: 0, STEPS + 5: 1}):
        assert trained(tmp_path, when, **options) == expected, when
    for seed in range(4):
        kills = lambda folder, seed=seed: _random_kills(folder, seed, 6)  # noqa: E731
        assert trained(tmp_path, kills=kills, **options) == expected, seed


@pytest.mark.parametrize("steps", [STEPS, STEPS + 7])
def test_as_many_steps_are_made_as_were_asked_for(tmp_path, steps):
    options = {"options": {"max_steps": steps}}
    expected = trained(tmp_path, **options)
    for last in (STEPS - 1, steps - 1, 3):
        assert trained(tmp_path, {last: 0}, **options) == expected, last


def test_fits_of_one_step_are_told_apart(tmp_path):
    options = {"options": {"max_steps": 1}, "epochs": 1, "fits": 4}
    expected = trained(tmp_path, **options)
    assert trained(tmp_path, {0: 1}, **options) == expected
    assert trained(tmp_path, {0: 0}, **options) == expected


class Noisy(TensorDataset):
    """Rows that are changed at random."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + 0.1 * torch.randn_like(x), y


def test_rows_that_are_changed_at_random_are_changed_alike(tmp_path):
    given = DataLoader(Noisy(*map(torch.from_numpy, data())), batch_size=BATCH, shuffle=True)
    expected = trained(tmp_path, given=given)
    assert trained(tmp_path, {3: 0, 17: 1, STEPS + 8: 1}, given=given) == expected


def test_a_sampler_with_a_generator_of_its_own_goes_on(tmp_path):
    tensors = TensorDataset(*map(torch.from_numpy, data()))

    def given() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(tensors, batch_size=BATCH, shuffle=True, generator=generator)

    expected = trained(tmp_path, given=given(), epochs=3)
    assert trained(tmp_path, {3: 0, STEPS + 8: 1, 2 * STEPS + 1: 0}, given=given(), epochs=3) == expected  # fmt: skip


def test_a_scheduler_that_a_callback_steps_goes_on(tmp_path):
    class Steps(Callback):
        def after_train_iter(self, runner: Any) -> None:
            runner.scheduler.step()

    more = {
        "scheduler_creator": lambda o, _: torch.optim.lr_scheduler.StepLR(o, 7, 0.5),
        "scheduler_step_freq": "manual",
        "options": {"more_callbacks": [Steps()]},
    }
    expected = trained(tmp_path, **more)
    assert trained(tmp_path, {9: 0, STEPS + 3: 1}, **more) == expected


def test_other_workers_go_on_from_a_checkpoint(tmp_path):
    made = two_workers(model_dir=str(tmp_path))
    first = made.fit(data(), epochs=1, batch_size=BATCH, checkpoint_trigger=SeveralIteration(9))
    again = Estimator.from_torch(
        model=Net(),
        optimizer=lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        workers_per_node=3,
        model_dir=str(tmp_path),
    ).fit(data(), epochs=2, batch_size=BATCH, resume="auto")
    assert [epoch["epoch"] for epoch in again] == [1, 2]
    assert again[1]["num_samples"] == ROWS
    assert len(first) == 1


def test_a_worker_with_its_own_weights_leaves_when_it_is_told(tmp_path):
    more = {"elementwise": False, "options": {"max_restarts": 0}}
    with pytest.raises(WorkerFailedError, match="SIGTERM"):
        trained(tmp_path, {3: 1}, how=signal.SIGTERM, **more)

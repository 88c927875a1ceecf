"""What callbacks see and write: the statistics of all workers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import checks_estimator as checks
import orca
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.pytorch.callbacks.csv import CSVLogger
from orca.learn.pytorch.callbacks.tensorboard import TensorBoardCallback

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def shown(stats: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Statistics as a file has them: whole numbers stay whole."""
    return [
        {
            name: str(value if isinstance(value, int) else float(value))
            for name, value in each.items()
        }
        for each in stats
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_csv_file_has_the_statistics_that_fit_returns(workers: int, tmp_path: Path) -> None:
    est, path = checks.estimator(workers), tmp_path / "log.csv"
    data = checks.rows(21)
    stats = est.fit(
        data, epochs=3, batch_size=8, validation_data=data, callbacks=[CSVLogger(str(path))]
    )
    assert lines_of(path) == shown(stats)
    assert [line["epoch"] for line in lines_of(path)] == ["1", "2", "3"]
    assert {line["num_samples"] for line in lines_of(path)} == {"21"}
    more = est.fit(data, epochs=1, batch_size=8, callbacks=[CSVLogger(str(path), append=True)])
    assert [line["epoch"] for line in lines_of(path)] == ["1", "2", "3", "4"]
    assert float(lines_of(path)[3]["train_loss"]) == more[0]["train_loss"]
    assert lines_of(path)[3]["val_loss"] == ""
    est.shutdown()


def test_a_csv_file_has_the_mode_of_other_files_and_may_be_a_link(tmp_path: Path) -> None:
    est, path = checks.estimator(1), tmp_path / "link.csv"
    path.symlink_to(tmp_path / "log.csv")
    other = tmp_path / "other"
    other.touch()
    est.fit(checks.rows(8), epochs=2, batch_size=8, callbacks=[CSVLogger(str(path))])
    assert path.is_symlink()
    assert len(lines_of(tmp_path / "log.csv")) == 2
    assert (tmp_path / "log.csv").stat().st_mode == other.stat().st_mode
    est.shutdown()


def test_a_csv_file_that_cannot_be_written_costs_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder/log.csv"
    path.parent.mkdir()
    logger = CSVLogger(str(path))
    logger.before_run(Rank0)
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()
    logger.after_train_epoch(Rank0)
    assert "log.csv has no line for epoch 1: " in caplog.text
    assert "training continues" in caplog.text


class Rank0:
    """What a callback sees of a runner."""

    rank, is_resumed = 0, False
    epoch_stats: ClassVar[dict[str, Any]] = {"epoch": 1, "train_loss": 0.5}


class OwnSteps(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        super().on_iter_backward(runner)


class Notes(Callback):
    """Writes down what each worker is told of an epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        (self.folder / f"{orca.rank()}-{epoch}").write_text(json.dumps(logs))

    def after_train_epoch(self, runner: Any) -> None:
        told = json.loads((self.folder / f"{runner.rank}-{runner.epochs}").read_text())
        assert runner.epoch_stats == told


@pytest.mark.parametrize("more", [[], [OwnSteps()]], ids=["our loop", "a loop of the user's"])
def test_all_workers_see_the_same_statistics(more: list[Any], tmp_path: Path) -> None:
    est = checks.estimator(2)
    stats = est.fit(checks.rows(21), epochs=2, batch_size=8, callbacks=[Notes(tmp_path), *more])
    for rank in (0, 1):
        told = [json.loads((tmp_path / f"{rank}-{epoch}").read_text()) for epoch in (1, 2)]
        assert told == stats
    est.shutdown()


def test_steps_that_were_skipped_get_a_column_of_their_own(tmp_path: Path) -> None:
    x, y = checks.rows(16)
    est, path = checks.estimator(1), tmp_path / "log.csv"
    calls = [CSVLogger(str(path)), CSVLogger(str(path), append=True)]
    est.fit((x, y), batch_size=8, callbacks=calls[:1])
    x = x.copy()
    x[0] = math.nan
    est.fit((x, y), batch_size=8, callbacks=calls[1:], on_nan="skip")
    first, second = lines_of(path)
    assert (first["skipped_steps"], second["skipped_steps"]) == ("", "1")
    assert (first["epoch"], second["epoch"]) == ("1", "2")
    est.shutdown()


def test_a_csv_file_loses_the_epochs_that_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = CSVLogger(str(path))
    runner = SimpleNamespace(rank=0, epochs=0, is_resumed=False, epoch_stats=None)
    log.before_run(runner)
    for runner.epochs in (1, 2, 3):
        runner.epoch_stats = {"epoch": runner.epochs, "train_loss": 1 / runner.epochs}
        log.after_train_epoch(runner)
    runner.epochs, runner.is_resumed = 2, True
    CSVLogger(str(path)).before_run(runner)
    assert lines_of(path) == [
        {"epoch": "1", "train_loss": "1.0"},
        {"epoch": "2", "train_loss": "0.5"},
    ]


def test_event_files_of_callbacks_have_the_loss_of_all_workers(tmp_path: Path) -> None:
    from orca._native import _core

    x, y = checks.rows(16)
    losses = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        est = checks.estimator(workers)
        est.fit((x, y), batch_size=4, callbacks=[TensorBoardCallback(str(folder), freq="batch")])
        found = _core.read_scalars(str(folder), "train_loss")
        losses.append([value for _, value, _ in found])
        est.shutdown()
    assert len(losses[0]) == 5  # Four steps, and the epoch.
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))

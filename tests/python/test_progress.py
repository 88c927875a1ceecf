"""The line that says how far training is."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import checks_estimator as checks
import orca
from orca import progress
from orca.learn.pytorch.callbacks import Callback
from orca.learn.pytorch.callbacks.tqdm import TqdmCallback

FIELDS: dict[str, Any] = {
    "epoch": 2,
    "epochs": 3,
    "step": 5,
    "steps": 10,
    "loss": 0.25,
    "rate": 100.0,
    "left": 61.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    progress.show(json.dumps(FIELDS))
    line = "epoch 2/3 [##########..........]  50% loss 0.2500, 100 rows/s, 1:01 left"
    assert screen.getvalue() == "\r" + line
    progress.show(json.dumps({"ends": True}))
    assert screen.getvalue().endswith("\r" + " " * len(line) + "\r")


def test_what_is_no_terminal_stays_quiet_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    progress.show(json.dumps(FIELDS))
    assert screen.getvalue() == ""
    progress.show(json.dumps({**FIELDS, "always": True, "steps": None, "left": None}))
    assert "epoch 2/3 step 5 loss 0.2500, 100 rows/s" in screen.getvalue()
    progress.show(json.dumps({"ends": True, "always": True}))


@pytest.mark.slow
def test_workers_show_their_progress_at_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    orca.init_orca_context("local", cores=1)

    def work() -> None:
        from orca.running import show_progress

        show_progress({**FIELDS, "always": True})

    orca.run(work, workers=1)
    orca.stop_orca_context()
    assert "epoch 2/3 [##########" in capsys.readouterr().err


def test_an_unknown_number_of_epochs_is_left_out() -> None:
    assert progress.describe({**FIELDS, "epochs": None}).startswith("epoch 2 [")


class Watch(Callback):
    """Writes down the lines of progress of a training whose clock advances with every look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bar = TqdmCallback()

    def before_run(self, runner: Any) -> None:
        import itertools
        import time

        from orca import running

        self._real = time.perf_counter, running.show_progress
        ticks = itertools.count()
        time.perf_counter = lambda: 2.0 * next(ticks)  # type: ignore[assignment]
        running.show_progress = self._note

    def after_run(self, runner: Any) -> None:
        import time

        from orca import running

        time.perf_counter, running.show_progress = self._real

    def before_train_epoch(self, runner: Any) -> None:
        self._bar.before_train_epoch(runner)
        self._note({"bar": self._bar._bar.desc})
        self._bar.after_train_epoch(runner)

    def _note(self, fields: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(fields) + "\n")


@pytest.mark.slow
def test_epochs_are_counted_from_the_begin_of_the_call(tmp_path: Path) -> None:
    with orca.init_orca_context("local", cores=1):
        est = checks.estimator(1)
        for call, given in enumerate([{"epochs": 2}, {"epochs": 3}, {"max_steps": 5}]):
            path = tmp_path / str(call)
            est.fit(checks.rows(12), batch_size=4, callbacks=[Watch(path)], **given)
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            shown = [line for line in lines if "step" in line]
            epochs = given.get("epochs")
            bars = [line["bar"].removesuffix(": ") for line in lines if "bar" in line]
            if epochs is None:
                assert bars == ["epoch 1", "epoch 2"]
                assert {line["epochs"] for line in shown} == {None}
            else:
                assert bars == [f"epoch {i + 1}/{epochs}" for i in range(epochs)]
                assert {line["epochs"] for line in shown} == {epochs}
                assert {line["epoch"] for line in shown} == set(range(1, epochs + 1))
            left = [line["left"] for line in shown]
            assert len(left) >= 4
            assert left == sorted(left, reverse=True), "the time left falls"
            assert left[-1] == 0

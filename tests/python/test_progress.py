"""The line that says how far training is."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

import orca
from orca import progress

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

"""Trials that hang, raise and are run again, what a study knows of an older one, and what its user sees."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orca.automl import hp
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.tune import Study

SPACE = {"x": hp.uniform(0.0, 1.0)}


def study(**changes: Any) -> Study:
    return Study(SPACE, **({"seed": 1, "search_alg": "random"} | changes))


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_trial_that_hangs_fails_and_the_others_go_on(parallel: int) -> None:
    release = threading.Event()
    calls: list[float] = []

    def objective(config: dict[str, Any]) -> float:
        calls.append(config["x"])
        if len(calls) == 2:
            release.wait(600)
            return -1.0  # It comes too late to win.
        return float(config["x"])

    mine = study()
    mine.optimize(objective, n_trials=5, parallel=parallel, trial_timeout=0.5)
    states = [trial.state for trial in mine.trials]
    assert sorted(states) == ["failed", *["finished"] * 4]
    (failed,) = (trial for trial in mine.trials if trial.state == "failed")
    assert "reported nothing for 0.5 seconds" in failed.error
    release.set()
    for thread in threading.enumerate():
        if thread.name == "orca-trial":
            thread.join(60)
    assert mine.best_value >= 0
    assert [trial.state for trial in mine.trials] == states


def test_reports_keep_a_trial_alive() -> None:
    def objective(config: dict[str, Any]) -> Iterator[float]:
        for _ in range(8):
            time.sleep(0.25)
            yield config["x"]

    mine = study()
    mine.optimize(objective, n_trials=2, parallel=2, trial_timeout=1.5)
    assert [trial.state for trial in mine.trials] == ["finished"] * 2


def test_a_trial_that_hung_is_run_again() -> None:
    release = threading.Event()
    calls: list[float] = []

    def objective(config: dict[str, Any]) -> Iterator[float]:
        calls.append(config["x"])
        first = len(calls) == 1
        yield 1.0
        if first:
            release.wait(600)
        yield 2.0

    mine = study(retries=1)
    mine.optimize(objective, n_trials=2, trial_timeout=0.5)
    release.set()
    assert [trial.state for trial in mine.trials] == ["finished"] * 2
    assert [trial.retries for trial in mine.trials] == [1, 0]
    assert mine.trials[0].reports == [(1, 1.0), (2, 2.0)]
    assert len(calls) == 3
    assert calls[0] == calls[1]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize(
    ("fails", "retries", "state"), [(1, 1, "finished"), (2, 1, "failed"), (3, 9, "finished")]
)
def test_a_trial_that_raises_is_run_again(
    fails: int, retries: int, state: str, parallel: int
) -> None:
    calls: dict[float, int] = {}

    def objective(config: dict[str, Any]) -> float:
        count = calls[config["x"]] = calls.get(config["x"], 0) + 1
        if count <= fails:
            raise ValueError("abc"[count - 1])
        return float(config["x"])

    mine = study(retries=retries)
    if state == "failed":
        with pytest.raises(FailedPreconditionError, match="all 3 trials"):
            mine.optimize(objective, n_trials=3, parallel=parallel)
    else:
        mine.optimize(objective, n_trials=3, parallel=parallel)
    assert [trial.state for trial in mine.trials] == [state] * 3
    assert set(calls.values()) == {min(fails, retries) + 1}


def test_an_error_that_comes_again_at_once_ends_a_trial() -> None:
    calls = []

    def objective(config: dict[str, Any]) -> float:
        calls.append(config)
        raise ValueError(f"at {len(calls)}")

    with pytest.raises(FailedPreconditionError, match="at 2"):
        study(retries=1000).optimize(objective, n_trials=1)
    assert len(calls) == 2


def test_bad_limits_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="trial_timeout 0"):
        study().optimize(lambda config: 0.0, n_trials=1, trial_timeout=0)
    with pytest.raises(InvalidArgumentError, match="retries -1"):
        study(retries=-1)


def test_an_older_study_is_known_and_not_counted(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> float:
        return (float(config["x"]) - 0.3) ** 2

    old = study(storage=tmp_path / "study.db", search_alg="tpe")
    old.optimize(objective, n_trials=30)
    twin = study(search_alg="tpe")
    for trial in old.trials:
        assert trial.value is not None
        twin.add_trial(trial.config, trial.value)
    twin.optimize(objective, n_trials=10)
    best = old.best_value
    del old
    mine = study(warm_start=tmp_path, search_alg="tpe", storage=tmp_path / "new.db", resume="auto")
    assert mine.added == len(mine) == 30
    mine.optimize(objective, n_trials=10)
    assert len(mine) == 40
    assert mine.best_value <= best
    assert [trial.config for trial in mine.trials] == [trial.config for trial in twin.trials]
    del mine
    again = study(warm_start=tmp_path, search_alg="tpe", storage=tmp_path / "new.db", resume="auto")
    again.optimize(objective, n_trials=10)
    assert len(again) == 40


def test_a_study_warms_up_with_the_one_before_in_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    study(storage=file).optimize(lambda config: config["x"], n_trials=4)
    mine = study(storage=file, warm_start=file)
    assert mine.added == 4


def test_files_show_choices_by_their_values(tmp_path: Path) -> None:
    space = {
        "kind": hp.choice(["adam", "sgd"]),
        "flag": hp.choice([True, False]),
        "model": hp.choice([{"layers": hp.randint(1, 9)}, [1, 2]]),
    }
    mine = Study(space, seed=1, search_alg="random", storage=tmp_path / "study.db")
    mine.optimize(lambda config: 0.0, n_trials=6)
    configs = [trial.config for trial in mine.trials]
    del mine
    command = Path(sys.executable).parent / "orca"
    command = command if command.exists() else Path("build/release/native/orca")
    text = subprocess.check_output([command, "tune", "show", tmp_path, "--json"], text=True)
    for shown, config in zip(json.loads(text)["trials"], configs, strict=True):
        assert shown["config"]["kind"] == config["kind"]
        assert shown["config"]["flag"] is config["flag"]
        expected = "[1, 2]" if config["model"] == [1, 2] else '{"layers": "<randint>"}'
        assert shown["config"]["model"] == expected


def test_a_clone_has_the_categories_of_its_source() -> None:
    options = [{"layers": hp.randint(1, 100)}, {"width": 3}]
    mine = Study(
        {"lr": hp.uniform(0.0, 1.0), "kind": hp.choice(["a", "b"]), "model": hp.choice(options)},
        mode="max",
        seed=2,
        search_alg="random",
        scheduler="pbt",
        scheduler_params={"perturbation_interval": 1, "hyperparam_mutations": {"lr": [0.5, 2.0]}},
        epochs=6,
    )
    configs: dict[int, dict[str, Any]] = {}
    clones = 0
    begun = 0
    while (trial := mine.ask() if begun < 8 and mine.can_ask() else mine.ask_again()) is not None:
        begun = len(mine)
        if trial.source is not None:
            clones += 1
            source = configs[trial.source]
            assert trial.config["kind"] == source["kind"]
            assert trial.config["model"] == source["model"]
        configs[trial.number] = trial.config
        step = trial.resumed_step
        while step < 6:
            step += 1
            if mine.report(trial, trial.number + step / 100, step) == "pause":
                break
        else:
            mine.tell(trial, 1.0)
    assert clones > 2


# --- what the user sees

SCRIPT = """
import logging, sys, time
from orca.automl import hp
from orca.tune import Study
logging.basicConfig(level=logging.INFO)
def objective(config):
    for step in range(4):
        time.sleep(0.3)
        # The engine logs a line of its own, below it a table.
        Study({"x": hp.uniform(0.0, 1.0)}, search_alg="dragonfly", seed=1)
        print("said", step)
        logging.getLogger("orca").info("logged %d", step)
        yield config["x"] + step
study = Study({"x": hp.uniform(0.0, 1.0)}, metric="loss", seed=1, search_alg="random", epochs=4, name="seen")
study.optimize(objective, n_trials=4, parallel=2)
print("still here")
"""


def on_terminal(script: str) -> str:
    """What a terminal is sent while a program runs on it."""
    driver, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    found = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([driver], [], [], 0.2)[0]:
            try:
                part = os.read(driver, 1 << 16)
            except OSError:  # The last one has closed it.
                break
            if not part:
                break
            found += part
    os.close(driver)
    assert process.wait(60) == 0
    return found.decode().replace("\r\n", "\n")


def screen_of(sent: str) -> list[str]:
    """The lines that stay on a terminal; what it knows is what a table needs."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[\d*[AJ])", sent):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
            assert row >= 0
        elif part.endswith("J") and part.startswith("\x1b"):
            del lines[row:]
            lines.append("")
        elif part != "\r":
            lines[row] += part
    return lines


def test_a_terminal_shows_a_table_below_what_the_program_says() -> None:
    sent = on_terminal(SCRIPT)
    assert "RUNNING" in sent
    assert re.search(r"seen: \d of 4 trials, 0:0\d passed, about 0:0\d left", sent)
    screen = screen_of(sent)
    # Nothing of it stays, and nothing of what was said is lost.
    assert not [line for line in screen if "RUNNING" in line or "passed" in line]
    end = "\n".join(screen)
    assert end.count("said") == 16  # Two threads may say so on one line.
    assert end.count("INFO:orca:logged") == 16
    assert end.count("search_alg 'dragonfly' runs as gp in place of Dragonfly\n") == 16
    assert "4 trials: 0 running, 0 paused, 4 finished, 0 pruned, 0 failed" in end
    assert "best: " in end
    assert end.rstrip().endswith("still here")


EXPLORING = """
import time
from orca.automl import hp
from orca.tune import Study, live
def explore(config):
    for _ in range(20):
        print("exploring")
        time.sleep(0.002)
    return config
study = Study({"x": hp.uniform(0, 1)}, mode="max", seed=1, scheduler="pbt", epochs=400,
              scheduler_params={"perturbation_interval": 1, "custom_explore_fn": explore})
with live.shown(study._native, 4):
    trials = {trial.number: [trial, 0] for trial in [study.ask() for _ in range(4)]}
    end = time.monotonic() + 3
    while trials and time.monotonic() < end:
        for number, (trial, step) in list(trials.items()):
            trials[number][1] = step + 1
            if study.report(trial, number + 0.01 * step, step + 1) == "pause":
                del trials[number]
        while (trial := study.ask_again()) is not None:
            known = trial.resumed_step if trial.source is not None else trial.reports[-1][0]
            trials[trial.number] = [trial, known]
"""


def test_who_explores_may_print_while_the_table_is_drawn() -> None:
    assert on_terminal(EXPLORING).count("exploring") > 100


def test_a_log_has_a_table_at_the_end_and_no_escapes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert "\x1b" not in done.stderr
    assert done.stderr.count("4 finished") == 1
    assert "RUNNING" not in done.stderr


def test_quiet_studies_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "orca"):
        study().optimize(lambda config: 0.0, n_trials=2, quiet=True)
        assert not caplog.records
        study().optimize(lambda config: 0.0, n_trials=2)
    assert "2 finished" in caplog.text


def test_an_interrupt_of_one_trial_waits_for_all_others() -> None:
    ended = []

    def objective(config: dict[str, Any]) -> float:
        number = int(config["number"])
        if number == 0:
            raise KeyboardInterrupt
        time.sleep(0.2 * number)
        ended.append(number)
        return 0.0

    study = Study({"number": hp.grid_search([0, 1, 3])}, search_alg="grid", seed=1)
    with pytest.raises(KeyboardInterrupt):
        study.optimize(objective, n_trials=3, parallel=3, quiet=True)
    assert sorted(ended) == [1, 3]

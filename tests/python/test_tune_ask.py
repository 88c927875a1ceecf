"""Studies: trials that are told and asked for together."""

from __future__ import annotations

from pathlib import Path

import pytest

from orca.automl import hp
from orca.errors import InvalidArgumentError
from orca.tune import Study


def test_the_end_of_a_trial_and_the_next_one_are_asked_for_at_once(tmp_path: Path) -> None:
    def opened() -> Study:
        return Study({"x": hp.randint(0, 3)}, seed=1, storage=tmp_path / "study.db", resume="auto")

    study = opened()
    first = study.ask()
    (second,) = study.tell_and_ask([(first, 2.0)])
    assert (second.number, [trial.state for trial in study.trials]) == (1, ["finished", "running"])
    assert study.tell_and_ask([(second, 1.0)], 0) == []
    (third,) = study.tell_and_ask([], 5)
    assert study.tell_and_ask([(third, 3.0)]) == []  # The space is exhausted.
    del study
    assert [trial.value for trial in opened().trials] == [2.0, 1.0, 3.0]


def test_many_trials_are_asked_for_at_once() -> None:
    space = {"x": hp.uniform(0, 1)}
    one_by_one = Study(space, seed=1)
    study = Study(space, seed=1)
    trials = study.tell_and_ask([], 3)
    assert trials == [one_by_one.ask() for _ in range(3)]
    more = study.tell_and_ask([(trial, trial.config["x"]) for trial in reversed(trials)], 2)
    assert [trial.number for trial in more] == [3, 4]
    assert study.best_value == min(trial.config["x"] for trial in trials)
    functions = Study({"x": hp.sample_from(lambda: 1)}, seed=1)
    with pytest.raises(InvalidArgumentError, match="wanted 2: the space has functions"):
        functions.tell_and_ask([], 2)


@pytest.mark.parametrize(
    ("search_alg", "scheduler", "batch", "learns"),
    [
        ("random", None, 0, False),
        ("grid", None, 0, False),
        ("sobol", "fifo", 0, False),
        ("random", "async_hyperband", 0, True),
        ("random", None, 4, True),
        ("tpe", None, 0, True),
        ("auto", None, 0, True),
    ],
)
def test_a_study_says_whether_it_learns(
    search_alg: str, scheduler: str | None, batch: int, learns: bool
) -> None:
    study = Study({"x": hp.choice([1, 2])}, search_alg=search_alg, scheduler=scheduler, batch=batch)
    assert study.learns is learns

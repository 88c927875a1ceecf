"""PBT through a study: what mutations may be, what the user explores, and where changed values come."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from orca.automl import hp
from orca.errors import InvalidArgumentError
from orca.tune import Study, Trial


def _study(space: dict[Any, Any], epochs: int = 5, **params: Any) -> Study:
    """With PBT, which perturbs after every step."""
    return Study(
        space,
        scheduler="pbt",
        scheduler_params={"perturbation_interval": np.int64(1), **params},
        epochs=epochs,
        seed=1,
        allow_duplicates=True,
    )


@pytest.mark.parametrize(
    ("law", "fits"),
    [
        (hp.uniform(0.5, 2), lambda x: 0.5 <= x < 2),
        (hp.loguniform(0.01, 1), lambda x: 0.01 <= x < 1),
        (hp.randint(3, 9), lambda x: x in range(3, 9) and type(x) is int),
        (hp.lograndint(3, 9), lambda x: x in range(3, 9) and type(x) is int),
        (hp.quniform(0.5, 2, 0.25), lambda x: x in np.arange(0.5, 2.25, 0.25)),
        (hp.qrandint(3, 20, 4), lambda x: x in (4, 8, 12, 16, 20) and type(x) is int),
        (hp.choice(["a", "b", 3, None]), lambda x: x in ("a", "b", 3, None)),
    ],
)
def test_mutations_may_be_laws(law: Any, fits: Any) -> None:
    study = _study({"x": law}, hyperparam_mutations={"x": law}, epochs=20)
    trials = [study.ask() for _ in range(4)]
    changed = 0
    while trials:
        trial = trials.pop(0)
        assert fits(trial.config["x"])
        changed += trial.source is not None
        step = trial.resumed_step + 1
        decision = study.report(trial, trial.number + step, step)
        if decision in ("continue", "save") and step == 20:
            study.tell(trial, step)
        elif decision in ("continue", "save"):
            trial.resumed_step = step
            trials.append(trial)
        if (again := study.ask_again()) is not None:
            trials.append(again)
    assert changed > 5


def test_a_mutation_below_a_key_leaves_its_neighbours() -> None:
    mutations = {"m": {"y": [1, 2, 3], "c": [5, 6]}}
    study = _study(
        {"m": {"y": hp.randint(1, 4), "z": 5, "c": 5}, "w": hp.uniform(0, 1)},
        hyperparam_mutations=mutations,
    )
    for trial in [study.ask() for _ in range(4)]:
        study.report(trial, trial.number, 1)
    clones = [trial for _ in range(4) if (trial := study.ask_again()) and trial.source is not None]
    assert len(clones) == 3
    for trial in clones:
        assert set(trial.config["m"]) == {"y", "z", "c"}
        assert trial.config["m"]["y"] in (1, 2, 3)
        assert trial.config["m"]["z"] == 5
        assert trial.config["m"]["c"] in (5, 6)


def _clones(study: Study) -> list[Trial]:
    for trial in [study.ask() for _ in range(4)]:
        study.report(trial, trial.number, 1)
    again = [study.ask_again() for _ in range(4)]
    return [trial for trial in again if trial is not None and trial.source is not None]


def test_mutations_may_be_functions_and_the_user_explores() -> None:
    seen: list[dict[str, Any]] = []

    def explore(config: dict[str, Any]) -> dict[str, Any]:
        seen.append(config)
        config["m"]["kind"] = "b"
        config["added"] = np.int64(3)
        return config

    study = _study(
        {
            "m": {"rate": hp.uniform(0, 1), "kind": hp.choice(["a", "b"]), "depth": 7},
            "noise": hp.randn(0, 1),
            "size": hp.randint(1, 9),
            "twice": hp.sample_from(lambda spec: 2 * spec.config["size"]),
        },
        resample_probability=1.0,
        hyperparam_mutations={
            "m": {"rate": lambda: np.float32(0.5)},
            "noise": hp.randn(100, 1),
            "size": hp.sample_from(lambda: 8),
        },
        custom_explore_fn=explore,
    )
    clones = _clones(study)
    assert len(clones) == len(seen) == 3
    for trial in clones:
        assert trial.config["m"] == {"rate": 0.5, "kind": "b", "depth": 7}
        assert 90 < trial.config["noise"] < 110
        assert (trial.config["size"], trial.config["added"]) == (8, 3)
        assert trial.config["twice"] == study.trials[trial.source].config["twice"]  # As in Ray.
    for wrong, message in ((3, "custom_explore_fn 3 is not a function"),):
        with pytest.raises(InvalidArgumentError, match=message):
            Study(
                {"x": hp.uniform(0, 1)},
                scheduler="pbt",
                scheduler_params={"custom_explore_fn": wrong},
            )


def test_what_the_users_explorer_raises_is_raised_and_may_be_mended() -> None:
    broken = [True]

    def explore(config: dict[str, Any]) -> Any:
        if broken[0]:
            raise KeyError("mine")
        return config

    study = _study({"x": hp.uniform(0, 1)}, custom_explore_fn=explore)
    for trial in [study.ask() for _ in range(4)]:
        study.report(trial, trial.number, 1)
    with pytest.raises(KeyError, match="mine"):
        list(iter(study.ask_again, None))
    broken[0] = False
    again = study.ask_again()
    assert again is not None
    assert again.source is not None


def _explored(space: dict[str, Any], change: Callable[[Any], Any], **params: Any) -> list[Trial]:
    study = _study(space, custom_explore_fn=change, **params)
    assert study.algorithm == "random"
    clones = _clones(study)
    assert clones
    return clones


def _act(x: float) -> float:
    return x


def test_what_the_user_explores_stays_what_it_is() -> None:
    array = np.arange(3)
    space = {
        "option": hp.choice([{"lr": hp.uniform(0, 1)}, {"lr": hp.uniform(10, 20)}]),
        "act": _act,
        "array": array,
        "shape": hp.choice([(1, 2), (3, 4)]),
        "pair": (hp.uniform(0, 1), hp.uniform(0, 1)),
        "few": hp.choice_n([1, 2, 3, 4], 1, 4),
        "deep": {"kept": (5, 6), 1: hp.uniform(0, 1)},
        "made": hp.sample_from(lambda: _act),
        "random": hp.sample_from(lambda: np.random.default_rng().integers(1 << 60)),
    }
    study = _study(space, custom_explore_fn=lambda config: config)
    for trial in _clones(study):
        assert trial.source is not None
        source = study.trials[trial.source].config
        assert trial.config.pop("array") is array
        assert {key: value for key, value in source.items() if key != "array"} == trial.config
        assert type(trial.config["shape"]) is tuple

    def change(config: Any) -> Any:
        config["option"]["lr"] = np.float32(30)
        config["shape"] = (1, 2) if config["shape"] == (3, 4) else (3, 4)
        config["pair"] = (config["pair"][0], 5.0)
        config["few"] = [4, 1]
        config["deep"]["kept"] = [7]
        config["deep"][1] = 2.5
        config["made"] = "text"
        return config

    for trial in _explored(space, change):
        assert trial.config["option"] == {"lr": 30}
        assert trial.config["pair"][1] == 5.0
        assert type(trial.config["pair"]) is tuple
        assert trial.config["few"] == [4, 1]
        assert trial.config["deep"] == {"kept": [7], 1: 2.5}
        assert trial.config["made"] == "text"
    with pytest.raises(InvalidArgumentError, match=r"custom_explore_fn gave .*not JSON"):
        _explored({"x": hp.uniform(0, 1)}, lambda config: {"x": math.inf})


@pytest.mark.parametrize(
    ("space", "mutations", "fits"),
    [
        (
            {"l": (hp.uniform(0, 1), hp.uniform(0, 1))},
            {"l/0": [1.5]},
            lambda config: config["l"][0] == 1.5 and type(config["l"]) is tuple,
        ),
        (
            {"o": hp.choice(["none", "nix", {"lr": hp.uniform(0, 1)}])},
            {"o[2]/lr": [5.0]},
            lambda config: config["o"] in ("none", "nix", {"lr": 5.0}),
        ),
        ({"a/b": hp.uniform(0, 1)}, {"a/b": [5.0]}, lambda config: config == {"a/b": 5.0}),
        (
            {"x": hp.choice([hp.uniform(0, 1), "none"])},
            {"x[0]": [5.0]},
            lambda config: config["x"] in (5.0, "none"),
        ),
        ({1: hp.uniform(0, 1)}, {1: [5.0]}, lambda config: config == {1: 5.0}),
        (
            {"n": 5, "x": hp.uniform(0, 1)},
            {"n": hp.randint(1, 10)},
            lambda config: type(config["n"]) is int,
        ),
        (
            {"n": 5, "x": hp.uniform(0, 1)},
            {"n": [[32], None]},
            lambda config: config["n"] in ([32], None),
        ),
        (
            {"shape": hp.choice([(1, 2), (3, 4), (5, 6)])},
            {"shape": [(1, 2), (3, 4)]},
            lambda config: config["shape"] in ((1, 2), (3, 4)),
        ),
        ({"m": {"n": hp.randint(1, 4)}}, {"m": {"n": [9]}}, lambda config: config["m"]["n"] == 9),
    ],
)
def test_mutated_values_come_where_they_belong(
    space: dict[Any, Any], mutations: dict[Any, Any], fits: Any
) -> None:
    for explore in (None, lambda config: config):
        study = _study(space, hyperparam_mutations=mutations, custom_explore_fn=explore)
        clones = _clones(study)
        assert clones
        for trial in clones:
            assert fits(trial.config), trial.config
            assert trial.source is not None
            assert set(trial.config) == set(study.trials[trial.source].config)


def test_others_look_at_a_study_while_the_user_explores() -> None:
    is_exploring, seen = threading.Event(), threading.Event()

    def explore(config: dict[str, Any]) -> Any:
        if not is_exploring.is_set():
            is_exploring.set()
            assert not seen.wait(0.2)  # They wait for the study, but not with Python's lock.
        return config

    study = _study({"x": hp.uniform(0, 1)}, custom_explore_fn=explore)
    for trial in [study.ask() for _ in range(4)]:
        study.report(trial, trial.number, 1)

    def look() -> None:
        assert is_exploring.wait(60)
        assert len(study) == 4
        assert study.added == 0
        assert study.memo == ""
        seen.set()

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    list(iter(study.ask_again, None))
    looker.join(60)
    assert seen.is_set()


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (hp.choice([hp.uniform(0, 1)]), r"scheduler_params have uniform.* in a choice"),
        (hp.quniform(0, 10, 0.001), "has 10001 values, more than 1000; give a list"),
    ],
)
def test_mutations_that_cannot_be_are_refused(mutation: Any, message: str) -> None:
    params = {"hyperparam_mutations": {"x": mutation}}
    with pytest.raises(InvalidArgumentError, match=message):
        Study({"x": hp.uniform(0, 1)}, scheduler="pbt", scheduler_params=params)

"""Search spaces and studies through Python; laws and samplers have their tests in C++."""

from __future__ import annotations

import doctest
import gc
import importlib
import itertools
import math
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orca.automl.hp
import orca.tune
import orca.tune.space
import orca.tune.study
from orca.automl import hp
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import BIGDL, ORCA, ZOO
from orca.tune import (
    RecursiveDependencyError,
    SearchSpace,
    SpaceExhaustedError,
    Study,
    search_names,
    search_parameters,
)

RAY_NAMES = [
    "random",
    "variant_generator",
    "skopt",
    "bayesopt",
    "hyperopt",
    "optuna",
    "ax",
    "bohb",
    "dragonfly",
    "nevergrad",
    "zoopt",
    "hebo",
    "blendsearch",
    "cfo",
    "sigopt",
]


@pytest.mark.parametrize("root", ["orca.automl.hp", "bigdl.orca.automl.hp", "zoo.orca.automl.hp"])
def test_hp_is_in_every_root(root: str) -> None:
    module = importlib.import_module(root)
    for name in [
        "uniform",
        "quniform",
        "loguniform",
        "qloguniform",
        "randn",
        "qrandn",
        "randint",
        "qrandint",
        "choice",
        "choice_n",
        "sample_from",
        "grid_search",
        "lograndint",
        "qlograndint",
    ]:
        assert callable(getattr(module, name))
    assert module.randint is hp.randint


@pytest.mark.parametrize(
    "module",
    [orca.automl.hp, orca.tune, orca.tune.space, orca.tune.study],
    ids=lambda m: m.__name__,
)
def test_examples_of_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# --- spaces


def draws(space: dict[str, Any], count: int = 2000) -> list[dict[str, Any]]:
    searched = SearchSpace(space)
    return [searched.draw(seed=5, trial=i) for i in range(count)]


def test_every_function_draws_its_type_from_its_range() -> None:
    space = {
        "uniform": hp.uniform(1, 2),
        "quniform": hp.quniform(0, 1, 0.25),
        "loguniform": hp.loguniform(1e-3, 1),
        "qloguniform": hp.qloguniform(1, 5, 1),
        "randn": hp.randn(1, 2),
        "qrandn": hp.qrandn(0, 1, 0.5),
        "randint": hp.randint(0, 3),
        "qrandint": hp.qrandint(0, 9, 3),
        "lograndint": hp.lograndint(1, 10),
        "qlograndint": hp.qlograndint(2, 10, 2),
        "choice": hp.choice([1, "a", None, [2]]),
        "constant": {"of": [1, (2, 3)]},
    }
    configs = draws(space)
    for config in configs:
        assert 1 <= config["uniform"] < 2
        assert config["constant"] == {"of": [1, (2, 3)]}
        for name in ("randint", "qrandint", "lograndint", "qlograndint"):
            assert type(config[name]) is int
    assert {c["quniform"] for c in configs} == {0, 0.25, 0.5, 0.75, 1}
    assert {c["randint"] for c in configs} == {0, 1, 2}
    assert {c["qrandint"] for c in configs} == {0, 3, 6, 9}
    assert {c["lograndint"] for c in configs} == set(range(1, 10))
    assert Counter(repr(c["choice"]) for c in configs).keys() == {"1", "'a'", "None", "[2]"}
    assert np.std([c["randn"] for c in configs]) == pytest.approx(2, rel=0.1)


def test_choice_n_draws_lists_without_repetition() -> None:
    seen = Counter(tuple(c["x"]) for c in draws({"x": hp.choice_n(["a", "b", "c"], 1, 3)}, 6000))
    assert len(seen) == 3 + 6
    assert all(len(set(chosen)) == len(chosen) for chosen in seen)
    assert sum(n for chosen, n in seen.items() if len(chosen) == 1) == pytest.approx(3000, rel=0.1)


def test_paths_name_nested_parameters() -> None:
    space = SearchSpace({"b": {"c": hp.uniform(0, 1)}, "a": [0, {"x": hp.randint(0, 2)}]})
    assert space.names == ["a/1/x", "b/c"]
    config = space.draw(0, 0)
    assert list(config) == ["b", "a"]
    assert config["a"][0] == 0


def test_what_a_trial_does_to_a_constant_no_other_sees() -> None:
    space = SearchSpace({"x": hp.uniform(0, 1), "sizes": [1, {"a": []}]})
    first = space.draw(0, 0)
    first["sizes"][1]["a"].append(7)
    assert space.draw(0, 1)["sizes"] == [1, {"a": []}]


def test_domains_in_a_choice_exist_only_there() -> None:
    space = {
        "model": hp.choice(
            [
                {"kind": "svm", "c": hp.loguniform(0.1, 10)},
                {"kind": "tree", "depth": hp.randint(1, 9)},
            ]
        )
    }
    kinds = Counter()
    for config in draws(space, 200):
        model = config["model"]
        kinds[model["kind"]] += 1
        assert set(model) == ({"kind", "c"} if model["kind"] == "svm" else {"kind", "depth"})
    assert min(kinds.values()) > 60
    searched = SearchSpace(space)
    point = searched.point({"model": {"kind": "tree", "depth": 3}})
    assert searched.config(point) == {"model": {"kind": "tree", "depth": 3}}


def test_sample_from_sees_the_others_and_waits_for_them() -> None:
    space = SearchSpace(
        {
            "c": hp.sample_from(lambda spec: spec.config.b + 1),
            "b": hp.sample_from(lambda spec: spec.config.nested.a * 2),
            "nested": {"a": hp.choice([4])},
            "plain": hp.sample_from(lambda: "x"),
        }
    )
    assert space.draw(0, 0) == {"c": 9, "b": 8, "nested": {"a": 4}, "plain": "x"}
    circle = SearchSpace(
        {
            "x": hp.uniform(0, 1),
            "a": hp.sample_from(lambda spec: spec.config.b),
            "b": hp.sample_from(lambda spec: spec.config["a"]),
        }
    )
    with pytest.raises(RecursiveDependencyError, match="2 functions of sample_from"):
        circle.draw(0, 0)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({"a": (1, hp.sample_from(lambda: 7))}, (1, 7)),
        ({"a": ([hp.sample_from(lambda: 7)], 2)}, ([7], 2)),
        ({"a": hp.sample_from(lambda spec: spec.config.get("b"))}, 7),
        ({"a": hp.sample_from(lambda spec: spec.config.get("z", 3))}, 3),
        ({"a": hp.sample_from(lambda spec: spec["config"]["b"])}, 7),
        ({"a": hp.sample_from(lambda spec: dict(spec.config.d)["b"])}, 7),
        ({"a": hp.sample_from(lambda spec: {**spec.config.d}["b"])}, 7),
        ({"a": hp.sample_from(lambda spec: sum(spec.config.d.values()))}, 7),
        ({"a": hp.sample_from(lambda spec: dict(spec.config.d.items()))}, {"b": 7}),
        ({"a": hp.sample_from(lambda spec: spec.config.m[0])}, 7),
        ({"a": hp.sample_from(lambda spec: spec.config.m[1:])}, [8]),
        ({"a": hp.sample_from(lambda spec: list(spec.config.m))}, [7, 8]),
        ({"a": hp.sample_from(lambda spec: spec.config.m + [9])}, [7, 8, 9]),
        ({"a": hp.sample_from(lambda spec: spec.config.t[1])}, 8),
        ({"a": hp.sample_from(lambda spec: spec.config.n[0].b)}, 7),
        ({"a": hp.sample_from(lambda spec: spec.config.d)}, {"b": 7}),
    ],
)
def test_no_function_sees_or_leaves_what_has_yet_to_be_filled(space: Any, expected: Any) -> None:
    others = {
        "b": hp.sample_from(lambda: 7),
        "d": {"b": hp.sample_from(lambda: 7)},
        "m": [hp.sample_from(lambda: 7), hp.sample_from(lambda spec: spec.config.m[0] + 1)],
        "n": [{"b": hp.sample_from(lambda: 7)}],
        "t": (hp.sample_from(lambda: 7), hp.sample_from(lambda spec: spec.config.t[0] + 1)),
    }
    found = SearchSpace(space | others).draw(0, 0)
    assert (found["a"], type(found["a"])) == (expected, type(expected))
    assert found["m"] == [7, 8]
    assert found["t"] == (7, 8)


def test_a_grid_may_hold_laws() -> None:
    space = {"a": hp.grid_search([hp.uniform(0, 1), {"b": hp.choice([7])}, 3])}
    study = Study(space, search_alg="random", seed=0)
    first, second, third = (study.ask().config["a"] for _ in range(3))
    assert 0 <= first < 1
    assert (second, third) == ({"b": 7}, 3)
    again = Study(space, search_alg="random", points_to_evaluate=[{"a": 0.25}]).ask()
    assert again.config == {"a": 0.25}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": hp.sample_from(lambda: hp.uniform(0, 1))}, "returned uniform.*return a value"),
        ({"a": hp.sample_from(lambda: [hp.choice([1])])}, "returned choice.*return a value"),
        ({"a": hp.choice_n([hp.uniform(0, 1), 3], 1, 2)}, "a: uniform.*use choice"),
        ({"a": {hp.uniform(0, 1)}}, "a: uniform.*use a list"),
        ({"a": hp.choice([hp.grid_search([1])])}, "grids are outside of choices"),
    ],
)
def test_laws_where_they_cannot_be_are_refused(space: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        SearchSpace(space).draw(0, 0)


def test_functions_make_one_point_many_configurations() -> None:
    values = iter(range(9))
    space = {"batch_size": hp.choice([20]), "lr": hp.sample_from(lambda: next(values))}
    study = Study(space, mode="max", seed=0)
    study.optimize(lambda config: config["lr"], n_trials=5, quiet=True)
    assert [trial.config["lr"] for trial in study.trials] == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidArgumentError, match="optimize has no end"):
        study.optimize(lambda config: config["lr"])


def test_grids_run_in_the_order_of_ray() -> None:
    study = Study(
        {"b": hp.grid_search([1, 2]), "a": hp.grid_search(["x", "y"]), "u": hp.uniform(0, 1)},
        search_alg="random",
        seed=0,
    )
    configs = [study.ask().config for _ in range(8)]
    cells = [(c["a"], c["b"]) for c in configs]
    assert cells == [("x", 1), ("y", 1), ("x", 2), ("y", 2)] * 2
    assert len({c["u"] for c in configs}) == 8
    constant = Study(
        {"a": hp.grid_search([1, 2]), "u": hp.uniform(0, 1)},
        search_alg="random",
        search_alg_params={"constant_grid_search": True},
    )
    configs = [constant.ask().config for _ in range(4)]
    assert configs[0]["u"] == configs[1]["u"] != configs[2]["u"] == configs[3]["u"]


def study_of(**arguments: Any) -> Callable[[], Study]:
    return lambda: Study({"x": hp.uniform(0, 1)}, **arguments)


MUTATION = {"hyperparam_mutations": {"x": [0.1, 0.2]}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hp.uniform(1, 0), "is empty"),
        (lambda: hp.quniform(0, 1, 0.3), "not a multiple of the step"),
        (lambda: hp.loguniform(0, 1), "not positive"),
        (lambda: hp.randn(0, 0), "std 0 is not positive; give"),
        (lambda: hp.randint(0, 1.5), "upper 1.5 is not a whole number"),
        (lambda: hp.uniform("a", 1), "lower 'a' is a str; give a number"),
        (lambda: hp.uniform(None, 1), "lower None is a NoneType; give a number"),
        (lambda: hp.randint("a", 3), "lower 'a' is a str; give a whole number"),
        (lambda: hp.randint(0, math.inf), "upper inf is not a whole number; give one"),
        (lambda: hp.randint(0, 10**30), "is too large; give"),
        (lambda: hp.choice(5), "choice got 5; give a list"),
        (lambda: hp.choice("abc"), "choice got 'abc'; give a list"),
        (lambda: hp.choice_n(5, 1, 2), "choice_n got 5; give a list"),
        (lambda: hp.quniform(0, 1, 0.3), "; give ends that are, or another step"),
        (lambda: hp.quniform(0, 1, 0), "q 0 is not positive; give"),
        (lambda: hp.qrandint(0, 4, 0), "q 0 is not positive; give"),
        (lambda: hp.lograndint(0, 4), "lower 0 is not positive.*; give more than 0"),
        (lambda: hp.choice([]), "no categories"),
        (lambda: hp.choice_n([1, 2], 1, 1), "cannot take 1 to 0"),
        (lambda: hp.grid_search((1, 2)), "wants a list"),
        (lambda: hp.sample_from(3), "wants a function"),
        (lambda: Study({}), "the search space is empty"),
        (lambda: Study([hp.uniform(0, 1)]), "a search space is a dict"),  # type: ignore[arg-type]
        (lambda: Study({"x": hp.uniform(0, 1)}, mode="up"), "mode 'up'"),
        (lambda: Study({"x": hp.uniform(0, 1)}, search_alg="tpe2"), "known: .*hyperopt.*tpe"),
        (lambda: Study({"x": hp.uniform(0, 1)}, seed=-1), "seed -1"),
        (
            lambda: Study({"x": hp.uniform(0, 1)}, search_alg_params={"gama": 1}),
            "no parameter 'gama'; known: ",
        ),
        (
            lambda: Study({"x": hp.grid_search([1])}, search_alg="tpe"),
            "Grid search parameters cannot be automatically converted",
        ),
        (
            lambda: Study({"x": hp.uniform(0, 1)}, points_to_evaluate=[{"x": 3}]),
            "x: 3 is not a value",
        ),
        (
            lambda: Study({"x": hp.uniform(0, 1)}, points_to_evaluate=[{"y": 3}]),
            "no key 'y'; known: x",
        ),
        (lambda: Study({"x": hp.uniform(0, 1)}).optimize(float), "optimize has no end"),
        (study_of(search_alg_params=[1]), r"search_alg_params \[1\] is a list; give a dict"),
        (study_of(scheduler_params=[1]), r"scheduler_params \[1\] is a list; give a dict"),
        (study_of(search_alg_params={"mode": "max"}), "mode 'max', the search has 'min'"),
        (
            study_of(scheduler="fifo", scheduler_params={"metric": "loss"}),
            "metric 'loss', the search has 'value'",
        ),
        (
            study_of(scheduler="fifo", scheduler_params={"time_attr": "time_total_s"}),
            "time_attr 'time_total_s'; trials report by 'training_iteration'",
        ),
        (study_of(search_alg_params={"max_concurrent": -1}), "max_concurrent -1 is not"),
        (study_of(search_alg_params={"points_to_evaluate": {"x": 1}}), "give a list of dicts"),
        (
            study_of(search_alg="bayesopt", scheduler="PBT", scheduler_params=MUTATION),
            "'PBT' cannot be used with search_alg 'bayesopt': it changes",
        ),
        (
            study_of(scheduler="pbt", scheduler_params={"hyperparam_mutations": {"lrr": [1]}}),
            "the key 'lrr', which search_space has not; known: x",
        ),
        (
            study_of(scheduler="pb2", scheduler_params={"hyperparam_bounds": {"y": [0, 1]}}),
            "hyperparam_bounds has the key 'y'",
        ),
    ],
)
def test_bad_input_is_refused_with_its_reason(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize("name", RAY_NAMES)
def test_every_name_takes_what_the_original_takes_beside_its_own(name: str) -> None:
    study = Study(
        {"x": hp.uniform(0, 1)},
        metric="loss",
        search_alg=name,
        search_alg_params={
            "points_to_evaluate": [{"x": 0.25}],
            "max_concurrent": 2,
            "metric": "loss",
            "mode": "min",
        },
        scheduler="async_hyperband",
        scheduler_params={"time_attr": "training_iteration", "metric": "loss", "mode": "min"},
    )
    changed = threading.Condition()
    begun, most, running = 0, 0, 0

    def objective(config: dict[str, Any]) -> float:
        nonlocal begun, most, running
        with changed:
            begun, running = begun + 1, running + 1
            most = max(most, running)
            changed.notify_all()
            mate = begun + begun % 2  # They run in pairs.
            assert changed.wait_for(lambda: begun >= mate, 60)
            changed.wait_for(lambda: running > 2, 0.02)  # Time for a third one.
            running -= 1
        return float(config["x"])

    study.optimize(objective, n_trials=4, parallel=4, quiet=True)
    assert [trial.state for trial in study.trials] == ["finished"] * 4
    assert most == 2
    assert study.trials[0].config == {"x": 0.25}
    assert study.max_concurrent == 2


@pytest.mark.parametrize("generation", [BIGDL, ZOO])
def test_a_study_of_the_old_roots_warns_of_unknown_parameters(generation: Any) -> None:
    space = {"x": hp.uniform(0, 1)}
    with pytest.warns(UserWarning, match="no parameter 'gama'.*ignored"):
        Study(space, search_alg_params={"gama": 1}, generation=generation)
    given = MUTATION | {"synk": 1, "perturbation_interval": 2}
    with pytest.warns(UserWarning, match="no parameter synk; it has .*ignored"):
        Study(space, scheduler="pbt", scheduler_params=given, generation=generation)
    bad = MUTATION | {"perturbation_interval": -1}
    with pytest.raises(InvalidArgumentError, match="perturbation_interval"):
        Study(space, scheduler="pbt", scheduler_params=bad, generation=generation)


@pytest.mark.parametrize("generation", [ORCA, BIGDL])
def test_what_runs_in_place_of_a_scheduler_is_said_once(
    generation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    bounds = {"hyperparam_bounds": {"x": [0, 1]}}
    Study({"x": hp.uniform(0, 1)}, scheduler="pb2", scheduler_params=bounds, generation=generation)
    assert capfd.readouterr().err.count("pb2 runs as pbt") == 1


def test_what_functions_made_is_stored(tmp_path: Path) -> None:
    calls = itertools.count()
    space = {
        "x": hp.uniform(0, 1),
        "n": hp.sample_from(lambda: [next(calls), "a", None, 0.5]),
        "odd": hp.sample_from(lambda: {next(calls)}),
        "pair": hp.sample_from(lambda: (np.int64(next(calls)), [(1,)])),
        "both": hp.sample_from(lambda spec: spec.config.n[0] + 1),
    }
    file = tmp_path / "study.db"
    study = Study(space, storage=file, seed=1)
    trials = [study.ask() for _ in range(3)]
    study.tell(trials[0], 1.0)
    del study
    made = next(calls)
    study = Study(space, storage=file, resume="auto", seed=1)
    assert study.best_config["n"] == trials[0].config["n"]
    for again in (study.ask(), study.ask()):
        before = trials[again.number].config
        assert {**again.config, "odd": 0} == {**before, "odd": 0}
        assert again.config["odd"].pop() > made  # A set is no JSON: it is made anew.


def test_a_function_that_raises_leaves_a_study_that_can_be_read(tmp_path: Path) -> None:
    space = {"x": hp.uniform(0, 1), "f": hp.sample_from(lambda: 1 // 0)}
    for resume in (False, "auto"):
        study = Study(space, storage=tmp_path / "study.db", resume=resume, seed=1)
        with pytest.raises(ZeroDivisionError):
            study.ask()
        assert [trial.state for trial in study.trials] == ["failed"] * len(study)
        assert study.trials[0].config == {}
        del study


def test_a_study_goes_on_only_with_its_constants(tmp_path: Path) -> None:
    def begin(depth: Any, resume: Any = "auto") -> Study:
        space = {"x": hp.uniform(0, 1), "net": {"depth": depth, "y": hp.choice([1, {"z": depth}])}}
        return Study(space, storage=tmp_path / "study.db", resume=resume, seed=1)

    begin(3, False)
    begin(3)
    with pytest.raises(FailedPreconditionError, match="begun with another"):
        begin(4)
    begin(object(), False)
    begin(object())  # Which has no text that stays the same.


def test_seeds_are_numbers_of_64_bits() -> None:
    Study({"x": hp.uniform(0, 1)}, seed=(1 << 64) - 1).ask()
    with pytest.raises(InvalidArgumentError, match="seed 18446744073709551616 is larger than"):
        Study({"x": hp.uniform(0, 1)}, seed=1 << 64)


def test_generators_of_stopped_trials_are_closed() -> None:
    closed = []

    def objective(config: dict[str, Any]) -> Any:
        try:
            for step in range(9):
                yield config["x"] + 1 / (1 + step)
        finally:
            closed.append(config["x"])

    study = Study(
        {"x": hp.uniform(0, 1)},
        scheduler="hyperband",
        scheduler_params={"max_t": 9, "reduction_factor": 3},
        epochs=9,
        seed=1,
    )
    study.optimize(objective, n_trials=9, quiet=True)
    assert len([trial for trial in study.trials if trial.state == "pruned"]) > 0
    assert len(closed) == 9


def test_unknown_parameters_are_warnings_in_the_old_roots() -> None:
    for generation in (BIGDL, ZOO):
        with pytest.warns(UserWarning, match="no parameter 'gama'"):
            taken = search_parameters("HyperOpt", {"gama": 1, "gamma": 0.3}, generation)
        assert taken == {"gamma": 0.3}


def test_parameters_of_the_originals_are_taken_where_they_mean_nothing() -> None:
    taken = search_parameters(
        "bayesopt", {"utility_kwargs": {"kappa": 1}, "random_search_steps": 4}
    )
    assert taken == {"random_search_steps": 4}


# --- studies


def sphere(config: dict[str, Any]) -> float:
    return sum(value**2 for value in config.values())


FLOATS = {"x": hp.uniform(-5, 5), "y": hp.uniform(-5, 5), "z": hp.uniform(-5, 5)}


def test_a_study_finds_a_minimum() -> None:
    study = Study(FLOATS, seed=3, search_alg="tpe")
    study.optimize(sphere, n_trials=150)
    assert study.best_value < 0.5
    assert study.best_value == sphere(study.best_config)
    assert [trial.number for trial in study.trials] == list(range(150))
    again = Study(FLOATS, seed=3, search_alg="tpe")
    again.optimize(sphere, n_trials=150)
    assert [trial.config for trial in again.trials] == [trial.config for trial in study.trials]


@pytest.mark.parametrize("name", RAY_NAMES)
def test_every_name_of_ray_works_in_any_case(name: str) -> None:
    assert name in search_names()
    study = Study(FLOATS, seed=1, search_alg=name.upper(), mode="max")
    study.optimize(lambda config: -sphere(config), n_trials=25)
    assert len(study.trials) == 25


def test_auto_says_what_it_takes_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    inner = hp.choice([1, {"x": hp.uniform(0, 1)}])
    many = {f"x{i}": hp.uniform(0, 1) for i in range(30)}
    cases: list[tuple[dict[str, Any], int | None, str, str]] = [
        (FLOATS, None, "gp", "3 parameters are few"),
        (FLOATS, 1000, "cmaes", "1000 trials are many for 3 numbers"),
        ({"c": inner}, None, "tpe", "some parameters depend on others"),
        (many, None, "tpe", "30 parameters are many"),
        ({"g": hp.grid_search([1])}, None, "random", "there is a grid"),
    ]
    for space, n_trials, algorithm, why in cases:
        assert Study(space, n_trials=n_trials).algorithm == algorithm
        assert f"orca: search_alg 'auto' takes {algorithm}: {why}" in capfd.readouterr().err


def test_a_name_whose_algorithm_is_another_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    Study(FLOATS, search_alg="HEBO")
    assert "search_alg 'hebo' runs as gp in place of HEBO" in capfd.readouterr().err


def test_a_batched_study_is_the_same_for_any_number_of_threads() -> None:
    configs = []
    for parallel in (1, 3, 4):
        study = Study(FLOATS, seed=2, batch=4, search_alg="tpe")
        study.optimize(sphere, n_trials=30, parallel=parallel)
        configs.append([trial.config for trial in study.trials])
    assert configs[0] == configs[1] == configs[2]


def test_parallel_trials_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def meet(config: dict[str, Any]) -> float:
        meeting.wait(timeout=60)
        return sphere(config)

    study = Study(FLOATS, seed=2)
    study.optimize(meet, n_trials=6, parallel=3)
    assert len(study.trials) == 6


def test_failed_and_nan_trials_never_win() -> None:
    def objective(config: dict[str, Any]) -> float:
        number = len(study.trials) - 1
        if number % 3 == 0:
            raise RuntimeError(f"trial {number} broke")
        return math.nan if number % 3 == 1 else float(number)

    study = Study(FLOATS)
    study.optimize(objective, n_trials=9)
    assert study.best_value == 2
    assert [trial.state for trial in study.trials] == ["failed", "failed", "finished"] * 3
    assert "RuntimeError: trial 3 broke" in study.trials[3].error
    assert "nan" in study.trials[1].error


def test_a_study_without_a_success_raises() -> None:
    study = Study(FLOATS)
    with pytest.raises(
        FailedPreconditionError, match=r"all 3 trials that ended failed(.|\n)*ZeroDiv"
    ):
        study.optimize(lambda config: 1 / 0, n_trials=3)
    with pytest.raises(FailedPreconditionError, match="no trial is finished"):
        _ = study.best_value


def test_an_objective_may_return_a_dict_with_the_metric() -> None:
    study = Study(FLOATS, metric="loss")
    study.optimize(lambda config: {"loss": 2.5, "time": 1}, n_trials=2)
    assert study.best_value == 2.5
    with pytest.raises(FailedPreconditionError, match="not the metric 'loss'"):
        Study(FLOATS, metric="loss").optimize(lambda config: {"accuracy": 1}, n_trials=1)


def test_a_finite_space_ends_the_study() -> None:
    study = Study({"a": hp.choice(["x", "y"]), "b": hp.randint(0, 3)}, seed=0)
    study.optimize(lambda config: config["b"], n_trials=100)
    assert len(study.trials) == 6
    assert len({(t.config["a"], t.config["b"]) for t in study.trials}) == 6
    with pytest.raises(SpaceExhaustedError, match="nothing to try after 6 trials"):
        study.ask()


def test_points_come_first_and_older_trials_are_known() -> None:
    study = Study(FLOATS, points_to_evaluate=[{"x": 1, "y": 2, "z": 3}, {"x": -1}], seed=0)
    older = study.add_trial({"x": 0, "y": 0, "z": 0}, 0.0)
    assert older.number == 0
    assert study.ask().config == {"x": 1, "y": 2, "z": 3}
    assert study.ask().config["x"] == -1
    assert study.best_config == {"x": 0, "y": 0, "z": 0}


def test_reports_are_kept() -> None:
    study = Study(FLOATS)
    trial = study.ask()
    assert study.report(trial, 3.0) == "continue"
    study.report(trial, 2.0)
    study.report(trial, 1.5, step=7)
    with pytest.raises(InvalidArgumentError, match="does not come after step 7"):
        study.report(trial, 1.0, step=6)
    assert (
        study.report(trial, 1.0, step=7) == "continue"
    )  # Again, after a checkpoint: the first counts.
    study.prune(trial)
    assert study.trials[0].reports == [(1, 3.0), (2, 2.0), (7, 1.5)]
    assert study.trials[0].state == "pruned"


def test_an_interrupt_ends_the_study_and_its_trial() -> None:
    def interrupt(config: dict[str, Any]) -> float:
        raise KeyboardInterrupt

    study = Study(FLOATS)
    with pytest.raises(KeyboardInterrupt):
        study.optimize(interrupt, n_trials=3)
    assert [trial.state for trial in study.trials] == ["failed"]


def test_a_timeout_starts_no_more_trials() -> None:
    study = Study(FLOATS)
    study.optimize(sphere, n_trials=5, timeout=0)
    assert study.trials == []


def test_the_example_runs() -> None:
    example = Path(__file__).parents[2] / "examples/study.py"
    done = subprocess.run(
        [sys.executable, str(example), "--trials", "25", "--parallel", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("25 trials with tpe; loss 0.0"), done.stdout


def curve(config: dict[str, Any]) -> Iterator[float]:
    for step in range(1, 10):
        yield config["x"] ** 2 + 10 / step


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize(
    ("scheduler", "params"),
    [
        ("async_hyperband", {"max_t": 9, "reduction_factor": 3}),
        ("async_hyperband", {"max_t": 9, "reduction_factor": 3, "form": "promotion"}),
        ("hyperband", {"max_t": 9, "reduction_factor": 3}),
        ("MedianStopping", {"grace_period": 2}),
        (None, {}),
    ],
)
def test_schedulers_end_and_pause_objectives_that_yield(
    scheduler: str | None, params: dict[str, Any], parallel: int
) -> None:
    study = Study(
        {"x": hp.uniform(-5, 5)},
        search_alg="random",
        seed=2,
        scheduler=scheduler,
        scheduler_params=params,
        epochs=9,
    )
    study.optimize(curve, n_trials=27, parallel=parallel)
    assert len(study.trials) == 27
    for trial in study.trials:
        assert trial.state in ("finished", "pruned", "paused")
        assert [step for step, _ in trial.reports] == list(range(1, len(trial.reports) + 1))
        assert [value for _, value in trial.reports] == list(curve(trial.config))[
            : len(trial.reports)
        ]
        assert (len(trial.reports) == 9) == (trial.state == "finished")
    epochs = sum(len(trial.reports) for trial in study.trials)
    assert epochs == 27 * 9 if scheduler is None else epochs < 27 * 7
    best = min(study.trials, key=lambda trial: abs(trial.config["x"]))
    if scheduler in (None, "MedianStopping") or parallel == 1:
        assert abs(study.best_config["x"]) <= 3 * abs(best.config["x"]) + 0.5


def test_a_killed_study_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(
        "import os, signal, sys\n"
        "from orca.automl import hp\n"
        "from orca.tune import Study\n"
        "def objective(config):\n"
        "    for step in range(1, 10):\n"
        "        if os.path.exists('kill') and len(study.trials) == 8 and step == 5:\n"
        "            os.unlink('kill'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield config['x'] ** 2 + 10 / step\n"
        "study = Study({'x': hp.uniform(-5, 5)}, search_alg='tpe', scheduler='hyperband', epochs=9,\n"
        "              scheduler_params={'max_t': 9, 'reduction_factor': 3},\n"
        "              seed=3, storage=sys.argv[1], resume='auto')\n"
        "study.optimize(objective, n_trials=12)\n"
        "print([(t.config, t.state, t.reports) for t in study.trials])\n"
    )

    def run(file: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), file],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    expected = run("whole.db")
    assert expected.returncode == 0, expected.stderr
    (tmp_path / "kill").touch()
    assert run("killed.db").returncode == -signal.SIGKILL
    assert run("killed.db").stdout == expected.stdout
    # The budget is used up: the same call again starts nothing.
    assert run("killed.db").stdout == expected.stdout


def test_storage_and_schedulers_say_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    space = {"x": hp.uniform(0, 1)}
    first = Study(space, storage=file, resume="auto", search_alg="random")
    with pytest.raises(FailedPreconditionError, match=r"process \d+"):
        Study(space, storage=file)
    seed = first.seed
    first.tell(first.ask(), 1.0)
    del first
    gc.collect()
    again = Study(space, storage=file, resume="auto", search_alg="random")
    assert again.seed == seed
    assert again.best_value == 1.0
    del again
    gc.collect()
    with pytest.raises(FailedPreconditionError, match="another search_alg"):
        Study(space, storage=file, resume="auto", search_alg="tpe")
    with pytest.raises(InvalidArgumentError, match="async_hyperband"):
        Study(space, scheduler="ashha")
    with pytest.raises(InvalidArgumentError, match="max_t"):
        Study(space, scheduler="async_hyperband", scheduler_params={"max_time": 3})
    with pytest.raises(InvalidArgumentError, match="resume"):
        Study(space, resume="always")


def test_a_space_of_constants_has_the_same_trial_again() -> None:
    study = Study({"a": 1, "b": {"c": [2]}}, seed=0)
    study.optimize(lambda config: config["a"], n_trials=3)
    assert [trial.config for trial in study.trials] == [{"a": 1, "b": {"c": [2]}}] * 3

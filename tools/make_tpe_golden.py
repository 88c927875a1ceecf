#!/usr/bin/env python3
"""Writes tests/golden/tpe/optuna-5.json: log l - log g of Optuna's TPE for histories that ours must agree on.

    <environment with optuna 5>/bin/python tools/make_tpe_golden.py

Equal values are sorted by age, as ours are; numpy's default order of equals depends on the processor.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers._tpe.sampler import TPESampler, _split_trials, default_gamma
from optuna.trial import TrialState

TARGET = Path(__file__).resolve().parents[1] / "tests/golden/tpe/optuna-5.json"
FLOATS = {f"x{i}": FloatDistribution(-5, 5) for i in range(4)}
MIXED = {
    "float": FloatDistribution(-1, 3),
    "log": FloatDistribution(1e-5, 10, log=True),
    "step": FloatDistribution(0, 2, step=0.25),
    "int": IntDistribution(1, 12),
    "int3": IntDistribution(0, 30, step=3),
    "logint": IntDistribution(1, 500, log=True),
    "choice": CategoricalDistribution(["a", "b", "c"]),
}


def describe(distribution: Any) -> list[Any]:
    """The arguments of our own parameters: name of the law, low, high, step."""
    if isinstance(distribution, CategoricalDistribution):
        return ["choice", 0, len(distribution.choices), 0]
    kind = "int" if isinstance(distribution, IntDistribution) else "float"
    if distribution.log:
        kind = f"log{kind}"
    return [kind, distribution.low, distribution.high, distribution.step or 0]


def draw(rng: np.random.Generator, distribution: Any) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[rng.integers(len(distribution.choices))]
    low, high, step = distribution.low, distribution.high, distribution.step
    value = (
        math.exp(rng.uniform(math.log(low), math.log(high)))
        if distribution.log
        else rng.uniform(low, high)
    )
    if step:
        value = low + round((value - low) / step) * step
    return int(value) if isinstance(distribution, IntDistribution) else value


def case(
    name: str, space: dict[str, Any], trials: int, seed: int, pruned: int = 0, running: int = 0
) -> dict:
    rng = np.random.default_rng(seed)
    study = optuna.create_study()
    told = []
    for number in range(trials):
        params = {key: draw(rng, distribution) for key, distribution in space.items()}
        state, value, step = TrialState.COMPLETE, float(rng.normal()), 0
        if number % 5 == 3 and pruned > 0:
            state, pruned, step = TrialState.PRUNED, pruned - 1, int(rng.integers(0, 4))
        if number >= trials - running:
            state = TrialState.RUNNING
        study.add_trial(
            optuna.create_trial(
                state=state,
                value=value if state == TrialState.COMPLETE else None,
                params=params,
                distributions=space,
                intermediate_values={step: value} if state == TrialState.PRUNED and step else {},
            )
        )
        point = [space[key].to_internal_repr(value) for key, value in params.items()]
        told.append([point, state.name, value, step])
    frozen = study.get_trials()
    finished = sum(trial.state != TrialState.RUNNING for trial in frozen)
    below, above = _split_trials(study, frozen, default_gamma(finished))
    sampler = TPESampler(multivariate=True)
    low = sampler._build_parzen_estimator(study, space, below, handle_below=True)
    high = sampler._build_parzen_estimator(study, space, above, handle_below=False)
    samples = {
        key: np.array(
            [distribution.to_internal_repr(draw(rng, distribution)) for _ in range(24)],
            dtype=float,
        )
        for key, distribution in space.items()
    }
    ratios = sampler._compute_acquisition_func(samples, low, high)
    return {
        "name": name,
        "space": [describe(distribution) for distribution in space.values()],
        "trials": told,
        "points": np.array(list(samples.values())).T.tolist(),
        "ratios": ratios.tolist(),
    }


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    np.argsort = functools.partial(np.argsort, kind="stable")  # type: ignore[assignment]
    one = {"x": FloatDistribution(0, 1)}
    cases = [
        case("one float, one trial", one, 1, 1),
        case("one float, two trials", one, 2, 2),
        case("one float", one, 30, 3),
        case("floats", FLOATS, 26, 4),
        case("floats, more than 25 of the best", FLOATS, 320, 5),
        case("mixed", MIXED, 40, 6),
        case("mixed, long", MIXED, 150, 7),
        case("mixed, pruned and running", MIXED, 60, 8, pruned=10, running=4),
        case("mostly pruned", FLOATS, 30, 9, pruned=6),
    ]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(one_case) for one_case in cases)
    TARGET.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

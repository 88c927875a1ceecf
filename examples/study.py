"""A search for the best ridge regression and its features, with a study.

python examples/study.py --trials 40 --parallel 2
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from orca.automl import hp
from orca.tune import Study

SPACE = {
    "alpha": hp.loguniform(1e-4, 1e3),
    "features": hp.choice_n(["x", "x^2", "x^3", "sin", "noise"], 1, 6),
    "scaling": hp.choice([{"kind": "none"}, {"kind": "power", "p": hp.uniform(0.2, 2)}]),
}


def data(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, rows)
    columns = {
        "x": x,
        "x^2": x**2,
        "x^3": x**3,
        "sin": np.sin(3 * x),
        "noise": random.normal(size=rows),
    }
    return columns, 2 * x - x**2 + np.sin(3 * x) + 0.1 * random.normal(size=rows)


def loss(config: dict[str, Any]) -> float:
    """The error on rows that the regression has not seen."""

    def table(columns: dict[str, np.ndarray]) -> np.ndarray:
        chosen = np.stack([columns[name] for name in config["features"]], axis=1)
        if config["scaling"]["kind"] == "power":
            chosen = np.sign(chosen) * np.abs(chosen) ** config["scaling"]["p"]
        return np.column_stack([chosen, np.ones(len(chosen))])

    (train, y), (test, expected) = data(60, 0), data(500, 1)
    a = table(train)
    weights = np.linalg.solve(a.T @ a + config["alpha"] * np.eye(a.shape[1]), a.T @ y)
    return float(np.mean((table(test) @ weights - expected) ** 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    study = Study(SPACE, metric="loss", mode="min", seed=0)
    study.optimize(loss, n_trials=options.trials, parallel=options.parallel)
    print(f"{len(study.trials)} trials with {study.algorithm}; loss {study.best_value:.4f} with")
    print(study.best_config)

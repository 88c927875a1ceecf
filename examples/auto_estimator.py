"""Searches for the width, the rate and the batch size of a small net, on all cores.

python examples/auto_estimator.py --trials 8 --epochs 4
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import numpy as np
from torch import nn

import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two spirals, and which one a point is of."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, count)
    turn = random.uniform(0.5, 2, count)
    angle = 2 * np.pi * turn + np.pi * label
    x = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (x + 0.05 * random.normal(size=x.shape)).astype(np.float32), label


def net(config: dict[str, Any]) -> nn.Module:
    width = config["width"]
    return nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--logs")  # None: below ~/.orca
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    orca.init_orca_context("local")
    search = AutoEstimator.from_torch(
        model_creator=net,
        optimizer="Adam",
        loss=nn.CrossEntropyLoss(),
        logs_dir=options.logs,
        name="spirals",
    )
    search.fit(
        rows(2000, 0),
        validation_data=rows(500, 1),
        epochs=options.epochs,
        metric="accuracy",
        search_space={
            "width": hp.choice([8, 32, 128]),
            "lr": hp.loguniform(1e-4, 1e-1),
            "batch_size": hp.choice([32, 64]),
        },
        search_alg="tpe",
        scheduler="async_hyperband",
        scheduler_params={"max_t": options.epochs, "reduction_factor": 3},
        n_sampling=options.trials,
        seed=1,
    )
    print(f"accuracy {search.get_best_trial().value:.3f} with {search.get_best_config()}")
    orca.stop_orca_context()

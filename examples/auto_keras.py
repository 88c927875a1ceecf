"""Searches for the width and the rate of a small Keras net, on all cores.

python examples/auto_keras.py --trials 4        # needs TensorFlow: pip install 'tensorflow>=2.21'
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import numpy as np
import tensorflow as tf

import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a line, with some noise."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (count, 1)).astype(np.float32)
    return x, 2 * x + 1 + 0.05 * random.normal(size=x.shape).astype(np.float32)


def model_creator(config: dict[str, Any]) -> tf.keras.Model:
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Input((1,)),
            tf.keras.layers.Dense(config["hidden_size"]),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(loss="mse", optimizer=tf.keras.optimizers.SGD(config["lr"]), metrics=["mse"])
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--logs")  # None: below ~/.orca
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    orca.init_orca_context("local")
    search = AutoEstimator.from_keras(
        model_creator=model_creator,
        logs_dir=options.logs,
        resources_per_trial={"cpu": 1},
        name="auto_keras",
    )
    search.fit(
        data=rows(1000, 0),
        validation_data=rows(200, 1),
        search_space={
            "hidden_size": hp.choice([4, 8, 16]),
            "lr": hp.loguniform(0.001, 0.1),
            "batch_size": hp.choice([16, 32]),
        },
        n_sampling=options.trials,
        epochs=options.epochs,
        metric="mse",
        search_alg="tpe",
        seed=1,
    )
    print(f"mse {search.get_best_trial().value:.4f} with {search.get_best_config()}")
    search.get_best_model().summary(print_fn=logging.info)
    orca.stop_orca_context()

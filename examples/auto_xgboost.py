"""Searches for the depth, the rate and the number of XGBoost's trees, on all cores.

python examples/auto_xgboost.py --trials 16
"""

from __future__ import annotations

import argparse
import logging

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import orca
from orca.automl import hp
from orca.automl.xgboost import AutoXGBClassifier

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--logs")  # None: below ~/.orca
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    x, y = load_breast_cancer(return_X_y=True)
    x, x_held, y, y_held = train_test_split(x, y, test_size=0.3, random_state=1)
    orca.init_orca_context("local")
    search = AutoXGBClassifier(logs_dir=options.logs, cpus_per_trial=1, name="cancer")
    search.fit(
        (x, y),
        validation_data=(x_held, y_held),
        metric="error",
        search_space={
            "n_estimators": hp.randint(10, 200),
            "max_depth": hp.randint(1, 8),
            "learning_rate": hp.loguniform(0.01, 0.5),
        },
        search_alg="tpe",
        n_sampling=options.trials,
        seed=1,
    )
    model = search.get_best_model()
    wrong = (model.predict(x_held) != y_held).mean()
    print(f"error {wrong:.4f} with {search.get_best_config()}")
    orca.stop_orca_context()

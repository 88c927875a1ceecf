"""From a CSV file to a model and its predictions: read, transform, fit, predict.

python examples/csv_to_model.py --workers 2 --rows 20000
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import orca
from orca.data.pandas import read_csv
from orca.data.transformer import StringIndexer
from orca.learn.pytorch import Estimator


def write(path: Path, rows: int) -> None:
    """Flats with their size, age, town and rent; some ages are not known."""
    random = np.random.default_rng(0)
    size, age = random.uniform(20, 120, rows), random.integers(0, 90, rows).astype(float)
    town = random.choice(["Köln", "Essen", "Bonn, Beuel"], rows)
    rent = 8 * size - 2 * age + 200 * (town == "Köln") + random.normal(0, 20, rows)
    age[random.random(rows) < 0.02] = np.nan
    frame = pd.DataFrame({"size": size.round(1), "age": age, "town": town, "rent": rent.round(2)})
    frame.to_csv(path, index=False)


def prepare(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs on the workers, once a shard."""
    towns = [(frame["town"] == number).astype("float32") for number in (1, 2, 3)]
    columns = [frame["size"] / 100, frame["age"].fillna(45) / 100, *towns]
    features = np.stack(columns, axis=1).astype("float32")
    return pd.DataFrame(
        {"features": list(features), "rent": [np.float32([rent / 1000]) for rent in frame["rent"]]}
    )


def model_creator(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 1)


def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, orca.init_orca_context("local"):
        write(Path(folder) / "flats.csv", options.rows)
        flats = read_csv(f"{folder}/*.csv").repartition(4)
        print(flats.describe(["size", "age", "rent"]).to_string(index=False))
        data = StringIndexer("town").fit_transform(flats).transform_shard(prepare)
        estimator = Estimator.from_torch(
            model=model_creator,
            optimizer=optimizer_creator,
            loss=nn.MSELoss(),
            workers_per_node=options.workers,
        )
        columns = {"feature_cols": ["features"], "label_cols": ["rent"]}
        estimator.fit(data, epochs=10, batch_size=64, **columns)
        predicted = estimator.predict(data, feature_cols=["features"]).concat_to_pdf()
    rent, guess = (np.array(predicted[name].to_list()).ravel() for name in ("rent", "prediction"))
    print(
        f"mean error {np.abs(rent - guess).mean() * 1000:.0f} of a mean rent of {rent.mean() * 1000:.0f}"
    )

"""Trains on more than its cgroup has: ``scripts_spill.py CGROUP BYTES``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import orca
from orca.data import SparkXShards
from orca.learn.pytorch import Estimator

FEATURES = 16384
ROWS = 128  # of a shard


def shard(number: int) -> dict[str, Any]:
    x = np.full((ROWS, FEATURES), number % 7, np.float32)
    return {"x": x, "y": np.full(ROWS, number % 2)}


def main(cgroup: str, size: int) -> None:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    with orca.init_orca_context("local", cores=1, memory="64m"):
        count = size // (4 * ROWS * FEATURES)
        data = SparkXShards([shard(i)] for i in range(count))
        estimator = Estimator.from_torch(
            model=lambda config: torch.nn.Linear(FEATURES, 2),
            optimizer=lambda model, config: torch.optim.SGD(model.parameters(), 1e-5),
            loss=torch.nn.CrossEntropyLoss(),
        )
        stats = estimator.fit(data, epochs=1, batch_size=32)
        assert stats[0]["num_samples"] == ROWS * count, stats
        print(f"trained on {4 * ROWS * FEATURES * count >> 20} MB")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

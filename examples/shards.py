"""Training data in shared memory: put once, read by all workers, in batches that no two of them share.

python examples/shards.py --workers 4 --rows 1000000
"""

from __future__ import annotations

import argparse

import numpy as np

import orca
from orca.data import ArrayStore, Shard


def make(rows: int) -> Shard:
    """Every rank makes its part of the data; what it returns is not copied."""
    random = np.random.default_rng(orca.rank())
    x = random.normal(size=(rows // orca.world_size(), 3))
    return Shard({"x": x, "y": x @ [1.0, -2.0, 0.5] + 3.0})


def fit(store: ArrayStore, epochs: int) -> list[float]:
    """Stochastic gradient descent; every row is used once an epoch, by one rank."""
    weights = np.zeros(4)
    for epoch in range(epochs):
        for batch in store.batches(
            512, epoch=epoch, rank=orca.rank(), world_size=orca.world_size()
        ):
            error = batch["x"] @ weights[:3] + weights[3] - batch["y"]
            gradient = np.append(error @ batch["x"], error.sum())
            weights -= 0.1 / 512 * orca.allreduce(gradient)
    return [float(weight) for weight in weights]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, help="one a core by default")
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with orca.init_orca_context("local"):
        store = ArrayStore()
        for part in orca.run(make, (options.rows,), workers=options.workers):
            store.put(part)
        print(f"{len(store)} rows in {len(store.shards)} shards")
        weights = orca.run(fit, (store, 2), workers=options.workers)[0]
    print(
        "y = "
        + " + ".join(
            f"{w:.2f} {name}" for w, name in zip(weights, ("a", "b", "c", ""), strict=True)
        )
    )

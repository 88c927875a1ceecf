"""A driver that is to be killed, or whose processes are: runs what it is told, a line each, and says what came of it.

A line names a way and a folder. The answer is a digest of all that was computed, or that the context was lost: the same
line again then goes on where it stopped, in a new context.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orca
from orca import running
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.data import XShards
from orca.errors import ContextLostError, OrcaError
from orca.learn.pytorch import Estimator
from orca.learn.trigger import SeveralIteration

ROWS, BATCH, EPOCHS = 600, 20, 2


class Net(nn.Module):
    """Counts its rows (O1), beside what a step can depend on: weights, buffers, random numbers (O2)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.counts = nn.Parameter(torch.zeros(ROWS))
        self.first, self.norm = nn.Linear(5, 12), nn.BatchNorm1d(12)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.first(x[:, 1:]))))
        # The gradient of a row's count is -1 or, in evaluations, not used.
        count = self.counts[x[:, 0].long()]
        return torch.stack([self.last(hidden)[:, 0], count], 1)


class Loss(nn.Module):
    """A step adds 1 to the counts of its rows."""

    reduction = "sum"

    def forward(self, found: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.01 * ((found[:, 0] - y) ** 2).sum() - found[:, 1].sum()


def rows() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(3).normal(size=(ROWS, 5)).astype(np.float32)
    return np.column_stack([np.arange(ROWS, dtype=np.float32), x]), x.sum(1)


def optimizers(model: Net, _config: Any) -> list[torch.optim.Optimizer]:
    others = [p for name, p in model.named_parameters() if name != "counts"]
    return [torch.optim.SGD([model.counts], lr=1.0), torch.optim.Adam(others, lr=0.01)]


def train(folder: Path, data: Any, **more: Any) -> str:
    """A digest of weights, buffers, the optimizers' states, statistics and predictions."""
    given = {"elementwise": more.pop("elementwise")} if "elementwise" in more else {}
    estimator = Estimator.from_torch(
        model=Net(),
        optimizer=optimizers,
        loss=Loss(),
        workers_per_node=2,
        model_dir=str(folder),
        **given,
    )
    stats = estimator.fit(
        data,
        epochs=EPOCHS,
        batch_size=BATCH,
        checkpoint_trigger=SeveralIteration(7),
        resume="auto",
        seed=11,
        max_restarts=100,
        **more,
    )
    state = estimator.get_state_dict()
    counts = estimator.get_model().counts.detach()
    assert torch.equal(counts, torch.full((ROWS,), float(EPOCHS))), counts
    digest = hashlib.sha256()
    add(digest, state["models"])
    add(digest, state["optimizers"])
    add(digest, [{k: v for k, v in epoch.items() if "time" not in k} for epoch in stats[-1:]])
    if isinstance(data, tuple):
        add(digest, estimator.predict(data[0], batch_size=50))
        add(digest, estimator.evaluate(data, batch_size=50, max_restarts=100)["val_loss"])
    estimator.shutdown()
    return digest.hexdigest()


def add(digest: Any, tree: Any) -> None:
    if isinstance(tree, torch.Tensor):
        digest.update(tree.detach().contiguous().numpy().tobytes())
    elif isinstance(tree, np.ndarray):
        digest.update(np.ascontiguousarray(tree).tobytes())
    elif isinstance(tree, dict):
        for key in sorted(tree, key=str):
            digest.update(str(key).encode())
            add(digest, tree[key])
    elif isinstance(tree, list | tuple):
        for value in tree:
            add(digest, value)
    else:
        digest.update(repr(tree).encode())


def shared(folder: Path) -> str:
    return train(folder, rows())


def copies(folder: Path) -> str:
    return train(folder, rows(), elementwise=False)


def blocks(folder: Path) -> str:
    return train(folder, rows(), deterministic=True)


def loaders(folder: Path) -> str:
    data = TensorDataset(*map(torch.from_numpy, rows()))
    return train(folder, DataLoader(data, batch_size=BATCH, shuffle=True))


def shards(folder: Path) -> str:
    """Made, transformed twice, repartitioned, trained on, predicted: every row once, in its order."""
    x, y = rows()
    made = XShards.partition({"x": x, "y": y}, num_shards=6)

    def times_two(shard: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.column_stack([shard["x"][:, :1], shard["x"][:, 1:] * 2]), "y": shard["y"]}

    def halve(shard: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.column_stack([shard["x"][:, :1], shard["x"][:, 1:] / 2]), "y": shard["y"]}

    again = made.transform_shard(times_two).repartition(4).transform_shard(halve)
    back = again.collect()
    assert np.array_equal(np.concatenate([shard["x"] for shard in back]), x)
    assert np.array_equal(np.concatenate([shard["y"] for shard in back]), y)
    return train(folder, again)


def search(folder: Path) -> str:
    """Each trial has one end, and what it reported."""

    class Slow(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[:, 0]

    x, y = rows()
    data = (x[:, 1:], y)
    est = AutoEstimator.from_torch(
        model_creator=lambda config: Slow(),
        optimizer="Adam",
        loss=nn.MSELoss(),
        logs_dir=str(folder),
        name="search",
    )
    est.fit(
        data,
        epochs=4,
        validation_data=data,
        metric="mse",
        search_space={"lr": hp.loguniform(1e-4, 0.1), "batch_size": hp.choice([10, 20])},
        n_sampling=8,
        search_alg="random",
        seed=5,
        retries=20,
        resume="auto",
    )
    found = [[t.number, t.state, t.config, t.reports] for t in est.trials]
    assert [trial.state for trial in est.trials] == ["finished"] * 8, found
    assert [[step for step, _ in t.reports] for t in est.trials] == [[1, 2, 3, 4]] * 8, found
    digest = hashlib.sha256()
    add(digest, found)
    add(digest, est.get_best_model().state_dict())
    return digest.hexdigest()


def nothing(folder: Path) -> str:
    """Finds out whether the context lives."""
    return repr(orca.run(int, workers=2))


WAYS: dict[str, Callable[[Path], str]] = {
    "shared": shared,
    "copies": copies,
    "blocks": blocks,
    "loaders": loaders,
    "shards": shards,
    "search": search,
    "nothing": nothing,
}


def is_lost(error: OrcaError) -> bool:
    return isinstance(error, ContextLostError) or running.context_is_lost()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What workers print is for people.
    alive = False
    for line in sys.stdin:
        way, folder = json.loads(line)
        try:
            if not alive:
                orca.init_orca_context("local", cores=2)
                alive = True
            answer = {"digest": WAYS[way](Path(folder))}
        except BaseException as error:
            # An agent that dies while a context begins, or that is asked for memory, is another error.
            if not isinstance(error, OrcaError) or (alive and not is_lost(error)):
                answer = {"error": traceback.format_exc()}
            else:
                with contextlib.suppress(OrcaError):
                    orca.stop_orca_context()
                alive = False
                answer = {"lost": str(error)}
        print(json.dumps(answer), file=answers)
    if alive:
        orca.stop_orca_context()


if __name__ == "__main__":
    main()

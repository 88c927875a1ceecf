"""Trains with a checkpoint every few steps; run again after it was killed, it goes on."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import orca
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from orca.learn.trigger import SeveralIteration
from test_recovery import BATCH, Net, data


class Slow(Callback):
    """Leaves a mark at a step, and is slow from there on."""

    def __init__(self, folder: str, step: int) -> None:
        self.folder, self.step = folder, step

    def after_train_iter(self, runner: Any) -> None:
        if runner.global_step >= self.step:
            (Path(self.folder) / "reached").touch()
            time.sleep(0.02)


def main(folder: str, slow: int, workers: int, every: int, way: str) -> None:
    orca.init_orca_context("local", cores=2)
    estimator = Estimator.from_torch(
        model=Net(),
        optimizer=lambda m, _: torch.optim.Adam(m.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        workers_per_node=workers,
        model_dir=folder,
        elementwise=None if way != "copies" else False,
        scheduler_creator=lambda o, _: torch.optim.lr_scheduler.StepLR(o, 7, 0.9),
        scheduler_step_freq="batch",
    )
    stats = estimator.fit(
        data(),
        epochs=2,
        batch_size=BATCH,
        callbacks=[Slow(folder, slow)] if slow else [],
        checkpoint_trigger=SeveralIteration(every) if every else None,
        resume="auto",
        seed=4,
        deterministic=way == "blocks",
    )
    digest = hashlib.sha256()
    for value in estimator.get_model().state_dict().values():
        digest.update(value.numpy().tobytes())
    losses = [[epoch["train_loss"], epoch["num_samples"]] for epoch in stats]
    print(json.dumps({"digest": digest.hexdigest(), "losses": losses}))
    orca.stop_orca_context()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])

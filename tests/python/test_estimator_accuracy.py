"""Estimators on real data and in float32, against plain torch."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import checks_estimator as checks
from orca.learn.metrics import Accuracy
from orca.learn.pytorch import Estimator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.view(-1, 16 * 4 * 4))))))


def lenet(config: Any = None) -> nn.Module:
    torch.manual_seed(5)
    return LeNet()


def adam(model: nn.Module, config: Any = None) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def fashion_mnist() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    listed = subprocess.run(
        ["dpkg", "-L", "dataset-fashion-mnist"], capture_output=True, text=True, check=False
    )
    found = {Path(line).name: line for line in listed.stdout.splitlines() if line.endswith(".gz")}
    if not found:
        pytest.skip("the package dataset-fashion-mnist is not installed")

    def read(name: str, head: int) -> np.ndarray:
        with gzip.open(found[name]) as file:
            return np.frombuffer(file.read()[head:], np.uint8)

    parts = {}
    for part in ("train", "t10k"):
        images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
        labels = read(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        parts[part] = ((images.astype(np.float32) / 255 - 0.5) / 0.5, labels)
    return parts


@pytest.mark.long
@pytest.mark.timeout(900)
def test_lenet_learns_fashion_mnist_as_in_one_process() -> None:
    """An epoch, with the same rows in the same order: nothing but rounding differs."""
    data = fashion_mnist()
    x, y = map(torch.from_numpy, data["train"])
    tx, ty = map(torch.from_numpy, data["t10k"])
    model = lenet()
    optimizer = adam(model)
    for rows in torch.arange(len(x)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        plain = float((model(tx).argmax(1) == ty).float().mean())
    for workers in (2, 4):
        est = Estimator.from_torch(
            model=lenet,
            optimizer=adam,
            loss=nn.CrossEntropyLoss(),
            metrics=[Accuracy()],
            config={"shuffle": False},
            workers_per_node=workers,
        )
        est.fit(data["train"], epochs=1, batch_size=64)
        found = float(est.evaluate(data["t10k"], batch_size=256)["Accuracy"])
        assert found >= 0.77
        assert abs(found - plain) <= 0.01, (found, plain)
        est.shutdown()


@pytest.mark.product
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_rounding_drifts_no_more_than_with_one_process(workers: int, name: str) -> None:
    """Float32 against float64; the peer adds up the same parts in one process."""
    count, batch = 40, 10
    x, y = checks.rows(count, dtype="float32")

    def optimizer(model: nn.Module, config: Any = None) -> torch.optim.Optimizer:
        if name == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return torch.optim.Adam(model.parameters(), lr=0.01)

    config = {"dtype": "float32", "shuffle": False}
    first = checks.net(config)
    exact = checks.Net().double()
    exact.load_state_dict(first.state_dict())
    exact, _ = checks.train_plainly(
        x.astype(np.float64),
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        batch_size=batch,
        epochs=12,
        model=exact,
    )
    peer = checks.net(config)
    steps = optimizer(peer)
    for _ in range(12):
        for begin in range(0, count, batch):
            steps.zero_grad()
            for part in np.array_split(np.arange(begin, begin + batch), workers):
                loss = F.cross_entropy(peer(torch.from_numpy(x[part])), torch.from_numpy(y[part]))
                (loss * (len(part) / batch)).backward()
            steps.step()
    est = Estimator.from_torch(
        model=checks.net,
        optimizer=optimizer,
        loss=nn.CrossEntropyLoss(),
        config=config,
        workers_per_node=workers,
    )
    est.fit((x, y), epochs=12, batch_size=batch)

    def drift(model: nn.Module) -> float:
        pairs = zip(model.parameters(), exact.parameters(), strict=True)
        return sum(float((a.detach().double() - b.detach()).norm()) ** 2 for a, b in pairs) ** 0.5

    assert drift(est.get_model()) <= 2 * drift(peer)
    est.shutdown()

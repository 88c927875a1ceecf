"""Models, losses and data for tests of Estimators, importable on the workers."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import orca


class Net(nn.Module):
    """Two layers, in float64."""

    def __init__(self, classes: int = 3, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7, dtype=dtype)
        self.second = nn.Linear(7, classes, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def net(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(config.get("seed", 1))
    return Net(config.get("classes", 3), getattr(torch, config.get("dtype", "float64")))


def rows(count: int, seed: int = 0, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 5)).astype(dtype), random.integers(0, 3, count)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model, config: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "nesterov": lambda model, config: torch.optim.SGD(
        [{"params": model.first.parameters(), "lr": 0.01}, {"params": model.second.parameters()}],
        lr=0.05,
        momentum=0.9,
        nesterov=True,
        weight_decay=0.01,
    ),
    "adam": lambda model, config: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda model, config: torch.optim.AdamW(model.parameters(), lr=0.01),
    "rmsprop": lambda model, config: torch.optim.RMSprop(
        model.parameters(), lr=0.01, momentum=0.5, centered=True
    ),
    "adagrad": lambda model, config: torch.optim.Adagrad(model.parameters(), lr=0.05),
    "adadelta": lambda model, config: torch.optim.Adadelta(model.parameters()),
    "adamax": lambda model, config: torch.optim.Adamax(model.parameters()),
    "nadam": lambda model, config: torch.optim.NAdam(model.parameters()),
    "radam": lambda model, config: torch.optim.RAdam(model.parameters()),
    # Looks at whole parameters: every worker has a copy.
    "whole-norm": lambda model, config: WholeNorm(model.parameters(), lr=0.05),
}


class WholeNorm(torch.optim.Optimizer):
    """Steps of a length that depends on the whole parameter."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / (1.0 + float(p.norm())))


def custom_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (F.log_softmax(output, dim=1).gather(1, target[:, None]) ** 2).mean()


def weighted_loss(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Its own denominator: rows of class 1 count three times."""
    weights = torch.where(target == 1, 3.0, 1.0).double()
    losses = F.cross_entropy(output, target, reduction="none")
    return (losses * weights).sum() / weights.sum(), float(weights.sum())


LOSSES: dict[str, Any] = {
    "mean": nn.CrossEntropyLoss(),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "ignore": nn.CrossEntropyLoss(ignore_index=2),
    "weights": nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)),
    "function": custom_loss,
    "own-weight": weighted_loss,
}


def train_plainly(
    x: np.ndarray,
    y: np.ndarray,
    *,
    loss: Any,
    optimizer: Any,
    batch_size: int,
    epochs: int,
    config: dict[str, Any] | None = None,
    model: nn.Module | None = None,
    device: str = "cpu",
) -> tuple[nn.Module, list[float]]:
    """The reference: one process, plain torch, the rows in their order."""
    config = config or {}
    model = (model or net(config)).to(device)
    loss = copy.deepcopy(loss).to(device) if isinstance(loss, nn.Module) else loss
    optimizer = optimizer(model, config)
    means = []
    for _ in range(epochs):
        total = 0.0
        for begin in range(0, len(x), batch_size):
            xs = torch.from_numpy(x[begin : begin + batch_size]).to(device)
            ys = torch.from_numpy(y[begin : begin + batch_size]).to(device)
            optimizer.zero_grad()
            value = loss(model(xs), ys)
            value = value[0] if isinstance(value, tuple) else value
            value.backward()
            optimizer.step()
            total += value.item() * len(xs)
        means.append(total / len(x))
    return model, means


IN_ORDER = {"shuffle": False}


def estimator_class(root: str) -> Any:
    """The Estimator of an import root: "orca", "bigdl" or "zoo"."""
    package = "orca" if root == "orca" else f"{root}.orca"
    return importlib.import_module(f"{package}.learn.pytorch").Estimator


def estimator(workers: int = 2, **changes: Any) -> Any:
    """An Estimator of the net, trained on rows in their order, so that it can be compared."""
    made_by = changes.pop("estimator_class", None) or estimator_class("orca")
    given: dict[str, Any] = {
        "model": net,
        "optimizer": OPTIMIZERS["sgd"],
        "loss": nn.CrossEntropyLoss(),
        "config": IN_ORDER,
        "workers_per_node": workers,
    }
    return made_by.from_torch(**(given | changes))


def trained_plainly(
    optimizer: Any,
    epochs: int = 3,
    batch_size: int = 8,
    count: int = 30,
    model: nn.Module | None = None,
) -> nn.Module:
    """The net after plain training on ``rows(count)``."""
    x, y = rows(count)
    trained, _ = train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        batch_size=batch_size,
        epochs=epochs,
        model=model,
    )
    return trained


# --- the ledger: after training, weight i says how often row i was trained on (oracle O1)


class Ledger(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.count[index.reshape(-1)]


def ledger(config: dict[str, Any]) -> nn.Module:
    return Ledger(config["size"])


def ledger_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


class LedgerLoss(nn.Module):
    """Has a gradient of -1 for every row."""

    reduction = "sum"

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -output.sum()


class Numbers(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index]), torch.tensor([0.0])


class Stream(IterableDataset[Any]):
    """Each worker makes its own part, and they are not equally long."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        cut = self.size // 5
        parts = {0: range(cut), 1: range(cut, self.size)}
        mine = range(self.size) if orca.world_size() == 1 else parts.get(orca.rank(), range(0))
        for index in mine:
            yield torch.tensor([index]), torch.tensor([0.0])


class OwnBatches:
    """A batch sampler of uneven batches."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        order = torch.randperm(self.size).tolist()
        at, length = 0, 1
        while at < self.size:
            yield order[at : at + length]
            at, length = at + length, length % 4 + 1

    def __len__(self) -> int:
        return len(list(iter(self)))


def ledger_loader(kind: str, size: int, batch_size: int) -> Any:
    numbers = Numbers(size)
    if kind == "shuffle":
        return DataLoader(numbers, batch_size=batch_size, shuffle=True)
    if kind == "in order":
        return DataLoader(numbers, batch_size=batch_size)
    if kind == "batch sampler":
        return DataLoader(numbers, batch_sampler=OwnBatches(size))
    if kind == "generator":
        generator = torch.Generator().manual_seed(3)
        return DataLoader(numbers, batch_size=batch_size, shuffle=True, generator=generator)
    if kind == "stream":
        return DataLoader(Stream(size), batch_size=batch_size)
    if kind.startswith("stateful"):
        from torchdata.stateful_dataloader import StatefulDataLoader

        data: Any = Stream(size) if kind == "stateful stream" else numbers
        workers = int(kind == "stateful, with a process")
        return StatefulDataLoader(
            data, batch_size=batch_size, shuffle=data is numbers, num_workers=workers
        )
    raise ValueError(kind)


class LedgerCreator:
    """A data creator, as a function of config and batch size."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind, self.size = kind, size

    def __call__(self, config: dict[str, Any], batch_size: int) -> Any:
        return ledger_loader(self.kind, self.size, batch_size)


def loader(config: dict[str, Any], batch_size: int) -> Any:
    x, y = rows(config.get("rows", 37))
    return DataLoader(
        TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=batch_size
    )


def predict_rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)

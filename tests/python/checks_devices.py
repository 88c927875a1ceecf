"""What tests of GPUs run on workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import checks_estimator as checks
import orca
from orca.adapters.torch.exchanges import DeviceExchange, DeviceGroup, _nccl
from orca.adapters.torch.feeds import ArraySource
from orca.adapters.torch.losses import LaterWeight
from orca.adapters.torch.replicas import Replicas
from orca.adapters.torch.runner import Runner
from orca.adapters.torch.session import ModelSpec, Session
from orca.adapters.torch.trainer import FitOptions, Trainer
from orca.adapters.torch.trees import pack
from orca.data import ArrayStore
from orca.learn.pytorch.training_operator import TrainingOperator


def gloo(store: Any, rank: int, world: int) -> Any:
    """In the place of NCCL, which wants a GPU for each rank."""
    return dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=30))


# --- one exchange; three workers with 1, 2 and 0 rows, and the last parameter is rank 1's alone


def exchange(weights: list[float], spoilt: tuple[int, float] | None, is_sum: bool) -> Any:
    rank = orca.rank()
    shapes = [((3,), torch.float64), ((2, 2), torch.float32), ((4,), torch.float64)]
    parameters = [nn.Parameter(torch.zeros(s, dtype=t)) for s, t in shapes]
    for parameter in parameters[: 3 if rank == 1 else 2]:
        parameter.grad = torch.full_like(parameter, 10.0 ** (rank + 1))
    if spoilt is not None and rank == spoilt[0]:
        parameters[1].grad[0, 1] = spoilt[1]  # type: ignore[index]
    made = DeviceExchange(parameters, DeviceGroup(gloo))
    if weights[rank]:
        made.collect({})
    weight: Any = weights[rank]
    if rank == 1 and weight:  # As a loss on a GPU says it; and a loss need not be a scalar.
        weight = LaterWeight(lambda: torch.tensor(int(weights[rank])))
    total = made.meet(weight, torch.tensor([rank + 1.0]), rank + 5, False, is_sum)
    for parameter, used in zip(parameters, made.used(), strict=True):
        parameter.grad = torch.full_like(parameter, 7.0) if used else None
    if total[0]:
        made.reduce_all()
        made.spread()
    made.leave()
    return total, made.used(), [None if p.grad is None else p.grad.tolist() for p in parameters]


class _Plain:
    is_sum = False


def sparse_of_ignored_labels() -> Any:
    """The gradient that all have, where rank 1 weighs nothing, which it does not know at first."""
    rank = orca.rank()
    table = nn.Parameter(torch.zeros(4, 2, dtype=torch.float64))
    made = Replicas({"table": table}, [], DeviceGroup(gloo))
    values = torch.full((1, 2), [3.0, float("nan")][rank], dtype=torch.float64)
    table.grad = torch.sparse_coo_tensor([[rank]], values, (4, 2), check_invariants=True)
    weight = LaterWeight(lambda: torch.tensor([5, 0][rank]))
    made.join(weight, torch.tensor([1.0, float("nan")][rank]), 5, leaves=False, policy=_Plain)
    return table.grad.to_dense().tolist()  # type: ignore[union-attr]


# --- whole training without an Estimator, so that workers can share a GPU


def batch_norm_net(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(2)
    layers = (nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))
    return nn.Sequential(*layers).double()


def train(device: str, optimizer: str, norms: bool, store: ArrayStore) -> Any:
    spec = ModelSpec(
        model=batch_norm_net if norms else checks.net,
        optimizer=checks.OPTIMIZERS[optimizer],
        loss=checks.LOSSES["weights"],
        config={"shuffle": False},
        sync_batchnorm=norms,
    )
    session = Session(spec, None, None, True, torch.device(device), DeviceGroup(gloo))
    options = FitOptions(epochs=9, batch_size=7, source=ArraySource(store, True), clip_norm=1.0)
    trainer = Trainer(session, options, Runner(session, [], {}))
    feed = options.source.open(options.batch_size, spec.config, True)
    stats = []
    for _ in range(options.epochs):
        stats.append(trainer.epoch(feed))
        session.epoch += 1
    return stats, pack(session.state()), session.reason


def joined_by_nccl() -> list[float]:
    """A group of this worker alone."""
    torch.cuda.set_device(0)
    group = _nccl(dist.HashStore(), 0, 1)
    tensor = torch.arange(4.0, device="cuda")
    group.allreduce([tensor]).wait()
    found: list[float] = tensor.tolist()
    group.abort()
    return found


def cuda_state() -> tuple[bool, float]:
    return torch.cuda._is_in_bad_fork(), float(torch.ones(3, device="cuda").sum())


# --- models


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
        return self.fc3(x)


def lenet(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(4)
    # Full float32: by default a convolution may use fewer bits.
    torch.backends.cudnn.allow_tf32 = False
    return LeNet()


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = random.integers(0, 10, count)
    x = random.normal(size=(count, 1, 28, 28)).astype(np.float32)
    x[np.arange(count), 0, y * 2, y * 2] += 8  # Something to learn.
    return x, y


class Bfloat(nn.Module):
    """Weights and activations in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = checks.Net(3, torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.to(torch.bfloat16)).float()


def bfloat(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(5)
    return Bfloat()


class OwnStep(TrainingOperator):
    """The usual step, written out; says where its batch was."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        x, y = batch
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return {"train_loss": loss.item(), "num_samples": len(x), "on_gpu": float(x.is_cuda)}


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.table = nn.Embedding(9, 3, sparse=True, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)


def sparse(config: dict[str, Any]) -> nn.Module:
    return Sparse()

"""Training that gives the same on gloo and on orca, up to the order of sums."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


class Net(nn.Module):
    """Small, but with several kinds of parameters and a part that is not always used."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, sparse=sparse)
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
        self.extra = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, rows: torch.Tensor, with_extra: bool = True) -> torch.Tensor:
        hidden = self.body(self.embedding(rows).mean(1))
        if with_extra:
            hidden = self.extra(hidden)
        return self.head(hidden)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    rows = torch.randint(0, 20, (6, 3), generator=generator)
    return rows, rows.float().mean(1, keepdim=True) / 20


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
    **forward: Any,
) -> dict[str, Any]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        rows, wanted = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows, **forward), wanted).backward()
        optimizer.step()
    return weights(model)


def weights(model: nn.Module) -> dict[str, Any]:
    return {name.removeprefix("module."): p.detach() for name, p in model.named_parameters()}


def wrapped(**options: Any) -> DistributedDataParallel:
    torch.manual_seed(dist.get_rank())  # DDP makes them equal.
    return DistributedDataParallel(Net(**options.pop("net", {})), **options)


@contextlib.contextmanager
def registered_buckets() -> Iterator[None]:
    """On orca, the buckets that are made inside lie in registered memory."""
    if dist.get_backend() != "orca":
        yield
        return
    from orca.adapters.torch.backend import memory_stats

    assert os.environ["DDP_DISABLE_COMM_MEM"] == "0"
    before = memory_stats()["tensors"]
    yield
    assert memory_stats()["tensors"] > before, "torch did not ask for registered memory"


def ddp() -> Any:
    with registered_buckets():
        return train(wrapped())


def ddp_many_buckets() -> Any:
    return train(wrapped(bucket_cap_mb=0.001, gradient_as_bucket_view=True))


def ddp_unused_parameters() -> Any:
    model = wrapped(find_unused_parameters=True)
    train(model, with_extra=False)
    return train(model, with_extra=True)


def ddp_static_graph() -> Any:
    return train(wrapped(static_graph=True, gradient_as_bucket_view=True))


def ddp_sparse() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = wrapped(net={"sparse": True})
        return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def ddp_mixed_precision() -> Any:
    torch.manual_seed(dist.get_rank())
    return train(DistributedDataParallel(Net().to(torch.bfloat16)), steps=1)


def ddp_accumulates() -> Any:
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        rows, wanted = batch(step)
        with model.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            nn.functional.mse_loss(model(rows), wanted).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def ddp_join() -> Any:
    """Ranks have different numbers of batches."""
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 + dist.get_rank()):
            rows, wanted = batch(step)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows), wanted).backward()
            optimizer.step()
    return weights(model)


def ddp_buffers() -> Any:
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(6, 4, generator=generator)).square().mean().backward()
    model(torch.zeros(6, 4))  # Buffers are sent at the start of a forward.
    return {name: value.float() for name, value in model.named_buffers()}


def hook_allreduce() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = wrapped()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return train(model)


def hook_fp16() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = wrapped()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


def hook_builtin() -> Any:
    model = wrapped()
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(model)


def hook_power_sgd() -> Any:
    """Its futures wait for collectives inside a callback."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = wrapped()
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    result = train(model, steps=6)
    if dist.get_backend() == "gloo":
        # Its threads must be out of the callbacks before the group goes, or the process aborts.
        time.sleep(0.5)
    return result


def zero_optimizer() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = wrapped()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
        )
    result = train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    return result, len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else None


def fsdp(registered: bool = False) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.body, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if registered and dist.get_backend() == "orca":
        for module in [model.body, model]:
            module.set_allocate_memory_from_process_group_for_comm(True)  # type: ignore[operator]
    guard = registered_buckets() if registered else contextlib.nullcontext()
    with guard:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        train(model, optimizer)
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}


def fsdp_in_registered_memory() -> Any:
    return fsdp(registered=True)


def sync_batch_norm_and_metrics() -> Any:
    """What scripts do beside the gradients: average a loss, gather predictions."""
    model = wrapped()
    rows, wanted = batch(0)
    loss = nn.functional.mse_loss(model(rows), wanted).detach()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    predictions = [torch.zeros(6, 1) for _ in range(dist.get_world_size())]
    dist.all_gather(predictions, model(rows).detach())
    return [loss, *predictions]

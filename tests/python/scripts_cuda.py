"""CPU tensors over orca and CUDA tensors over NCCL in one group, run by torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import orca.distributed  # noqa: F401  (registers the backend)


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:orca,cuda:nccl")
    world = dist.get_world_size()
    for device in ["cpu", "cuda", "cpu"]:
        tensor = torch.full((1000,), float(dist.get_rank() + 1), device=device)
        dist.all_reduce(tensor)
        assert tensor.eq(world * (world + 1) / 2).all(), device
        gathered = torch.empty(world, device=device)
        dist.all_gather_into_tensor(gathered, torch.ones(1, device=device) * dist.get_rank())
        assert gathered.tolist() == list(range(world)), device
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2).cuda())
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    assert model.module.weight.grad.isfinite().all()
    dist.destroy_process_group()
    os.write(1, b"end of cuda\n")


if __name__ == "__main__":
    main()

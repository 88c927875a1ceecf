"""orca.comm on arrays that are not numpy's."""

from __future__ import annotations


def takes_torch_tensors(rank: int, world: int, store: str) -> None:
    import torch

    from orca.comm import Communicator

    with Communicator.connect(0, 1) as comm:
        for dtype in [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]:
            tensor = torch.ones(5, dtype=dtype)
            assert comm.allreduce(tensor) is tensor
            assert tensor.eq(1).all()

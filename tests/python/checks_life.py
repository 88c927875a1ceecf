"""Processes that end with a group still there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path


def _leave(rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    import orca.distributed

    dist.init_process_group("orca", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    tensor = orca.distributed.empty(100).fill_(1.0)
    dist.all_reduce(tensor)
    assert tensor.eq(2.0).all()
    assert torch.is_tensor(tensor)


def spawn_and_leave() -> None:
    """Multiprocessing ends its processes with os._exit; the group is left all the same."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [context.Process(target=_leave, args=(rank, store)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(60)
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.close()
    assert codes == [0, 0]


def dies_with_a_group() -> None:
    import torch.distributed as dist

    import orca.distributed

    tensor = orca.distributed.empty(1_000_000).fill_(1.0)
    dist.all_reduce(tensor)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)

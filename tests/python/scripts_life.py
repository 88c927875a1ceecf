"""A script as users write them, run by torchrun. The first argument says how it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

import orca.distributed


def step() -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.eq(float(dist.get_world_size()) ** 2).all()


def receive_in_vain() -> None:
    with contextlib.suppress(dist.DistBackendError):
        dist.recv(torch.ones(1), 1 - dist.get_rank(), tag=9)


def reduce_in_vain(group: dist.ProcessGroup) -> None:
    """Only rank 0 calls, so the call hangs."""
    with contextlib.suppress(dist.DistBackendError):
        dist.all_reduce(torch.ones(1), group=group)


def main(how: str) -> None:
    if how == "again":
        for _ in range(3):
            dist.init_process_group("orca")
            step()
            dist.destroy_process_group()
    elif how == "devices":
        dist.init_process_group("cpu:orca")
        step()
        dist.destroy_process_group()
    elif how == "no-destroy":
        dist.init_process_group("orca")
        kept = orca.distributed.empty(10).fill_(1.0)
        dist.new_group()
        step()
        dist.all_reduce(kept)
        globals()["kept"] = kept
    elif how == "thread":
        # The end comes while another thread waits for a message that will not come.
        dist.init_process_group("orca")
        step()
        group = dist.new_group()
        threading.Thread(target=receive_in_vain, daemon=True).start()
        if dist.get_rank() == 0:
            threading.Thread(target=reduce_in_vain, args=[group], daemon=True).start()
            time.sleep(0.1)
        dist.barrier()
    elif how == "raises":
        dist.init_process_group("orca")
        step()
        dist.barrier()
        if dist.get_rank() == 1:
            raise RuntimeError("on purpose")
    os.write(1, f"end of {how}\n".encode())  # In one piece: the ranks share the pipe.


if __name__ == "__main__":
    main(sys.argv[1])

"""What a worker needs of torch."""

from __future__ import annotations

import sys

import torch

from orca.adapters.torch.devices import may_have_gpus
from orca.adapters.torch.plugin import use_kernels

use_kernels()  # A nursery imports this, so all workers have them.


def begin(threads: int) -> None:
    """Prepares a forked worker: its number of threads, and random numbers of its own."""
    torch.set_num_threads(threads)
    if may_have_gpus():
        torch.seed()  # It takes milliseconds to note the seed for GPUs.
    else:
        torch.default_generator.seed()


def end() -> None:
    """Leaves the process group that a function has not left, so that the next one can form its own."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()

"""GPUs: what the argument ``device`` means, which GPU a worker has, and how batches get there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from orca import running
from orca.adapters.torch.trees import map_leaves
from orca.errors import FailedPreconditionError, InvalidArgumentError

CPU = torch.device("cpu")


def read_device(device: Any) -> torch.device | None:
    """What was asked for; None is the CPU. Without a number, every worker has a GPU of its own."""
    try:
        found = None if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found is None or found.type == "cpu":
        return None
    if found.type != "cuda":
        raise InvalidArgumentError(
            f'device {device!r} is not known; give "cpu", "cuda" (all GPUs), or one GPU as "cuda:0"'
        )
    return found


def count_gpus() -> int:
    """How many GPUs torch sees; asks the driver of the GPUs, and leaves no context behind."""
    return int(torch.cuda.device_count())


def workers_on(device: torch.device, gpus: int, asked: int | None) -> int:
    """How many workers of a machine with so many GPUs train.

    Args:
        device: What was asked for.
        gpus: How many the machine has.
        asked: ``workers_per_node``, or None.
    """
    if gpus == 0:
        built = torch.version.cuda
        raise FailedPreconditionError(
            f'device="{device}", but torch sees no GPU (it was built '
            f"{f'for CUDA {built}' if built else 'without CUDA'}); look at nvidia-smi and "
            'CUDA_VISIBLE_DEVICES, or give device="cpu"'
        )
    if device.index is not None:
        if device.index >= gpus:
            raise InvalidArgumentError(
                f'device="{device}", but torch sees {gpus} GPUs; give "cuda:0" to "cuda:{gpus - 1}"'
            )
        gpus = 1
    if asked is not None and asked > gpus:
        raise InvalidArgumentError(
            f'workers_per_node is {asked}, but device="{device}" means {gpus} GPUs a machine, and a '
            f"worker needs one of its own; give at most {gpus}, or leave it out"
        )
    return gpus if asked is None else asked


def device_of_worker(wanted: torch.device | None) -> torch.device:
    """This worker's; from now on the one that torch means without a number."""
    if wanted is None:
        return CPU
    index = running.local_rank() if wanted.index is None else wanted.index
    if index >= count_gpus():
        raise FailedPreconditionError(
            f"rank {running.rank()} needs GPU {index}, but torch sees {count_gpus()} on its machine; "
            "give workers_per_node="
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def copied_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Batches with their rows, in the memory of a GPU: each is on its way while the one before is used."""
    side = torch.cuda.Stream(device)

    def send(leaf: Any) -> Any:
        # Pinned memory is used again when the copy is done: torch keeps account of that.
        if isinstance(leaf, torch.Tensor) and not leaf.is_cuda:
            return leaf.pin_memory().to(device, non_blocking=True)
        return leaf

    def fetch() -> tuple[Any, int, Any] | None:
        batch, rows = next(batches, (None, -1))
        if rows < 0:
            return None
        with torch.cuda.stream(side):
            sent = map_leaves(batch, send)
        return sent, rows, side.record_event()

    def receive(leaf: Any) -> Any:
        # Its memory is the side stream's, and must not be given away while this one reads it.
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            leaf.record_stream(torch.cuda.current_stream(device))
        return leaf

    ahead = fetch()
    while ahead is not None:
        batch, rows, arrived = ahead
        ahead = fetch()
        torch.cuda.current_stream(device).wait_event(arrived)
        yield map_leaves(batch, receive), rows

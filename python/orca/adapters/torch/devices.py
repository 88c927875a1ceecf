"""GPUs: what the argument ``device`` means, which GPU a worker has, and how batches get there."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orca import running
from orca.adapters.torch.trees import leaves, map_leaves
from orca.errors import FailedPreconditionError, InvalidArgumentError

CPU = torch.device("cpu")


# What the drivers of GPUs make: NVIDIA's, also on WSL and Jetson, AMD's and Intel's.
_DRIVERS = ("nvidiactl", "dxg", "nvmap", "kfd", "dri")


def may_have_gpus() -> bool:
    """Whether a driver of GPUs is loaded; asks nobody who would start CUDA."""
    return any(Path("/dev", name).exists() for name in _DRIVERS)


@functools.cache
def _has_gpus() -> bool:
    return may_have_gpus() and torch.cuda.is_available()


def seed_cpu(seed: int) -> None:
    """As ``torch.manual_seed``, which takes a millisecond to note the seed for GPUs that are not there."""
    if _has_gpus():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


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


def copied_ahead(batches: Iterator[Any], device: torch.device, *, threaded: bool) -> Iterator[Any]:
    """Batches with their rows, in the memory of a GPU: the next ones are on their way while one is used.

    Args:
        batches: In the memory of the CPU.
        device: Where they go.
        threaded: Whether a thread may ask for them: not where that runs code of the user's.
    """
    side = torch.cuda.Stream(device)

    def send(leaf: Any) -> Any:
        # Pinned memory is used again when the copy is done: torch keeps account of that.
        if isinstance(leaf, torch.Tensor) and not leaf.is_cuda:
            return _pinned(leaf, threaded).to(device, non_blocking=True)
        return leaf

    def sent() -> Iterator[Any]:
        for batch, rows in batches:
            with torch.cuda.stream(side):
                copies = map_leaves(batch, send)
            yield copies, rows, side.record_event()

    for batch, rows, arrived in (_by_thread if threaded else _one_ahead)(sent()):
        current = torch.cuda.current_stream(device)
        current.wait_event(arrived)
        for leaf in leaves(batch):
            # Its memory is the side stream's, and must not be given away while this one reads it.
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)
        yield batch, rows


def _pinned(tensor: torch.Tensor, threaded: bool) -> torch.Tensor:
    """A copy that a GPU can fetch by itself."""
    if not threaded or tensor.dtype is torch.bfloat16:
        return tensor.pin_memory()
    # By this thread alone: torch would have a team of threads for each of ours.
    room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    np.copyto(room.numpy(), tensor.numpy())
    return room


def _one_ahead(items: Iterator[Any]) -> Iterator[Any]:
    ahead = next(items, None)
    while ahead is not None:
        now, ahead = ahead, next(items, None)
        yield now


def _by_thread(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, made by a thread; one waits while the next is made."""
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(maxsize=1)
    over = threading.Event()

    def make() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                ready.put((item, None))
                if over.is_set():
                    return
        except BaseException as raised:
            error = raised
        ready.put((None, error))

    thread = threading.Thread(target=make, name="orca-copies", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        over.set()
        while thread.is_alive():  # It may wait for room.
            with contextlib.suppress(queue.Empty):
                ready.get(timeout=0.01)
        thread.join()

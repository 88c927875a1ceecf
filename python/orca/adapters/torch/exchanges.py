"""Where gradients of several workers become one: in the CPU's memory by the engine, between GPUs by NCCL.

Both exchanges are used alike. A step of every worker is: ``collect``, ``meet``, ``reduce_all``, ``spread``, ``leave``; see
``orca/learn/gradient_exchange.h``.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Container
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from orca import running
from orca.adapters.torch.losses import LaterWeight
from orca.objects import broadcast_object


class HostExchange:
    """The engine's, for gradients in the CPU's memory."""

    def __init__(self, native: Any, parameters: list[torch.nn.Parameter]) -> None:
        self._native, self._parameters = native, parameters
        self.meet = native.meet
        self.used = native.used
        self.reduce_all = native.reduce_all
        self.leave = native.leave

    def collect(self, sparse: Container[int]) -> None:
        """Takes this worker's gradients, but for the sparse ones."""
        pointers = []
        for i, parameter in enumerate(self._parameters):
            gradient = None if i in sparse else parameter.grad
            if gradient is not None and not gradient.is_contiguous():
                gradient = parameter.grad = gradient.contiguous()
            pointers.append(0 if gradient is None else gradient.data_ptr())
        self._native.collect(pointers)

    def spread(self) -> None:
        """Writes the joined gradients over those of the parameters that have one."""
        self._native.spread([0 if p.grad is None else p.grad.data_ptr() for p in self._parameters])


def _nccl(store: Any, rank: int, world: int) -> Any:
    return dist.ProcessGroupNCCL(store, rank, world, dist.ProcessGroupNCCL.Options())


class DeviceGroup:
    """Adds tensors up over the GPUs of all workers.

    Formed by the first use, which is collective, and kept as long as this object. It is none of
    ``torch.distributed``'s own groups, so loops of the user's may form those.
    """

    def __init__(self, form: Callable[[Any, int, int], Any] = _nccl) -> None:
        self._form = form
        self._backend: Any = None

    def allreduce(self, tensor: torch.Tensor) -> None:
        """Adds ``tensor`` up over all workers, in place; the same call on all of them."""
        if running.world_size() == 1:
            return
        if self._backend is None:
            self._backend = self._form(_store(), running.rank(), running.world_size())
            # Not a shutdown, which waits for workers that may be gone.
            weakref.finalize(self, self._backend.abort).atexit = False
        self._backend.allreduce([tensor]).wait()


def add_up(tensor: torch.Tensor, group: DeviceGroup | None) -> None:
    """Adds a tensor up over all workers, in place; ``group`` is None when the CPU has it."""
    if group is None:
        running.allreduce(tensor)
    else:
        group.allreduce(tensor)


def _store() -> Any:
    """Where the workers find each other, on rank 0's machine and a port that is free."""
    host, world = os.environ["MASTER_ADDR"], running.world_size()
    mine = None
    if running.rank() == 0:
        mine = dist.TCPStore(host, 0, world, is_master=True, wait_for_workers=False)
    port = broadcast_object(None if mine is None else mine.port)
    return mine or dist.TCPStore(host, port, world, is_master=False)


class DeviceExchange:
    """For gradients in the memory of GPUs; with one worker nothing travels.

    What the workers say about their steps goes over the engine's connections, which know when a
    worker is gone; gradients go from GPU to GPU.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], group: DeviceGroup) -> None:
        self._parameters, self._group = parameters, group
        self._gradients: list[torch.Tensor | None] = [None] * len(parameters)
        self._used: list[bool] = []
        self._factor = 0.0
        self._views: list[torch.Tensor] = []  # a place for each gradient in
        self._flats: list[torch.Tensor] = []  # one vector a type
        if running.world_size() > 1:
            self._make_room()

    def _make_room(self) -> None:
        places: dict[int, torch.Tensor] = {}
        kinds = dict.fromkeys((p.dtype, p.device) for p in self._parameters)
        for kind in kinds:
            members = [p for p in self._parameters if (p.dtype, p.device) == kind]
            flat = torch.empty(sum(p.numel() for p in members), dtype=kind[0], device=kind[1])
            self._flats.append(flat)
            parts = flat.split([p.numel() for p in members])
            for parameter, part in zip(members, parts, strict=True):
                places[id(parameter)] = part.view(parameter.shape)
        self._views = [places[id(p)] for p in self._parameters]

    def collect(self, sparse: Container[int]) -> None:
        """Takes this worker's gradients, but for the sparse ones."""
        self._gradients = [None if i in sparse else p.grad for i, p in enumerate(self._parameters)]

    def meet(self, weight: Any, loss: Any, rows: int, leaves: bool, is_sum: bool) -> Any:
        """Tells all workers what this one has; everybody gets the same sum.

        Args:
            weight: A number or a LaterWeight. What is in the GPU's memory is fetched together, so
                that the GPU is waited for only once a step.
            loss: The mean (or sum) over this worker's rows; a number, or a tensor.
            rows: That it has trained on.
            leaves: Whether it has no gradient and ends its step.
            is_sum: Whether gradients are added up, not averaged.

        Returns:
            ``(weight, loss, rows, bad_loss, bad_gradient, bad_tensor, all_leave, all_used)``.
        """
        gradients, self._gradients = self._gradients, [None] * len(self._parameters)
        alone = running.world_size() == 1
        later = isinstance(weight, LaterWeight) and not alone
        fetched, bad = self._fetch([loss, weight.tensor()] if later else [loss], gradients)
        loss = fetched[0]
        if later:
            weight = fetched[1]
        elif alone and isinstance(weight, LaterWeight) and math.isfinite(loss):
            weight = 1.0  # Whatever it is, but for 0, which makes the loss a NaN.
        weight = float(weight)
        used = [weight != 0 and g is not None for g in gradients]
        if alone:
            self._used = used
            return (
                weight,
                loss if weight else 0.0,
                rows,
                0 if weight and not math.isfinite(loss) else -1,
                0 if weight and bad >= 0 else -1,
                bad if weight else -1,
                leaves,
                all(used),
            )
        self._gradients = gradients if weight else self._gradients
        mine = np.array([weight, loss, rows, bad, leaves, *used], np.float64)
        return self._sum_of(np.asarray(running.allgather(mine)).reshape(-1, len(mine)), is_sum)

    def _sum_of(self, everybody: Any, is_sum: bool) -> Any:
        """What all workers said; one row a rank."""
        ranks = np.flatnonzero(everybody[:, 0] != 0)
        heavy = everybody[ranks]
        total = float(heavy[:, 0].sum())
        factors = np.ones(len(heavy)) if is_sum else heavy[:, 0] / (total or 1.0)
        self._factor = float(factors[ranks == running.rank()].sum())
        self._used = [bool(flag) for flag in heavy[:, 5:].any(0)]
        bad_loss = np.flatnonzero(~np.isfinite(heavy[:, 1]))
        bad_gradient = np.flatnonzero(heavy[:, 3] >= 0)
        return (
            total,
            float((factors * heavy[:, 1]).sum()),
            int(everybody[:, 2].sum()),
            int(ranks[bad_loss[0]]) if len(bad_loss) else -1,
            int(ranks[bad_gradient[0]]) if len(bad_gradient) else -1,
            int(heavy[bad_gradient[0], 3]) if len(bad_gradient) else -1,
            bool(everybody[:, 4].all()),
            all(self._used),
        )

    @staticmethod
    def _fetch(numbers: list[Any], gradients: list[torch.Tensor | None]) -> tuple[list[float], int]:
        """Numbers and tensors as numbers, and the first gradient with a value that is not finite, or -1."""
        places = [i for i, g in enumerate(gradients) if g is not None and g.numel()]
        here = [gradients[i] for i in places]
        asked = [n.reshape(()) for n in numbers if isinstance(n, torch.Tensor)]
        with torch.no_grad():
            # One kernel for the largest values of all gradients, one that puts all numbers together.
            asked += torch._foreach_norm(here, math.inf) if here else []
            found = iter(_as_numbers(asked))
        told = [next(found) if isinstance(n, torch.Tensor) else float(n) for n in numbers]
        bad = (i for i, n in zip(places, found, strict=True) if not math.isfinite(n))
        return told, next(bad, -1)

    def used(self) -> list[bool]:
        """One a parameter: whether some worker with a weight has a gradient of it."""
        return self._used

    def reduce_all(self) -> None:
        """Adds the gradients up, each worker's weighed."""
        if running.world_size() == 1:
            return
        pairs = [
            (view, gradient)
            for view, gradient in zip(self._views, self._gradients, strict=True)
            if gradient is not None
        ]
        if len(pairs) < len(self._views):
            torch._foreach_zero_(self._flats)
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [g.detach() for _, g in pairs])
        if self._factor not in (0.0, 1.0):
            torch._foreach_mul_(self._flats, self._factor)
        for flat in self._flats:
            self._group.allreduce(flat)

    def spread(self) -> None:
        """Writes the joined gradients over those of the parameters that have one."""
        if running.world_size() == 1:
            return
        pairs = [
            (p.grad, view)
            for p, view in zip(self._parameters, self._views, strict=True)
            if p.grad is not None
        ]
        if pairs:
            torch._foreach_copy_([to for to, _ in pairs], [view for _, view in pairs])

    def leave(self) -> None:
        """Nobody reads another worker's memory."""
        self._gradients = [None] * len(self._parameters)


def _as_numbers(tensors: list[torch.Tensor]) -> list[float]:
    """What tensors of one element hold, in one copy from the GPU."""
    kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
    if len(kinds) < 2:
        return torch.stack(tensors).tolist() if tensors else []
    parts = [[i for i, t in enumerate(tensors) if t.dtype == kind] for kind in kinds]
    whole = [torch.stack([tensors[i] for i in part]).double() for part in parts]
    places = [i for part in parts for i in part]
    found = dict(zip(places, torch.cat(whole).tolist(), strict=True))
    return [found[i] for i in range(len(tensors))]

"""Shared weights whose bits do not depend on the number of workers.

The rows of a step are cut into blocks. Whoever has a block makes its gradient, and the engine adds all of them along one
fixed tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from orca import running
from orca._native import _core
from orca.adapters.torch.shared_state import SharedState, shared_block
from orca.errors import FailedPreconditionError

LEAST_ROWS = 2
"""Of a block that has any, where a step has as many: of one row there are no statistics."""


def own_blocks(blocks: int) -> range:
    """Those of this worker: neighbours, the first workers have one more."""
    begin, end = _core.BlockExchange.blocks_of(blocks, running.rank(), running.world_size())
    return range(begin, end)


class BlockState(SharedState):
    """Weights, gradients and optimizer state of one session, trained in blocks.

    A step of the engine works element by element, so every worker updates a share. torch's own steps may round the
    last elements of a slice in another way: rank 0 makes them, with the same slices for any number of workers.

    Args:
        parameters: See ``SharedState``.
        optimizers: See ``SharedState``.
        may_fuse: See ``SharedState``.
        blocks: Into how many the rows of a step are cut.
        buffers: Gives the models' buffers.
    """

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        optimizers: list[torch.optim.Optimizer],
        *,
        may_fuse: bool,
        blocks: int,
        buffers: Callable[[], list[torch.Tensor]],
    ) -> None:
        self._blocks = blocks
        self._statistics = _Statistics(buffers, blocks) if buffers() else None
        self._splits = False
        super().__init__(parameters, optimizers, may_fuse=may_fuse)
        self.way = f"shared weights, gradients of {blocks} blocks"

    def begin(self) -> None:
        """Before the blocks of a step."""
        if self._statistics is not None:
            self._statistics.begin()

    def add(self, block: int, weight: float, loss: float, rows: int, *, is_sum: bool) -> bool:
        """Takes the gradients of a block, and says whether they and the loss are finite.

        Blocks come in ascending order.
        """
        pointers = self._pointers() if weight else []
        is_finite = bool(self.exchange.add(block, weight, loss, rows, pointers, is_sum))
        self._drop_gradients()
        if self._statistics is not None:
            self._statistics.add(block, rows)
        return is_finite

    def step(self, weight: float, loss: float, rows: int, *, leaves: bool, policy: Any) -> Any:
        """Joins what was added; see ``SharedState``, but for weight, loss and rows, which ``add`` gets."""
        if self._statistics is not None:
            self._statistics.join()
        if self.commits is not None:
            self.commits.note()
        total = self.exchange.meet(policy.is_sum)
        self._take_step(total, policy)
        return total

    def connect(self) -> None:
        """Forms the exchange with the workers of the current call."""
        super().connect()
        if self._statistics is not None:
            self._statistics.connect()

    def check_untouched(self) -> None:
        """Raises when something beside the optimizer wrote to the weights."""
        try:
            super().check_untouched()
        except FailedPreconditionError as error:
            raise FailedPreconditionError(
                f"{error}, but not with deterministic=, which needs shared weights"
            ) from error

    # --- inside

    def _gradient_bytes(self) -> int:
        return int(_core.BlockExchange.memory_size(self.layout, self._blocks, self._world))

    def _connect(self) -> None:
        self.exchange = _core.BlockExchange(
            running.communicator()._native, self.layout, self.gradients.native, self._blocks
        )

    def _set_runs(self) -> None:
        self._splits = self._can_fuse()

    def _share(self, begin: int, end: int) -> tuple[int, int]:
        if self._splits:
            return super()._share(begin, end)
        return (begin, end) if self._rank == 0 else (end, end)

    def _reduce(self) -> None:
        self.exchange.reduce()

    def _update(self, total: Any, policy: Any) -> None:
        self._reduce()
        super()._update(total, policy)

    def _squares(self, limits: tuple[float, float] | None) -> float:
        return float(self.exchange.squares(limits))

    def _end_fusing(self) -> None:
        super()._end_fusing()
        self._gather_scalars()
        self._slice()


class _Statistics:
    """Buffers of models: each block begins with those of the step's begin, and what it changes is averaged by rows."""

    def __init__(self, buffers: Callable[[], list[torch.Tensor]], blocks: int) -> None:
        self._buffers, self._blocks = buffers, blocks
        self._before: list[torch.Tensor] = []
        self._layout = _core.FlatLayout(
            [(str(i), "float64", _numbers(b).numel(), 0) for i, b in enumerate(buffers())]
        )
        world = running.world_size()
        self._memory = shared_block(_core.BlockExchange.memory_size(self._layout, blocks, world))
        self.connect()

    def connect(self) -> None:
        """Forms the exchange with the workers of the current call."""
        self._exchange = _core.BlockExchange(
            running.communicator()._native, self._layout, self._memory.native, self._blocks
        )

    def begin(self) -> None:
        """Before the blocks of a step."""
        self._before = [buffer.clone() for buffer in self._buffers()]

    def add(self, block: int, rows: int) -> None:
        """After a block: takes what it has changed, and makes it what it was."""
        changes: list[torch.Tensor | None] = []
        for buffer, before in zip(self._buffers(), self._before, strict=True):
            is_same = torch.equal(buffer, before)
            change = None if is_same else _numbers(buffer) - _numbers(before)
            changes.append(change)
            if change is not None:
                buffer.copy_(before)
        pointers = [0 if change is None else change.data_ptr() for change in changes]
        self._exchange.add(block, float(rows), 0.0, rows, pointers, False)

    def join(self) -> None:
        """After the blocks of a step, on all workers."""
        self._exchange.meet(False)
        self._exchange.reduce()
        bank = torch.from_numpy(self._exchange.bank()).view(torch.float64)
        for i, (buffer, used) in enumerate(
            zip(self._buffers(), self._exchange.used(), strict=True)
        ):
            if not used:  # A constant stays what it is, to the bit.
                continue
            place = _numbers(buffer)
            first = self._layout.offset(i) // bank.itemsize
            after = place + bank[first : first + place.numel()].view(place.shape)
            if buffer.is_complex():
                after = torch.view_as_complex(after)
            elif not buffer.is_floating_point():
                after = after.round()
            buffer.copy_(after)


def _numbers(buffer: torch.Tensor) -> torch.Tensor:
    """As float64, in a tensor of its own."""
    parts = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    return parts.detach().to(torch.float64, copy=True).contiguous()

"""Where the workers of a call are, in memory that outlives them: whoever dies three times in one place is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orca import running
from orca._native import _core
from orca.data.arrays import SharedBlock
from orca.errors import FailedPreconditionError
from orca.objects import allgather_object

_known: set[int] = set()  # The calls that this worker has seen.


@dataclass(frozen=True)
class Places:
    """Made by the driver for one call.

    Attributes:
        block: Has the place of each worker, from 1.
        what: A worker does there: "made step".
    """

    block: SharedBlock
    what: str

    @classmethod
    def of(cls, workers: int, what: str) -> Places:
        """New ones, in the driver."""
        return cls(SharedBlock(_core.Places.block_size(workers)), what)

    def open(self) -> Any:
        """The engine's view of them, on a worker."""
        return _core.Places(self.block.native, running.world_size())

    def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches; this worker is at the last one that was asked for."""
        places, rank = self.open(), running.rank()
        for number, batch in enumerate(batches, 1):
            places.enter(rank, number)
            yield batch

    def check(self) -> None:
        """Raises when a worker has died three times in a row in the same place; all workers ask when a call begins."""
        is_new = self.block.number not in _known
        _known.clear()
        _known.add(self.block.number)
        if running.attempt() == 0:
            return
        places = self.open()
        death = places.find(allgather_object(is_new))
        running.barrier()  # Everybody has looked.
        if running.rank() == 0:
            places.settle(death)
        running.barrier()
        if death is not None and death.is_certain:
            raise FailedPreconditionError(
                f"rank {death.rank} died three times in a row while it {self.what} {death.place}, so another would die of it, too; "
                "look at the rows there, and at the memory that they take, or give max_restarts=0 to see "
                "the first death as it is"
            )

"""Where the workers of a call are, in memory that outlives them: whoever dies twice in one place is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orca import running
from orca.data.arrays import SharedBlock
from orca.errors import FailedPreconditionError
from orca.objects import allgather_object

_CULPRIT = 2  # numbers: a rank, and its place
_known: set[int] = set()  # The calls that this worker has seen.


@dataclass(frozen=True)
class Places:
    """Made by the driver for one call.

    Attributes:
        block: Whose death was the last one and where; and the place of each worker, from 1.
        what: A worker does there: "made step".
    """

    block: SharedBlock
    what: str

    @classmethod
    def of(cls, workers: int, what: str) -> Places:
        """New ones, in the driver."""
        return cls(SharedBlock(8 * (_CULPRIT + workers)), what)

    def mine(self) -> Any:
        """This worker's place, an array of one number."""
        rank = _CULPRIT + running.rank()
        return self._marks()[rank : rank + 1]

    def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches; this worker is at the last one that was asked for."""
        mine = self.mine()
        for number, batch in enumerate(batches, 1):
            mine[0] = number
            yield batch

    def check(self) -> None:
        """Raises when a worker has died twice in the same place; all workers ask when a call begins."""
        is_new = self.block.number not in _known
        _known.clear()
        _known.add(self.block.number)
        if running.attempt() == 0:
            return
        are_new = allgather_object(is_new)
        marks = self._marks()
        begun = marks[_CULPRIT:].tolist()
        dead = [(rank, begun[rank]) for rank, new in enumerate(are_new) if new and begun[rank]]
        rank, place = dead[0] if len(dead) == 1 else (-1, 0)
        again = place > 0 and (rank, place) == tuple(marks[:_CULPRIT].tolist())
        running.barrier()  # Everybody has read.
        if running.rank() == 0:
            marks[:_CULPRIT] = rank, place
            marks[_CULPRIT:] = 0
        running.barrier()
        if again:
            raise FailedPreconditionError(
                f"rank {rank} died twice while it {self.what} {place}, so another would die of it, too; "
                "look at the rows there, and at the memory that they take, or give max_restarts=0 to see "
                "the first death as it is"
            )

    def _marks(self) -> Any:
        return self.block.array("int64", (_CULPRIT + running.world_size(),))

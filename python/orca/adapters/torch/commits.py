"""What a training has committed, in memory that outlives its workers.

A step counts when rank 0 has written its commit, after all workers have finished it. When a worker dies, all begin the
call anew: what the step in progress has changed is put back, and they go on behind the last commit, with the bits that
they would have had.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from orca import running
from orca._native import _core
from orca.adapters.torch.places import Places
from orca.adapters.torch.shared_state import ELEMENTWISE, SharedState, shared_block
from orca.adapters.torch.trees import pack, unpack
from orca.data.arrays import SharedBlock, receive_block
from orca.objects import allgather_object, broadcast_object
from orca.pickles import dumps, loads

# What changes of their state in a step is in shared memory, but for a count of steps.
_COUNTING = tuple(kind for kind in ELEMENTWISE if kind is not torch.optim.NAdam)


@dataclass(frozen=True)
class Ledger:
    """Where the commits of one ``fit`` are; made by the driver, who holds them.

    Attributes:
        block: Has the last commit.
        basket: Keeps the blocks that it names.
        places: The steps that the workers have begun.
    """

    block: SharedBlock
    basket: int
    places: Places

    @classmethod
    def of(cls, workers: int, basket: int) -> Ledger:
        """A new one, in the driver."""
        block = SharedBlock(_core.COMMIT_LOG_BYTES)
        return cls(block, basket, Places.of(workers, "made step"))


@dataclass(frozen=True)
class _Record:
    """What changes seldom.

    Attributes:
        state: Of the session.
        begin_step: The step that the ``fit`` began with.
        stats: Of the epochs that are done, of each worker.
        before: The models' buffers when the epoch began.
        undo: The blocks of the undo log, and its shape.
        redo: Those of the redo log, if the engine makes the steps: the log and its room, the gradients,
            the regions, the tensors, whether losses are sums, and whether gradients come in blocks.
        may_fuse: See ``SharedState``.
        world: How many workers there were.
    """

    state: Any
    begin_step: int
    stats: list[list[dict[str, Any]]]
    before: Any
    undo: tuple[list[SharedBlock], tuple[Any, ...]]
    redo: tuple[Any, ...] | None
    may_fuse: bool
    world: int


@dataclass(frozen=True)
class Progress:
    """Where an interrupted ``fit`` goes on.

    Attributes:
        commit: The last one.
        record: What it names.
        blocks: Their numbers.
        rows: That this worker has trained on in the epoch.
        batches: Of them.
        buffers: Of this worker's models.
    """

    commit: Any
    record: _Record
    blocks: list[int]
    rows: int
    batches: int
    buffers: bytes

    @classmethod
    def of(cls, said: dict[str, Any]) -> Progress:
        """What a checkpoint says; the session's state comes with it."""
        commit = _core.Commit()
        commit.index, commit.skipped = said["index"], said["skipped"]
        commit.loss_sum, commit.loss_rows = said["loss_sum"], said["loss_rows"]
        notes, rank = said["notes"], running.rank()
        is_same = len(notes) == running.world_size()
        rows, batches, buffers = notes[rank] if is_same else (0, 0, None)
        record = _Record(
            state=None,
            begin_step=said["begin_step"],
            stats=said["stats"],
            before=said["before"],
            undo=([], ()),
            redo=None,
            may_fuse=said["may_fuse"],
            world=len(notes),
        )
        found = b"" if buffers is None else buffers.numpy().tobytes()
        return cls(commit, record, [], rows, batches, found)

    def state(self) -> dict[str, Any]:
        """Of the session, as state dicts."""
        state: dict[str, Any] = unpack(self.record.state)
        for optimizer in state["optimizers"]:
            for values in optimizer["state"].values():
                if "step" in values:
                    values["step"] = values["step"] + self.commit.updates
        return state | {"epoch": self.commit.epoch, "global_step": self.commit.step}


def find(ledger: Ledger | None) -> Progress | None:
    """What was committed before this call began anew; all workers ask together."""
    if ledger is None:
        return None
    ledger.places.check()
    if running.attempt() == 0:
        return None
    packed: Any = None
    if running.rank() == 0 and (commit := _core.read_commit(ledger.block.native)) is not None:
        packed = receive_block(commit.record).array("uint8", (commit.record_bytes,)).tobytes()
        _settle(ledger, commit, _unpacked(packed)[0])
    packed = broadcast_object(packed)
    if packed is None:
        return None
    commit = _core.read_commit(ledger.block.native)
    assert commit is not None
    record, blocks = _unpacked(packed)
    # Workers that are no more have no successors.
    rank = running.rank()
    rows, batches, buffers = _undo_log(record).note_of(rank, commit.number)
    return Progress(commit, record, [*blocks, commit.record], rows, batches, buffers)


def _settle(ledger: Ledger, commit: Any, record: _Record) -> None:
    """Finishes the step in which workers died, or takes back what they did."""
    if record.redo is None:
        _undo_log(record).put_back(commit.number)
        return
    (block, room), gradients, regions, tensors, is_sum, in_blocks = record.redo
    log = _core.RedoLog(block.native, record.world, room, _natives(regions))
    layout, number = _core.FlatLayout(tensors), commit.number + 1
    found = (
        log.finish_blocks(layout, gradients.native, number)
        if in_blocks
        else log.finish(layout, gradients.native, record.world, is_sum, number)
    )
    if found is None:
        return
    loss, rows = found
    commit.number, commit.step, commit.index = number, commit.step + 1, commit.index + 1
    commit.updates += 1
    commit.loss_sum, commit.loss_rows = commit.loss_sum + loss * rows, commit.loss_rows + rows
    commit.last_loss, commit.is_pending = loss, 1
    _core.write_commit(ledger.block.native, commit)


def _unpacked(packed: bytes) -> tuple[_Record, list[int]]:
    parts, blocks = pickle.loads(packed)
    # Tensors want to be written.
    return loads([bytearray(part) for part in parts], running.shard_home()), blocks


def _undo_log(record: _Record) -> Any:
    (block, *regions), (*shape, sizes) = record.undo
    world, pieces, buffers = shape
    return _core.UndoLog(
        block.native, running.rank(), world, pieces, buffers, _natives(regions), sizes
    )


def _natives(blocks: list[SharedBlock]) -> list[Any]:
    return [block.native for block in blocks]


_is_told = False
_commits = False  # Whether the ``fit`` that runs commits its steps.


@contextlib.contextmanager
def leaving_between_steps() -> Iterator[None]:
    """Who gets a SIGTERM inside finishes the step first, so that nobody has to make it again."""
    global _is_told, _commits

    def hear(*_: Any) -> None:
        global _is_told
        _is_told = True
        if not _commits:
            _leave()

    _is_told = _commits = False
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


class Commits:
    """Commits the steps of one ``fit``, on a worker.

    Args:
        ledger: Where.
        session: What is trained.
        progress: Where it goes on, if it was interrupted.
        stats: Of the epochs that are done, of each worker; grows.
    """

    def __init__(
        self,
        ledger: Ledger,
        session: Any,
        progress: Progress | None,
        stats: list[list[dict[str, Any]]],
    ) -> None:
        self._ledger, self._session, self._stats = ledger, session, stats
        self._commit = _core.Commit() if progress is None else progress.commit
        if not self._commit.number:  # Logs may have numbers of an earlier ``fit``.
            self._commit.number = ledger.block.number << 32
        self.begin_step = session.global_step if progress is None else progress.record.begin_step
        self.rows = self.batches = 0  # Of this worker, in this epoch.
        self._undo: Any = None
        self._blocks: list[SharedBlock] = []
        self._shape: tuple[Any, ...] = ()
        # What the last commit needs is kept until there is another.
        self._kept = [] if progress is None else progress.blocks
        self._in_basket: list[int] = []
        self._noted: list[torch.Tensor] = []
        self._settings: Any = None  # of the optimizers, as they are recorded
        self._pages: list[SharedBlock] = []  # for the record, in turns
        self._places = ledger.places.open()

    # --- in a step

    def mark_step(self) -> None:
        """Before this worker makes a step: if it dies, it was that."""
        self._places.enter(running.rank(), self._session.global_step + 1)

    def begin_update(self) -> int:
        """Before the engine's update: the number of the commit that the step becomes."""
        self._commit.updates += 1
        return int(self._commit.number) + 1

    @property
    def has_commit(self) -> bool:
        """Whether there is something to go back to."""
        return self._undo is not None

    def switch(self) -> None:
        """In a step whose update nobody could finish: the last commit once more, from which steps are taken back."""
        if self._undo is None:
            return
        rank = running.rank()
        rows, batches, data = self._undo.note_of(rank, self._commit.number)
        self._prepare()
        kept = torch.tensor(bytearray(data), dtype=torch.uint8)
        number = self._commit.number + 1
        self._undo.note(number, rows, batches, [(kept.data_ptr(), kept.numel())])
        running.barrier()
        self._commit.number = number
        if rank == 0:
            self._record()
            _core.write_commit(self._ledger.block.native, self._commit)
        self.note()
        running.barrier()

    def save(self) -> None:
        """Before this worker changes its share of the weights."""
        self._commit.updates += 1
        if self._undo is not None:
            self._undo.save(self._commit.number + 1)

    def note(self) -> None:
        """Before all workers meet: what this one alone knows."""
        if self._undo is not None:
            self._undo.note(self._commit.number + 1, self.rows, self.batches, self._buffers())

    def notes(self) -> list[tuple[int, int, torch.Tensor]]:
        """What all workers have noted for the step that is not committed yet: rows, batches and buffers."""
        if self._undo is None:
            return []
        found = [
            self._undo.note_of(rank, self._commit.number + 1)
            for rank in range(running.world_size())
        ]
        return [
            (rows, batches, torch.tensor(bytearray(data), dtype=torch.uint8))
            for rows, batches, data in found
        ]

    # --- after a step

    def prepare(self) -> bool:
        """Gets memory for the next steps if they need another, on all workers together.

        Returns:
            Whether steps can be committed.
        """
        sync = self._session.sync
        if not isinstance(sync, SharedState):
            return False
        # What the engine changes it can finish.
        regions = [] if sync.is_fused else sync.regions()
        if sync.commits is self and len(self._blocks) == len(regions) + 1:
            return True
        self._prepare()
        self.note()
        running.barrier()  # Nobody commits before all have noted.
        return True

    def _prepare(self) -> None:
        sync = self._session.sync
        regions = [] if sync.is_fused else sync.regions()
        sizes = [region.nbytes for region in regions]
        pieces = len(sync.parameters) * len(regions)
        bytes_of_buffers = sum(size for _, size in self._buffers())
        shape = (running.world_size(), pieces, bytes_of_buffers)
        block = shared_block(_core.UndoLog.block_size(*shape, sizes))
        self._blocks, self._shape = [block, *regions], (*shape, sizes)
        self._undo = _core.UndoLog(block.native, running.rank(), *shape, _natives(regions), sizes)
        sync.commits = self
        self.follow()
        global _commits
        _commits = True

    def follow(self) -> None:
        """This worker's share consists of other pieces now."""
        sync = self._session.sync
        if self._undo is not None:
            self._undo.set_pieces([] if sync.is_fused else sync.pieces())
        self._settings = None

    def begin_epoch(self, losses: Any) -> None:
        """Says how things are before the first step of an epoch; all workers together."""
        self.rows = self.batches = 0
        if self.prepare():
            self._settings = None  # The record is of the epoch before.
            self.note()
            running.barrier()
            self.commit(0, losses, 0)

    def commit(self, index: int, losses: Any, skipped: int) -> None:
        """Says that all workers have finished a step, the last one of ``index`` in this epoch."""
        self._commit.number += 1
        if running.rank() == 0:
            self._write(index, losses, skipped)
        if _is_told:
            _leave()

    def _write(self, index: int, losses: Any, skipped: int) -> None:
        commit, session = self._commit, self._session
        commit.step, commit.epoch, commit.index = session.global_step, session.epoch, index
        commit.loss_sum, commit.loss_rows = losses.sum, losses.rows
        commit.last_loss, commit.skipped, commit.is_pending = session.last_loss, skipped, 0
        settings = [
            [value for key, value in group.items() if key != "params"]
            for optimizer in session.optimizers
            for group in optimizer.param_groups
        ]
        settings.append([repr(scheduler.state_dict()) for scheduler in session.schedulers])
        if settings != self._settings or self._changes_always():
            self._record()
            self._settings = settings
        _core.write_commit(self._ledger.block.native, commit)

    def _changes_always(self) -> bool:
        session = self._session
        return bool(
            session.sync.has_idle
            or session.rates
            or session.operator is not None
            or any(type(optimizer) not in _COUNTING for optimizer in session.optimizers)
        )

    def _record(self) -> None:
        session, commit = self._session, self._commit
        sync, is_sum = session.sync, bool(session.criterion and session.criterion.is_sum)
        record = _Record(
            state=pack(session.state()),
            begin_step=self.begin_step,
            stats=self._stats,
            before=pack(session.buffers_before),
            undo=(self._blocks, self._shape),
            redo=(
                sync.redo,
                sync.gradients,
                sync.regions(),
                sync.tensors,
                is_sum,
                session.blocks > 0,
            )
            if sync.is_fused
            else None,
            may_fuse=sync.may_fuse,
            world=running.world_size(),
        )
        parts, holds = dumps(record, home=running.shard_home())
        blocks = sorted({hold.id for hold in holds})
        packed = pickle.dumps(([bytes(part) for part in parts], blocks), protocol=5)
        # Not over the one that the last commit names.
        place = self._pages.pop(0) if len(self._pages) > 1 else None
        if place is None or place.nbytes < len(packed):
            place = SharedBlock(2 * len(packed))
        place.array("uint8", (len(packed),))[:] = memoryview(packed)
        self._pages.append(place)
        commit.record, commit.record_bytes, commit.updates = place.number, len(packed), 0
        blocks.append(place.number)
        wanted = sorted({*blocks, *self._kept})
        if wanted != self._in_basket:
            running.keep(self._ledger.basket, wanted)
            self._in_basket = wanted
        self._kept = blocks

    def _buffers(self) -> list[tuple[int, int]]:
        self._noted = [b.contiguous() for model in self._session.models for b in model.buffers()]
        return [(b.data_ptr(), b.numel() * b.itemsize) for b in self._noted]


def gather_notes(session: Any, rows: int, batches: int) -> list[tuple[int, int, torch.Tensor]]:
    """What ``Commits.notes`` says, of workers that commit nothing; all of them ask together."""
    buffers = [b.detach().cpu().contiguous() for model in session.models for b in model.buffers()]
    mine = b"".join(b.reshape(-1).view(torch.uint8).numpy().tobytes() for b in buffers)
    return [
        (theirs, many, torch.tensor(bytearray(data), dtype=torch.uint8))
        for theirs, many, data in allgather_object((rows, batches, mine))
    ]

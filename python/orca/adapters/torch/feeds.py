"""Batches for a worker: its share of every step of the whole job."""

from __future__ import annotations

import fcntl
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from orca import running
from orca._native import _core
from orca.adapters.torch.block_state import LEAST_ROWS, own_blocks
from orca.adapters.torch.devices import seed_cpu
from orca.adapters.torch.suspects import note, shape_of
from orca.adapters.torch.trees import map_leaves
from orca.creators import once_a_node
from orca.data import ArrayStore
from orca.errors import InvalidArgumentError
from orca.files import home, make_private
from orca.objects import broadcast_object
from orca.phases import phase

Batch = tuple[Any, int]
"""What a model and a loss get, and its rows; (None, 0): nothing in this step."""


@dataclass(frozen=True)
class ArraySource:
    """Rows in shared memory. ``batch_size`` is the whole job's.

    Attributes:
        as_float32: ``"all"``: features and targets reach the model as float32, ``"integers"``: features that are
            integers do.
    """

    store: ArrayStore
    has_target: bool
    as_float32: str = ""
    columns: tuple[str, ...] = ()  # of a frame: features, then labels

    def open(
        self,
        batch_size: int,
        config: dict[str, Any],
        shuffle: bool,
        threads: int = 1,
        blocks: int = 0,
    ) -> Feed:
        """The batches of this worker, gathered by so many threads."""
        is_training = shuffle
        return _ArrayFeed(
            self,
            batch_size,
            shuffle=is_training and bool(config.get("shuffle", True)),
            drop_last=is_training and bool(config.get("drop_last", False)),
            threads=threads,
            blocks=blocks,
        )

    def slices(self, begin: int, end: int, batch_size: int) -> Iterator[Any]:
        """The rows from ``begin`` to ``end``, in their order, in batches."""
        if begin == end:
            return
        arrange = _arrange(self)
        at = begin
        for batch in self.store.batches(batch_size, shuffle=False, start=begin, framework="torch"):
            made = arrange(batch)
            rows = count_rows(made)
            if at + rows <= end:
                yield made
            elif at < end:
                yield _rows_of(made, 0, end - at)
            at += rows
            if at >= end:
                return


@dataclass(frozen=True)
class LoaderSource:
    """A DataLoader of the whole job, or what makes a worker's."""

    loader: Any
    is_creator: bool
    in_turn: bool = False  # whether the workers of a machine call it one after the other

    def open(
        self,
        batch_size: int,
        config: dict[str, Any],
        shuffle: bool,
        threads: int = 1,
        blocks: int = 0,
    ) -> Feed:
        """The batches of this worker; calls a creator. A loader has workers of its own.

        With blocks, ``batch_size`` is the whole job's, and so is the loader that a creator returns.
        """
        if not self.is_creator:
            blocks = _blocks_of(self.loader, blocks, is_training=shuffle)
            return _open_loader(self.loader, whole=True, blocks=blocks)

        def create() -> Any:
            with phase("data_creator"), _turn() if self.in_turn else nullcontext():
                return call_creator(self.loader, config, batch_size)

        with once_a_node():  # What it downloads is there for the others.
            made = create()
        blocks = _blocks_of(made, blocks, is_training=shuffle)
        return _open_loader(made, whole=blocks > 0, again=create, blocks=blocks)


@contextmanager
def _turn() -> Iterator[None]:
    """Waits until no other worker of this user and machine is inside."""
    with (make_private(home() / "locks") / "data_creator").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Ends with the file, or the process.
        yield


class Feed:
    """The batches of one worker.

    Attributes:
        rows: Of an epoch, over all workers; None when nobody knows.
        steps: Of an epoch, the same on all workers; None when nobody knows.
        columns: The names of a batch's parts, where they have names.
        runs_user_code: Whether that makes the batches, on this thread.
        blocks: Into how many the rows of a step are cut. Then there is one batch for each block of this
            worker (see ``own_blocks``), one step after the other; 0: one for each step.
    """

    rows: int | None = None
    steps: int | None = None
    columns: tuple[str, ...] = ()
    runs_user_code = True
    blocks = 0

    def epoch(self, number: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from step ``start`` on."""
        raise NotImplementedError

    def skip(self, number: int, seed: int) -> None:
        """Lets an epoch pass that was made before: a sampler may draw from a generator of its own."""

    def leaves_one_row(self, step: int) -> bool:
        """Whether a worker has one row of a step, and others have rows, too; False when nobody knows."""
        return False

    def row_numbers(self, batch: int) -> list[Any] | None:
        """The numbers of the rows of a batch of the last epoch; None when nobody knows."""
        return None


class _ArrayFeed(Feed):
    runs_user_code = False

    def __init__(
        self,
        source: ArraySource,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        threads: int,
        blocks: int,
    ) -> None:
        self._source, self._batch_size, self._shuffle = source, batch_size, shuffle
        self._threads, self.blocks = threads, blocks
        rows = len(source.store)
        self.rows = rows // batch_size * batch_size if drop_last else rows
        self.steps = -(-self.rows // batch_size)
        self.columns = source.columns
        self._order: dict[str, Any] = {}

    def epoch(self, number: int, seed: int, start: int = 0) -> Iterator[Batch]:
        assert self.steps is not None
        if start >= self.steps:
            return
        own = own_blocks(self.blocks) if self.blocks else range(1)
        self._order = {
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "seed": seed,
            "epoch": number,
            "rank": own.start if self.blocks else running.rank(),
            "world_size": self.blocks or running.world_size(),
            "least_rows": LEAST_ROWS if self.blocks else 0,
        }
        batches = self._source.store.batches(
            **self._order,
            ranks=len(own),
            start=start * self._batch_size,
            threads=self._threads,
            framework="torch",
        )
        arrange = _arrange(self._source)
        for step, batch in enumerate(itertools.islice(batches, self.steps - start), start):
            made = arrange(batch)
            if not self.blocks:
                yield made, count_rows(made)
                continue
            rows = min(self._batch_size, len(self._source.store) - step * self._batch_size)
            borders = [_core.share_of(rows, block, self.blocks, LEAST_ROWS) for block in own]
            first, _ = borders[0]
            for begin, end in borders:
                part = _rows_of(made, begin - first, end - first)
                yield map_leaves(part, _aligned), end - begin

    def leaves_one_row(self, step: int) -> bool:
        rows = min(self._batch_size, len(self._source.store) - step * self._batch_size)
        return _leaves_one(range(rows))

    def row_numbers(self, batch: int) -> list[Any] | None:
        # The order is the engine's: numbers in the place of rows come in the same one.
        numbers = ArrayStore()
        numbers.put(np.arange(len(self._source.store)))
        step, block = divmod(batch, len(own_blocks(self.blocks))) if self.blocks else (batch, 0)
        order = self._order | {"rank": self._order["rank"] + block}
        batches = numbers.batches(**order, start=step * self._batch_size, ahead=0)
        found: list[Any] = next(batches).tolist()
        return found


def _arrange(source: ArraySource) -> Callable[[dict[str, Any]], Any]:
    """Features and target in one tuple, as a DataLoader gives them."""

    def arrange(batch: dict[str, Any]) -> Any:
        if source.as_float32 == "all":
            batch = map_leaves(batch, torch.Tensor.float)
        features = batch["x"]
        if source.as_float32 == "integers":
            features = map_leaves(features, _widened)
        parts = tuple(features) if isinstance(features, list | tuple) else (features,)
        return (*parts, batch["y"]) if source.has_target else parts

    return arrange


def _widened(leaf: Any) -> Any:
    is_whole = isinstance(leaf, torch.Tensor) and not leaf.is_floating_point()
    return leaf.float() if is_whole else leaf


def _rows_of(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_rows_of(item, begin, end) for item in value)
    if isinstance(value, dict):
        return {key: _rows_of(item, begin, end) for key, item in value.items()}
    return value[begin:end]


def _aligned(leaf: Any) -> Any:
    """The leaf, at the begin of a cache line: some kernels round otherwise elsewhere."""
    is_fine = not isinstance(leaf, torch.Tensor) or leaf.data_ptr() % 64 == 0
    return leaf if is_fine else leaf.clone()


def count_rows(batch: Any) -> int:
    """The rows of the first array in a batch."""
    if isinstance(batch, torch.Tensor) or hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return count_rows(batch[0]) if len(batch) else 0
    return 1


def call_creator(creator: Callable[..., Any], config: dict[str, Any], batch_size: int) -> Any:
    """Calls ``f()``, ``f(config)`` or ``f(config, batch_size)``, whichever it is."""
    try:
        parameters = list(inspect.signature(creator).parameters.values())
    except (TypeError, ValueError):
        return creator(dict(config), batch_size)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return creator(dict(config), batch_size)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    if "batch_size" in names and names[0] == "batch_size":
        return creator(batch_size)
    if len(positional) >= 2 and (
        names[1] == "batch_size" or positional[1].default is inspect.Parameter.empty
    ):
        return creator(dict(config), batch_size)
    return creator(dict(config)) if positional else creator()


def _open_loader(
    loader: Any, *, whole: bool, again: Callable[[], Any] | None = None, blocks: int = 0
) -> Feed:
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        if isinstance(loader.sampler, DistributedSampler):
            return _StreamFeed(loader)
        return _LoaderFeed(loader, whole=whole, blocks=blocks)
    if isinstance(loader, Iterator) and again is not None:  # Good for one epoch only.
        return _StreamFeed(loader, again)
    if isinstance(loader, Iterable):
        return _StreamFeed(loader)
    raise InvalidArgumentError(
        f"the data creator returned a {type(loader).__name__}; return a DataLoader, or something "
        "that gives batches when it is iterated over"
    )


def _blocks_of(loader: Any, blocks: int, *, is_training: bool) -> int:
    """Into how many blocks a loader's steps can be cut.

    Where rows, or their random numbers, depend on the number of workers, training is refused; the losses of a validation
    may have other last bits, and 0 is returned.
    """
    remedy = "give arrays, or a DataLoader over a dataset whose rows have numbers"
    if not isinstance(loader, DataLoader):
        fault = f"a {type(loader).__name__} gives every worker batches of its own"
    elif isinstance(loader.dataset, IterableDataset):
        fault = f"the rows of {type(loader.dataset).__name__}, an IterableDataset, have no numbers"
    elif isinstance(loader.sampler, DistributedSampler):
        fault, remedy = "a DistributedSampler divides the rows by ranks", "leave it out"
    elif loader.batch_sampler is None:
        fault = "a DataLoader with batch_size=None gives one row to each worker"
        remedy = "give it the batch_size of a step"
    elif loader.num_workers:
        fault = f"random numbers in the {loader.num_workers} processes of a DataLoader depend on who asks"
        remedy = "give it num_workers=0"
    else:
        return blocks
    if not blocks or not is_training:
        return 0
    raise InvalidArgumentError(f"deterministic= is not possible: {fault}; {remedy}")


class _StreamFeed(Feed):
    """What the user divides among the workers himself."""

    def __init__(self, batches: Iterable[Any], again: Callable[[], Any] | None = None) -> None:
        self._batches, self._again = batches, again
        self._is_used = False

    def epoch(self, number: int, seed: int, start: int = 0) -> Iterator[Batch]:
        if self._is_used and self._again is not None:
            self._batches = self._again()
        self._is_used = True
        sampler = getattr(self._batches, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(number)
        for batch in itertools.islice(self._batches, start, None):
            yield batch, count_rows(batch)


class _Lists:
    """Row numbers of batches, in the place of a batch sampler."""

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.lists)

    def __len__(self) -> int:
        return len(self.lists)


class _LoaderFeed(Feed):
    """A DataLoader over rows that have numbers: every worker fetches its share of each step."""

    def __init__(self, loader: DataLoader[Any], *, whole: bool, blocks: int = 0) -> None:
        self._loader, self._whole, self.blocks = loader, whole, blocks
        self._single = loader.batch_sampler is None  # batch_size=None: rows come as they are
        self._lists = _Lists()
        self._shares: list[list[Any]] = []
        self._steps: list[list[Any]] = []
        dataset: Any = loader.dataset
        self.rows = len(dataset)
        self.steps = 0  # Known when an epoch begins, and then the same on all workers.
        self._mine = DataLoader(
            loader.dataset,
            batch_sampler=None if self._single else self._lists,  # type: ignore[arg-type]
            sampler=self._lists if self._single else None,  # type: ignore[arg-type]
            batch_size=None if self._single else 1,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def epoch(self, number: int, seed: int, start: int = 0) -> Iterator[Batch]:
        steps = self._steps = self._plan(number, seed)
        self.steps = len(steps)
        count = self.blocks or running.world_size()
        own = own_blocks(self.blocks) if self.blocks else [running.rank()]
        least = LEAST_ROWS if self.blocks else 0
        shares = self._shares = [_share(step, part, count, least) for step in steps for part in own]
        start *= len(own)
        mine = [share for share in shares[start:] if share]
        # One row at a time: the sampler gives numbers, not lists of them.
        self._lists.lists = [share[0] for share in mine] if self._single else mine
        with torch.random.fork_rng(devices=[]):  # It draws a number.
            seed_cpu((seed << 20) + number)
            batches = iter(self._mine)
        for share in shares[start:]:
            if share:
                try:
                    batch = next(batches)
                except Exception as error:
                    self._blame(share, error)
                    raise
                if self.blocks:
                    batch = map_leaves(batch, _aligned)
                yield batch, 1 if self._single else len(share)
            else:
                yield None, 0

    def leaves_one_row(self, step: int) -> bool:
        return not self._single and _leaves_one(self._steps[step])

    def row_numbers(self, batch: int) -> list[Any] | None:
        return self._shares[batch] if batch < len(self._shares) else None

    def skip(self, number: int, seed: int) -> None:
        self._plan(number, seed)
        if self._loader.generator is not None:  # As every iteration over a DataLoader does.
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)

    def _blame(self, share: list[Any], error: Exception) -> None:
        """Finds the row that made a batch fail, by looking at them one by one."""
        dataset: Any = self._mine.dataset
        first = ""
        for row in share:
            try:
                shape = shape_of(dataset[row])
            except Exception:
                note(error, f"rank {running.rank()} was fetching row {row} of the dataset")
                return
            first = first or shape
            if shape != first:
                raise InvalidArgumentError(
                    f"rank {running.rank()}: row {row} of the dataset is {shape}, row "
                    f"{share[0]} of the same batch is {first}; pad or leave out what "
                    "differs, or give the DataLoader a collate_fn that does"
                ) from error

    def _plan(self, number: int, seed: int) -> list[list[Any]]:
        """The row numbers of every step of the whole job, the same on all workers."""
        loader, world = self._loader, running.world_size()
        sampler: Any = loader.batch_sampler
        if self._single:
            return _cut(_order(loader.sampler, seed, number), world, drop_last=False)
        if type(sampler) is not BatchSampler:
            lists = _drawn_once(lambda: [list(batch) for batch in sampler], seed, number)
            if self._whole:
                return lists
            # Each list is one worker's: a step is one for each of them.
            return [_Step(lists[i : i + world]) for i in range(0, len(lists), world)]
        order = _order(sampler.sampler, seed, number)
        size = sampler.batch_size * (1 if self._whole else world)
        return _cut(order, size, drop_last=sampler.drop_last)


class _Step(list[Any]):
    """One list of row numbers for each worker; the last ones may have none."""


def _share(step: Any, rank: int, world: int, least: int = 0) -> Any:
    if isinstance(step, _Step):
        return list(step[rank]) if rank < len(step) else []
    begin, end = _core.share_of(len(step), rank, world, least)
    return step[begin:end]


def _leaves_one(step: Any) -> bool:
    """Whether a worker's share of a step is one row, and not the only one."""
    world = running.world_size()
    return len(step) > 1 and any(len(_share(step, rank, world)) == 1 for rank in range(world))


def _cut(order: list[Any], size: int, *, drop_last: bool) -> list[list[Any]]:
    end = len(order) // size * size if drop_last else len(order)
    return [order[i : min(i + size, end)] for i in range(0, end, size)]


def _order(sampler: Any, seed: int, number: int) -> list[Any]:
    if type(sampler) is SequentialSampler:
        return list(range(len(sampler)))
    if (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.generator is None
        and sampler.num_samples == len(sampler.data_source)
    ):
        generator = torch.Generator().manual_seed((seed << 20) + number)
        return list(torch.randperm(len(sampler), generator=generator).tolist())
    return _drawn_once(lambda: list(sampler), seed, number)


def _drawn_once(draw: Callable[[], list[Any]], seed: int, number: int) -> list[Any]:
    """What a user's sampler gives to rank 0, for all workers: it may draw from anything."""
    drawn: list[Any] = []
    if running.rank() == 0:
        with torch.random.fork_rng(devices=[]):
            seed_cpu((seed << 20) + number)
            drawn = draw()
    found: list[Any] = broadcast_object(drawn)
    return found


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Features and target of a batch, as a model and a loss take them."""
    if isinstance(batch, dict):
        raise InvalidArgumentError(
            f"a batch is a dict with the keys {sorted(batch)}; give (features, target), or a loop of "
            "your own"
        )
    *features, target = batch
    return spread(features), target


def spread(features: Any) -> Any:
    """A single list of features is the features themselves."""
    if len(features) == 1 and isinstance(features[0], list | tuple):
        return features[0]
    return features

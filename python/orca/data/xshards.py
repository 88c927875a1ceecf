"""A list of shards in partitions, which the workers of a context transform in parallel.

Example:
    >>> import numpy as np
    >>> import orca
    >>> from orca.data import XShards
    >>> with orca.init_orca_context("local", cores=1):
    ...     shards = XShards.partition({"x": np.arange(6)}, num_shards=3)
    ...     doubled = shards.transform_shard(lambda shard: {"x": shard["x"] * 2})
    ...     [shard["x"].tolist() for shard in doubled.collect()]
    [[0, 2], [4, 6], [8, 10]]
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import secrets
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from orca import running
from orca.context import active_context
from orca.data import file, scratch
from orca.data.arrays import ArrayStore, Shard
from orca.data.cells import (
    Cell,
    Partition,
    RowsInOrder,
    ToArrays,
    add_predictions,
    check_alike,
    counts_of_rows,
    regrouped,
    row_kinds,
    take_rows,
)
from orca.data.frames import Each, FrameOperations
from orca.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OrcaError,
    UnavailableError,
)
from orca.files import is_own
from orca.generations import BIGDL, ORCA, ZOO, Errors, Generation

__all__ = ["SharedValue", "SparkXShards", "XShards", "bind_root", "on_workers"]


class XShards:
    """A list of shards: arrays, frames, dicts, lists or any objects, in partitions."""

    _generation: Generation = ORCA

    @classmethod
    def partition(cls, data: Any, num_shards: int | None = None) -> SparkXShards:
        """Splits arrays into shards along their first dimension.

        Args:
            data: An array, or a dict, list or tuple of arrays, also nested.
            num_shards: How many; one a core of the context unless given.

        Raises:
            InvalidArgumentError: It is something else, the numbers of rows differ, or there are fewer
                rows than shards.
        """
        generation = cls._generation
        with generation.errors():
            leaves: list[np.ndarray[Any, Any]] = []
            _check_tree(data, leaves)
            lengths = sorted({len(leaf) for leaf in leaves})
            if len(lengths) > 1:
                raise InvalidArgumentError(
                    "the ndarrays in data must all have the same size in first dimension, got first "
                    f"dimensions of {lengths}"
                )
            shards = _context().native.cores if num_shards is None else num_shards
            if lengths[0] < shards:
                raise InvalidArgumentError(
                    f"The length of data {lengths[0]} is smaller than the total number of shards "
                    f"{shards}. Please adjust the num_shards option to be at most {lengths[0]}."
                )
            if shards < 1:
                raise InvalidArgumentError(f"num_shards is {shards}; give 1 or more")
            pieces = [np.array_split(leaf, shards) for leaf in leaves]
            made = [_rebuild(data, iter([piece[i] for piece in pieces])) for i in range(shards)]
            return _bound(generation)._of([[Cell(shard)] for shard in made])

    @classmethod
    def load_pickle(
        cls,
        path: str,
        minPartitions: int | None = None,  # noqa: N803
        *,
        trust: bool = False,
    ) -> SparkXShards:
        """What ``save_pickle`` wrote.

        Args:
            path: The folder.
            minPartitions: The least number of partitions.
            trust: Whether the files may run code when they are loaded, as every pickle can. Under the old roots files of
                this user may without it.

        Raises:
            InvalidArgumentError: The files are not trusted.
        """
        generation = cls._generation
        with generation.errors():
            made = _bound(generation)._of(_load(path.rstrip("/"), trust, generation))
            wanted = minPartitions or 0
            return made if made.num_partitions() >= wanted else made._spread(wanted)


class SparkXShards(FrameOperations, XShards):
    """An XShards whose partitions are in memory that all workers share.

    Args:
        data: Partitions, each a list of shards; or an RDD of shards, which stay in Spark until an operation
            needs them.
        transient: Whether operations wait until their result is needed.
        class_name: The class of an RDD's shards, if it is known. That of others is.
    """

    def __init__(self, data: Any, transient: bool = False, class_name: str | None = None) -> None:
        self._parts: list[Partition] | None = None
        self._source: SparkXShards | None = None
        self._step: Any = None  # None: the shards of the source as they are.
        self._spark: Any = None  # Where they are in Spark, until they are pulled.
        self._rdd: Any = None
        self._is_lazy = transient
        self._user_cached = self._is_given_up = False
        if hasattr(data, "getNumPartitions"):
            self._spark = _with_spark().RddSource(data, class_name)
        else:
            self._parts = [[Cell(s) for s in part] for part in data]

    @classmethod
    def _of(cls, partitions: list[Partition]) -> SparkXShards:
        made = cls([])
        made._parts = partitions
        return made

    @classmethod
    def _in_spark(cls, source: Any) -> SparkXShards:
        made = cls([])
        made._parts, made._spark = None, source
        return made

    @classmethod
    def lazy(cls, data: Any, class_name: str | None = None) -> SparkXShards:
        """An XShards whose operations wait until their result is needed."""
        return cls(data, class_name=class_name).to_lazy()

    def _partitions(self) -> list[Partition]:
        if self._parts is None:
            with self._generation.errors():
                if self._spark is not None:
                    self._parts = self._spark.pull()
                else:
                    assert self._source is not None
                    found = self._source._partitions()
                    self._parts = found if self._step is None else _map(found, self._step)
            self._source = self._spark = None
        return self._parts

    def __getstate__(self) -> dict[str, Any]:
        if self._spark is not None:  # Other processes do not reach it.
            self._partitions()
        return {**self.__dict__, "_rdd": None}

    def _untouched(self) -> Any:
        """Where the shards are in Spark, if that is where they are."""
        if self._source is not None and self._step is None:
            return self._source._untouched()
        return self._spark

    def _mapped(self, step: Callable[[list[Any]], list[Any]], *, lazy: bool = False) -> Any:
        """An XShards of what ``step`` makes of each partition's shards."""
        made = type(self)._of([])
        made._parts, made._source, made._step = None, self, step
        made._is_lazy = lazy or self._is_lazy
        if not made._is_lazy:
            made._partitions()
        return made

    def _transformed(self, step: Callable[[list[Any]], list[Any]]) -> Any:
        """As ``_mapped``, in the place of this one."""
        made = self._mapped(step)
        self._give_up()
        return made

    def _give_up(self) -> None:
        """Says that it is not cached any more, unless the user wants it: something was made of it."""
        if not self._user_cached:
            self._is_given_up = True

    def _ask(self, step: Callable[[list[Any]], Any]) -> list[Any]:
        """What ``step`` says of each partition's shards."""
        return _gather(self._partitions(), step)

    def _pieces(self, cut: Callable[[list[Any]], list[Any]]) -> list[Partition]:
        """What ``cut`` makes of each partition's shards, in memory."""
        return _map(self._partitions(), cut)

    # --- what is in it

    def collect(self) -> list[Any]:
        """All shards."""
        return [cell.value() for part in self._partitions() for cell in part]

    def first(self) -> Any:
        """The first shard."""
        with self._generation.errors():
            found = self.take(1)
            if not found:
                raise FailedPreconditionError("there is no shard; all partitions are empty")
            return found[0]

    def take(self, n: int) -> list[Any]:
        """The first ``n`` shards."""
        cells = itertools.chain.from_iterable(self._partitions())
        return [cell.value() for cell in itertools.islice(cells, n)]

    def num_partitions(self) -> int:
        """How many partitions there are."""
        if self._spark is not None:
            return int(self._spark.num_partitions())
        return len(self._partitions()) if self._source is None else self._source.num_partitions()

    def __len__(self) -> int:
        return sum(sum(part) for part in _gather(self._partitions(), _lengths))

    def _get_class_name(self) -> str:
        name = getattr(self._untouched(), "class_name", None)
        if name is None:
            cells = list(itertools.chain.from_iterable(self._partitions()))
            name = cells[0].kind if cells else ""
        if self._generation.raises is Errors.BUILTIN:
            return name.removeprefix("builtins.")
        return name

    def get_schema(self) -> dict[str, Any] | None:
        """Columns and dtypes of data frames; None of anything else."""
        if self._get_class_name() != "pandas.core.frame.DataFrame":
            return None
        frame = self.first()
        return {"columns": frame.columns, "dtypes": frame.dtypes}

    _get_schema = get_schema

    def arrays(self, features: Any = None, labels: Any = None, *, has_target: bool = True) -> Any:
        """An XShards of ``{"x": ..., "y": ...}``, as Estimators take it, without shards of 0 rows.

        Args:
            features: The columns of frames that are features; one or a list.
            labels: Those that are targets.
            has_target: Whether "y" is wanted.
        """
        wanted = {"x", "y"} if has_target else {"x"}
        parts = self._partitions()
        if features is not None or any(cell.keys() != wanted for cell in self.cells()):
            parts = _map(parts, ToArrays(features, labels, has_target))
        return type(self)._of([[cell for cell in part if len(cell.shard)] for part in parts])

    def cells(self) -> list[Cell]:
        """The shards where they are."""
        return [cell for part in self._partitions() for cell in part]

    def array_store(self) -> ArrayStore:
        """All shards of arrays as one table, which gives shuffled batches of their rows; nothing is copied.

        Example:
            >>> import orca
            >>> with orca.init_orca_context("local", cores=1):
            ...     store = XShards.partition({"x": np.arange(6)}, num_shards=3).array_store()
            ...     [len(batch["x"]) for batch in store.batches(4)]
            [4, 2]
        """
        with self._generation.errors():
            store = ArrayStore()
            for cell in self.cells():
                if not cell.is_arrays:
                    raise InvalidArgumentError(
                        f"a shard is a {cell.kind}; give arrays, or a dict, list or tuple of them, with equally "
                        "many rows"
                    )
                store.put(cell.shard)
            return store

    def with_predictions(self, predictions: Iterable[Shard]) -> SparkXShards:
        """The same shards with a "prediction" for each of their rows, which come in order."""
        parts, rows = self._partitions(), RowsInOrder(predictions)
        pairs: list[list[Any]] = [
            [
                item
                for cell, count in zip(part, counts, strict=True)
                for item in (cell, rows.take(count))
            ]
            for part, counts in zip(parts, _gather(parts, counts_of_rows), strict=True)
        ]
        return type(self)._of(_map(pairs, add_predictions))

    # --- Spark: started by these alone

    @property
    def rdd(self) -> Any:
        """A pyspark RDD of the shards, which Spark's tasks read where they are.

        Of an XShards that was made from Spark and not used yet it is Spark's own.
        """
        with self._generation.errors():
            if (source := self._untouched()) is not None:
                return source.rdd
            if self._rdd is None or self._rdd.ctx._jsc is None:  # Its Spark may have been stopped.
                self._rdd = _with_spark().export(self._partitions())
            return self._rdd

    def to_spark_df(self) -> Any:
        """A DataFrame of Spark with the rows of the frames, one frame a partition at most.

        Missing values are nulls, and so are NaNs; times without a zone are of Spark's session. The index is
        left out.

        Raises:
            InvalidArgumentError: Shards are no frames, or a partition has several.
        """
        with self._generation.errors():
            if (source := self._untouched()) is not None:
                return source.to_df()
            spark = _with_spark()
            found = self._ask(spark.columns.describe)
            return spark.export_frames(self._partitions(), found, lambda: self.rdd)

    # --- caching: what is in memory stays there

    def cache(self) -> SparkXShards:
        """Computes what was put off; keeps the result."""
        self._user_cached, self._is_given_up = True, False
        self._partitions()
        return self

    def uncache(self) -> SparkXShards:
        """Not cached any more; memory goes with the last XShards that uses it."""
        self._user_cached, self._is_given_up = False, True
        return self

    def is_cached(self) -> bool:
        """Whether the shards are computed, and nothing was made of them since, unless ``cache()`` asked for them."""
        return self._parts is not None and not self._is_given_up

    def compute(self) -> SparkXShards:
        """Computes what was put off."""
        self._partitions()
        return self

    def to_lazy(self) -> SparkXShards:
        """From now on operations wait until their result is needed. What is cached stays so; returns itself."""
        self._is_lazy = self._user_cached = True
        return self

    # --- operations

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> SparkXShards:
        """An XShards of ``func(shard, *args)``, computed by the workers in parallel."""
        with self._generation.errors():
            made: SparkXShards = self._transformed(Each(func, *args))
            return made

    def _for_each(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Results:
        """What ``func`` returns of each shard, or the exception that it raised."""
        found = _gather(self._partitions(), _Tried(func, args, kwargs))
        return Results(itertools.chain.from_iterable(found))

    def zip(self, other: Any) -> SparkXShards:
        """An XShards of pairs of this one's and the other's shards."""
        with self._generation.errors():
            if not isinstance(other, SparkXShards):
                raise InvalidArgumentError("other should be a SparkXShards")
            mine, theirs = self._partitions(), other._partitions()
            if len(mine) != len(theirs):
                raise InvalidArgumentError(
                    "The two SparkXShards should have the same number of partitions"
                )
            if [len(part) for part in mine] != [len(part) for part in theirs]:
                raise InvalidArgumentError(
                    "The two SparkXShards should have the same number of elements in each partition"
                )
            pairs = [[*a, *b] for a, b in zip(mine, theirs, strict=True)]
            both = self._alike(pairs)
            both._is_lazy = self._is_lazy or other._is_lazy
            made: SparkXShards = both._mapped(_pair_up)
            self._give_up()
            other._give_up()
            return made

    def split(self) -> list[SparkXShards]:
        """One XShards for each position of shards that are tuples or lists. Computes what was put off."""
        with self._generation.errors():
            counts = set(itertools.chain.from_iterable(_gather(self._partitions(), _widths)))
            if len(counts) > 1:
                raise InvalidArgumentError(
                    "Cannot split this XShards because its partitions have different split length"
                )
            width = next(iter(counts), 0)
            if width == 0:
                return [self]
            found = [self._mapped(Each(_at, i)) for i in range(width)]
            self._give_up()
            return found

    def __getitem__(self, key: Any) -> SparkXShards:
        with self._generation.errors():
            made: SparkXShards = self._mapped(Each(_select, key), lazy=True)
            return made

    def repartition(self, num_partitions: int) -> SparkXShards:
        """The same rows in another number of partitions.

        Arrays, dicts of arrays and frames are divided by their rows, lists by their items; other
        shards stay whole. Computes what was put off.

        Raises:
            InvalidArgumentError: Dicts have different keys, or their arrays different numbers of rows
                or shapes.
        """
        with self._generation.errors():
            if num_partitions < 1:
                raise InvalidArgumentError(f"num_partitions is {num_partitions}; give 1 or more")
            parts = self._partitions()
            kinds = {cell.kind for part in parts for cell in part}
            found = _gather(parts, row_kinds) if len(kinds) == 1 else [[None]]
            rows = list(itertools.chain.from_iterable(found))
            if any(kind is None for kind in rows):
                made = self._spread(num_partitions)
            else:
                check_alike(rows)
                made = self._alike(_map(regrouped(self.cells(), rows, num_partitions), take_rows))
            self._give_up()
            return made

    def _alike(self, partitions: list[Partition]) -> SparkXShards:
        """An XShards whose operations wait if this one's do."""
        made = type(self)._of(partitions)
        made._is_lazy = self._is_lazy
        return made

    def _spread(self, num_partitions: int) -> SparkXShards:
        """The same shards, each whole, in so many partitions."""
        cells = list(itertools.chain.from_iterable(self._partitions()))
        bounds = np.linspace(0, len(cells), num_partitions + 1).astype(int)
        return self._alike([cells[a:b] for a, b in itertools.pairwise(bounds)])

    def save_pickle(
        self,
        path: str,
        batchSize: int = 10,  # noqa: N803
    ) -> SparkXShards:
        """Writes all shards into a new folder, one file a partition; also ``hdfs://`` and ``s3://``."""
        with self._generation.errors():
            folder = path.rstrip("/")
            if file.exists(folder):
                raise FailedPreconditionError(f"{folder} exists already; give a new folder")
            above, _, name = folder.rpartition("/")
            # Where folders can be moved, they appear when they are whole; else the last file says so.
            # Several threads and processes may save to one path: one of them wins, the others get an error.
            unique = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
            beside = f"{above or '.'}/{unique}" if file.can_move(folder) else folder
            file.makedirs(beside)
            try:
                self._write_parts(beside)
                if beside != folder:
                    file.move(beside, folder)
            except BaseException as error:
                if beside != folder:
                    file.rmdir(beside)
                    if isinstance(error, OSError) and file.exists(folder):
                        raise FailedPreconditionError(
                            f"{folder} exists by now: it was saved by another thread or process"
                        ) from error
                raise
            return self

    def _write_parts(self, folder: str) -> None:
        """Its last file has the checksums of the others."""
        sums = []
        for i, part in enumerate(self._partitions()):
            name = f"part-{i:05d}"
            with file.open_output(f"{folder}/{name}") as stream:
                summing = _Summing(stream)
                for cell in part:
                    pickle.dump(cell.value(), summing, protocol=5)
            sums.append(f"{summing.crc:08x} {name}\n")
        file.write_text(f"{folder}/_SUCCESS", "".join(sums))


class _Summing:
    """Writes, and keeps the CRC-32 of what was written."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.crc = stream, 0

    def write(self, content: Any) -> int:
        self.crc = zlib.crc32(content, self.crc)
        return int(self._stream.write(content))


class Results(list[Any]):
    """What a function returned of each shard: a list that also answers as an RDD does.

    Example:
        >>> Results([3, 4]).first(), Results([3, 4]).count()
        (3, 2)
    """

    def first(self) -> Any:
        """The first one."""
        if not self:
            raise InvalidArgumentError("there is no result; the XShards has no shard")
        return self[0]

    def take(self, num: int) -> list[Any]:
        """The first ``num``."""
        return self[:num]

    def collect(self) -> list[Any]:
        """All of them."""
        return list(self)

    def count(self, *value: Any) -> int:
        """How many there are; with a value, how often it is there."""
        return super().count(*value) if value else len(self)


class SharedValue:
    """A value that every worker reads, in one copy a machine.

    Example:
        >>> SharedValue([1, 2]).value
        [1, 2]
    """

    def __init__(self, data: Any) -> None:
        self._cell: Cell | None = Cell(data)

    @property
    def value(self) -> Any:
        """The value; what is written to it is the caller's own."""
        if self._cell is None:
            raise FailedPreconditionError("the shared value was given up by unpersist()")
        return self._cell.value()

    def unpersist(self) -> None:
        """Gives it up."""
        self._cell = None


def _with_spark() -> Any:
    from orca.adapters import spark

    return spark.load("orca.adapters.spark.xshards")


# --- partitions on workers


def _context() -> Any:
    context = active_context()
    if context is None:
        raise FailedPreconditionError(
            "there is no Orca context; call orca.init_orca_context() before you use XShards"
        )
    return context


def _map(partitions: list[Partition], step: Callable[[list[Any]], list[Any]]) -> list[Partition]:
    """What ``step`` makes of the values of each partition, computed by the workers."""
    return on_workers(partitions, step, keep=True)


def _gather(partitions: list[Partition], step: Callable[[list[Any]], Any]) -> list[Any]:
    """What ``step`` says of the values of each partition."""
    return on_workers(partitions, step, keep=False)


def on_workers(partitions: list[list[Any]], step: Any, *, keep: bool) -> list[Any]:
    """What ``step`` makes of each partition's values, as shards in memory if they are to be kept."""
    if not partitions:
        return []
    if running.is_inside():  # A worker has no workers.
        return [_work(part, step, keep) for part in partitions]
    workers = min(len(partitions), _context().native.cores)
    found: list[Any] = [None] * len(partitions)
    # A worker that dies is replaced, and what it should have made is made again.
    for done in running.run(
        _work_on_mine, (partitions, step, keep), workers=workers, on_failure="restart"
    ):
        for index, result in done:
            found[index] = result
    return found


def _work_on_mine(partitions: list[list[Any]], step: Any, keep: bool) -> list[tuple[int, Any]]:
    mine = range(running.rank(), len(partitions), running.world_size())
    with scratch.kept():
        return [(index, _work(partitions[index], step, keep)) for index in mine]


def _work(partition: list[Any], step: Any, keep: bool) -> Any:
    found = step([cell.value() if isinstance(cell, Cell) else cell for cell in partition])
    return [Cell(value) for value in found] if keep else found


class _Tried:
    """A function of each shard; what it raises is its result."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs

    def __call__(self, values: list[Any]) -> list[Any]:
        found: list[Any] = []
        for value in values:
            try:
                found.append(self._function(value, *self._args, **self._kwargs))
            except Exception as error:
                found.append(error)
        return found


def _pair_up(values: list[Any]) -> list[Any]:
    half = len(values) // 2
    return list(zip(values[:half], values[half:], strict=True))


def _lengths(values: list[Any]) -> list[int]:
    return [len(value) if hasattr(value, "__len__") else 1 for value in values]


def _widths(values: list[Any]) -> list[int]:
    return [len(value) if isinstance(value, list | tuple) else 0 for value in values]


def _at(value: Any, index: int) -> Any:
    return value[index]


def _select(value: Any, key: Any) -> Any:
    if not hasattr(value, "__getitem__"):
        raise InvalidArgumentError("No selection operation available for this XShards")
    try:
        return value[key]
    except Exception as error:
        raise InvalidArgumentError("Invalid key for this XShards") from error


def _check_tree(data: Any, leaves: list[Any]) -> None:
    if isinstance(data, np.ndarray):
        if data.ndim == 0:
            raise InvalidArgumentError("an array of data has no dimension to be split along")
        leaves.append(data)
        return
    children = data.values() if isinstance(data, dict) else data
    if not isinstance(data, dict | list | tuple) or not data:
        raise InvalidArgumentError(
            "The types supported in zoo.orca.data.XShards.partition are\n1. numpy.ndarray\n2. a tuple, "
            f"list, dict of numpy.ndarray\n3. nested structure made of tuple, list, dict with ndarray as the "
            f"leaf value\nBut got data of type {type(data).__name__}"
        )
    for child in children:
        _check_tree(child, leaves)


def _rebuild(data: Any, pieces: Any) -> Any:
    if isinstance(data, dict):
        made = copy.copy(data)  # Of the same kind.
        made.update({key: _rebuild(value, pieces) for key, value in data.items()})
        return made
    if isinstance(data, list | tuple):
        parts = [_rebuild(value, pieces) for value in data]
        return type(data)._make(parts) if hasattr(data, "_make") else type(data)(parts)
    return next(pieces)


def _load(folder: str, trust: bool, generation: Generation) -> list[Partition]:
    names = file.listdir(folder) if file.exists(folder) else []
    parts = [name for name in names if name.startswith("part-")]
    if "_SUCCESS" not in names:
        raise FailedPreconditionError(
            f"{folder} was not written to its end; save it again"
            if parts
            else f"{folder} has no files of save_pickle; give its folder"
        )
    if not trust and generation.trusts_pickles and not file.is_local(folder):
        warnings.warn(
            f"{folder} has pickles, and which user wrote them is not known here; loading them runs that user's code",
            stacklevel=4,
        )
        trust = True
    lines = [line.split() for line in file.open_text(f"{folder}/_SUCCESS")]
    # None in what the originals wrote.
    if any(len(line) != 2 for line in lines):
        raise UnavailableError(
            f"{folder}/_SUCCESS is damaged; use another copy of the folder, or save it again"
        )
    sums = {name: crc for crc, name in lines}
    if missing := sorted(sums.keys() - set(parts)):
        raise UnavailableError(f"{folder} is incomplete: {missing[0]} is missing; save it again")
    return [_load_part(f"{folder}/{name}", trust, generation, sums.get(name, "")) for name in parts]


def _open_pickle(path: str, trust: bool, generation: Generation) -> Any:
    """A file that may run code when it is loaded."""
    if trust:
        return file.open_input(path)
    why = ""
    if generation.trusts_pickles:
        stream = file.open_local(path)
        if is_own(stream):
            return stream
        stream.close()
        why = " that another user may have written"
    raise InvalidArgumentError(
        f"{path} is a pickle{why}, and loading it runs the code in it; give load_pickle(..., trust=True) if you trust it"
    )


def _load_part(path: str, trust: bool, generation: Generation, wanted: str) -> Partition:
    cells = []
    with _open_pickle(path, trust, generation) as stream:
        if wanted:
            _compare_sum(path, stream, wanted)
        while stream.peek(1):
            try:
                cells.append(Cell(pickle.load(stream)))
            except (OSError, MemoryError, OrcaError, ImportError, AttributeError):
                raise  # The last two are of a class that is not here.
            except Exception as error:
                raise UnavailableError(
                    f"{path}: shard {len(cells)} is damaged: {type(error).__name__}: {error}; save it again"
                ) from error
    return cells


def _compare_sum(path: str, stream: Any, wanted: str) -> None:
    crc = 0
    while block := stream.read(1 << 20):
        crc = zlib.crc32(block, crc)
    if f"{crc:08x}" != wanted:
        raise UnavailableError(
            f"{path} is damaged: its checksum is {crc:08x} instead of {wanted}; use another copy of the folder, "
            "or save it again"
        )
    stream.seek(0)


# --- roots


def _bind(generation: Generation) -> tuple[type[XShards], type[SparkXShards]]:
    base = type("XShards", (XShards,), {"_generation": generation, "__doc__": XShards.__doc__})
    more = {"_generation": generation, "__doc__": SparkXShards.__doc__}
    return base, type("SparkXShards", (SparkXShards, base), more)


_classes = {ORCA: (XShards, SparkXShards), BIGDL: _bind(BIGDL), ZOO: _bind(ZOO)}


def bind_root(generation: Generation) -> tuple[type[XShards], type[SparkXShards]]:
    """The classes of an import root; all are those of Orca, too."""
    return _classes[generation]


def _bound(generation: Generation) -> type[SparkXShards]:
    return _classes[generation][1]

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
import importlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orca import pickles, running
from orca.context import active_context
from orca.data.arrays import Shard
from orca.data.frames import Each, FrameOperations
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import BIGDL, ORCA, ZOO, Errors, Generation

__all__ = ["SharedValue", "SparkXShards", "XShards", "bind_root", "on_workers"]

_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")


class Cell:
    """One shard, in the agent's memory: arrays as columns, anything else as a pickle with its buffers.

    Attributes:
        shard: The memory.
        is_arrays: Whether it holds the arrays themselves.
    """

    def __init__(self, value: Any) -> None:
        self.is_arrays = _is_arrays(value)
        if self.is_arrays:
            self.shard = Shard(value)
        else:
            parts, _ = pickles.dumps(value, ("a shard",))
            self.shard = Shard([np.frombuffer(part, np.uint8)[None] for part in parts])
        self.kind = _class_name(value)

    def keys(self) -> set[str]:
        """Of a dict of arrays; none of anything else."""
        structure = self.shard._structure
        return set(structure) if self.is_arrays and isinstance(structure, dict) else set()

    def value(self) -> Any:
        """A copy that the caller may change; memory is copied where it is written only."""
        if self.is_arrays:
            return self.shard.own_view()
        parts = self.shard.own_view()
        return pickle.loads(parts[0].data, buffers=[memoryview(part[0]) for part in parts[1:]])


def _is_arrays(value: Any) -> bool:
    """Whether it is an array, or a tree of arrays with equally many rows, that the engine has types for."""
    leaves: list[Any] = []

    def visit(node: Any) -> bool:
        if type(node) is dict:
            return bool(node) and all(
                isinstance(key, str) and key and "." not in key and visit(item)
                for key, item in node.items()
            )
        if type(node) in (list, tuple):
            return bool(node) and all(visit(item) for item in node)
        leaves.append(node)
        return type(node) is np.ndarray and node.ndim > 0 and _has_type(node)

    return visit(value) and len({len(leaf) for leaf in leaves}) == 1


def _has_type(array: np.ndarray[Any, Any]) -> bool:
    """Whether the engine has a type for it."""
    return array.dtype.name in _DTYPES and array.dtype.isnative


def _class_name(value: Any) -> str:
    kind = type(value)
    if kind.__module__ == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        # As pandas before 3 had it, which is what scripts compare with.
        return f"pandas.core.{_PANDAS[kind.__name__]}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


_PANDAS = {"DataFrame": "frame", "Series": "series"}


Partition = list[Cell]


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
    ) -> SparkXShards:
        """What ``save_pickle`` wrote, with at least so many partitions."""
        with cls._generation.errors():
            made = _bound(cls._generation)._of(_load(Path(_local(path))))
            wanted = minPartitions or 0
            return made if made.num_partitions() >= wanted else made._spread(wanted)


class SparkXShards(FrameOperations, XShards):
    """An XShards whose partitions are in memory that all workers share.

    Args:
        data: Partitions, each a list of shards.
        transient: Accepted; what is in memory stays there as long as it is used.
        class_name: Accepted; the shards' class is known.
    """

    def __init__(
        self, data: Iterable[Iterable[Any]], transient: bool = False, class_name: str | None = None
    ) -> None:
        self._parts: list[Partition] | None = [[Cell(s) for s in part] for part in data]
        self._source: SparkXShards | None = None
        self._step: Any = None
        self._is_lazy = self._user_cached = False

    @classmethod
    def _of(cls, partitions: list[Partition]) -> SparkXShards:
        made = cls([])
        made._parts = partitions
        return made

    @classmethod
    def lazy(cls, data: Iterable[Iterable[Any]], class_name: str | None = None) -> SparkXShards:
        """An XShards whose operations wait until their result is needed."""
        return cls(data).to_lazy()

    def _partitions(self) -> list[Partition]:
        if self._parts is None:
            assert self._source is not None
            with self._generation.errors():
                self._parts = _map(self._source._partitions(), self._step)
            self._source = None
        return self._parts

    def _mapped(self, step: Callable[[list[Any]], list[Any]], *, lazy: bool = False) -> Any:
        """An XShards of what ``step`` makes of each partition's shards."""
        made = type(self)._of([])
        made._parts, made._source, made._step = None, self, step
        made._is_lazy = self._is_lazy
        if not (lazy or self._is_lazy):
            made._partitions()
        return made

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
        return self.take(1)[0]

    def take(self, n: int) -> list[Any]:
        """The first ``n`` shards."""
        cells = itertools.chain.from_iterable(self._partitions())
        return [cell.value() for cell in itertools.islice(cells, n)]

    def num_partitions(self) -> int:
        """How many partitions there are."""
        return len(self._partitions() if self._source is None else self._source._partitions())

    def __len__(self) -> int:
        return sum(sum(part) for part in _gather(self._partitions(), _lengths))

    def _get_class_name(self) -> str:
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
            parts = _map(parts, _ToArrays(features, labels, has_target))
        return type(self)._of([[cell for cell in part if len(cell.shard)] for part in parts])

    def cells(self) -> list[Cell]:
        """The shards where they are."""
        return [cell for part in self._partitions() for cell in part]

    def with_predictions(self, predictions: Any) -> SparkXShards:
        """The same shards with a "prediction" for each of their rows, which come in order."""
        at = 0
        partitions = []
        for part in self._partitions():
            made = []
            for cell in part:
                value = cell.value()
                rows = _rows_of(value)
                made.append(Cell(_add_prediction(value, _slice(predictions, at, at + rows))))
                at += rows
            partitions.append(made)
        return type(self)._of(partitions)

    # --- caching: what is in memory stays there

    def cache(self) -> SparkXShards:
        """Computes what was put off; keeps the result."""
        self._user_cached = True
        self._partitions()
        return self

    def uncache(self) -> SparkXShards:
        """Accepted; memory goes with the last XShards that uses it."""
        self._user_cached = False
        return self

    def is_cached(self) -> bool:
        """Whether the shards are computed."""
        return self._parts is not None

    def compute(self) -> SparkXShards:
        """Computes what was put off."""
        self._partitions()
        return self

    def to_lazy(self) -> SparkXShards:
        """The same shards; operations wait until their result is needed."""
        made = type(self)._of(self._partitions())
        made._is_lazy = True
        return made

    # --- operations

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> SparkXShards:
        """An XShards of ``func(shard, *args)``, computed by the workers in parallel."""
        with self._generation.errors():
            made: SparkXShards = self._mapped(Each(func, *args))
            return made

    def _for_each(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """What ``func`` returns of each shard, or the exception that it raised."""
        found = _gather(self._partitions(), _Tried(func, args, kwargs))
        return list(itertools.chain.from_iterable(found))

    def zip(self, other: Any) -> SparkXShards:
        """An XShards of pairs of this one's and the other's shards. Computes what was put off."""
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
            return self._alike(_map(pairs, _pair_up))

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
            return [self._mapped(Each(_at, i)) for i in range(width)]

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
            kinds = {cell.kind for part in self._partitions() for cell in part}
            values = self.collect()
            if not values or len(kinds) > 1 or not _has_rows(values[0]):
                return self._spread(num_partitions)
            whole = _join(values)
            bounds = np.linspace(0, _count(whole), num_partitions + 1).astype(int)
            pieces = [_cut(whole, a, b) for a, b in itertools.pairwise(bounds)]
            return self._alike([[Cell(piece)] if _count(piece) else [] for piece in pieces])

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
        """Writes all shards into a new folder, one file a partition."""
        with self._generation.errors():
            folder = Path(_local(path))
            if folder.exists():
                raise FailedPreconditionError(f"{folder} exists already; give a new folder")
            beside = folder.with_name(f".{folder.name}.{os.getpid()}")
            beside.mkdir(parents=True)
            for i, part in enumerate(self._partitions()):
                with (beside / f"part-{i:05d}").open("wb") as file:
                    for cell in part:
                        pickle.dump(cell.value(), file, protocol=5)
            (beside / "_SUCCESS").touch()
            beside.rename(folder)
            return self


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
    for done in running.run(_work_on_mine, (partitions, step, keep), workers=workers):
        for index, result in done:
            found[index] = result
    return found


def _work_on_mine(partitions: list[list[Any]], step: Any, keep: bool) -> list[tuple[int, Any]]:
    mine = range(running.rank(), len(partitions), running.world_size())
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


# --- rows of shards


def _has_rows(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if isinstance(value, dict):
        return bool(value) and all(isinstance(v, np.ndarray) and v.ndim for v in value.values())
    return isinstance(value, list) or _class_name(value) == "pandas.core.frame.DataFrame"


def _count(value: Any) -> int:
    return len(next(iter(value.values()))) if isinstance(value, dict) else len(value)


def _join(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        for value in values:
            if value.keys() != first.keys():
                raise InvalidArgumentError(
                    f"shards have the keys {list(first)} and {list(value)}; give all the same keys to "
                    "divide them by rows"
                )
            _check_rows(value)
        return {key: _joined(f"{key!r}", [value[key] for value in values]) for key in first}
    if isinstance(first, np.ndarray):
        return _joined("the shards", values)
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(values))
    return importlib.import_module("pandas").concat(values)


def _joined(what: str, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            f"rows of {what} have the shapes {sorted(shapes)}; give all the same shape to divide them "
            "by rows"
        )
    return np.concatenate(arrays)


def _check_rows(arrays: dict[str, Any]) -> None:
    counts = {key: len(array) for key, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InvalidArgumentError(
            f"the arrays of a shard have {counts} rows; give all of them the same number"
        )


def _cut(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, dict):
        return {key: item[begin:end] for key, item in value.items()}
    return value.iloc[begin:end] if hasattr(value, "iloc") else value[begin:end]


class _ToArrays:
    """What an Estimator takes of each shard that has rows."""

    def __init__(self, features: Any, labels: Any, has_target: bool) -> None:
        self._arguments = (features, labels, has_target)

    def __call__(self, values: list[Any]) -> list[Any]:
        made = [_to_arrays(value, *self._arguments) for value in values]
        return [arrays for arrays in made if arrays is not None]


def _to_arrays(value: Any, features: Any, labels: Any, has_target: bool) -> dict[str, Any] | None:
    """What an Estimator takes of a shard; None of one without rows."""
    if hasattr(value, "iloc"):
        if features is None:
            raise InvalidArgumentError(
                "feature_cols must be provided if data is an XShards of frames"
            )
        made = {"x": _columns(value, features)}
        if has_target:
            if labels is None:
                raise InvalidArgumentError(
                    "label_cols must be provided if data is an XShards of frames"
                )
            made["y"] = _columns(value, labels)
        return made if len(value) else None
    if not isinstance(value, dict):
        raise InvalidArgumentError("each shard should be an dict")
    if "x" not in value:
        raise InvalidArgumentError("key x should in each shard")
    if has_target and "y" not in value:
        raise InvalidArgumentError("key y should in each shard")
    made = {key: value[key] for key in (("x", "y") if has_target else ("x",))}
    for key, part in made.items():
        _check_types(key, part)
    if not _is_arrays(made):
        raise InvalidArgumentError(
            "value of x and y should be a ndarray, a tuple of ndarrays or a list of ndarrays, all with "
            "the same number of rows"
        )
    return made if _rows_of(made) else None


def _check_types(name: str, value: Any) -> None:
    """Names the array that has no type of the engine."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_types(f"{name}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            _check_types(f"{name}[{i}]", part)
    elif isinstance(value, np.ndarray) and not _has_type(value):
        raise InvalidArgumentError(f"{name} has the dtype {value.dtype}; {_remedy(value.dtype)}")


def _remedy(dtype: np.dtype[Any]) -> str:
    if dtype.kind not in "iufb":
        return (
            f"Estimators take numbers: encode it, or leave it out (there is {', '.join(_DTYPES)})"
        )
    kind = {"u": "int64", "i": "int64", "b": "bool"}.get(dtype.kind, "float64")
    return f"give .astype({kind!r}) of it (there is {', '.join(_DTYPES)})"


def _columns(frame: Any, names: Any) -> Any:
    """One column as an array, several as a list of them; rows may be arrays themselves."""
    listed = [names] if isinstance(names, str) else list(names)
    if missing := [name for name in listed if name not in frame.columns]:
        raise InvalidArgumentError(
            f"column {missing[0]!r} is not in the frames, which have {list(map(str, frame.columns))}"
        )
    arrays = []
    for name in listed:
        column = frame[name].to_numpy()
        if column.dtype == object and len(column):
            parts = [np.asarray(row) for row in column]
            if len(shapes := {part.shape for part in parts}) > 1:
                raise InvalidArgumentError(
                    f"column {name!r} has rows of the shapes {sorted(shapes)}; give all the same shape"
                )
            column = np.stack(parts)
        if len(column):
            _check_types(f"column {name!r}", column)
        arrays.append(column)
    return arrays[0] if len(arrays) == 1 else arrays


def _rows_of(value: Any) -> int:
    while isinstance(value, dict | list | tuple):
        value = value.get("x", next(iter(value.values()))) if isinstance(value, dict) else value[0]
    return len(value)


def _slice(tree: Any, begin: int, end: int) -> Any:
    if isinstance(tree, dict):
        return {key: _slice(value, begin, end) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_slice(value, begin, end) for value in tree)
    return tree[begin:end]


def _add_prediction(value: Any, prediction: Any) -> Any:
    if hasattr(value, "iloc"):
        is_plain = getattr(prediction, "ndim", 0) == 1
        listed = prediction if is_plain else [_row(prediction, i) for i in range(len(value))]
        return value.assign(prediction=list(listed))
    if isinstance(value, dict):
        return {**value, "prediction": prediction}
    raise InvalidArgumentError("each shard should be an dict")


def _row(tree: Any, row: int) -> Any:
    """One row's part of predictions."""
    if isinstance(tree, dict):
        return {key: _row(value, row) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_row(value, row) for value in tree)
    return tree[row].tolist()


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


def _local(path: str) -> str:
    if "://" in path and not path.startswith("file://"):
        raise InvalidArgumentError(f"{path} is not on this machine; give a path of it, or file://")
    return path.removeprefix("file://")


def _load(folder: Path) -> list[Partition]:
    files = sorted(folder.glob("part-*"))
    if not files:
        raise FailedPreconditionError(f"{folder} has no files of save_pickle; give its folder")
    partitions = []
    for path in files:
        cells = []
        with path.open("rb") as file:
            while file.peek(1):
                cells.append(Cell(pickle.load(file)))
        partitions.append(cells)
    return partitions


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

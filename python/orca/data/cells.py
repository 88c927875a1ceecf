"""One shard: where its value is kept, and its rows.

Example:
    >>> Cell({"rows": 3}).value()
    {'rows': 3}
"""

from __future__ import annotations

import importlib
import itertools
import pickle
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca import pickles
from orca.data.arrays import Shard
from orca.data.frames import stacked_column
from orca.errors import InvalidArgumentError

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
            parts, _ = pickles.dumps(value, ("a shard",), carries=False)
            self.shard = Shard([np.frombuffer(part, np.uint8)[None] for part in parts])
        self.kind = class_name(value)

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
    lengths: set[int] = set()
    return _find_lengths(value, lengths) and len(lengths) == 1


def _find_lengths(node: Any, lengths: set[int]) -> bool:
    if type(node) is dict:
        return bool(node) and all(
            isinstance(key, str) and key and "." not in key and _find_lengths(item, lengths)
            for key, item in node.items()
        )
    if type(node) in (list, tuple):
        return bool(node) and all(_find_lengths(item, lengths) for item in node)
    if type(node) is not np.ndarray or node.ndim == 0 or not _has_type(node):
        return False
    lengths.add(len(node))
    return True


def _has_type(array: np.ndarray[Any, Any]) -> bool:
    """Whether the engine has a type for it."""
    return array.dtype.name in _DTYPES and array.dtype.isnative


def class_name(value: Any) -> str:
    """As scripts compare it."""
    kind = type(value)
    if kind.__module__ == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        # As pandas before 3 had it, which is what scripts compare with.
        return f"pandas.core.{_PANDAS[kind.__name__]}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


_PANDAS = {"DataFrame": "frame", "Series": "series"}


Partition = list[Cell]


# --- rows


def _has_rows(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if isinstance(value, dict):
        return bool(value) and all(isinstance(v, np.ndarray) and v.ndim for v in value.values())
    return isinstance(value, list) or class_name(value) == "pandas.core.frame.DataFrame"


@dataclass(frozen=True)
class _Rows:
    """What must be known of a shard to divide it: its rows, and what they are made of."""

    count: int
    is_frame: bool
    counts: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


def row_kinds(values: list[Any]) -> list[_Rows | None]:
    """What must be known of shards to divide them; None of one that has no rows."""
    return [_row_kind(value) if _has_rows(value) else None for value in values]


def _row_kind(value: Any) -> _Rows:
    if isinstance(value, dict):
        counts = {key: len(array) for key, array in value.items()}
        shapes = {repr(key): array.shape[1:] for key, array in value.items()}
        return _Rows(next(iter(counts.values())), False, counts, shapes)
    shapes = {"the shards": value.shape[1:]} if isinstance(value, np.ndarray) else {}
    return _Rows(len(value), hasattr(value, "iloc"), {}, shapes)


def check_alike(rows: list[_Rows]) -> None:
    """Refuses shards whose rows cannot be put together."""
    for kind in rows:
        if len(set(kind.counts.values())) > 1:
            raise InvalidArgumentError(
                f"the arrays of a shard have {kind.counts} rows; give all of them the same number"
            )
        if kind.counts.keys() != rows[0].counts.keys():
            raise InvalidArgumentError(
                f"shards have the keys {list(rows[0].counts)} and {list(kind.counts)}; give all the same "
                "keys to divide them by rows"
            )
    for name in rows[0].shapes if rows else ():
        if len(shapes := {kind.shapes[name] for kind in rows}) > 1:
            raise InvalidArgumentError(
                f"rows of {name} have the shapes {sorted(shapes)}; give all the same shape to divide "
                "them by rows"
            )


def regrouped(cells: list[Cell], rows: list[_Rows], count: int) -> list[list[Any]]:
    """Which rows of which shards each new partition has: shards, each followed by begin and end."""
    starts = list(itertools.accumulate((kind.count for kind in rows), initial=0))
    bounds = np.linspace(0, starts[-1], count + 1).astype(int).tolist()
    made: list[list[Any]] = []
    for begin, end in itertools.pairwise(bounds):
        part: list[Any] = []
        for cell, at, after in zip(cells, starts[:-1], starts[1:], strict=True):
            a, b = max(begin, at), min(end, after)
            if a < b:
                part += [cell, (a - at, b - at)]
        # Frames of 0 rows have columns; of other shards without rows, one is kept.
        if not part and cells and (rows[0].is_frame or (starts[-1] == 0 and not made)):
            part = [cells[0], (0, 0)]
        made.append(part)
    return made


def take_rows(values: list[Any]) -> list[Any]:
    """Rows of shards, each followed by begin and end, as one shard."""
    pieces = [_cut(value, *ends) for value, ends in zip(values[::2], values[1::2], strict=True)]
    return [_join(pieces) if len(pieces) > 1 else pieces[0]] if pieces else []


def _join(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: np.concatenate([value[key] for value in values]) for key in first}
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    if isinstance(first, list):
        return list(itertools.chain.from_iterable(values))
    return importlib.import_module("pandas").concat(values)


def _cut(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, dict):
        return {key: item[begin:end] for key, item in value.items()}
    return value.iloc[begin:end] if hasattr(value, "iloc") else value[begin:end]


class ToArrays:
    """What an Estimator takes of each shard that has rows."""

    def __init__(self, features: Any, labels: Any, has_target: bool) -> None:
        self._arguments = (features, labels, has_target)

    def __call__(self, values: list[Any]) -> list[Any]:
        """Those of all shards that have rows."""
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
        check_types(key, part)
    if not _is_arrays(made):
        raise InvalidArgumentError(
            "value of x and y should be a ndarray, a tuple of ndarrays or a list of ndarrays, all with "
            "the same number of rows"
        )
    return made if _rows_of(made) else None


def check_types(name: str, value: Any) -> None:
    """Names the array that has no type of the engine."""
    if isinstance(value, dict):
        for key, part in value.items():
            check_types(f"{name}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            check_types(f"{name}[{i}]", part)
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
        column = stacked_column(frame[name].to_numpy(), name)
        if len(column):
            check_types(f"column {name!r}", column)
        arrays.append(column)
    return arrays[0] if len(arrays) == 1 else arrays


def _rows_of(value: Any) -> int:
    while isinstance(value, dict | list | tuple):
        value = value.get("x", next(iter(value.values()))) if isinstance(value, dict) else value[0]
    return len(value)


Pieces = list[tuple[Shard, int, int]]
"""Rows from a first to before a last, of each of several shards."""


class RowsInOrder:
    """Rows of shards, to be taken in other pieces."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = deque(shards)
        self._at = 0

    def take(self, rows: int) -> Pieces:
        """The next rows; of none, a piece that tells their type."""
        pieces: Pieces = []
        while self._shards:
            first = self._shards[0]
            end = min(self._at + rows, len(first))
            if end > self._at or not rows:
                pieces.append((first, self._at, end))
            rows, self._at = rows - (end - self._at), end
            if not rows:
                break
            self._shards.popleft()
            self._at = 0
        return pieces


def stacked(trees: list[Any]) -> Any:
    """Arrays of equal structure behind each other; of none, an array without rows."""
    if not trees:
        return np.empty(0)
    first = trees[0]
    if isinstance(first, dict):
        return {key: stacked([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(map(stacked, map(list, zip(*trees, strict=True))))
    return first if len(trees) == 1 else np.concatenate(trees)


def counts_of_rows(values: list[Any]) -> list[int]:
    """How many rows each shard has."""
    return [_rows_of(value) for value in values]


def add_predictions(values: list[Any]) -> list[Any]:
    """Shards and the pieces of their predictions, one after the other."""
    made = []
    for value, pieces in zip(values[::2], values[1::2], strict=True):
        parts = [_slice(shard.view(), begin, end) for shard, begin, end in pieces]
        made.append(_add_prediction(value, stacked(parts)))
    return made


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

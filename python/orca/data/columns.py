"""Arrow columns as the arrays that models take, and predictions as Arrow columns.

What Spark calls a vector is a struct of ``type``, ``size``, ``indices`` and ``values`` in Arrow.

Example:
    >>> import pyarrow
    >>> to_array("x", pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int32()))).tolist()
    [[1, 2], [3, 4]]
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from orca.errors import InvalidArgumentError

__all__ = ["from_array", "is_supported", "is_vector", "kind_of", "pyarrow", "to_array", "to_arrays"]

VECTOR = ("type", "size", "indices", "values")
"""The parts of a vector."""


def pyarrow() -> Any:
    """The module; it is imported when it is first needed."""
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise ImportError("data frames of Spark need pyarrow; run 'pip install pyarrow'") from error


# --- from Arrow


def is_vector(kind: Any) -> bool:
    """Whether an Arrow type is that of Spark's vectors."""
    types = pyarrow().types
    return types.is_struct(kind) and [kind.field(i).name for i in range(kind.num_fields)] == list(
        VECTOR
    )


def is_supported(kind: Any) -> bool:
    """Whether ``to_array`` takes columns of an Arrow type."""
    types = pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind):
        return not types.is_map(kind.value_type) and is_supported(kind.value_type)
    if types.is_map(kind):
        return types.is_string(kind.key_type) and is_supported(kind.item_type)
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_timestamp(kind)
        or is_vector(kind)
    )


def to_array(name: str, column: Any) -> Any:
    """The rows of an Arrow array as one array; of maps a dict of arrays by key.

    Lists and vectors become further dimensions, vectors float32, decimals float64, times the int64
    nanoseconds since 1970 (tensors have no times).

    Raises:
        InvalidArgumentError: A value is missing, rows have different shapes, or the type has no arrays.
    """
    arrow = pyarrow()
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, arrow.ChunkedArray):  # Of none.
            column = arrow.array([], column.type)
    if column.null_count:
        raise _hole(name, column.is_null().index(True).as_py())
    kind, types = column.type, arrow.types
    if is_vector(kind):
        return _vectors(name, column)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(name, column)
    if types.is_map(kind):
        return _maps(name, column)
    if types.is_decimal(kind):
        column = column.cast(arrow.float64())
    elif types.is_timestamp(kind):
        column = column.cast(arrow.timestamp("ns", kind.tz)).cast(arrow.int64())
    elif not is_supported(kind):
        raise InvalidArgumentError(
            f"unsupported field {name!r} of the type {kind}; give numbers, arrays of numbers or vectors: "
            "convert it, or leave it out"
        )
    return column.to_numpy(zero_copy_only=False)


_TURNED = 256  # Rows whose numbers become columns at a time: in the nearest cache.


def to_arrays(names: list[str], column: Any) -> list[np.ndarray[Any, Any]]:
    """The columns that came as one list a row, each as ``to_array`` gives it."""
    made: np.ndarray[Any, Any] | None = None
    begin = 0
    # Batch by batch, which fits into a cache.
    for lists in column.chunks:
        values = lists.flatten()
        if values.null_count:
            row, place = divmod(values.is_null().index(True).as_py(), len(names))
            raise _hole(names[place], begin + row)
        rows = values.to_numpy(zero_copy_only=False).reshape(len(lists), len(names))
        if made is None:
            made = np.empty((len(names), len(column)), rows.dtype)
        for first in range(0, len(rows), _TURNED):
            few = rows[first : first + _TURNED]
            made[:, begin + first : begin + first + len(few)] = few.T
        begin += len(lists)
    return [] if made is None else list(made)


def _hole(name: str, row: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"column {name!r} has no value in row {row} of its part; drop or fill rows without values"
    )


def _widths(name: str, offsets: np.ndarray[Any, Any]) -> int:
    """How long every row is."""
    lengths = np.diff(offsets)
    if len(lengths) == 0:
        return 0
    if (odd := np.flatnonzero(lengths != lengths[0])).size:
        raise InvalidArgumentError(
            f"column {name!r}: row {odd[0]} has {lengths[odd[0]]} elements and row 0 has {lengths[0]}. "
            "Elements in the same column must have the same shape, please drop, pad or truncate the "
            "columns that do not meet this requirement."
        )
    return int(lengths[0])


def _lists(name: str, column: Any) -> np.ndarray[Any, Any]:
    width = _widths(name, column.offsets.to_numpy())
    inner: np.ndarray[Any, Any] = to_array(name, column.flatten())
    return inner.reshape(len(column), width, *inner.shape[1:])


def _vectors(name: str, column: Any) -> np.ndarray[Any, Any]:
    kinds, sizes, indices, values = (part for part in column.flatten())
    dense = kinds.to_numpy() == 1
    if dense.all():
        return _lists(name, values).astype(np.float32)
    offsets = values.offsets.to_numpy()
    lengths = np.where(dense, np.diff(offsets), sizes.fill_null(0).to_numpy())
    width = _widths(name, np.concatenate([[0], np.cumsum(lengths)]))
    made = np.zeros((len(column), width), np.float32)
    flat, starts = values.flatten().to_numpy(), offsets[:-1] - offsets[0]
    counts = np.diff(offsets)
    rows = np.repeat(np.arange(len(column)), counts)
    within = np.arange(len(flat)) - np.repeat(starts, counts)
    # Dense rows count their places; sparse ones name them.
    places = within
    is_sparse = ~np.repeat(dense, counts)
    places[is_sparse] = indices.flatten().to_numpy()
    made[rows, places] = flat
    return made


def _maps(name: str, column: Any) -> dict[str, np.ndarray[Any, Any]]:
    width = _widths(name, column.offsets.to_numpy())
    begin, end = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    keys = np.asarray(column.keys[begin:end].to_pylist(), object).reshape(len(column), width)
    order = np.argsort(keys, axis=1, kind="stable")
    keys = np.take_along_axis(keys, order, 1)
    if (odd := np.flatnonzero((keys != keys[:1]).any(axis=1))).size:
        raise InvalidArgumentError(
            f"column {name!r}: row {odd[0]} has the keys {list(keys[odd[0]])} and row 0 has "
            f"{list(keys[0])}; give all rows the same keys"
        )
    items, first = column.items[begin:end], np.arange(len(column)) * width
    return {
        key: to_array(f"{name}[{key!r}]", items.take(pyarrow().array(first + order[:, i])))
        for i, key in enumerate(keys[0])
    }


# --- to Arrow

_SHAPES = ("number", "vector")


def kind_of(predictions: Any) -> Any:
    """What one row of predictions is: "number", "vector", ("array", dimensions), or lists and dicts of those."""
    if isinstance(predictions, dict):
        return {key: kind_of(value) for key, value in predictions.items()}
    if isinstance(predictions, list | tuple):
        return [kind_of(value) for value in predictions]
    dimensions = predictions.ndim - 1
    return _SHAPES[dimensions] if dimensions < len(_SHAPES) else ("array", dimensions)


def from_array(predictions: Any) -> Any:
    """An Arrow array of predictions: numbers, vectors, nested lists; several outputs as lists or maps."""
    arrow = pyarrow()
    if isinstance(predictions, dict):
        columns = [from_array(value) for value in predictions.values()]
        keys = arrow.array(list(predictions) * len(columns[0]), arrow.string())
        return arrow.MapArray.from_arrays(*_woven(columns)[:1], keys, _woven(columns)[1])
    if isinstance(predictions, list | tuple):
        offsets, items = _woven([from_array(value) for value in predictions])
        return arrow.ListArray.from_arrays(offsets, items)
    if predictions.ndim == 2:
        return _to_vectors(predictions)
    made = arrow.array(np.ascontiguousarray(predictions).reshape(-1).astype(np.float64))
    for dimension in range(predictions.ndim - 1, 0, -1):
        made = arrow.ListArray.from_arrays(
            _every(predictions.shape[dimension], len(made) // max(1, predictions.shape[dimension])),
            made,
        )
    return made


def _every(width: int, rows: int) -> Any:
    if width * rows >= 1 << 31:
        raise InvalidArgumentError(
            f"{rows} predictions of {width} numbers do not fit into one Arrow array; predict in smaller batches"
        )
    return pyarrow().array(np.arange(rows + 1, dtype=np.int32) * np.int32(width))


def _woven(columns: list[Any]) -> tuple[Any, Any]:
    """Columns as lists of one item each a row."""
    arrow = pyarrow()
    if len({column.type for column in columns}) > 1:
        raise InvalidArgumentError(
            f"the outputs of the model have the types {[str(column.type) for column in columns]}, which do "
            "not fit into one column; give output_cols=, a name for each"
        )
    rows = len(columns[0])
    order = np.arange(rows * len(columns)).reshape(len(columns), rows).T.reshape(-1)
    items = arrow.concat_arrays(columns).take(arrow.array(order))
    return _every(len(columns), rows), items


def _to_vectors(array: np.ndarray[Any, Any]) -> Any:
    arrow = pyarrow()
    rows, width = array.shape
    numbers = arrow.array(np.ascontiguousarray(array, np.float64).reshape(-1))
    values = arrow.ListArray.from_arrays(_every(width, rows), numbers)
    return arrow.StructArray.from_arrays(
        [
            arrow.array(np.ones(rows, np.int8)),
            arrow.nulls(rows, arrow.int32()),
            arrow.nulls(rows, arrow.list_(arrow.int32())),
            values,
        ],
        names=list(VECTOR),
    )

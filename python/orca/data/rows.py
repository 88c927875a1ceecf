"""What users give as data, as rows in shared memory."""

from __future__ import annotations

import difflib
import sys
from typing import Any

import numpy as np

from orca.data import ArrayStore, SparkXShards
from orca.data.cells import check_types
from orca.errors import InvalidArgumentError


def store_of(data: Any, features: Any, labels: Any, wants_target: bool) -> tuple[ArrayStore, bool]:
    """Arrays in shared memory as ``{"x": ..., "y": ...}``; and whether there is a "y"."""
    if isinstance(data, ArrayStore):
        if wants_target and len(data) == 0:
            raise InvalidArgumentError("data has no rows; give at least one")
        return data, wants_target
    if isinstance(data, SparkXShards):
        store = ArrayStore()
        for cell in data.arrays(features, labels, has_target=wants_target).cells():
            store.put(cell.shard)
        if wants_target and len(store) == 0:
            raise InvalidArgumentError("the XShards has no rows; look at its len() before")
        return store, wants_target
    if is_spark_frame(data):
        from orca.adapters.spark import frames

        frames.check_columns(data, features, labels, wants_target)
        store = ArrayStore()
        for shard in frames.pull(data, features, labels if wants_target else None):
            store.put(shard)
        if wants_target and len(store) == 0:
            raise InvalidArgumentError("the DataFrame has no rows; look at its count() before")
        return store, wants_target
    if features is not None or hasattr(data, "iloc"):
        data = _columns(data, features, labels if wants_target else None, wants_target)
    if isinstance(data, dict):
        if "x" not in data:
            raise InvalidArgumentError(f"data has the keys {sorted(data)}; key x should be there")
        x, y = data["x"], data.get("y")
    elif wants_target and isinstance(data, list | tuple) and len(data) == 2:
        x, y = data
    elif wants_target:
        raise InvalidArgumentError(
            f"data is a {type(data).__name__}; give (x, y), {{'x': ..., 'y': ...}}, a DataLoader, or a "
            "function that makes one"
        )
    else:
        x, y = data, None
    if wants_target and y is None:
        raise InvalidArgumentError("data has no y; training and evaluation need targets")
    store = ArrayStore()
    store.put({"x": x} if y is None or not wants_target else {"x": x, "y": y})
    if wants_target and len(store) == 0:
        raise InvalidArgumentError("data has no rows; give at least one")
    return store, y is not None and wants_target


def is_spark_frame(data: Any) -> bool:
    """Whether it is a DataFrame of Spark; does not import pyspark."""
    spark = sys.modules.get("pyspark.sql")
    return spark is not None and isinstance(data, spark.DataFrame)


def _columns(frame: Any, features: Any, labels: Any, wants_target: bool) -> dict[str, Any]:
    """Columns of a data frame: one alone is an array, several are a list of them."""
    if not hasattr(frame, "iloc"):
        raise InvalidArgumentError(
            f"feature_cols and label_cols are for data frames, and data is a {type(frame).__name__}"
        )
    for name, given in (("feature_cols", features), ("label_cols", labels)):
        if given is None and (name == "feature_cols" or wants_target):
            raise InvalidArgumentError(f"{name} must be provided if data is a data frame")

    def columns(names: Any) -> Any:
        listed = column_names(names)
        for name in listed:
            if name not in frame.columns:
                there = list(frame.columns)
                near = difflib.get_close_matches(str(name), map(str, there), 1)
                raise InvalidArgumentError(
                    f"there is no column {name!r}; there is {there}"
                    f"{f'; did you mean {near[0]!r}?' if near else ''}"
                )
        arrays = [_stacked(name, frame[name].to_numpy()) for name in listed]
        return arrays[0] if len(arrays) == 1 else arrays

    found = {"x": columns(features)}
    return found | {"y": columns(labels)} if wants_target else found


def column_names(columns: Any) -> list[Any]:
    """One column, several or none, as a list."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else list(columns)


def _stacked(name: str, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if column.dtype != object:
        if not _is_text(column):
            check_types(f"column {name!r}", column)
        return np.ascontiguousarray(column)
    values = [np.asarray(value) for value in column]
    for row, value in enumerate(values):
        if value.shape != values[0].shape:
            raise InvalidArgumentError(
                f"column {name!r}: row {row} is {value.shape} and row 0 is {values[0].shape}. Elements in "
                "the same column must have the same shape, please drop, pad or truncate the columns that "
                "do not meet this requirement."
            )
        if value.dtype.kind == "O" or _is_text(value) != _is_text(values[0]):
            raise InvalidArgumentError(
                f"column {name!r}: row {row} is {column[row]!r} and row 0 is {column[0]!r}; convert or leave "
                "out what is of another kind"
            )
    return np.stack(values)


def _is_text(value: np.ndarray[Any, Any]) -> bool:
    return value.dtype.kind in "US"

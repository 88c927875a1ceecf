"""Columns of XShards of frames as numbers that a model takes: indices of texts, scaled values.

Example:
    >>> from orca.data.transformer import MinMaxScaler
    >>> MinMaxScaler(inputCol=["a"], outputCol="scaled")  # doctest: +ELLIPSIS
    <orca.data.transformer.MinMaxScaler object at ...>
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from orca.data.xshards import SparkXShards
from orca.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["MinMaxScaler", "StandardScaler", "StringIndex", "StringIndexer"]


class StringIndex:
    """Which number a text has, from 1 on; 0 is a text that nobody knew.

    Args:
        mapping: Numbers by text.
        col_name: Of the column they belong to.
    """

    def __init__(self, mapping: dict[Any, int], col_name: str) -> None:
        self.mapping, self.col_name = dict(mapping), col_name

    @classmethod
    def from_dict(cls, indices: dict[Any, int], col_name: str) -> StringIndex:
        """An index of known numbers."""
        if not indices:
            raise InvalidArgumentError("indices cannot be empty")
        if not col_name:
            raise InvalidArgumentError("col_name should be str, but get None")
        if not all(isinstance(number, int) for number in indices.values()):
            raise InvalidArgumentError("values of indices should be int")
        return cls(indices, col_name)

    def to_dict(self) -> dict[Any, int]:
        """Numbers by text."""
        return dict(self.mapping)


class StringIndexer:
    """Replaces the values of a column by numbers, the most frequent first.

    Args:
        inputCol: The column.
    """

    def __init__(self, inputCol: str) -> None:  # noqa: N803
        self.inputCol = inputCol
        self.string_index: StringIndex | None = None

    def setInputCol(self, inputCol: str) -> None:  # noqa: N802, N803
        """Another column; what was learned is forgotten."""
        self.inputCol, self.string_index = inputCol, None

    def fit_transform(self, shard: SparkXShards) -> SparkXShards:
        """Learns the numbers of all values, and replaces them."""
        counted = shard._ask(functools.partial(_counts, name=self.inputCol))
        counts: dict[Any, int] = {}
        for part in counted:
            for value, count in part.items():
                counts[value] = counts.get(value, 0) + count
        ranked = sorted(counts, key=lambda value: (-counts[value], str(value)))
        self.string_index = StringIndex(
            {value: number for number, value in enumerate(ranked, 1)}, self.inputCol
        )
        return self.transform(shard)

    def transform(self, shard: SparkXShards) -> SparkXShards:
        """Replaces values by their numbers; 0 where a value is new."""
        if self.string_index is None:
            raise FailedPreconditionError("Please call fit_transform first")
        return shard.transform_shard(_indexed, self.inputCol, self.string_index.mapping)


class _Scaler:
    def __init__(self, inputCol: Any = None, outputCol: str | None = None) -> None:  # noqa: N803
        self.inputCol, self.outputCol = inputCol, outputCol
        self._learned: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None

    def setInputOutputCol(self, inputCol: Any, outputCol: str) -> None:  # noqa: N802, N803
        """Other columns; what was learned is forgotten."""
        self.inputCol, self.outputCol, self._learned = inputCol, outputCol, None

    def fit_transform(self, shard: SparkXShards) -> SparkXShards:
        """Learns from all rows, and adds the column of scaled values."""
        names = self._names()
        moments = [m for m in shard._ask(functools.partial(_moments, names=names)) if m is not None]
        if not moments:
            raise InvalidArgumentError("there are no rows to learn from; give some")
        self._learned = self._learn(moments)
        return self.transform(shard)

    def transform(self, shard: SparkXShards) -> SparkXShards:
        """Adds the column of scaled values, each a list."""
        if self._learned is None:
            raise FailedPreconditionError("Please call fit_transform first")
        return shard.transform_shard(_scaled, self._names(), self.outputCol, *self._learned)

    def _names(self) -> list[str]:
        if self.inputCol is None or self.outputCol is None:
            raise InvalidArgumentError("inputCol and outputCol cannot be empty")
        return [self.inputCol] if isinstance(self.inputCol, str) else list(self.inputCol)

    def _learn(self, moments: list[Any]) -> Any:
        raise NotImplementedError


class MinMaxScaler(_Scaler):
    """Maps each column's range to another one; a constant column becomes its middle.

    Args:
        min: The least value of the new range.
        max: The largest.
        inputCol: One column of numbers (or lists of them), or several.
        outputCol: The new column.
    """

    def __init__(
        self,
        min: float = 0.0,
        max: float = 1.0,
        inputCol: Any = None,  # noqa: N803
        outputCol: str | None = None,  # noqa: N803
    ) -> None:
        super().__init__(inputCol, outputCol)
        self.min, self.max = min, max

    def _learn(self, moments: list[Any]) -> Any:
        low = np.min([m[3] for m in moments], axis=0)
        span = np.max([m[4] for m in moments], axis=0) - low
        flat = span == 0
        factor = np.where(flat, 0.0, (self.max - self.min) / np.where(flat, 1.0, span))
        shift = np.where(flat, (self.max + self.min) / 2, self.min - low * factor)
        return factor, shift


class StandardScaler(_Scaler):
    """Divides each column by its standard deviation, and moves its mean to 0 on request.

    Args:
        withMean: Whether to move the mean.
        withStd: Whether to divide.
        inputCol: One column of numbers (or lists of them), or several.
        outputCol: The new column.
    """

    def __init__(
        self,
        withMean: bool = False,  # noqa: N803
        withStd: bool = True,  # noqa: N803
        inputCol: Any = None,  # noqa: N803
        outputCol: str | None = None,  # noqa: N803
    ) -> None:
        super().__init__(inputCol, outputCol)
        self.withMean, self.withStd = withMean, withStd

    def _learn(self, moments: list[Any]) -> Any:
        # Moments of parts are joined by means and sums of squares around them.
        count, mean, squares = moments[0][:3]
        for n, m, s, *_ in moments[1:]:
            squares = squares + s + (m - mean) ** 2 * (count * n / (count + n))
            mean = mean + (m - mean) * (n / (count + n))
            count += n
        deviation = np.sqrt(squares / max(count - 1, 1))
        zero = deviation == 0
        factor = np.where(zero, 0.0, 1 / np.where(zero, 1.0, deviation))
        factor = factor if self.withStd else np.ones_like(mean)
        return factor, -mean * factor if self.withMean else np.zeros_like(mean)


def _counts(frames: list[Any], name: str) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for frame in frames:
        for value, count in frame[name].value_counts().items():
            counts[value] = counts.get(value, 0) + int(count)
    return counts


def _indexed(frame: Any, name: str, mapping: dict[Any, int]) -> Any:
    numbers = frame[name].map(mapping).fillna(0).astype("int64")
    return frame.assign(**{name: numbers})


def _matrix(frame: Any, names: list[str]) -> np.ndarray[Any, Any]:
    parts = []
    for name in names:
        column = frame[name].to_numpy()
        if column.dtype == object:
            column = np.stack([np.asarray(row, np.float64) for row in column])
        parts.append(column.reshape(len(frame), -1).astype(np.float64))
    return np.concatenate(parts, axis=1)


def _moments(frames: list[Any], names: list[str]) -> Any:
    rows = [_matrix(frame, names) for frame in frames if len(frame)]
    if not rows:
        return None
    values = np.concatenate(rows)
    mean = values.mean(0)
    return len(values), mean, ((values - mean) ** 2).sum(0), values.min(0), values.max(0)


def _scaled(
    frame: Any,
    names: list[str],
    output: str,
    factor: np.ndarray[Any, Any],
    shift: np.ndarray[Any, Any],
) -> Any:
    made = (_matrix(frame, names) * factor + shift).tolist() if len(frame) else []
    column = importlib.import_module("pandas").Series(made, index=frame.index, dtype=object)
    return frame.assign(**{output: column})

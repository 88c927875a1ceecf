"""``JTensor`` and ``Sample``: rows as BigDL's engine had them, here of numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import InvalidArgumentError

__all__ = ["JTensor", "Sample"]


class JTensor:
    """A tensor as flat numbers and a shape; with ``indices`` a sparse one.

    Example:
        >>> JTensor.from_ndarray(np.ones((2, 3))).shape.tolist()
        [2, 3]
    """

    def __init__(
        self, storage: Any, shape: Any, bigdl_type: str = "float", indices: Any = None
    ) -> None:
        kind = np.float64 if bigdl_type == "double" else np.float32
        self.storage = np.asarray(storage, dtype=kind).reshape(-1)
        self.shape = np.asarray(shape, dtype=np.int32)
        self.indices = None if indices is None else np.asarray(indices, dtype=np.int32)
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, a_ndarray: Any, bigdl_type: str = "float") -> JTensor | None:
        """Of an array; a number becomes one of shape (1,)."""
        if a_ndarray is None:
            return None
        array = np.asarray(a_ndarray)
        return cls(array, array.shape or (1,), bigdl_type)

    @classmethod
    def sparse(
        cls, a_ndarray: Any, i_ndarray: Any, shape: Any, bigdl_type: str = "float"
    ) -> JTensor:
        """Of the values at ``i_ndarray``; everything else is 0."""
        return cls(a_ndarray, shape, bigdl_type, i_ndarray)

    def to_ndarray(self) -> np.ndarray:
        """The array; a sparse one as a dense one."""
        if self.indices is None:
            return self.storage.reshape(self.shape)
        dense = np.zeros(self.shape, self.storage.dtype)
        dense[tuple(self.indices.reshape(len(self.shape), -1))] = self.storage
        return dense

    def __repr__(self) -> str:
        return f"JTensor: storage: {self.storage}, shape: {self.shape}, {self.bigdl_type}"


class Sample:
    """A row: its features and labels.

    Example:
        >>> Sample.from_ndarray(np.zeros(2), 1.0).label.shape.tolist()
        [1]
    """

    def __init__(
        self, features: Sequence[JTensor], labels: Sequence[JTensor], bigdl_type: str = "float"
    ) -> None:
        self.features = list(features)
        self.labels = list(labels)
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """Of arrays or numbers; of lists of them where there are several."""
        return cls(
            [cls._tensor(each, bigdl_type) for each in _listed(features)],
            [cls._tensor(each, bigdl_type) for each in _listed(labels)],
            bigdl_type,
        )

    @classmethod
    def from_jtensor(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """Of JTensors."""
        return cls(_listed(features), _listed(labels), bigdl_type)

    @staticmethod
    def _tensor(value: Any, bigdl_type: str) -> JTensor:
        found = value if isinstance(value, JTensor) else JTensor.from_ndarray(value, bigdl_type)
        if found is None:
            raise InvalidArgumentError("a Sample has no place for None; give an array or a number")
        return found

    @property
    def feature(self) -> JTensor:
        """The first of the features."""
        return self.features[0]

    @property
    def label(self) -> JTensor:
        """The first of the labels."""
        return self.labels[0]

    def __repr__(self) -> str:
        return f"Sample: features: {self.features}, labels: {self.labels}"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]

"""What a column of a DataFrame becomes before a model gets it, by the names of BigDL's feature transformers.

Each says how many tensors a row is cut into, and their shapes. The conversion itself happens with whole columns.

Example:
    >>> ChainedPreprocessing([SeqToTensor([2, 3]), TensorToSample()]).sizes
    ((2, 3),)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orca.errors import InvalidArgumentError

__all__ = [
    "ArrayToTensor",
    "ChainedPreprocessing",
    "FeatureLabelPreprocessing",
    "MLlibVectorToTensor",
    "Preprocessing",
    "ScalarToTensor",
    "SeqToMultipleTensors",
    "SeqToTensor",
    "TensorToSample",
    "ToTuple",
    "read_sizes",
]

Sizes = tuple[tuple[int, ...], ...] | None
"""The shapes of the parts of a row; None: it stays as it is."""


class Preprocessing:
    """A step on the way from a column to tensors.

    Attributes:
        sizes: The shapes of the tensors that a row is cut into; None: this step leaves them as they are.
    """

    sizes: Sizes = None

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.sizes is None else list(self.sizes)})"


class SeqToTensor(Preprocessing):
    """A number, an array or a vector as one tensor.

    Args:
        size: Its shape; empty: flat.
        bigdl_type: Accepted.
    """

    def __init__(self, size: Sequence[int] = (), bigdl_type: str = "float") -> None:
        self.sizes = (_shape(size),) if size else None


class ArrayToTensor(SeqToTensor):
    """An array as one tensor of a shape."""


class MLlibVectorToTensor(SeqToTensor):
    """A vector of ``pyspark.ml`` or ``pyspark.mllib`` as one tensor of a shape."""


class ScalarToTensor(Preprocessing):
    """A number as a tensor of one element."""

    sizes = ((1,),)


class SeqToMultipleTensors(Preprocessing):
    """An array or a vector, cut into tensors for a model with several inputs.

    Args:
        size: The shape of each.
        bigdl_type: Accepted.
    """

    def __init__(self, size: Sequence[Sequence[int]], bigdl_type: str = "float") -> None:
        self.sizes = tuple(_shape(each) for each in size)
        if not self.sizes:
            raise InvalidArgumentError(
                "SeqToMultipleTensors has no sizes; give a list of shapes, such as [[2], [3]]"
            )


class TensorToSample(Preprocessing):
    """Rows with labels are what training takes anyway."""


class ToTuple(Preprocessing):
    """Features without labels are what prediction takes anyway."""


class ChainedPreprocessing(Preprocessing):
    """Steps, one after the other; the last one that gives a shape counts.

    Args:
        transformers: The steps.
        bigdl_type: Accepted.
    """

    def __init__(self, transformers: Iterable[Preprocessing], bigdl_type: str = "float") -> None:
        self.transformers = list(transformers)
        for step in self.transformers:
            if not isinstance(step, Preprocessing):
                raise InvalidArgumentError(
                    f"{step!r} is no Preprocessing; a chain takes {', '.join(__all__[:-1])}"
                )
        given = [step.sizes for step in self.transformers if step.sizes is not None]
        self.sizes = given[-1] if given else None


class FeatureLabelPreprocessing(Preprocessing):
    """One step for features and one for labels.

    Args:
        feature_transformer: For the features.
        label_transformer: For the labels.
        bigdl_type: Accepted.
    """

    def __init__(
        self, feature_transformer: Any, label_transformer: Any, bigdl_type: str = "float"
    ) -> None:
        self.sizes = read_sizes("feature_transformer", feature_transformer)
        self.label_sizes = read_sizes("label_transformer", label_transformer)


def read_sizes(name: str, given: Any) -> Sizes:
    """The shapes that an argument asks for.

    Args:
        name: Of the argument.
        given: None, a Preprocessing, a list of numbers, or a list of such lists.
    """
    if isinstance(given, Preprocessing):
        return given.sizes
    if given is None or given == []:
        return None
    if isinstance(given, list | tuple) and all(isinstance(each, list | tuple) for each in given):
        return tuple(_shape(each) for each in given)
    if isinstance(given, list | tuple):
        return (_shape(given),)
    raise InvalidArgumentError(
        f"{name} {given!r} is not in this release; give a list of numbers, the shape of a row, a list of "
        "such lists, or a Preprocessing such as SeqToTensor([2, 3])"
    )


def _shape(size: Sequence[int]) -> tuple[int, ...]:
    for each in size:
        if not isinstance(each, int) or isinstance(each, bool) or each < 1:
            raise InvalidArgumentError(
                f"size {list(size)!r} is no shape; give positive whole numbers, such as [2, 3]"
            )
    return tuple(size)

"""What travels between the driver and a worker of a Keras trial; imports no framework."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from orca.data import ArrayStore, Shard


@dataclass(frozen=True)
class State:
    """The variables of a model after an epoch, in shared memory.

    Attributes:
        rows: The bytes of each.
        kinds: The type and the shape of each.
        parts: How many are weights, and how many are other state of layers; those of the optimizer follow.
        build: What Keras builds such a model with.
        read: Keys of the configuration that were read so far.
        version: Of these values.
    """

    rows: Shard
    kinds: list[tuple[Any, tuple[int, ...]]]
    parts: tuple[int, int]
    build: dict[str, Any] | None
    read: frozenset[str] = frozenset()
    version: str = field(default_factory=lambda: uuid.uuid4().hex)

    @staticmethod
    def of(
        groups: Sequence[Sequence[Any]], build: dict[str, Any] | None, read: Iterable[str] = ()
    ) -> State:
        """Copies weights, other state of layers, and variables of the optimizer."""
        arrays = [np.asarray(array) for group in groups for array in group]
        return State(
            Shard([array.tobytes() for array in arrays]),
            [(array.dtype, array.shape) for array in arrays],
            (len(groups[0]), len(groups[1])),
            build,
            frozenset(read),
        )

    def groups(self) -> list[list[Any]]:
        """The three groups, as arrays that cannot be written."""
        rows = self.rows.view()
        arrays = [
            np.frombuffer(rows.values[rows.offsets[i] : rows.offsets[i + 1]], kind).reshape(shape)
            for i, (kind, shape) in enumerate(self.kinds)
        ]
        weights, others = self.parts
        return [arrays[:weights], arrays[weights : weights + others], arrays[weights + others :]]

    def weights_alone(self) -> State:
        """Without the state of dropout and of the optimizer: what a clone takes over."""
        count = self.parts[0]
        version = uuid.uuid4().hex
        return replace(self, kinds=self.kinds[:count], parts=(count, 0), version=version)


@dataclass(frozen=True)
class Work:
    """What a worker has to know of a trial.

    Attributes:
        key: Its name among all trials.
        functions: The creator of models, the metric, and the creators of both data sets, pickled.
        train: Rows to train on, unless a creator makes them.
        validation: Rows to measure on, likewise.
        config: The configuration.
        threads: Of TensorFlow.
        seed: Of its random numbers.
    """

    key: str
    functions: Shard
    train: ArrayStore | None
    validation: ArrayStore | None
    config: dict[str, Any]
    threads: int
    seed: int

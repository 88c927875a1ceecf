"""A trial of a Keras model: an epoch at a time on a warm worker, in between its state is in shared memory.

Nothing here imports TensorFlow before a model is wanted in this process.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from orca import running
from orca.adapters.keras.names import mode_of
from orca.adapters.keras.state import State, Work
from orca.data import ArrayStore, Shard
from orca.data.rows import store_of
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.files import check_archive, write_whole
from orca.pickles import dumps


class KerasSpec:
    """What all trials of a search have in common.

    Args:
        model_creator: ``f(config)`` of a compiled model.
    """

    measures_training = True
    """Whether a metric other than the loss can be had without validation data."""
    forget_trials = None
    make_ahead = None

    def __init__(self, model_creator: Callable[[dict[str, Any]], Any]) -> None:
        for name in ("tensorflow", "keras"):
            if importlib.util.find_spec(name) is None:
                raise ImportError(
                    "Models of Keras need TensorFlow 2.21 with Keras 3; run: pip install "
                    "'tensorflow>=2.21'"
                )
        there = sys.modules.get("keras")  # Who has no Keras yet has no model of it.
        if there is not None and isinstance(model_creator, there.Model):
            kind = type(model_creator).__name__
            raise InvalidArgumentError(
                f"model_creator is a model, a {kind}, and every trial needs one of its own; give a function f(config) that "
                "makes and compiles it"
            )
        if not callable(model_creator):
            raise InvalidArgumentError(
                f"model_creator {model_creator!r} cannot be called; give f(config) of a compiled Keras model"
            )
        self.creator = model_creator

    def named_metric(self, name: Any, mode: str | None) -> tuple[str, str]:
        """The name, and its direction."""
        found = mode or (mode_of(name) if isinstance(name, str) else None)
        if found is None:
            raise InvalidArgumentError(
                f"metric {name} is not supported without metric_mode; give 'min' or 'max'"
            )
        return name, found

    def trials(
        self,
        data: Any,
        validation: Any,
        columns: dict[str, Any],
        metric: Any,
        threads: int,
        keys: Collection[str],
    ) -> Callable[[dict[str, Any], int], KerasTrial]:
        """What makes a trial of a configuration and a seed."""
        train, train_creator = _given(data, columns)
        other, other_creator = (None, None) if validation is None else _given(validation, columns)
        names = ("model_creator", "metric", "data", "validation_data")
        parts, _ = dumps((self.creator, metric, train_creator, other_creator), names)
        functions = Shard([bytes(part) for part in parts])

        def new(config: dict[str, Any], seed: int) -> KerasTrial:
            key = uuid.uuid4().hex
            return KerasTrial(Work(key, functions, train, other, config, threads, seed))

        return new

    def new_model(self, config: dict[str, Any]) -> Any:
        """The model of a configuration."""
        from orca.adapters.keras.training import new_model

        return new_model(self.creator, config)

    def load_weights(self, model: Any, file: Any) -> None:
        """Gives a model the weights that ``KerasTrial.save`` wrote."""
        from orca.adapters.keras.training import load_weights

        weights = [file[str(i)] for i in range(len(file.files) - 1)]
        load_weights(model, weights, json.loads(str(file["build"])))

    def load_best(self, config: dict[str, Any], path: Path) -> Any:
        """The model of a configuration with the weights that a trial saved."""
        model = self.new_model(config)
        check_archive(path)
        with np.load(path) as file:
            self.load_weights(model, file)
        return model


class KerasTrial:
    """One configuration under way."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._step = 0
        self._state: State | None = None

    def epoch(self) -> float:
        """Trains once on all rows; returns the metric."""
        arguments = (self._work, self._step, self._state)
        value, self._state = running.run_alone("keras", self._work.threads, _epoch, arguments)
        self._step += 1
        return float(value)

    @property
    def read(self) -> frozenset[str]:
        """Keys of the configuration that were read so far."""
        return self._learned.read

    def save(self, path: Path) -> None:
        """Writes the weights, in the order of ``model.get_weights()``, as an ``.npz``."""
        state = self._learned
        arrays = {str(i): array for i, array in enumerate(state.groups()[0])}
        arrays["build"] = np.array(json.dumps(state.build))
        write_whole(path, lambda file: np.savez(file, **arrays), is_lasting=False)

    def save_state(self, path: Path, note: dict[str, Any]) -> None:
        """Writes all that it goes on with, as an ``.npz``, and a note of plain values."""
        state = self._learned
        told = {"note": note, "step": self._step, "parts": state.parts, "build": state.build}
        arrays = {str(i): a for i, a in enumerate(a for group in state.groups() for a in group)}
        arrays["told"] = np.array(json.dumps(told))
        write_whole(path, lambda file: np.savez(file, **arrays))

    def load_state(self, path: Path, *, only_weights: bool = False) -> dict[str, Any]:
        """Goes on from what ``save_state`` of this trial wrote, or with the weights of another; returns the note."""
        check_archive(path)
        with np.load(path) as file:
            told = json.loads(str(file["told"]))
            arrays = [file[str(i)] for i in range(len(file.files) - 1)]
        weights, others = told["parts"]
        groups = [arrays[:weights], arrays[weights : weights + others], arrays[weights + others :]]
        self._state = State.of(groups, told["build"])
        if only_weights:
            self._state = self._state.weights_alone()
        else:
            self._step = told["step"]
        note: dict[str, Any] = told["note"]
        return note

    def close(self) -> None:
        """Frees its memory."""
        self._state = None

    @property
    def _learned(self) -> State:
        if self._state is None:
            raise FailedPreconditionError("the trial has not learned anything yet")
        return self._state


def _epoch(work: Work, step: int, state: State | None) -> tuple[float, State]:
    from orca.adapters.keras.training import epoch

    return epoch(work, step, state)


def _given(data: Any, columns: dict[str, Any]) -> tuple[ArrayStore | None, Any]:
    """Rows in memory that all trials share, or the creator of what a trial takes."""
    if type(data).__module__.startswith("tensorflow."):
        raise InvalidArgumentError(
            f"a {type(data).__qualname__} belongs to this process; give a function f(config) that makes it"
        )
    if callable(data):
        return None, data
    features, labels = columns.get("feature_cols"), columns.get("label_cols")
    return store_of(data, features, labels, wants_target=True)[0], None

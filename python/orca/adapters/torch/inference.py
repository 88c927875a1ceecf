"""A model with the weights of one moment, which predicts on workers, or wherever it is opened."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from orca import running
from orca.adapters.torch import loop
from orca.adapters.torch.feeds import ArraySource, count_rows
from orca.adapters.torch.names import load_plain_state
from orca.adapters.torch.places import Places
from orca.adapters.torch.session import Session
from orca.adapters.torch.trees import map_leaves, unpack
from orca.data import ArrayStore, Shard
from orca.pickles import loads


@dataclass(frozen=True)
class Inference:
    """What it takes to predict.

    Attributes:
        call: The model, and its weights in shared memory.
        rows: That the model gets at a time.
        as_float32: Whether it gets all numbers as such.
        policy: What follows the death of a worker, as ``running.run`` takes it.
        callbacks: What is called meanwhile.
    """

    call: loop.Call
    rows: int
    as_float32: bool
    policy: dict[str, Any]
    callbacks: tuple[Any, ...] = ()

    def on_workers(self, features: Shard) -> list[Shard]:
        """In the driver: the predictions of one warm worker."""
        store = ArrayStore()
        store.put(features)
        options = loop.PredictOptions(
            batch_size=self.rows,
            source=ArraySource(
                store, has_target=False, as_float32="all" if self.as_float32 else ""
            ),
            callbacks=self.callbacks,
            places=Places.of(1, "was at batch") if self.call.is_local else None,
        )
        found: list[Shard] = running.run(
            loop.predict, (self.call, options), workers=1, threads=1, **self.policy
        )[0]
        return found

    def open(self) -> Callable[[dict[str, Any]], Any]:
        """In a process of Spark's: what makes predictions of features. The weights are mapped, not copied.

        Raises:
            ImportError, AttributeError: Code of the model is not to be found here.
        """
        spec = self.call.model_spec()
        torch.set_num_threads(1)  # Spark runs a task for every core.
        session = Session(spec, None, None)
        state = unpack(loads(self.call.state.parts()))
        for model, found in zip(session.models, state["models"], strict=True):
            load_plain_state(model, found, assign=True)
        gc.freeze()  # What has just been imported need not be searched for garbage, either.

        def predict(features: dict[str, Any]) -> Any:
            parts = list(loop.predictions(session, self._batches(features["x"]), self.callbacks))
            return loop.join(parts)

        return predict

    def _batches(self, features: Any) -> Iterator[tuple[Any, ...]]:
        listed = features if isinstance(features, list) else [features]
        for begin in range(0, count_rows(listed), self.rows):
            # A copy, as a model may write to what it gets, and this is Arrow's memory.
            tensor = functools.partial(self._tensor, begin)
            yield tuple(map_leaves(part, tensor) for part in listed)

    def _tensor(self, begin: int, array: Any) -> torch.Tensor:
        made = torch.tensor(array[begin : begin + self.rows])
        return made.float() if self.as_float32 else made

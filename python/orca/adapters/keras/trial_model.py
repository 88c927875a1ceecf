"""A Keras model that is trained and measured in one call, in this process: a trial by hand.

Nothing here imports TensorFlow before a model is wanted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orca.adapters.keras.tuning import KerasSpec
from orca.automl.metrics import Evaluator
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.files import check_archive, write_whole


class KerasBaseModel:
    """The model of a configuration. One thread uses it.

    Args:
        model_creator: ``f(config)`` of a compiled Keras 3 model.

    Attributes:
        model: The Keras model, None before ``build``.
        config: What it was made of.
    """

    def __init__(self, model_creator: Callable[[dict[str, Any]], Any]) -> None:
        self._spec = KerasSpec(model_creator)
        self.config: dict[str, Any] = {}
        self.model: Any = None

    def build(self, config: dict[str, Any]) -> None:
        """Makes the model."""
        self.config = dict(config)
        self.model = self._spec.new_model(self.config)

    def fit_eval(
        self,
        data: Any,
        validation_data: Any = None,
        mc: bool = False,
        verbose: int = 0,
        epochs: int = 1,
        metric: str | None = None,
        metric_func: Callable[[Any, Any], Any] | None = None,
        resources_per_trial: dict[str, Any] | None = None,
        **config: Any,
    ) -> dict[str, float]:
        """Trains, and measures on the validation data. The first call makes the model, unless ``build`` did.

        Args:
            data: ``(x, y)``, cut into batches of ``config["batch_size"]``, 32 by default; a ``tf.data.Dataset``, or a
                creator ``f(config)`` of either.
            validation_data: As ``data``; without it the training rows are measured.
            mc: Must be False: trials are measured without dropout.
            verbose: What Keras shows of its epochs.
            epochs: How often all rows are used.
            metric: A metric that the model was compiled with, one of ``Evaluator``, or the name of ``metric_func``; by
                default the loss.
            metric_func: ``f(y_true, y_pred)``.
            resources_per_trial: Accepted: a process that has begun to compute keeps its threads.
            **config: More of the configuration.

        Returns:
            The metric, by its name.
        """
        from orca.adapters.keras.training import measured, open_data

        if mc:
            raise InvalidArgumentError("mc=True is not in this release; leave it out")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise InvalidArgumentError(f"epochs {epochs!r} is not a whole number of 1 or more")
        if self.model is None:
            self.build(self.config | config)
        else:
            self.config |= config
        train, held = (
            open_data(self.model, made(dict(self.config)) if callable(made) else made, self.config)
            for made in (data, data if validation_data is None else validation_data)
        )
        history = self.model.fit(**train, epochs=epochs, verbose=verbose).history
        logs = {name: values[-1] for name, values in history.items()}
        if validation_data is not None:
            logs = self.model.evaluate(**held, verbose=0, return_dict=True)
        name = str(metric or getattr(metric_func, "__name__", "loss"))
        return {name: measured(self.model, metric_func or metric, held, logs)}

    def _fitted(self) -> Any:
        if self.model is None:
            raise FailedPreconditionError(
                "You must call fit_eval or restore first before calling predict, evaluate or save!"
            )
        return self.model

    def predict(self, x: Any, mc: bool = False, batch_size: int = 32) -> Any:
        """The model's outputs.

        Args:
            x: Rows.
            mc: Whether dropout stays on, so that every call draws another of the model's answers.
            batch_size: Rows at a time.
        """
        from orca.adapters.keras.training import columns

        model, rows = self._fitted(), columns(x)
        if not mc:
            return model.predict(rows, batch_size=int(batch_size), verbose=0)
        cuts = range(0, len(rows), int(batch_size))
        return np.concatenate(
            [np.asarray(model(rows[at : at + int(batch_size)], training=True)) for at in cuts]
        )

    def evaluate(
        self,
        x: Any,
        y: Any,
        metrics: Sequence[str] = ("mse",),
        multioutput: str = "raw_values",
        batch_size: int = 32,
    ) -> list[Any]:
        """Metrics of ``Evaluator``, in turn."""
        found = self.predict(x, batch_size=batch_size)
        truth = np.asarray(y)
        if found.shape == (*truth.shape, 1):
            truth = truth[..., None]
        return [Evaluator.evaluate(m, truth, found, multioutput) for m in metrics]

    def save(self, checkpoint: str | os.PathLike[str]) -> None:
        """Writes configuration, weights and optimizer, completely or not at all."""
        from orca.adapters.keras.training import learned

        model = self._fitted()
        groups = learned(model)
        told = {
            "config": self.config,
            "parts": [len(group) for group in groups],
            "build": model.get_build_config(),
        }
        try:
            text = json.dumps(told)
        except TypeError as error:
            raise InvalidArgumentError(
                f"the configuration {self.config!r} cannot be written: {error}; use numbers and texts"
            ) from error
        arrays = {str(i): array for i, array in enumerate(a for group in groups for a in group)}
        arrays["told"] = np.array(text)
        write_whole(Path(checkpoint), lambda file: np.savez(file, **arrays), is_private=False)

    def restore(self, checkpoint: str | os.PathLike[str]) -> None:
        """Makes the model of what ``save`` wrote, or takes the weights of a trial's ``best.ckpt``. Runs no code of the file."""
        from orca.adapters.keras.training import relearn

        check_archive(checkpoint)
        with np.load(checkpoint) as file:
            if "told" not in file.files:
                self._spec.load_weights(self._fitted(), file)
                return
            told = json.loads(str(file["told"]))
            arrays = iter([file[str(i)] for i in range(len(file.files) - 1)])
        self.build(told["config"])
        groups = [[next(arrays) for _ in range(count)] for count in told["parts"]]
        relearn(self.model, groups, told["build"])


class KerasModelBuilder:
    """Makes a ``KerasBaseModel`` of a configuration.

    Args:
        model_creator: ``f(config)`` of a compiled Keras 3 model.
    """

    def __init__(self, model_creator: Callable[[dict[str, Any]], Any]) -> None:
        self.spec = KerasSpec(model_creator)

    def build(self, config: dict[str, Any]) -> KerasBaseModel:
        """Its model."""
        model = KerasBaseModel(self.spec.creator)
        model.build(config)
        return model

    def build_from_ckpt(self, checkpoint_filename: str) -> KerasBaseModel:
        """The model of a file that ``KerasBaseModel.save`` wrote."""
        model = KerasBaseModel(self.spec.creator)
        model.restore(checkpoint_filename)
        return model

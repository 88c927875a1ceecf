"""A PyTorch model that is trained and measured in one call, in this process: a trial by hand."""

from __future__ import annotations

import importlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from orca.adapters.torch.names import load_plain_state
from orca.adapters.torch.records import read_file, write_file
from orca.adapters.torch.tuning import (
    TorchSpec,
    check_loader,
    sizes_of,
    targets_of,
    wants_classes,
)
from orca.automl.metrics import Evaluator
from orca.errors import FailedPreconditionError, InvalidArgumentError


class PytorchBaseModel:
    """The model of a configuration, with its optimizer and its loss. One thread uses it.

    Args:
        model_creator: ``f(config)`` of a ``torch.nn.Module``.
        optimizer_creator: ``f(model, config)``, or a class of ``torch.optim`` or its name.
        loss_creator: ``f(config)``, a loss, or the name of a class of ``torch.nn``.

    Attributes:
        model: The module, None before ``build``.
        config: What it was made of.
    """

    def __init__(self, model_creator: Any, optimizer_creator: Any, loss_creator: Any) -> None:
        self._spec = TorchSpec(model_creator, optimizer_creator, loss_creator)
        self.config: dict[str, Any] = {}
        self.model: Any = None
        self.optimizer: Any = None
        self.criterion: Any = None
        self._onnx: Any = None  # What runs the model's copy, until the next training.

    def build(self, config: dict[str, Any]) -> None:
        """Makes the model."""
        self.config = dict(config)
        self.model = self._spec.new_model(self._spec.sizes | self.config)
        self.optimizer = self._spec.new_optimizer(self.model, self.config)
        self.criterion = self._spec.new_loss(self.config)
        self._onnx = None

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
            data: ``(x, y)``, cut into batches of ``config["batch_size"]``; a ``DataLoader``, or a creator ``f(config)`` of one.
            validation_data: As ``data``; required.
            mc: Must be False: trials are measured without dropout.
            verbose: Accepted; it prints nothing.
            epochs: How often all rows are used.
            metric: A name of ``Evaluator``, or of ``metric_func``.
            metric_func: ``f(y_true, y_pred)``.
            resources_per_trial: ``{"cpu": k}`` sets torch's threads.
            **config: More of the configuration.

        Returns:
            The metric, by its name.
        """
        if mc:
            raise InvalidArgumentError("mc=True is not in this release; leave it out")
        if validation_data is None:
            raise InvalidArgumentError("You must input validation data!")
        if not metric and metric_func is None:
            raise InvalidArgumentError("You must input a valid metric value for fit_eval.")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise InvalidArgumentError(f"epochs {epochs!r} is not a whole number of 1 or more")
        if resources_per_trial is not None:
            torch.set_num_threads(int(resources_per_trial["cpu"]))
        if self.model is None:
            is_rows = isinstance(data, tuple | list) and len(data) == 2
            if is_rows:
                self._spec.sizes.update(sizes_of(*map(np.asarray, data)))
            self.build(self.config | config)
        else:
            self.config |= config
        batches, held = self._batches(data), self._batches(validation_data)
        self._onnx = None
        for _ in range(epochs):
            self._train(batches)
        truth, found = self._outputs(held)
        name: str = metric if metric else getattr(metric_func, "__name__", "metric")
        if metric_func is not None:
            return {name: float(np.mean(metric_func(truth, found)))}
        return {name: float(np.mean(Evaluator.evaluate(name, truth, found, "uniform_average")))}

    def _batches(self, data: Any) -> Iterable[Any]:
        if isinstance(data, DataLoader):
            return data
        if callable(data):
            made: Iterable[Any] = data(dict(self.config))
            check_loader(made)
            return made
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise InvalidArgumentError(
                f"data/validation_data should be a tuple or data creator function but found {type(data).__name__}"
            )
        if "batch_size" not in self.config:
            raise InvalidArgumentError(
                "arrays are cut into batches of config['batch_size']; put it into the configuration"
            )
        labels = targets_of(np.ascontiguousarray(data[1]), wants_classes(self.criterion))
        x, y = torch.from_numpy(_columns(data[0])), torch.from_numpy(labels)
        if len(x) != len(y):
            raise InvalidArgumentError(f"x has {len(x)} rows, y has {len(y)}; give as many")
        size = int(self.config["batch_size"])
        return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)

    def _train(self, batches: Iterable[Any]) -> None:
        self.model.train()
        for x, y in batches:
            self.optimizer.zero_grad()
            self.criterion(self.model(x), y).backward()
            self.optimizer.step()

    def _outputs(self, batches: Iterable[Any]) -> tuple[Any, Any]:
        self.model.eval()
        with torch.no_grad():
            parts = [(y.numpy(), self.model(x).numpy()) for x, y in batches]
        truth, found = zip(*parts, strict=True)
        return np.concatenate(truth), np.concatenate(found)

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
        self._fitted().train(mc)
        with torch.no_grad():
            rows = torch.from_numpy(_columns(x)).split(int(batch_size))
            return np.concatenate([self.model(part).numpy() for part in rows])

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
        return [Evaluator.evaluate(m, _columns(y), found, multioutput) for m in metrics]

    def predict_with_onnx(
        self, x: Any, mc: bool = False, dirname: str | None = None, batch_size: int = 32
    ) -> Any:
        """The model's outputs, by ONNX Runtime.

        Args:
            x: Rows.
            mc: Must be False: what is exported has no dropout.
            dirname: Where the ONNX file is kept; by default nowhere.
            batch_size: Rows at a time.
        """
        if mc:
            raise InvalidArgumentError("mc=True is not in this release; leave it out")
        rows = _columns(x)
        if self._onnx is None:
            self._onnx = self._export(rows[:1], dirname)
        name = self._onnx.get_inputs()[0].name
        cuts = range(0, len(rows), int(batch_size))
        return np.concatenate(
            [self._onnx.run(None, {name: rows[cut : cut + int(batch_size)]})[0] for cut in cuts]
        )

    def evaluate_with_onnx(
        self,
        x: Any,
        y: Any,
        metrics: Sequence[str] = ("mse",),
        dirname: str | None = None,
        multioutput: str = "raw_values",
        batch_size: int = 32,
    ) -> list[Any]:
        """As ``evaluate``, by ONNX Runtime."""
        found = self.predict_with_onnx(x, dirname=dirname, batch_size=batch_size)
        return [Evaluator.evaluate(m, _columns(y), found, multioutput) for m in metrics]

    def _export(self, row: Any, dirname: str | None) -> Any:
        model = self._fitted()
        try:
            runtime = importlib.import_module("onnxruntime")
            for name in ("onnx", "onnxscript"):  # torch's exporter needs them.
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ImportError(
                "You should install onnx and onnxruntime to use onnx based method: run "
                "'pip install onnx onnxruntime onnxscript'"
            ) from error
        model.eval()
        with tempfile.TemporaryDirectory() as own, warnings.catch_warnings():
            # torch 2.13's exporter warns of what torch 2.13 does.
            warnings.simplefilter("ignore", FutureWarning)
            file = Path(own if dirname is None else dirname) / "cache.onnx"
            file.parent.mkdir(parents=True, exist_ok=True)
            program = torch.onnx.export(
                model,
                (torch.from_numpy(row),),
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                dynamo=True,
                verbose=False,
            )
            program.save(str(file))
            return runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def save(self, checkpoint: str | os.PathLike[str]) -> None:
        """Writes configuration, weights and optimizer, completely or not at all."""
        state = {
            "config": self.config,
            "sizes": self._spec.sizes,
            "model": self._fitted().state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        write_file(Path(checkpoint), state, is_private=False)

    def restore(self, checkpoint: str | os.PathLike[str]) -> None:
        """Makes the model of what ``save`` wrote, or takes the weights of a trial's ``best.ckpt``. Runs no code of the file."""
        state = read_file(Path(checkpoint))
        self._onnx = None
        if not isinstance(state.get("config"), dict):
            load_plain_state(self._fitted(), state)
            return
        self._spec.sizes.update(state.get("sizes", {}))
        self.build(state["config"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def _columns(array: Any) -> Any:
    """Floats, with a column where there was none."""
    array = np.ascontiguousarray(array, dtype=np.float32)
    return array[:, None] if array.ndim == 1 else array


class PytorchModelBuilder:
    """Makes a ``PytorchBaseModel`` of a configuration; see there for the arguments.

    Example:
        >>> from torch import nn
        >>> builder = PytorchModelBuilder(lambda config: nn.Linear(1, 1), "SGD", "MSELoss")
        >>> builder.build({"lr": 0.1}).model
        Linear(in_features=1, out_features=1, bias=True)
    """

    def __init__(self, model_creator: Any, optimizer_creator: Any, loss_creator: Any) -> None:
        self.spec = TorchSpec(model_creator, optimizer_creator, loss_creator)

    def build(self, config: dict[str, Any]) -> PytorchBaseModel:
        """Its model."""
        model = self._new()
        model.build(config)
        return model

    def build_from_ckpt(self, checkpoint_filename: str) -> PytorchBaseModel:
        """The model of a file that ``PytorchBaseModel.save`` wrote."""
        model = self._new()
        model.restore(checkpoint_filename)
        return model

    def _new(self) -> PytorchBaseModel:
        spec = self.spec
        model = PytorchBaseModel(spec.model_creator, spec.optimizer, spec.loss)
        model._spec.sizes.update(spec.sizes)  # Of the data of a search that this builder was in.
        return model

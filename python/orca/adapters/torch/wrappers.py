"""``TorchModel``, ``TorchLoss`` and ``TorchOptim``: torch's objects by the names that Analytics Zoo wrapped them in.

Example:
    >>> import torch
    >>> model = TorchModel.from_pytorch(torch.nn.Linear(2, 1))
    >>> model.get_weights()[0].shape
    (3,)
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn

from orca.adapters.torch.records import read_file, write_file
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.files import is_own
from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["TorchLoss", "TorchModel", "TorchOptim", "zoo_pickle_module"]

_DECAYS = {"EpochDecay": "epoch", "IterationDecay": "batch", "EpochDecayByScore": "manual"}

zoo_pickle_module = types.ModuleType("zoo_pickle_module", "pickle, for functions and classes, too.")
vars(zoo_pickle_module).update(
    {name: getattr(pickle, name) for name in dir(pickle) if not name.startswith("__")},
    dump=cloudpickle.dump,
    dumps=cloudpickle.dumps,
    Pickler=cloudpickle.Pickler,
)


class TorchModel:
    """A PyTorch model, as a layer of BigDL looked.

    Made by ``from_pytorch``. Training does not change it: what was trained is in the result.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    @staticmethod
    def from_pytorch(model: Any) -> TorchModel:
        """Wraps a ``torch.nn.Module``, or what a function or class without arguments makes."""
        if isinstance(model, TorchModel):
            return model
        made = model if isinstance(model, nn.Module) else model() if callable(model) else model
        if not isinstance(made, nn.Module):
            raise InvalidArgumentError(
                f"{made!r} is no PyTorch model; give a torch.nn.Module, or a function that makes one"
            )
        return TorchModel(made)

    from_value = from_pytorch

    @property
    def module(self) -> nn.Module:
        """The model itself, with the parameters that an optimizer knows."""
        return self._module

    def to_pytorch(self) -> nn.Module:
        """A copy of the model with its weights and buffers."""
        return copy.deepcopy(self._module)

    def forward(self, input: Any) -> Any:
        """The output for an array or several, as arrays; in the mode that the model is in."""
        given = input if isinstance(input, list | tuple) else [input]
        kind = next((p.dtype for p in self._module.parameters()), torch.float32)
        tensors = [torch.as_tensor(np.asarray(each), dtype=kind) for each in given]
        with torch.no_grad():
            return _arrays(self._module(*tensors))

    def evaluate(self) -> TorchModel:
        """Sets the mode of evaluation."""
        self._module.eval()
        return self

    def training(self, is_training: bool = True) -> TorchModel:
        """Sets the mode of training."""
        self._module.train(is_training)
        return self

    def get_weights(self) -> list[np.ndarray]:
        """All trained parameters, in one flat array."""
        parts = [p.detach().numpy().reshape(-1) for p in self._trained()]
        return [np.concatenate(parts) if parts else np.empty(0, np.float32)]

    def set_weights(self, weights: Any) -> None:
        """Takes what ``get_weights`` gave."""
        flat = np.asarray(weights[0]).reshape(-1)
        wanted = sum(p.numel() for p in self._trained())
        if flat.size != wanted:
            raise InvalidArgumentError(
                f"there are {flat.size} weights and the model has {wanted}; give what get_weights() of "
                "such a model gave"
            )
        with torch.no_grad():
            for parameter in self._trained():
                part, flat = flat[: parameter.numel()], flat[parameter.numel() :]
                parameter.copy_(torch.as_tensor(part).reshape(parameter.shape))

    def predict(self, x: Any, batch_size: int = 32, distributed: bool = True) -> Any:
        """The output in the mode of evaluation, of an array or of an RDD of rows."""
        if hasattr(x, "mapPartitions"):
            return x.mapPartitions(_Predictions(self.to_pytorch().eval(), batch_size))
        model = TorchModel(self.to_pytorch()).evaluate()
        several = isinstance(x, list | tuple)
        columns = [np.asarray(each) for each in (x if several else [x])]
        parts = [
            model.forward([column[i : i + batch_size] for column in columns])
            for i in range(0, len(columns[0]), batch_size)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def saveModel(  # noqa: N802
        self,
        path: str | os.PathLike[str],
        over_write: bool = False,
    ) -> None:
        """Writes the whole model; ``loadModel`` has to trust the file."""
        if Path(path).exists() and not over_write:
            raise FailedPreconditionError(f"{path} is there already; give over_write=True")
        write_file(Path(path), self._module, is_private=False, pickle_module=zoo_pickle_module)

    @staticmethod
    def loadModel(path: str | os.PathLike[str], trust: bool = False) -> TorchModel:  # noqa: N802
        """Reads what ``saveModel`` wrote. That runs the code in it: of your own files, or of any that you trust."""
        with Path(path).open("rb") as stream:
            if not trust and not is_own(stream):
                raise InvalidArgumentError(
                    f"{path} is a pickle that another user may have written, and loading it runs the code in it; "
                    "give loadModel(..., trust=True) if you trust it"
                )
            pickled: dict[str, Any] = {"weights_only": False, "pickle_module": zoo_pickle_module}
            return TorchModel(read_file(Path(path), stream, **pickled))

    def to_bytes(self) -> bytes:
        """What ``saveModel`` writes."""
        file = io.BytesIO()
        torch.save(self._module, file, pickle_module=zoo_pickle_module)
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> TorchModel:
        """The model of ``to_bytes``. It may run code: give only what you trust."""
        file = io.BytesIO(data)
        return TorchModel(torch.load(file, pickle_module=zoo_pickle_module, weights_only=False))

    def _trained(self) -> Iterator[nn.Parameter]:
        return (p for p in self._module.parameters() if p.requires_grad)


class TorchLoss:
    """A loss of PyTorch, or any function of output and target."""

    def __init__(self, criterion: Callable[..., Any]) -> None:
        self.criterion = criterion

    @staticmethod
    def from_pytorch(criterion: Any) -> TorchLoss:
        """Wraps a criterion, or a function of input and label."""
        if isinstance(criterion, TorchLoss):
            return criterion
        if not callable(criterion):
            raise InvalidArgumentError(
                f"{criterion!r} is no loss; give a torch criterion or a function of input and label"
            )
        return TorchLoss(criterion)

    def forward(self, input: Any, target: Any) -> float:
        """The loss of arrays."""
        given = [
            [torch.as_tensor(np.asarray(e)) for e in each]
            if isinstance(each, list | tuple)
            else torch.as_tensor(np.asarray(each))
            for each in (input, target)
        ]
        with torch.no_grad():
            return float(self.criterion(*given))

    def for_training(self) -> Any:
        """The loss as Estimators call it."""
        return self.criterion if isinstance(self.criterion, nn.Module) else _OfWhole(self.criterion)


class _OfWhole:
    """A function of input and label, where the input is the whole output of a model, also of several parts."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, first: Any, second: Any, *others: Any) -> Any:
        *outputs, target = (first, second, *others)
        return self._function(outputs[0] if len(outputs) == 1 else outputs, target)


class TorchOptim:
    """A torch optimizer, or a scheduler with its optimizer.

    Attributes:
        step_freq: When the scheduler steps, as ``Estimator.from_torch`` calls it.
    """

    def __init__(self, optim: Any, decay_type: str = "EpochDecay") -> None:
        if decay_type not in _DECAYS:
            raise InvalidArgumentError(
                f"decayType {decay_type!r} is not known; give one of {', '.join(_DECAYS)}"
            )
        is_optimizer = isinstance(optim, torch.optim.Optimizer)
        optimizer = optim if is_optimizer else getattr(optim, "optimizer", None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"{optim!r} is neither a torch optimizer nor a learning rate scheduler of torch"
            )
        self.optimizer = optimizer
        self.scheduler = None if is_optimizer else optim
        self.decay_type = decay_type
        self.step_freq = _DECAYS[decay_type]

    @staticmethod
    def from_pytorch(optim: Any, decayType: str = "EpochDecay") -> TorchOptim:  # noqa: N803
        """Wraps a torch optimizer or scheduler.

        Args:
            optim: The optimizer, or the scheduler of one.
            decayType: When a scheduler steps: ``"EpochDecay"``, ``"IterationDecay"``, or
                ``"EpochDecayByScore"``, after an epoch with the first score of its validation.
        """
        return optim if isinstance(optim, TorchOptim) else TorchOptim(optim, decayType)

    def of(self, model: nn.Module, learning_rate: float | None) -> tuple[nn.Module, Any, Any]:
        """Copies of a model, of the optimizer on it and of its scheduler, for one training."""
        own = {id(p) for p in model.parameters()}
        if not all(id(p) in own for g in self.optimizer.param_groups for p in g["params"]):
            if self.scheduler is not None or len(self.optimizer.param_groups) > 1:
                raise InvalidArgumentError(
                    "the optimizer has parameters of another model; make it with those of the model "
                    "that is trained"
                )
            model = copy.deepcopy(model)
            optimizer = type(self.optimizer)(model.parameters(), **self.optimizer.defaults)
            scheduler = None
        else:
            # Together, so that the copies know one another.
            model, optimizer, scheduler = copy.deepcopy((model, self.optimizer, self.scheduler))
        if learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        return model, optimizer, scheduler

    def callbacks(self) -> list[Callback]:
        """What has to be called in training beside."""
        by_score = self.scheduler is not None and self.decay_type == "EpochDecayByScore"
        return [_StepByScore()] if by_score else []


class _StepByScore(Callback):
    """Steps a scheduler such as ReduceLROnPlateau."""

    def after_train_epoch(self, runner: Any) -> None:
        stats = runner.epoch_stats
        known = ("epoch", "batch_count", "num_samples", "train_loss", "last_train_loss")
        scores = [name for name in stats if name not in (*known, "val_loss", "val_num_samples")]
        name = next(iter(scores), "val_loss")
        if name not in stats:
            raise InvalidArgumentError(
                "EpochDecayByScore needs the score of a validation; call setValidation"
            )
        runner.scheduler.step(float(stats[name]))


class Shaped(nn.Module):
    """A model whose rows come flat: cut into parts, each of its own shape, and of the model's type.

    Args:
        model: What gets the parts.
        sizes: The shape of each part; None: rows as they are.
    """

    def __init__(self, model: nn.Module, sizes: tuple[tuple[int, ...], ...] | None) -> None:
        super().__init__()
        self.model = model
        self.sizes = sizes

    def forward(self, rows: torch.Tensor) -> Any:
        """The output of the model."""
        if is_double(self.model):
            rows = rows.double()
        if self.sizes is None:
            return self.model(rows)
        flat = rows.reshape(len(rows), -1)
        counts = [int(np.prod(size)) for size in self.sizes]
        if flat.shape[1] != sum(counts):
            raise InvalidArgumentError(
                f"a row has {flat.shape[1]} numbers, and the sizes {list(map(list, self.sizes))} of the "
                f"preprocessing want {sum(counts)}"
            )
        parts = torch.split(flat, counts, dim=1)
        return self.model(*(p.reshape(-1, *s) for p, s in zip(parts, self.sizes, strict=True)))


def is_double(model: nn.Module) -> bool:
    """Whether a model has weights of float64."""
    return any(p.dtype is torch.float64 for p in model.parameters())


class _Predictions:
    """What predicts the rows of a partition."""

    def __init__(self, module: nn.Module, batch_size: int) -> None:
        self._module, self._batch_size = module, batch_size

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        model = TorchModel(self._module)
        batch: list[Any] = []
        for row in rows:
            batch.append(row.feature.to_ndarray() if hasattr(row, "feature") else row)
            if len(batch) == self._batch_size:
                yield from model.forward(np.stack(batch))
                batch = []
        if batch:
            yield from model.forward(np.stack(batch))


def _arrays(output: Any) -> Any:
    if isinstance(output, list | tuple):
        return [_arrays(each) for each in output]
    return output.detach().numpy()

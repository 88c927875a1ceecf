"""A trial of a PyTorch model: an Estimator on one worker, an epoch at a time."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from orca.adapters.torch.devices import seed_cpu
from orca.adapters.torch.metrics import PytorchMetric
from orca.adapters.torch.names import load_plain_state
from orca.adapters.torch.records import write_file
from orca.automl.metrics import Evaluator
from orca.data import ArrayStore
from orca.errors import InvalidArgumentError
from orca.learn.metrics import Metric
from orca.pickles import dumps

_MEASURED = "measured"
# Losses whose targets are indices of classes.
_CLASSES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.MultiMarginLoss)


class _Whole(PytorchMetric):
    """A function of all targets and all outputs."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._parts: list[tuple[Any, Any]] = []

    def __call__(self, preds: Any, targets: Any) -> None:
        self._parts.append((_array(targets), _array(preds)))

    def compute(self) -> Any:
        """The function's value."""
        truth, found = (np.concatenate(side) for side in zip(*self._parts, strict=True))
        value = float(np.mean(self._function(truth, found)))
        return torch.tensor(value, dtype=torch.float64)

    def state(self) -> bytes:
        """All rows."""
        return pickle.dumps(self._parts)

    def merge(self, state: bytes) -> None:
        """Adds the rows of another one."""
        self._parts += pickle.loads(state)

    def reset(self) -> None:
        """Forgets all rows."""
        self._parts = []


class _OfAllRows(Metric):
    """A function of targets and outputs, for an Estimator."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def get_name(self) -> str:
        """Its name in the results."""
        return _MEASURED

    def get_pytorch_metric(self) -> PytorchMetric:
        """What measures."""
        return _Whole(self._function)


def _array(value: Any) -> Any:
    """A copy: targets are part of their batch's memory, which would stay for all of them."""
    return np.array(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)


@dataclass(frozen=True)
class TorchSpec:
    """What all trials of a search have in common.

    Attributes:
        model_creator: ``f(config)``.
        optimizer: ``f(model, config)``, or a class of ``torch.optim`` or its name.
        loss: A loss, ``f(config)``, or a name of ``torch.nn``.
    """

    model_creator: Callable[[dict[str, Any]], Any]
    optimizer: Any
    loss: Any
    measures_training: ClassVar[bool] = False
    """Whether a metric other than the loss can be had without validation data."""

    def pickled(self) -> bytes:
        """For workers. Functions take milliseconds, and are the same for all trials."""
        found: bytes | None = self.__dict__.get("_pickled")
        if found is None:
            names = ("model_creator", "optimizer", "loss")
            dumps(
                (self.model_creator, self.optimizer, self.loss), names
            )  # Names what cannot be sent.
            found = cloudpickle.dumps(self)
            object.__setattr__(self, "_pickled", found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pickled"}

    def __post_init__(self) -> None:
        """Checks the names."""
        if not callable(self.model_creator):
            raise InvalidArgumentError("You must create a torch model in model_creator")
        self.new_loss({}, only_check=True)
        if isinstance(self.optimizer, str):
            _by_name(self.optimizer, torch.optim, torch.optim.Optimizer, "optimizer")
        elif not callable(self.optimizer):
            raise InvalidArgumentError(
                "optimizer is a creator f(model, config) or the name of a torch optimizer"
            )

    def new_model(self, config: dict[str, Any]) -> torch.nn.Module:
        """The model of a configuration."""
        model = self.model_creator(dict(config))
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgumentError("You must create a torch model in model_creator")
        return model

    def new_optimizer(self, model: Any, config: dict[str, Any]) -> Any:
        """Its optimizer."""
        made = self.optimizer
        if isinstance(made, str):
            made = _by_name(made, torch.optim, torch.optim.Optimizer, "optimizer")
        if not isinstance(made, type):
            return made(model, dict(config))
        return made(model.parameters(), lr=config.get("lr", 1e-3))

    def new_loss(self, config: dict[str, Any], *, only_check: bool = False) -> Any:
        """Its loss."""
        if isinstance(self.loss, str):
            made = _by_name(self.loss, torch.nn, torch.nn.modules.loss._Loss, "loss")
            return None if only_check else made()
        if isinstance(self.loss, torch.nn.Module):
            return self.loss
        if not callable(self.loss):
            raise InvalidArgumentError(
                "loss is a torch loss, a creator f(config), or the name of a torch loss"
            )
        return None if only_check else self.loss(dict(config))

    def named_metric(self, name: str, mode: str | None) -> tuple[Any, str]:
        """The function behind a name, and its direction."""
        Evaluator.check_metric(name)
        return Evaluator.metrics_func[name.lower()], mode or Evaluator.get_metric_mode(name)

    def trials(
        self, data: Any, validation: Any, columns: dict[str, Any], metric: Any, threads: int
    ) -> Callable[[dict[str, Any], int], TorchTrial]:
        """What makes a trial of a configuration and a seed."""
        train = TorchData(data, self.loss, columns)
        other = None if validation is None else TorchData(validation, self.loss, columns)
        return lambda config, seed: TorchTrial(self, config, train, other, metric, threads, seed)

    def load_best(self, config: dict[str, Any], path: Path) -> torch.nn.Module:
        """The model of a configuration with the weights that a trial saved."""
        model = self.new_model(config)
        load_plain_state(model, torch.load(path, weights_only=True))
        return model


@dataclass(frozen=True)
class _Made:
    """The creators of one trial, which travel as they are."""

    spec: bytes
    config: dict[str, Any]
    seed: int

    @functools.cached_property
    def _spec(self) -> TorchSpec:
        found: TorchSpec = pickle.loads(self.spec)
        return found

    def model(self, _config: dict[str, Any]) -> Any:
        seed_cpu(self.seed)
        return self._spec.new_model(self.config)

    def optimizer(self, model: Any, _config: dict[str, Any]) -> Any:
        return self._spec.new_optimizer(model, self.config)

    def loss(self, _config: dict[str, Any]) -> Any:
        return self._spec.new_loss(self.config)


def _by_name(name: str, module: Any, base: type, what: str) -> Any:
    known = {n: c for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base)}
    if name not in known:
        raise InvalidArgumentError(
            f"Must provide a valid torch {what} name among {sorted(known)}, got {name!r}"
        )
    return known[name]


class TorchData:
    """Training or validation data, in memory that all trials share.

    Args:
        data: ``(x, y)``, a ``DataLoader``, a creator ``f(config)`` of one, shards or a data frame.
        loss: Which tells labels from values.
        columns: ``feature_cols`` and ``label_cols`` of data frames.
    """

    def __init__(self, data: Any, loss: Any, columns: dict[str, Any]) -> None:
        self.sizes: dict[str, int] = {}
        self.columns = columns
        self.needs_batch_size = True
        self._given = data
        self._pickled: bytes | None = None  # A creator.
        if isinstance(data, tuple | list):
            if len(data) != 2:
                raise InvalidArgumentError(f"data is (x, y), not {len(data)} things")
            x, y = (np.asarray(part) for part in data)
            if len(x) != len(y):
                raise InvalidArgumentError(f"x has {len(x)} rows, y has {len(y)}; give as many")
            self._given = ArrayStore()
            self._given.put({"x": _columns(x), "y": _targets(y, loss)})
            self.sizes = _sizes(_columns(x), _columns(y))
        elif isinstance(data, DataLoader) or callable(data):
            self.needs_batch_size = False

    def of(self, config: dict[str, Any]) -> Any:
        """What an Estimator takes, for a configuration."""
        if isinstance(self._given, DataLoader) or not callable(self._given):
            return self._given
        if self._pickled is None:
            dumps((self._given,), ("data",))  # Names what cannot be sent.
            self._pickled = cloudpickle.dumps(self._given)
        return _Creator(self._pickled, config)


class _Noting(dict[str, Any]):
    """A configuration that knows which of its keys were read. What reads it as a whole reads all."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self.read.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().setdefault(key, default)


def _reads_all(name: str) -> Callable[..., Any]:
    def method(self: _Noting, *arguments: Any) -> Any:
        self.read.update(dict.keys(self))
        return getattr(dict, name)(self, *arguments)

    return method


for _name in ("__eq__", "__ne__", "__iter__", "__len__", "__or__", "__ror__", "__repr__"):
    setattr(_Noting, _name, _reads_all(_name))
for _name in ("__reversed__", "copy", "items", "keys", "popitem", "values"):
    setattr(_Noting, _name, _reads_all(_name))


_ABSENT = object()
_LOADED = 4  # Creators whose last loader a worker keeps.
_loaded: dict[bytes, tuple[dict[str, Any], Any]] = {}


@dataclass(frozen=True)
class _Creator:
    """A data creator of the user's. A worker keeps what it loaded for the trials whose configurations have the same
    values for all keys that it read.
    """

    pickled: bytes
    config: dict[str, Any]

    def __call__(self, _config: dict[str, Any], _batch_size: int) -> Any:
        read, loader = _loaded.get(self.pickled, ({}, None))
        if loader is not None and all(self._has(key, value) for key, value in read.items()):
            return loader
        _loaded.pop(self.pickled, None)  # Not two of them in memory.
        config = _Noting(self.config)
        # Whether a trial finds a loader or makes it must not change what else it draws.
        with torch.random.fork_rng(devices=[]):
            seed_cpu(0)
            loader = pickle.loads(self.pickled)(config)
        if _may_be_shared(loader):
            if len(_loaded) >= _LOADED:
                del _loaded[next(iter(_loaded))]
            read = {key: self.config.get(key, _ABSENT) for key in config.read}
            _loaded[self.pickled] = (read, loader)
        return loader

    def _has(self, key: str, value: Any) -> bool:
        mine = self.config.get(key, _ABSENT)
        try:
            return mine is value or (type(mine) is type(value) and bool(mine == value))
        except (TypeError, ValueError):  # Arrays, say.
            return False


def _may_be_shared(loader: Any) -> bool:
    """Whether a loader gives a trial the same rows whoever had it before."""
    return (
        type(loader) is DataLoader
        and not isinstance(loader.dataset, IterableDataset)
        and type(loader.sampler) in (RandomSampler, SequentialSampler)
        and type(loader.batch_sampler) in (BatchSampler, type(None))
        and loader.generator is None
        and getattr(loader.sampler, "generator", None) is None
        and not loader.persistent_workers
    )


def _columns(array: Any) -> Any:
    """Floats as the models of old had them: a column where there was none."""
    array = array.astype(np.float32)
    return array[:, None] if array.ndim == 1 else array


def _targets(array: Any, loss: Any) -> Any:
    is_class = isinstance(loss, _CLASSES) or loss in [c.__name__ for c in _CLASSES]
    if is_class and np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int64).reshape(array.shape[0], *array.shape[1:])
    return _columns(array)


def _sizes(x: Any, y: Any) -> dict[str, int]:
    """What model creators for series find in their configuration."""
    found = {"input_feature_num": x.shape[-1], "output_feature_num": y.shape[-1]}
    if x.ndim > 2:
        found |= {"past_seq_len": x.shape[-2]}
    if y.ndim > 1:
        found |= {"future_seq_len": y.shape[-2] if y.ndim > 2 else 1}
    return found


class TorchTrial:
    """One configuration under way.

    Args:
        spec: The model.
        config: Its values.
        data: To train on.
        validation: To measure on; None: the training loss is what is measured.
        metric: ``f(y_true, y_pred)``; None: the mean loss.
        threads: Compute threads.
        seed: Of its random numbers.
    """

    def __init__(
        self,
        spec: TorchSpec,
        config: dict[str, Any],
        data: TorchData,
        validation: TorchData | None,
        metric: Callable[[Any, Any], Any] | None,
        threads: int,
        seed: int,
    ) -> None:
        from orca.learn.pytorch import Estimator

        self._config = {**data.sizes, **config}
        self._data, self._validation, self._seed = data, validation, seed
        self._has_metric = metric is not None
        self._batch = None
        if data.needs_batch_size:
            if "batch_size" not in config:
                raise InvalidArgumentError(
                    "arrays are cut into batches of config['batch_size']; put \"batch_size\" into search_space"
                )
            self._batch = int(config["batch_size"])
        made = _Made(spec.pickled(), self._config, seed)
        self._estimator = Estimator.from_torch(
            model=made.model,
            optimizer=made.optimizer,
            loss=made.loss,
            metrics=[_OfAllRows(metric)] if metric is not None and validation is not None else None,
            workers_per_node=1,
        )
        self._estimator.threads, self._estimator.is_quiet = threads, True
        self._estimator.is_trial = True

    def epoch(self) -> float:
        """Trains once on all rows; returns the metric."""
        stats = self._estimator.fit(
            self._data.of(self._config),
            epochs=1,
            validation_data=None if self._validation is None else self._validation.of(self._config),
            seed=self._seed,
            on_failure="raise",
            batch_size=self._batch,
            **self._data.columns,
        )
        if self._validation is None:
            return float(stats[-1]["train_loss"])
        return float(stats[-1][f"val_{_MEASURED}" if self._has_metric else "val_loss"])

    def save(self, path: Path) -> None:
        """Writes the weights."""
        write_file(path, self._estimator.get_state_dict()["models"][0])

    def save_state(self, path: Path, note: dict[str, Any]) -> None:
        """Writes all that it goes on with, and a note of plain values."""
        write_file(path, {"note": note, "state": self._estimator.get_state_dict()})

    def load_state(self, path: Path, *, only_weights: bool = False) -> dict[str, Any]:
        """Goes on from what ``save_state`` of this trial wrote, or with the weights of another; returns the note."""
        found = torch.load(path, weights_only=True)
        state = found["state"]
        self._estimator.load_state_dict(state["models"][0] if only_weights else state)
        note: dict[str, Any] = found["note"]
        return note

    def close(self) -> None:
        """Frees its memory; that of workers with their next call."""
        del self._estimator

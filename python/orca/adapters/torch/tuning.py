"""Trials of a PyTorch model, each on one worker, an epoch at a time."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
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

from orca import running
from orca.adapters.torch import trial_epochs
from orca.adapters.torch.devices import seed_cpu
from orca.adapters.torch.feeds import ArraySource, LoaderSource
from orca.adapters.torch.losses import required_arguments
from orca.adapters.torch.names import load_plain_state
from orca.adapters.torch.records import read_file, write_file
from orca.automl.metrics import Evaluator
from orca.automl.reads import NotingDict, own_copy
from orca.context import current_context
from orca.data import ArrayStore, Shard
from orca.data.rows import store_of
from orca.errors import InvalidArgumentError, WorkerFailedError
from orca.files import write_content
from orca.pickles import dumps

_BATCH_SIZES = {"batch_size", "batch_size_log", "batch_size_float"}  # The last two: of the old API.
_RATES = {"lr", "learning_rate"}
# Losses whose targets are indices of classes.
_CLASSES = (
    torch.nn.CrossEntropyLoss,
    torch.nn.NLLLoss,
    torch.nn.MultiMarginLoss,
    torch.nn.MultiLabelMarginLoss,
)
_CLASS_FUNCTIONS = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


@dataclass(frozen=True)
class TorchSpec:
    """What all trials of a search have in common.

    Attributes:
        model_creator: ``f(config)``.
        optimizer: ``f(model, config)``, or a class of ``torch.optim`` or its name.
        loss: A loss or a class of one, ``f(output, target)``, ``f(config)``, or a name of ``torch.nn``.
        sizes: What model creators find in their configuration beside its own values, once the data is known.
    """

    model_creator: Callable[[dict[str, Any]], Any]
    optimizer: Any
    loss: Any
    sizes: dict[str, int] = field(default_factory=dict, init=False, compare=False)
    measures_training: ClassVar[bool] = False
    """Whether a metric other than the loss can be had without validation data."""
    forget_trials: ClassVar[Any] = staticmethod(trial_epochs.forget)
    """What frees the memory that workers keep of trials, there; None: they keep little."""

    def __post_init__(self) -> None:
        """Checks the names."""
        if isinstance(self.model_creator, torch.nn.Module):
            kind = type(self.model_creator).__name__
            raise InvalidArgumentError(
                f"model_creator is a model, a {kind}, and every trial needs one of its own; give a function that "
                f"makes it: lambda config: {kind}(...)"
            )
        if not callable(self.model_creator):
            raise InvalidArgumentError("You must create a torch model in model_creator")
        self.new_loss({}, only_check=True)
        if isinstance(self.optimizer, str):
            _by_name(self.optimizer, torch.optim, torch.optim.Optimizer, "optimizer")
        elif not callable(self.optimizer):
            raise InvalidArgumentError(
                "optimizer is a creator f(model, config) or the name of a torch optimizer"
            )

    @staticmethod
    def make_ahead(trials: list[TorchTrial]) -> None:
        """Has one worker make the first epochs of trials, for when they are asked for."""
        orders = [trial.order() for trial in trials]
        threads = trials[0].threads
        (found,) = running.run(trial_epochs.make_all, (orders,), workers=1, threads=threads)
        for trial, made in zip(trials, found, strict=True):
            trial.made = made

    def new_model(self, config: dict[str, Any]) -> torch.nn.Module:
        """The model of a configuration."""
        model = self.model_creator(own_copy(config))
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgumentError("You must create a torch model in model_creator")
        return model

    def new_optimizer(self, model: Any, config: dict[str, Any]) -> Any:
        """Its optimizer."""
        made = self.optimizer
        if isinstance(made, str):
            made = _by_name(made, torch.optim, torch.optim.Optimizer, "optimizer")
        if not isinstance(made, type):
            return made(model, own_copy(config))
        is_short = dict.__contains__(config, "lr")  # To ask is not to read.
        rate = config["lr"] if is_short else config.get("learning_rate", 1e-3)
        return made(model.parameters(), lr=rate)

    def new_loss(self, config: dict[str, Any], *, only_check: bool = False) -> Any:
        """Its loss."""
        if isinstance(self.loss, str):
            made = _by_name(self.loss, torch.nn, torch.nn.modules.loss._Loss, "loss")
            return None if only_check else made()
        if isinstance(self.loss, torch.nn.Module):
            return self.loss
        if not callable(self.loss):
            raise InvalidArgumentError(
                "loss is a torch loss, a function of output and target, a creator f(config), or the name of a torch loss"
            )
        if only_check:
            return None
        if self._creates_loss:
            return self.loss(own_copy(config))
        return self.loss() if isinstance(self.loss, type) else self.loss

    @property
    def _creates_loss(self) -> bool:
        """Whether the loss is ``f(config)``."""
        if isinstance(self.loss, str | torch.nn.Module):
            return False
        needed = required_arguments(self.loss)
        return (needed is None or needed <= 1) and not (isinstance(self.loss, type) and needed == 0)

    def named_metric(self, name: str, mode: str | None) -> tuple[Any, str]:
        """The function behind a name, and its direction."""
        Evaluator.check_metric(name)
        return Evaluator.metrics_func[name.lower()], mode or Evaluator.get_metric_mode(name)

    def trials(
        self,
        data: Any,
        validation: Any,
        columns: dict[str, Any],
        metric: Any,
        threads: int,
        keys: Collection[str],
    ) -> Callable[[dict[str, Any], int], TorchTrial]:
        """What makes a trial of a configuration, which has ``keys``, and a seed."""
        train = TorchData(data, columns)
        other = None if validation is None else TorchData(validation, columns, "validation_data")
        if train.needs_batch_size and _BATCH_SIZES.isdisjoint(keys):
            raise InvalidArgumentError(
                "arrays are cut into batches of config['batch_size']; put \"batch_size\" into search_space"
            )
        if _RATES.issubset(keys) and isinstance(self.optimizer, str | type):
            raise InvalidArgumentError(
                "search_space has both 'lr' and 'learning_rate', which are the same rate of the optimizer; give one"
            )
        names = ("model_creator", "optimizer", "loss", "metric")
        dumps(
            (self.model_creator, self.optimizer, self.loss, metric), names
        )  # Names what cannot be sent.
        search = trial_epochs.shared(cloudpickle.dumps((self, None if other is None else metric)))
        self.sizes.clear()
        self.sizes.update(train.sizes)
        fixed = None if self._creates_loss else wants_classes(self.new_loss({}))

        def new_trial(config: dict[str, Any], seed: int) -> TorchTrial:
            config = {**train.sizes, **config}
            has_classes = wants_classes(self.new_loss(config)) if fixed is None else fixed
            return TorchTrial(config, train, other, search, threads, seed, has_classes=has_classes)

        return new_trial

    def load_best(self, config: dict[str, Any], path: Path) -> torch.nn.Module:
        """The model of a configuration with the weights that a trial saved."""
        model = self.new_model(self.sizes | config)
        load_plain_state(model, read_file(path))
        return model


def _by_name(name: str, module: Any, base: type, what: str) -> Any:
    def fits(found: Any) -> bool:
        return isinstance(found, type) and issubclass(found, base)

    found = getattr(module, name, None)
    if fits(found):
        return found
    known = sorted(n for n, one in vars(module).items() if fits(one))
    raise InvalidArgumentError(
        f"Must provide a valid torch {what} name among {known}, got {name!r}"
    )


class TorchData:
    """Training or validation data, in memory that all trials share.

    Args:
        data: ``(x, y)``, a ``DataLoader``, a creator ``f(config)`` of one, shards or a data frame.
        columns: ``feature_cols`` and ``label_cols`` of data frames.
        name: What messages call it.

    Attributes:
        sizes: What model creators for series find in their configuration.
        needs_batch_size: Whether it is rows, which are cut into batches.
    """

    def __init__(self, data: Any, columns: dict[str, Any], name: str = "data") -> None:
        self.sizes: dict[str, int] = {}
        self.needs_batch_size = not (isinstance(data, DataLoader) or callable(data))
        self._given = data
        self._pickled = b""  # A creator.
        self._lock = threading.Lock()
        # By whether integer targets are classes.
        self._stores: dict[bool, ArrayStore] = {}
        self._commons: dict[bool, bytes] = {}
        if not self.needs_batch_size:
            if not isinstance(data, DataLoader):
                dumps(data, (name,))  # Names what cannot be sent.
                self._pickled = cloudpickle.dumps(data)
            return
        if isinstance(data, tuple | list):
            if len(data) != 2:
                raise InvalidArgumentError(f"{name} is (x, y), not {len(data)} things")
            x, y = (np.asarray(part) for part in data)
            if len(x) != len(y):
                raise InvalidArgumentError(f"x has {len(x)} rows, y has {len(y)}; give as many")
            if len(x) == 0:
                raise InvalidArgumentError("x has no rows; give some")
            self._shards: list[Any] = [{"x": x, "y": y}]
        else:
            features, labels = columns.get("feature_cols"), columns.get("label_cols")
            self._shards = store_of(data, features, labels, wants_target=True)[0].shards
        self._given = None
        first = _viewed(self._shards[0])
        self.sizes = sizes_of(first["x"], first["y"])

    def source(self, config: dict[str, Any], *, has_classes: bool) -> ArraySource | LoaderSource:
        """Of the batches of a configuration.

        Args:
            config: The configuration.
            has_classes: Whether targets that are integers stay so.
        """
        if self.needs_batch_size:
            with self._lock:
                if has_classes not in self._stores:
                    self._stores[has_classes] = self._store(has_classes)
                return ArraySource(self._stores[has_classes], has_target=True)
        if isinstance(self._given, DataLoader):
            return LoaderSource(self._given, is_creator=False)
        return LoaderSource(_Creator(self._pickled, config), is_creator=True)

    def common(self, validation: TorchData | None, *, has_classes: bool) -> bytes:
        """The sources of this and of ``validation``, packed, which is the same in each call; empty: trials have their own."""
        if not self.needs_batch_size or (validation and not validation.needs_batch_size):
            return b""
        with self._lock:
            packed = self._commons.get(has_classes)
        if packed is None:
            mine = self.source({}, has_classes=has_classes)
            other = validation and validation.source({}, has_classes=has_classes)
            # Their memory is this object's to hold.
            parts, _ = dumps((mine, other), home=current_context().native.shards)
            (packed,) = map(bytes, parts)
            with self._lock:
                self._commons[has_classes] = packed
        return packed

    def _store(self, has_classes: bool) -> ArrayStore:
        store = ArrayStore()
        for shard in self._shards:
            rows = _viewed(shard)
            made = {"x": _columns(rows["x"]), "y": targets_of(rows["y"], has_classes)}
            is_same = isinstance(shard, Shard) and _is_same(rows, made)
            store.put(shard if is_same else made)  # The memory that it has, where that will do.
        return store


def _viewed(shard: Any) -> Any:
    return shard.view() if isinstance(shard, Shard) else shard


def _is_same(rows: Any, made: Any) -> bool:
    if isinstance(made, dict):
        return all(_is_same(rows[name], made[name]) for name in made)
    if isinstance(made, list | tuple):
        return all(_is_same(*pair) for pair in zip(rows, made, strict=True))
    return rows is made


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
    read: set[str] = field(default_factory=set, compare=False)
    """Keys that were read to make the loader, here or for another trial."""

    def __call__(self, _config: dict[str, Any], _batch_size: int) -> Any:
        read, loader = _loaded.get(self.pickled, ({}, None))
        if loader is not None and all(self._has(key, value) for key, value in read.items()):
            self.read.update(read)
            return loader
        _loaded.pop(self.pickled, None)  # Not two of them in memory.
        config = NotingDict(self.config, self.read)
        # Whether a trial finds a loader or makes it must not change what else it draws.
        with torch.random.fork_rng(devices=[]):
            seed_cpu(0)
            loader = pickle.loads(self.pickled)(config)
        check_loader(loader)
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


def check_loader(made: Any) -> None:
    """Raises unless what a data creator returned gives batches."""
    is_rows = isinstance(made, list | tuple) and any(
        isinstance(part, np.ndarray | torch.Tensor) for part in made
    )
    if (
        is_rows
        or isinstance(made, dict | np.ndarray | torch.Tensor)
        or hasattr(made, "iloc")
        or not hasattr(made, "__iter__")
    ):
        what = f"{type(made).__name__} of arrays" if is_rows else type(made).__name__
        raise InvalidArgumentError(
            f"the data creator returned a {what}; return a torch.utils.data.DataLoader of (x, y), or give (x, y) "
            "itself as the data"
        )


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


def _columns(rows: Any) -> Any:
    """Floats as the models of old had them: a column where there was none. Texts and the like stay."""
    if isinstance(rows, list | tuple):
        return type(rows)(map(_columns, rows))
    if not isinstance(rows, np.ndarray):
        return rows
    rows = rows.astype(np.float32, copy=False)
    return rows[:, None] if rows.ndim == 1 else rows


def targets_of(rows: Any, has_classes: bool) -> Any:
    """Targets as a loss takes them."""
    if isinstance(rows, list | tuple):
        return type(rows)(targets_of(part, has_classes) for part in rows)
    if has_classes and isinstance(rows, np.ndarray) and rows.dtype.kind in "iu":
        return rows.astype(np.int64, copy=False)
    return _columns(rows)


def wants_classes(loss: Any) -> bool:
    """Whether the targets of a loss are indices of classes, where they are integers."""
    return isinstance(loss, _CLASSES) or loss in _CLASS_FUNCTIONS


def sizes_of(x: Any, y: Any) -> dict[str, int]:
    """What model creators for series find in their configuration."""
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):  # Several inputs, or texts.
        return {}
    x, y = _columns(x[:1]), _columns(y[:1])
    found = {"input_feature_num": x.shape[-1], "output_feature_num": y.shape[-1]}
    if x.ndim > 2:
        found |= {"past_seq_len": x.shape[-2]}
    if y.ndim > 1:
        found |= {"future_seq_len": y.shape[-2] if y.ndim > 2 else 1}
    return found


_TOLD = 8
_BATCH = 32
_names = itertools.count()
_ended: tuple[int, ...] = ()  # The last trials that workers need not keep.


class TorchTrial:
    """One configuration under way.

    Args:
        config: Its values.
        data: To train on.
        validation: To measure on; None: the training loss is what is measured.
        search: The pickled spec and metric, for workers.
        threads: Compute threads.
        seed: Of its random numbers.
        has_classes: Whether targets that are integers are classes.

    Attributes:
        made: The next epoch, where it was made ahead of who asks for it.
        read: Keys of the configuration that were read so far.
        seconds: What a worker needed for the last one.
    """

    def __init__(
        self,
        config: dict[str, Any],
        data: TorchData,
        validation: TorchData | None,
        search: Any,
        threads: int,
        seed: int,
        *,
        has_classes: bool,
    ) -> None:
        self._config = config
        self._source: Any = None
        self._validation: Any = None
        self._common = data.common(validation, has_classes=has_classes)
        if not self._common:
            self._source = data.source(self._config, has_classes=has_classes)
            self._validation = validation and validation.source(
                self._config, has_classes=has_classes
            )
        self._search, self.threads, self._seed = search, threads, seed
        # The rest of the data may be rows even if this is not.
        self._batch = int(config["batch_size"]) if data.needs_batch_size else _BATCH
        if self._batch < 1:
            raise InvalidArgumentError(
                f"batch_size should be a positive integer, but got {config['batch_size']!r}"
            )
        self._name = next(_names)
        self._epochs = 0
        self._state: trial_epochs.State | None = None
        self._is_loaded = False  # Whether no worker has seen the state.
        self.made: trial_epochs.Made | trial_epochs.Failed | None = None
        self.seconds = 0.0
        self.read = {"batch_size"} if data.needs_batch_size else set()

    def epoch(self) -> float:
        """Trains once on all rows; returns the metric."""
        made, self.made = self.made, None
        if isinstance(made, trial_epochs.Failed):
            raise WorkerFailedError(**made.failure)
        knows_nothing = self._is_loaded or running.has_fresh_workers()
        if made is None and (self._state is None or not knows_nothing):
            made = self._run(self.order())
        if made is None:  # Another worker has made the epoch before.
            made = self._run(self.order(self._state))
        assert made is not None
        self._state, self._is_loaded, self.seconds = made.state, False, made.seconds
        self._epochs += 1
        self.read.update(made.read)
        return made.value

    def order(self, state: trial_epochs.State | None = None) -> trial_epochs.Order:
        """What a worker is told of the next epoch."""
        return trial_epochs.Order(
            search=self._search,
            name=self._name,
            ended=_ended,
            epochs=self._epochs,
            config=self._config,
            seed=self._seed,
            batch_size=self._batch,
            source=self._source,
            validation=self._validation,
            state=state,
            common=self._common,
            is_local=current_context().is_local,
        )

    def _run(self, order: trial_epochs.Order) -> trial_epochs.Made | None:
        found: list[trial_epochs.Made | None]
        try:
            found = running.run(trial_epochs.make, (order,), workers=1, threads=self.threads)
        except InvalidArgumentError:  # By the names that the user knows.
            sources = (self._source, self._validation)
            given = (each.loader if isinstance(each, LoaderSource) else None for each in sources)
            dumps((*given, self._config), ("data", "validation_data", "config"))
            raise
        return found[0]

    def save(self, path: Path) -> None:
        """Writes the weights; the search makes them last."""
        assert self._state is not None
        weights = trial_epochs.content(self._state.weights)
        write_content(str(path), weights, is_lasting=False)

    def save_state(self, path: Path, note: dict[str, Any]) -> None:
        """Writes all that it goes on with, and a note of plain values."""
        assert self._state is not None
        state = {
            "models": [trial_epochs.loaded(self._state.weights)],
            **trial_epochs.unpacked(self._state.rest),
        }
        write_file(path, {"note": note, "state": state})

    def load_state(self, path: Path, *, only_weights: bool = False) -> dict[str, Any]:
        """Goes on from what ``save_state`` of this trial wrote, or with the weights of another; returns the note."""
        found = read_file(path)
        state = found["state"]
        rest = None
        self._epochs = 0
        if not only_weights:
            rest = trial_epochs.packed(
                {name: state[name] for name in ("epoch", "global_step", "optimizers")}
            )
            self._epochs = int(state["epoch"])
        weights = trial_epochs.saved(state["models"][0])
        self._state, self._is_loaded = trial_epochs.State(weights, rest), True
        self._name = next(_names)  # Whoever knows it knows another state.
        note: dict[str, Any] = found["note"]
        return note

    def close(self) -> None:
        """Frees its memory; that of workers with their next calls. More than once is as good as once."""
        global _ended
        if self._name not in _ended:
            _ended = (*_ended[-_TOLD + 1 :], self._name)
        self._state = None

"""Epochs of Keras models, where TensorFlow runs."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from orca.adapters.keras.names import same_metrics
from orca.adapters.keras.quiet import kept_quiet
from orca.adapters.keras.state import State, Work
from orca.automl.metrics import Evaluator
from orca.automl.reads import NotingDict, own_copy
from orca.data import ArrayStore
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.pickles import loads


class NotFiniteError(FailedPreconditionError):
    """What was learned or measured is NaN or infinite."""


_MOST_KEPT = (
    2  # Two trials may change places between two workers; their models are traced for seconds.
)
_kept: OrderedDict[str, _Live] = OrderedDict()


def epoch(work: Work, step: int, state: State | None) -> tuple[float, State]:
    """Trains a trial's model once on all rows.

    Args:
        work: The trial.
        step: How many epochs it has had.
        state: What it has learned in them; None: nothing.

    Returns:
        The metric, and what it has learned now.
    """
    _begin(work.threads)
    live = _kept.pop(work.key, None) or _Live(work)
    if state is not None and live.version != state.version:
        live.restore(state)
    value = live.epoch(step)
    found = live.state()
    _kept[work.key] = live  # Not one that failed.
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return value, found


def new_model(creator: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """The model of a configuration."""
    model = creator(own_copy(config))
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(
            f"You must create a Keras 3 model in model_creator; it returned a {_type_name(model)}"
        )
    if not model.compiled:
        raise InvalidArgumentError(
            "the model that model_creator returned is not compiled; call model.compile(loss=, optimizer=, "
            "metrics=) in model_creator"
        )
    return model


def load_weights(model: Any, weights: list[Any], build: dict[str, Any] | None) -> None:
    """Gives a model the weights of another one of the same configuration."""
    if not model.built and build is not None:
        model.build_from_config(build)
    model.set_weights(weights)


def learned(model: Any) -> list[list[Any]]:
    """Weights, other state of layers, and variables of the optimizer, as arrays."""
    optimizer = model.optimizer.variables if model.optimizer is not None else []
    groups = (model.weights, _other_variables(model), optimizer)
    return [[_array(variable) for variable in group] for group in groups]


def relearn(model: Any, groups: list[list[Any]], build: dict[str, Any] | None) -> None:
    """Gives a model what another one of the same configuration has ``learned``."""
    weights, others, optimizer = groups
    load_weights(model, weights, build)
    for variable, value in zip(_other_variables(model), others, strict=False):
        variable.assign(value)
    if optimizer:
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(model.optimizer.variables, optimizer, strict=True):
            variable.assign(value)


def open_data(model: Any, made: Any, config: dict[str, Any]) -> dict[str, Any]:
    """What ``fit`` and ``evaluate`` of the model take, of rows or a dataset."""
    if isinstance(made, tf.data.Dataset):
        if made.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise InvalidArgumentError("the tf.data.Dataset has no end; leave out its repeat()")
        return {"x": made}
    if isinstance(made, dict) and set(made) == {"x", "y"}:
        made = made["x"], made["y"]
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise InvalidArgumentError(
            f"a data creator returned a {_type_name(made)}; return a tf.data.Dataset of (x, y), or (x, y)"
        )
    x, y = made
    if isinstance(x, list) and len(x) > 1 and _has_one_input(model):
        x = np.stack(x, axis=1)  # Columns of a data frame.
    return {"x": columns(x), "y": y, "batch_size": int(config.get("batch_size", 32))}


def columns(x: Any) -> Any:
    """Numbers, one for each row, as a column."""
    is_flat = isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind in "bfiu"
    return x[:, None] if is_flat else x


def measured(model: Any, metric: Any, data: dict[str, Any], logs: dict[str, float]) -> float:
    """A metric.

    Args:
        model: What is measured.
        metric: A name, or a function; None: the loss.
        data: For functions: of all targets and all outputs.
        logs: What Keras has measured, by name.
    """
    name = "loss" if metric is None else metric
    if callable(name):
        return _value(model, name, data)
    for alias in (name, *same_metrics(name)):
        if alias in logs:
            return float(logs[alias])
    if name.lower() in Evaluator.metrics_func:
        return _value(model, Evaluator.metrics_func[name.lower()], data)
    raise InvalidArgumentError(
        f"the model was compiled with {', '.join(sorted(logs))}, but not with the metric {name!r}; add it to "
        "compile(metrics=[...])"
    )


def _value(model: Any, function: Callable[[Any, Any], Any], data: dict[str, Any]) -> float:
    if "y" in data:
        truth = data["y"]
        found = model.predict(data["x"], batch_size=data["batch_size"], verbose=0)
    else:
        pairs = [(batch[1], model.predict_on_batch(batch[0])) for batch in data["x"]]
        truth, found = keras.tree.map_structure(
            lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *pairs
        )
    if isinstance(found, np.ndarray) and found.shape == (*np.shape(truth), 1):
        truth = np.asarray(truth)[..., None]
    for part in keras.tree.flatten(found):
        _check_finite("output", part)
    return float(np.mean(function(truth, found)))


@functools.cache
def _begin(threads: int) -> None:
    """Before the first operation of a process: it computes with so many threads, on cores alone."""
    if keras.backend.backend() != "tensorflow":
        raise InvalidArgumentError(
            f"Keras runs on {keras.backend.backend()!r}; set KERAS_BACKEND=tensorflow before it is imported"
        )
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    logger = tf.get_logger()
    logger.handlers.clear()  # The driver shows what is logged here.
    logger.addFilter(
        lambda record: "tf.function retracing" not in record.getMessage()
    )  # By trials.
    with kept_quiet():
        # A GPU would be taken whole by the first of several trials.
        tf.config.set_visible_devices([], "GPU")
        tf.config.list_logical_devices()


class _Live:
    """A trial whose model is in this process."""

    def __init__(self, work: Work) -> None:
        creator, self._metric, train, validation = loads(list(work.functions.view()))
        self.version = ""
        self._seed = work.seed
        keras.utils.set_random_seed(work.seed)
        self._config = NotingDict(work.config)
        self.model = new_model(creator, self._config)
        self._train = self._open(work.train, train)
        self._validation = (
            None
            if work.validation is None and validation is None
            else self._open(work.validation, validation)
        )

    def epoch(self, step: int) -> float:
        """Trains and measures."""
        # The order of rows is that of the epoch, whichever worker makes it.
        keras.utils.set_random_seed((self._seed + 1 + step) % (1 << 31))
        history = self.model.fit(**self._train, epochs=1, verbose=0).history
        logs = {name: values[-1] for name, values in history.items()}
        _check_finite("loss", logs["loss"])
        for variable in self.model.trainable_variables:  # No loss has seen the last step.
            _check_finite(variable.path, _array(variable))
        return self._measured(logs)

    def restore(self, state: State) -> None:
        """Goes on from what was learned elsewhere."""
        relearn(self.model, state.groups(), state.build)

    def state(self) -> State:
        """What it has learned."""
        found = State.of(
            learned(self.model), _plain(self.model.get_build_config()), self._config.read
        )
        self.version = found.version
        return found

    def _open(self, store: ArrayStore | None, creator: Any) -> Any:
        made = creator(own_copy(self._config)) if store is None else _joined(store)
        return open_data(self.model, made, self._config)

    def _measured(self, logs: dict[str, float]) -> float:
        if self._validation is None:
            return measured(self.model, self._metric, self._train, logs)
        if not callable(self._metric):
            logs = self.model.evaluate(**self._validation, verbose=0, return_dict=True)
            _check_finite("validation loss", logs["loss"])
        return measured(self.model, self._metric, self._validation, logs)


def _check_finite(name: str, value: Any) -> None:
    array = np.asarray(value)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].flat[0]
        raise NotFiniteError(
            f"its {name} is not finite ({bad}); lower the learning rate or clip gradients"
        )


def _joined(store: ArrayStore) -> Any:
    views = [shard.view() for shard in store.shards]
    if len(views) == 1:
        return views[0]
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *views)


def _plain(value: Any) -> Any:
    """Without Keras's own dicts and lists, which cannot be unpickled; and the driver may have no Keras."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_plain, value))
    return value


def _has_one_input(model: Any) -> bool:
    return isinstance(model, keras.Sequential) or len(getattr(model, "inputs", None) or ()) == 1


def _other_variables(model: Any) -> list[Any]:
    """Those that are no weights: seeds of dropout."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def _array(variable: Any) -> Any:
    array = keras.ops.convert_to_numpy(variable)
    # Numbers that numpy does not know, such as bfloat16, are all among those of float32.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"

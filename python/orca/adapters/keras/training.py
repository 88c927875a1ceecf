"""Epochs of Keras models, where TensorFlow runs."""

from __future__ import annotations

import functools
import math
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
from orca.data import ArrayStore
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.pickles import loads

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
    model = creator(dict(config))
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
        self.model = new_model(creator, work.config)
        self._train = self._open(work.train, train, work.config)
        self._validation = (
            None
            if work.validation is None and validation is None
            else self._open(work.validation, validation, work.config)
        )

    def epoch(self, step: int) -> float:
        """Trains and measures."""
        # The order of rows is that of the epoch, whichever worker makes it.
        keras.utils.set_random_seed((self._seed + 1 + step) % (1 << 31))
        history = self.model.fit(**self._train, epochs=1, verbose=0).history
        logs = {name: values[-1] for name, values in history.items()}
        if not math.isfinite(logs["loss"]):
            raise FailedPreconditionError(f"its loss is {logs['loss']} in epoch {step + 1}")
        return self._measured(logs)

    def restore(self, state: State) -> None:
        """Goes on from what was learned elsewhere."""
        weights, others, optimizer = state.groups()
        load_weights(self.model, weights, state.build)
        for variable, value in zip(_other_variables(self.model), others, strict=False):
            variable.assign(value)
        if optimizer:
            self.model.optimizer.build(self.model.trainable_variables)
            for variable, value in zip(self.model.optimizer.variables, optimizer, strict=True):
                variable.assign(value)

    def state(self) -> State:
        """What it has learned."""
        groups = (
            self.model.weights,
            _other_variables(self.model),
            self.model.optimizer.variables if self.model.optimizer is not None else [],
        )
        arrays = [[_array(variable) for variable in group] for group in groups]
        found = State.of(arrays, self.model.get_build_config())
        self.version = found.version
        return found

    def _open(self, store: ArrayStore | None, creator: Any, config: dict[str, Any]) -> Any:
        """What ``fit`` and ``evaluate`` take."""
        made = creator(dict(config)) if store is None else _joined(store)
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
        if isinstance(x, list) and len(x) > 1 and _has_one_input(self.model):
            x = np.stack(x, axis=1)  # Columns of a data frame.
        if isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind in "bfiu":
            x = x[:, None]
        return {"x": x, "y": y, "batch_size": int(config.get("batch_size", 32))}

    def _measured(self, trained: dict[str, float]) -> float:
        name = "loss" if self._metric is None else self._metric
        if callable(name):
            return self._value(name)
        logs = trained
        if self._validation is not None:
            logs = self.model.evaluate(**self._validation, verbose=0, return_dict=True)
        for alias in (name, *same_metrics(name)):
            if alias in logs:
                return float(logs[alias])
        if name.lower() in Evaluator.metrics_func:
            return self._value(Evaluator.metrics_func[name.lower()])
        raise InvalidArgumentError(
            f"the model was compiled with {', '.join(sorted(logs))}, but not with the metric {name!r}; add it to "
            "compile(metrics=[...])"
        )

    def _value(self, function: Callable[[Any, Any], Any]) -> float:
        """A function of all targets and all outputs."""
        data = self._train if self._validation is None else self._validation
        if "y" in data:
            truth = data["y"]
            found = self.model.predict(data["x"], batch_size=data["batch_size"], verbose=0)
        else:
            pairs = [(batch[1], self.model.predict_on_batch(batch[0])) for batch in data["x"]]
            truth, found = keras.tree.map_structure(
                lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *pairs
            )
        if isinstance(found, np.ndarray) and found.shape == (*np.shape(truth), 1):
            truth = np.asarray(truth)[..., None]
        return float(np.mean(function(truth, found)))


def _joined(store: ArrayStore) -> Any:
    views = [shard.view() for shard in store.shards]
    if len(views) == 1:
        return views[0]
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *views)


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

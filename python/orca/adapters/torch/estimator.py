"""The driver's side of an Estimator: arguments, data on its way to the workers, and the state that comes back."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
import logging
import os
import secrets
import threading
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from orca import running
from orca._native import _core
from orca.adapters.torch import loop
from orca.adapters.torch.arguments import (
    Rules,
    check_positive,
    is_creator,
    mounted,
    name_unsendable,
    read_callbacks,
    warn_of_batch_size,
)
from orca.adapters.torch.commits import Ledger
from orca.adapters.torch.devices import count_gpus, workers_on
from orca.adapters.torch.feeds import ArraySource, LoaderSource
from orca.adapters.torch.inference import Inference
from orca.adapters.torch.names import load_plain_state, unwrapped
from orca.adapters.torch.places import Places
from orca.adapters.torch.positions import in_any_order
from orca.adapters.torch.records import (
    CheckpointPlace,
    check_fits,
    load_checkpoint,
    load_file,
    warn_of_optimizer,
    write_file,
    write_last_state,
)
from orca.adapters.torch.runner import joined
from orca.adapters.torch.session import ModelSpec, Session, make_models
from orca.adapters.torch.stopping import stopping_on_sigterm
from orca.adapters.torch.trees import SharedParts, pack, unpack
from orca.context import OrcaContext, active_context, current_context
from orca.data import Shard, SparkXShards
from orca.data.cells import stacked
from orca.data.rows import column_names, is_spark_frame, store_of
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import ORCA, Generation
from orca.guests import Basket
from orca.learn import ray_estimator, spark_estimator
from orca.learn.metrics import Metric
from orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from orca.learn.trigger import Trigger
from orca.learn.validation_methods import Loss, ValidationMethod
from orca.pickles import dumps

_log = logging.getLogger("orca")
_numbers = itertools.count()
_BLOCKS = 12  # Of a step: 1, 2, 3, 4, 6 and 12 workers have equally many.
_SMALL_SPEC = 16 << 10  # bytes
_ROWS_OF_FRAMES = 1024  # That a model gets at a time, unless the user says how many.
_dropped: list[str] = []  # Estimators that are gone, and that workers may still keep


def _translated(method: Any) -> Any:
    """Raises what the Estimator's generation raises; one thread at a time."""

    @functools.wraps(method)
    def wrapper(self: TorchEstimator, *args: Any, **kwargs: Any) -> Any:
        with self._generation.errors(), self._turn(method.__name__):
            return method(self, *args, **kwargs)

    return wrapper


class TorchEstimator(spark_estimator.Estimator, ray_estimator.Estimator):
    """Trains, evaluates and predicts with a PyTorch model on the workers of the context.

    Made by ``Estimator.from_torch``. Calls of several threads follow one another.
    """

    def __init__(
        self,
        spec: ModelSpec,
        generation: Generation,
        backend: str,
        *,
        workers_per_node: int | None,
        model_dir: str | None,
        use_tqdm: bool = False,
        log_level: int | None = None,
        log_to_driver: bool = True,
        settings: Any = None,
        oversubscribe: bool = False,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._use_tqdm = use_tqdm
        self._output: dict[str, Any] = {"log_level": log_level, "log_to_driver": log_to_driver}
        self._generation = generation
        self.backend = backend
        self._rules = Rules.of(backend, generation)
        self._workers_per_node = workers_per_node
        self._oversubscribe = oversubscribe
        self._model_dir = mounted(model_dir)
        self._id = f"{os.getpid()}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        self._version = "new"
        weakref.finalize(self, _dropped.append, self._id)
        self._context: Any = None
        self._pickled: Shard | list[bytes] | None = None
        self._epochs_done = 0
        self._state: Any = None  # packed; None before the first fit
        self._clip_value: tuple[float, float] | None = None
        self._clip_norm: float | None = None
        self._summary: str | None = None
        self._lock = threading.RLock()
        self._is_running = False
        self._has_fitted = False
        self._gpus: tuple[Any, int] = (None, 0)  # of a machine of a context
        context = active_context()
        if spec.device is not None and context is not None and context.is_local:
            _ = self.num_workers  # What cannot work is said at once.

    def __reduce__(self) -> Any:
        raise TypeError(
            "an Estimator lives in the driver; on a worker use the model that its callbacks and "
            "operators get, or send est.get_model()"
        )

    # --- the user's calls

    @_translated
    @in_any_order
    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        info: dict[str, Any] | None = None,
        feature_cols: Any = None,
        label_cols: Any = None,
        validation_data: Any = None,
        callbacks: Any = None,
        max_steps: int | None = None,
        checkpoint_trigger: Any = None,
        validation_methods: Any = None,
        seed: int | None = None,
        on_nan: str = "raise",
        on_failure: str = "restart",
        max_restarts: int = 3,
        resume: str | None = None,
        deterministic: bool | int = False,
    ) -> Any:
        """Trains on the workers of the context.

        Args:
            data: Arrays, tensors or lists of numbers as ``{"x": ..., "y": ...}`` or ``(x, y)``, ``XShards`` of
                such dicts or of frames, a ``DataLoader``, or a creator ``f(config, batch_size)`` of one.
            epochs: Passes over ``data``.
            batch_size: Rows of a step.
            profile: Whether the statistics say where the time went.
            reduce_results: One dict an epoch, or a list of one a worker.
            info: For training operators.
            feature_cols: Of data frames.
            label_cols: Of data frames.
            validation_data: As ``data``; evaluated after every epoch.
            callbacks: What is called during training.
            max_steps: Ends training after so many steps.
            checkpoint_trigger: When to write a checkpoint.
            validation_methods: As metrics.
            seed: Fixes the initial weights of a creator's model and the order of rows.
            on_nan: ``"raise"``, ``"skip"`` or ``"ignore"`` a loss or gradient that is not finite.
            on_failure: When a worker dies: ``"restart"`` (another takes its place), ``"shrink"`` (the others go
                on without it) or ``"raise"``. With shared weights no committed step is lost; else ``fit``
                goes on from the last checkpoint that it wrote (``checkpoint_trigger``), or begins anew.
                What the user's code raises is always raised.
            max_restarts: How often a worker may die.
            resume: ``"auto"`` goes on where an earlier program with the same ``model_dir`` and the same call was
                when it wrote its last checkpoint, in the middle of an epoch, too.
            deterministic: True: what is learned has the same bits for any number of workers, also when it changes in
                the middle. The rows of a step are cut into 12 blocks (or as many as this says, from the number of
                workers on), and each is computed by itself, with one thread. See docs/training.md.

        Returns:
            One dict of statistics an epoch.
        """
        if on_nan not in ("raise", "skip", "ignore"):
            raise InvalidArgumentError(
                f'on_nan {on_nan!r} is not known; give "raise", "skip" or "ignore"'
            )
        check_positive("epochs", epochs)
        for rows in (data, validation_data):
            warn_of_batch_size(rows, batch_size)
        if checkpoint_trigger is not None and self._model_dir is None:
            self._generation.has_no_effect(
                "checkpoint_trigger has no effect without model_dir: no checkpoint is written; give "
                "from_torch(model_dir=)"
            )
        if validation_methods is not None and validation_data is None:
            self._generation.has_no_effect(
                "validation_methods has no effect without validation_data; give both"
            )
        blocks = self._blocks(deterministic)
        said = self._resume(resume)
        if self._rules.epochs_are_absolute:
            epochs -= self._epochs_done - (0 if said is None else len(said["stats"]))
            if epochs <= 0:
                return self
        if validation_data is not None and is_spark_frame(data) != is_spark_frame(validation_data):
            raise InvalidArgumentError(
                "validation data must be a spark DataFrame when data is a DataFrame"
                if is_spark_frame(data)
                else "validation data is a spark DataFrame, and data is none; give both as the same"
            )
        options = loop.FitOptions(
            epochs=epochs,
            batch_size=self._batch_for(data, batch_size, whole=blocks > 0),
            source=self._source(data, feature_cols, label_cols, has_target=True),
            metrics=self._metrics(validation_methods),
            validation=None
            if validation_data is None
            else self._source(validation_data, feature_cols, label_cols, has_target=True),
            max_steps=max_steps,
            seed=0 if seed is None else seed,
            on_nan=on_nan,
            clip_value=self._clip_value,
            clip_norm=self._clip_norm,
            profile=profile,
            callbacks=read_callbacks(callbacks),
            info=info,
            checkpoints=None if self._model_dir is None else CheckpointPlace.below(self._model_dir),
            trigger=Trigger.convert_trigger(checkpoint_trigger) and checkpoint_trigger,
            summary=self._summary,
            tags=self._tags(validation_methods),
            use_tqdm=self._use_tqdm,
            random=secrets.randbits(63) if seed is None and not blocks else seed or 0,
            blocks=blocks,
        )
        if said is not None:
            options = replace(options, resume=pack(said), seed=said["seed"], random=said["random"])
        policy = {"on_failure": on_failure, "max_restarts": max_restarts}
        with contextlib.ExitStack() as stack:
            # Its memory is that of one machine.
            if current_context().is_local and on_failure != "raise":
                basket = stack.enter_context(Basket())
                ledger = Ledger.of(self.num_workers, basket.number)
                options = replace(options, ledger=ledger)
            if current_context().is_local and self._model_dir is not None:
                options = replace(options, stop=stack.enter_context(stopping_on_sigterm()))
            results = self._run(loop.fit, options, seed=seed, policy=policy)
        self._has_fitted = True
        self._state = results[0][1]
        self._epochs_done = int(self._state["epoch"])
        if self._model_dir is not None and self.backend == "spark":
            write_last_state(Path(self._model_dir) / "state.pkl", self.get_state_dict())
        if self._rules.returns_self:
            return self
        stats = [[result[0][e] for result in results] for e in range(len(results[0][0]))]
        if not reduce_results:
            return stats
        return [joined(each) for each in stats]

    def _blocks(self, deterministic: bool | int) -> int:
        """Into how many blocks the rows of a step are cut; 0: they are not."""
        if not isinstance(deterministic, int) or deterministic < 0:
            raise InvalidArgumentError(
                f"deterministic={deterministic!r} is not known; give True, or a number of blocks"
            )
        blocks = _BLOCKS if deterministic is True else int(deterministic)
        fault = ""
        if blocks and self._spec.device is not None:
            fault = f"sums on {self._spec.device} have no fixed order; train on CPUs"
        elif blocks and self._spec.sync_batchnorm:
            fault = "sync_batchnorm joins the rows of workers; leave it out, and batch norms see those of a block"
        elif blocks and self.num_workers > blocks:
            fault = (
                f"{self.num_workers} workers share the {blocks} blocks of a step; give as many blocks as workers, "
                f"as in deterministic={self.num_workers}"
            )
        if fault:
            raise InvalidArgumentError(f"deterministic= is not possible: {fault}")
        return blocks

    def _resume(self, resume: str | None) -> dict[str, Any] | None:
        """Takes the newest checkpoint; returns how far its training was."""
        if resume is None:
            return None
        if resume != "auto" or self._model_dir is None:
            raise InvalidArgumentError(
                f'resume={resume!r} is not known; give "auto", or leave it out'
                if resume != "auto"
                else 'resume="auto" looks into model_dir; give from_torch(model_dir=)'
            )
        if self._has_fitted:  # The checkpoint is of this program.
            return None
        try:
            # No old script says resume: under no root it runs code of a file.
            state = load_checkpoint(self._model_dir, None, trust=False, generation=ORCA)
        except FailedPreconditionError:
            _log.info("there is no checkpoint in %s yet; training begins", self._model_dir)
            return None
        said: dict[str, Any] | None = state.pop("progress", None)
        self._take(state)
        _log.info(
            "training goes on behind step %s of epoch %d, from the checkpoint in %s",
            "?" if said is None else said["index"],
            int(state["epoch"]) + 1,
            self._model_dir,
        )
        return said

    @_translated
    @in_any_order
    def evaluate(
        self,
        data: Any,
        batch_size: int | None = None,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        info: dict[str, Any] | None = None,
        feature_cols: Any = None,
        label_cols: Any = None,
        callbacks: Any = None,
        validation_methods: Any = None,
        validation_metrics: Any = None,
        max_restarts: int = 3,
    ) -> Any:
        """Evaluates on the workers.

        Args:
            data: As for ``fit``.
            batch_size: Rows of a step.
            num_steps: Ends after so many batches of a worker.
            profile: Whether the result says how long it took.
            reduce_results: One dict, or a list of one a worker.
            info: For training operators.
            feature_cols: Of data frames.
            label_cols: Of data frames.
            callbacks: What is called during evaluation.
            validation_methods: In the place of the Estimator's metrics.
            validation_metrics: Has no effect, which is said: ``validation_methods`` has.
            max_restarts: How often a worker may die: another takes its place and all begin anew. What the
                user's code raises is raised at once.

        Returns:
            The metrics over all rows, the loss as ``val_loss``, and ``num_samples``; with backend
            ``"bigdl"`` the metrics alone, by the names of BigDL's engine.
        """
        if validation_metrics is not None:
            self._generation.has_no_effect(
                "validation_metrics has no effect; give validation_methods, or from_torch(metrics=)"
            )
        warn_of_batch_size(data, batch_size)
        metrics = self._metrics(validation_methods)
        options = loop.EvaluateOptions(
            batch_size=self._batch_for(data, batch_size),
            source=self._source(data, feature_cols, label_cols, has_target=True),
            metrics=metrics,
            num_steps=num_steps,
            callbacks=read_callbacks(callbacks),
            info=info,
            profile=profile,
        )
        if self._rules.engine_names and not metrics and validation_methods is None:
            raise InvalidArgumentError(
                "metrics shouldn't be None, please specify the metrics argument when creating this "
                "estimator."
            )
        options = replace(options, places=self._places(self.num_workers))
        results = self._run(loop.evaluate, options, policy=_again(max_restarts))
        if self._rules.engine_names:
            return self._by_engine_names(results[0], metrics, validation_methods)
        return results[0] if reduce_results else results

    def _metrics(self, methods: Any) -> tuple[Any, ...]:
        """What to measure: the validation methods of a call, or the Estimator's metrics."""
        if methods is None:
            return self._spec.metrics
        listed = methods if isinstance(methods, list | tuple) else [methods]
        found = [m.metric() if isinstance(m, ValidationMethod) else m for m in listed]
        return tuple(metric for metric in found if metric is not None)

    def _tags(self, methods: Any) -> dict[str, str]:
        """What event files call metrics, where that is not their own name."""
        if not self._rules.engine_names:
            return {}
        named = {
            name: metric.engine_name
            for metric in self._metrics(methods)
            if getattr(metric, "engine_name", None)
            for name in Metric.convert_metrics_dict([metric], backend="pytorch")
        }
        return {"val_loss": "Loss"} | named

    @staticmethod
    def _by_engine_names(
        found: dict[str, Any], metrics: tuple[Any, ...], methods: Any
    ) -> dict[str, float]:
        named = {
            getattr(metric, "engine_name", None) or name: found[name]
            for metric in metrics
            for name in Metric.convert_metrics_dict([metric], backend="pytorch")
        }
        listed = methods if isinstance(methods, list | tuple) else [methods]
        if any(isinstance(method, Loss) for method in listed):
            named["Loss"] = found["val_loss"]
        return {name: float(value) for name, value in named.items()}

    @_translated
    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Any = None,
        profile: bool = False,
        callbacks: Any = None,
        output_cols: Any = None,
        max_restarts: int = 3,
    ) -> Any:
        """Predicts with the weights of this moment.

        Args:
            data: Arrays, tensors, ``XShards`` or a DataFrame of Spark.
            batch_size: Rows that the model gets at a time.
            feature_cols: Of data frames.
            profile: Has no effect, which is said: predictions have no statistics.
            callbacks: What is called during prediction; not for DataFrames of Spark.
            output_cols: For DataFrames of Spark: a column for each output of the model.
            max_restarts: How often a worker may die; see ``evaluate``.

        Returns:
            An array with one row a row of ``data``; ``XShards`` with a "prediction"; or a DataFrame with a
            column "prediction", which is computed when an action asks for it.
        """
        if profile:
            self._generation.has_no_effect(
                "profile has no effect: predictions have no statistics; leave it out"
            )
        if is_spark_frame(data):
            given = (feature_cols, output_cols, callbacks)
            return self._predict_lazily(data, batch_size, *given, _again(max_restarts))
        if output_cols is not None:
            self._generation.has_no_effect(
                "output_cols has no effect on what is no DataFrame of Spark; leave it out"
            )
        source = self._source(data, feature_cols, None, has_target=False)
        if not isinstance(source, ArraySource):
            raise InvalidArgumentError("predict wants arrays, tensors or shards")
        options = loop.PredictOptions(
            batch_size=batch_size or 32,
            source=source,
            callbacks=read_callbacks(callbacks),
            places=self._places(self.num_workers),
        )
        parts = self._run(loop.predict, options, policy=_again(max_restarts))
        found = [shard for part in parts for shard in part]
        if isinstance(data, SparkXShards):
            return data.with_predictions(found)
        return stacked([shard.view() for shard in found])

    def _predict_lazily(
        self,
        frame: Any,
        batch_size: int | None,
        features: Any,
        outputs: Any,
        callbacks: Any,
        policy: dict[str, Any],
    ) -> Any:
        from orca.adapters.spark import frames

        frames.check_columns(frame, features, None, wants_target=False)
        context = current_context()
        weights, digest = self._weights()
        call = loop.Call(
            estimator=f"{self._id}{loop.FRAMES}",
            version=digest,
            next_version=digest,
            is_local=context.is_local,
            spec=self._send_spec(),
            state=weights,
            has_state=True,
            **self._output,
        )
        rows = _ROWS_OF_FRAMES if batch_size is None else batch_size
        check_positive("batch_size", rows)
        as_float32 = self._rules.as_float32
        inference = Inference(call, rows, as_float32, policy, read_callbacks(callbacks))
        # The workers have the GPUs.
        can_be_opened = self._spec.device is None
        return frames.with_predictions(
            frame, features, outputs, inference, weights.nbytes, can_be_opened=can_be_opened
        )

    def _weights(self) -> tuple[SharedParts, str]:
        """A copy of the models' weights, which no training changes, and a name of its content."""
        state = {"epoch": 0, "models": self.get_state_dict()["models"]}
        parts, _ = dumps(pack(unpack(state | {"optimizers": [], "schedulers": []})))
        digest = hashlib.blake2b()
        for part in parts:
            digest.update(part)
        return SharedParts(parts), digest.hexdigest()

    @_translated
    def get_model(self) -> Any:
        """The model with the learned weights."""
        models = self._fresh_models()
        state = self._state_dict_or_none()
        if state is not None:
            for model, found in zip(models, state["models"], strict=True):
                load_plain_state(model, found)
        return models[0] if len(models) == 1 else models

    @_translated
    def get_state_dict(self) -> dict[str, Any]:
        """``{"epoch", "models", "optimizers", "schedulers"}``, as torch's state dicts."""
        state = self._state_dict_or_none()
        if state is not None:
            return state
        session = Session(self._copied_spec(), None, None)
        return dict(unpack(session.state()))

    @_translated
    def load_state_dict(self, state: dict[str, Any], blocking: bool = True) -> None:
        """Goes on from a state dict of ``get_state_dict``."""
        self._take(state)

    def _take(self, state: Any) -> None:
        """Goes on from a state dict of an Estimator or of a model, or from models themselves."""
        listed = state if isinstance(state, list | tuple) else [state]
        if all(isinstance(model, nn.Module) for model in listed):
            if self._spec.model is None:
                self._spec = replace(self._spec, model=state)
                self._pickled = None
            state = [model.state_dict() for model in listed]
        if isinstance(state, list | tuple):
            state = {"models": list(state)}
        elif "models" not in state:  # The state dict of a model alone.
            state = {"models": [state]}
        fresh = self._fresh_models()
        if len(fresh) != len(state["models"]):
            raise InvalidArgumentError(
                f"this is the state of {len(state['models'])} models, and this Estimator has "
                f"{len(fresh)}; load it into the Estimator that it was saved from"
            )
        models = []
        for model, found in zip(fresh, state["models"], strict=True):
            models.append(unwrapped(found, model))
            check_fits(model, models[-1])
        state = {**state, "models": models}
        self._state = pack(unpack({"epoch": 0, "optimizers": [], "schedulers": []} | state))
        self._epochs_done = int(state.get("epoch", 0))
        self._version = uuid.uuid4().hex

    @_translated
    def save(self, model_path: str | os.PathLike[str], entire: bool = False) -> str:
        """Writes the state; returns the path.

        Args:
            model_path: The file, which ``torch.load`` reads with ``weights_only=True``.
            entire: Whether to write the model itself instead, which ``torch.load`` has to trust.
        """
        state = self.get_model() if entire else self.get_state_dict()
        write_file(Path(model_path), state, is_private=False)
        return str(model_path)

    @_translated
    def load(
        self, model_path: str | os.PathLike[str], loss: Any = None, *, trust: bool = False
    ) -> None:
        """Goes on from what ``save`` wrote, from a state dict, or from the newest checkpoint of a folder.

        Args:
            model_path: A file or a folder.
            loss: A loss in the place of the Estimator's.
            trust: Whether a file may run code when it is loaded, as a pickled model does.
        """
        path = Path(model_path)
        if path.is_dir():
            self._take(load_checkpoint(str(path), None, trust=trust, generation=self._generation))
        else:
            self._take(load_file(path, trust=trust, generation=self._generation))
            warn_of_optimizer(path)
        if loss is not None:
            self._spec = replace(self._spec, loss=loss)
            self._pickled = None

    def save_checkpoint(self, model_path: str | os.PathLike[str]) -> str:
        """As ``save``."""
        return str(self.save(model_path))

    def load_checkpoint(self, model_path: str | os.PathLike[str], *, trust: bool = False) -> None:
        """As ``load``."""
        self.load(model_path, trust=trust)

    @_translated
    def load_orca_checkpoint(
        self,
        path: str,
        version: int | None = None,
        prefix: str | None = None,
        *,
        trust: bool = False,
    ) -> None:
        """Goes on from a checkpoint that ``fit`` wrote: the newest below ``path``, or number ``version``."""
        self._take(load_checkpoint(path, version, trust=trust, generation=self._generation))

    @staticmethod
    def latest_checkpoint(checkpoint_dir: str) -> str:
        """The last file of a ``ModelCheckpoint`` in a folder."""
        return ModelCheckpoint.get_latest_checkpoint(checkpoint_dir)

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """From the next ``fit`` on, event files go to ``log_dir/app_name/train`` and ``…/validation``."""
        self._summary = str(Path(log_dir) / app_name)

    def get_train_summary(self, tag: str) -> list[list[float]] | None:
        """``[iteration, value, time]`` of "Loss", "LearningRate" or "Throughput"."""
        return self._read_summary("train", tag)

    def get_validation_summary(self, tag: str) -> list[list[float]] | None:
        """``[iteration, value, time]`` of a metric."""
        return self._read_summary("validation", tag)

    def _read_summary(self, part: str, tag: str) -> list[list[float]] | None:
        if self._summary is None or not (Path(self._summary) / part).exists():
            return None
        found = _core.read_scalars(str(Path(self._summary) / part), tag)
        return [[step, value, when] for step, value, when in found]

    @_translated
    def update_schedulers(self, metric: float | None = None) -> None:
        """One step of the schedulers, for ``scheduler_step_freq="manual"``."""
        self._state = self._run(loop.update_schedulers, metric)[0]

    def update_scheduler(self, metric: float | None = None) -> None:
        """As ``update_schedulers``."""
        self.update_schedulers(metric)

    def clear_gradient_clipping(self) -> None:
        """Gradients stay as they are."""
        self._clip_value = self._clip_norm = None

    @_translated
    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Every element of the gradient is kept between ``min`` and ``max``."""
        if not min < max:
            raise InvalidArgumentError(f"min {min} is not below max {max}; exchange them")
        self._clip_value, self._clip_norm = (float(min), float(max)), None

    @_translated
    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """The gradient is scaled down to this 2-norm when it is longer."""
        if not clip_norm > 0:
            raise InvalidArgumentError(f"clip_norm {clip_norm} is not positive")
        self._clip_value, self._clip_norm = None, float(clip_norm)

    @_translated
    def shutdown(self, force: bool = False) -> None:
        """Frees what the workers keep of this Estimator."""
        if self._context is not None and self._context is active_context():
            # One that has died has forgotten, too.
            running.run(
                loop.forget,
                (self._id,),
                workers=self.num_workers,
                on_failure="restart",
                oversubscribe=self._oversubscribe,
            )
        self._pickled = None
        self._context = None

    @property
    def num_workers(self) -> int:
        """How many workers train."""
        context = current_context()
        if self._spec.device is not None:
            gpus = self._count_gpus(context)
            return workers_on(self._spec.device, gpus, self._workers_per_node) * context.nodes
        if self._rules.one_worker_a_core:
            return OrcaContext.cores()
        return (1 if self._workers_per_node is None else self._workers_per_node) * context.nodes

    # --- inside

    @contextlib.contextmanager
    def _turn(self, call: str) -> Iterator[None]:
        """Waits until no other thread uses this Estimator."""
        if not self._lock.acquire(blocking=False):
            _log.info("%s waits: another thread uses this Estimator", call)
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _count_gpus(self, context: Any) -> int:
        """Of the machine that has the fewest."""
        if self._gpus[0] is not context:  # To ask takes milliseconds.
            counts = (
                [count_gpus()]
                if context.is_local
                else running.run(count_gpus, workers=context.nodes)
            )
            self._gpus = (context, min(counts))
        return self._gpus[1]

    def _run(
        self,
        task: Any,
        *arguments: Any,
        seed: int | None = None,
        policy: dict[str, Any] | None = None,
    ) -> list[Any]:
        if self._is_running:
            raise FailedPreconditionError(
                f"{task.__name__} was called while this Estimator is at work in the same thread, as "
                "from a signal handler; call it when that has returned"
            )
        self._is_running = True
        try:
            return self._run_on_workers(task, *arguments, seed=seed, policy=policy or {})
        finally:
            self._is_running = False

    def _run_on_workers(
        self, task: Any, *arguments: Any, seed: int | None, policy: dict[str, Any]
    ) -> list[Any]:
        context = current_context()
        workers = self.num_workers
        if self._context is not context:
            # Workers of another context, if any, knew this Estimator; these do not.
            self._context, self._pickled = context, None
            if self._state is not None:
                self._state = pack(unpack(self._state))
        if self._pickled is None:
            self._pickled = self._send_spec()
        forget = tuple(_dropped)
        # New workers have no state.
        for has_state in (True,) if running.has_fresh_workers() else (False, True):
            next_version = f"{self._id}-{next(_numbers)}"
            call = loop.Call(
                estimator=self._id,
                version=self._version,
                next_version=next_version,
                is_local=context.is_local,
                forget=forget,
                spec=self._pickled,
                state=self._state if has_state else None,
                has_state=has_state or self._state is None,
                seed=seed,
                **self._output,
            )
            try:
                results = running.run(
                    task,
                    (call, *arguments),
                    workers=workers,
                    oversubscribe=self._oversubscribe,
                    **policy,
                )
            except InvalidArgumentError:
                name_unsendable(arguments)
                raise
            if not isinstance(results[0], loop.SessionLost):
                for gone in forget:
                    with contextlib.suppress(ValueError):  # Another thread's call has said so, too.
                        _dropped.remove(gone)
                if task in (loop.fit, loop.update_schedulers):
                    self._version = next_version
                return results
            if "max_restarts" in policy:  # Deaths that were count.
                left = policy["max_restarts"] - results[0].restarts
                policy = policy | {"max_restarts": left}
        raise FailedPreconditionError("the workers cannot keep the model; start the context anew")

    @staticmethod
    def _places(workers: int) -> Places | None:
        """Where the workers of the next call are, if their memory is that of one machine."""
        return Places.of(workers, "was at batch") if current_context().is_local else None

    def _send_spec(self) -> Shard | list[bytes]:
        spec = self._spec
        names = ("model", "optimizer", "loss", "scheduler", "metrics", "config")
        try:
            parts, _ = dumps(spec)
        except InvalidArgumentError:  # One by one, to name what cannot be sent.
            dumps(
                (spec.model, spec.optimizer, spec.loss, spec.scheduler, spec.metrics, spec.config),
                names,
            )
            raise
        sent = [bytes(part) for part in parts]
        # A little travels with every call in less time than shared memory takes.
        return sent if sum(map(len, sent)) <= _SMALL_SPEC else Shard(sent)

    def _fresh_models(self) -> list[nn.Module]:
        return make_models(self._copied_spec())

    def _copied_spec(self) -> ModelSpec:
        return copy.deepcopy(self._spec)

    def _state_dict_or_none(self) -> dict[str, Any] | None:
        return None if self._state is None else dict(unpack(self._state))

    def _batch_for(self, data: Any, batch_size: int | None, *, whole: bool = False) -> int:
        """What a source is told: the whole job's rows for arrays, a worker's for creators.

        Args:
            data: What was given.
            batch_size: What was given.
            whole: Whether creators, too, are told the whole job's.
        """
        given = 32 if batch_size is None else batch_size
        check_positive("batch_size", given)
        if is_creator(data) and not whole:
            return given if self._rules.batch_is_a_workers else max(1, given // self.num_workers)
        return given * self.num_workers if self._rules.batch_is_a_workers else given

    def _source(self, data: Any, features: Any, labels: Any, *, has_target: bool) -> Any:
        is_loader = isinstance(data, DataLoader)
        if (is_loader or is_creator(data)) and (features is not None or labels is not None):
            self._generation.has_no_effect(
                "feature_cols and label_cols have no effect on a DataLoader or a data creator; leave them out"
            )
        if is_loader:
            return LoaderSource(data, is_creator=False)
        if is_creator(data):
            in_turn = getattr(self._settings, "serialize_data_creator", False)
            return LoaderSource(data, is_creator=True, in_turn=in_turn)
        is_frame = (
            hasattr(data, "iloc")
            or is_spark_frame(data)
            or (isinstance(data, SparkXShards) and features is not None)
        )
        store, has = store_of(data, features, labels, has_target)
        columns = (
            (*column_names(features), *column_names(labels if has else None)) if is_frame else ()
        )
        as_float32 = "all" if is_frame else "integers" if isinstance(data, SparkXShards) else ""
        return ArraySource(store, has, as_float32 if self._rules.as_float32 else "", columns)


def _again(max_restarts: int) -> dict[str, Any]:
    """What a call without a state does when a worker dies."""
    return {"on_failure": "restart", "max_restarts": max_restarts}

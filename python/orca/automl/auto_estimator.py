"""Searches for the best hyper-parameters of a model: trials on the workers of the context."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from orca import running
from orca.automl.search.tensorboardlogger import TensorboardLogger
from orca.automl.trial_search import Best, Search, converted
from orca.context import OrcaContext
from orca.data import SparkXShards
from orca.data.rows import is_spark_frame
from orca.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OrcaError,
    UnavailableError,
)
from orca.files import home, make_private
from orca.generations import ORCA, Errors, Generation, translated
from orca.tune import Study, Trial
from orca.tune.arguments import count, number, positive, warn

__all__ = ["AutoEstimator"]

_log = logging.getLogger("orca")
_LOSSES = ("mean_loss", "loss")
_FORGETTING = 10.0  # Seconds.


class AutoEstimator:
    """Made by ``from_torch`` or ``from_keras``.

    Example:
        >>> from orca.automl.auto_estimator import AutoEstimator
        >>> AutoEstimator.from_torch(model_creator=print, optimizer="Adam", loss="MSELoss").name
        'auto_pytorch_estimator'
    """

    _generation: ClassVar[Generation] = ORCA  # The old roots have classes of their own.
    _default_logs: ClassVar[str] = "auto_estimator_logs"

    # The spec is an adapter's: it has ``named_metric``, ``measures_training``, ``trials``, ``load_best``, ``forget_trials`` and ``make_ahead``.
    def __init__(
        self, spec: Any, logs_dir: str | None, resources: Any, name: str, remote: Any
    ) -> None:
        self._spec = spec
        if logs_dir is None:
            logs_dir = str(home() / self._default_logs)
        if not isinstance(logs_dir, str | os.PathLike):
            raise InvalidArgumentError(
                f"logs_dir {logs_dir!r} is a {type(logs_dir).__name__}; give the path of a folder"
            )
        self._logs = Path(logs_dir).expanduser()
        self._cores = _cores(resources, self._generation)
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"name {name!r} is not that of a folder; give a text")
        self.name = name
        if remote is not None and (not isinstance(remote, str) or not remote):
            raise InvalidArgumentError(
                f"remote_dir {remote!r} is not a path; give one such as 'hdfs://host/folder', or None"
            )
        self._remote = remote
        self._trials: list[Trial] = []
        self._bests: dict[int, Best] = {}
        self._folders: dict[int, list[Path]] = {}
        self._has_fitted = False

    @classmethod
    def from_torch(
        cls,
        *,
        model_creator: Callable[[dict[str, Any]], Any],
        optimizer: Any,
        loss: Any,
        logs_dir: str | None = None,
        resources_per_trial: dict[str, Any] | None = None,
        name: str = "auto_pytorch_estimator",
        remote_dir: str | None = None,
    ) -> AutoEstimator:
        """An AutoEstimator of a PyTorch model.

        Args:
            model_creator: ``f(config)`` of a ``torch.nn.Module``.
            optimizer: ``f(model, config)``, or the name of a class of ``torch.optim``, whose rate is
                ``config["lr"]`` or ``config["learning_rate"]``, or 0.001.
            loss: A torch loss, ``f(output, target)``, ``f(config)`` of one, a class of ``torch.nn`` or its name.
            logs_dir: Where the folders of trials are; None: ``auto_estimator_logs`` in ``$ORCA_HOME`` (``~/.orca``). Made
                with mode 0700; one of another user, or a link, is refused.
            resources_per_trial: ``{"cpu": k}``: the cores of a trial; 1 by default.
            name: Of the folder in ``logs_dir``.
            remote_dir: Where the folders of trials are copied to while they grow: ``file://``, ``hdfs://``, ``s3://`` ...
        """
        from orca.adapters.torch.tuning import TorchSpec

        with cls._generation.errors():
            spec = TorchSpec(model_creator, optimizer, loss)
            return cls(spec, logs_dir, resources_per_trial, name, remote_dir)

    @classmethod
    def from_keras(
        cls,
        *,
        model_creator: Callable[[dict[str, Any]], Any],
        logs_dir: str | None = None,
        resources_per_trial: dict[str, Any] | None = None,
        name: str = "auto_keras_estimator",
        remote_dir: str | None = None,
    ) -> AutoEstimator:
        """An AutoEstimator of a Keras model, on TensorFlow.

        Args:
            model_creator: ``f(config)`` of a compiled Keras 3 model.
            logs_dir: Where the folders of trials are; None: ``auto_estimator_logs`` in ``$ORCA_HOME`` (``~/.orca``). Made
                with mode 0700; one of another user, or a link, is refused.
            resources_per_trial: ``{"cpu": k}``: the cores of a trial, and TensorFlow's threads; 1 by default.
            name: Of the folder in ``logs_dir``.
            remote_dir: Where the folders of trials are copied to while they grow: ``file://``, ``hdfs://``, ``s3://`` ...

        Raises:
            ImportError: TensorFlow is not installed.
        """
        from orca.adapters.keras.tuning import KerasSpec

        with cls._generation.errors():
            spec = KerasSpec(model_creator)
            return cls(spec, logs_dir, resources_per_trial, name, remote_dir)

    @translated
    def fit(
        self,
        data: Any,
        epochs: int = 1,
        validation_data: Any = None,
        metric: Any = None,
        metric_mode: str | None = None,
        metric_threshold: float | None = None,
        n_sampling: int = 1,
        search_space: dict[str, Any] | None = None,
        search_alg: str | None = None,
        search_alg_params: dict[str, Any] | None = None,
        scheduler: str | None = None,
        scheduler_params: dict[str, Any] | None = None,
        feature_cols: Any = None,
        label_cols: Any = None,
        mode: str | None = None,
        *,
        seed: int | None = None,
        resume: str | bool = False,
        raise_on_failed_trial: bool = False,
        trial_timeout: float | None = None,
        retries: int = 0,
        warm_start: str | os.PathLike[str] | None = None,
        reuse_workers: bool = True,
    ) -> None:
        """Runs the trials, as many at a time as the cores of the context allow.

        Args:
            data: ``(x, y)``, shards or a data frame; a ``DataLoader`` or a creator ``f(config)`` of one; for Keras a
                creator of a ``tf.data.Dataset`` or of ``(x, y)``. Arrays are cut into batches of
                ``config["batch_size"]``; for Keras it may be left out, and is 32.
            epochs: Of a trial.
            validation_data: As ``data``. Without it the training rows are what is measured.
            metric: A name of ``Evaluator``, ``"mean_loss"``, or ``f(y_true, y_pred)``; for Keras also a metric that
                the model was compiled with.
            metric_mode: ``"min"`` or ``"max"``; known for names.
            metric_threshold: A trial that is as good as that has ended.
            n_sampling: How often the space is sampled, for every point of its grids; -1: as often as possible.
            search_space: A dict of ``orca.automl.hp``. A key that no function has read in any trial is an error at the end, under
                the old roots a warning.
            search_alg: A name; docs/tune.md has all.
            search_alg_params: Its parameters. For all: ``points_to_evaluate``, and ``max_concurrent``, the most trials at a time.
            scheduler: A name; docs/tune.md has all.
            scheduler_params: Its parameters.
            feature_cols: Of data frames.
            label_cols: Of data frames.
            mode: The same as ``metric_mode``.
            seed: Of all random numbers; None takes any.
            resume: ``"auto"`` goes on with the study in ``logs_dir``, if there is one.
            raise_on_failed_trial: Whether one failed trial makes the call raise at the end; else only when all have
                failed.
            trial_timeout: Seconds that an epoch of a trial may take; one that takes longer is ended. None: any time.
                Workers that are dead or stopped are noticed anyway.
            retries: How often a trial that crashed or hung is run again, from its last epoch. The same error twice in
                the same epoch is the last one.
            warm_start: The folder or the file of an older search: its finished trials are known to one that begins, and
                not counted.
            reuse_workers: Whether a worker goes on with another trial; else every epoch has a new process: nothing that a
                trial leaves behind reaches another one.
        """
        if self._has_fitted:
            raise FailedPreconditionError(
                "This AutoEstimator has already been fitted and cannot fit again."
            )
        name, measured, direction = self._metric(metric, metric_mode, mode)
        if not isinstance(search_space, dict):
            raise InvalidArgumentError(
                "search_space is a dict of what to search; see orca.automl.hp"
            )
        for key in search_space:
            if not isinstance(key, str):
                raise InvalidArgumentError(
                    f"search_space has the key {key!r}, a {type(key).__name__}; give names as texts"
                )
        for what, given in (("search_alg", search_alg), ("scheduler", scheduler)):
            if given is not None and not isinstance(given, str):
                raise InvalidArgumentError(
                    f"{what} should be of type str. Got {type(given).__name__}"
                )
        epochs, n_sampling = count("epochs", epochs, 1), _samples(n_sampling)
        trial_timeout = positive("trial_timeout", trial_timeout)
        if metric_threshold is not None:
            metric_threshold = number("metric_threshold", metric_threshold, "a number, or None")
        if validation_data is None:
            if measured is not None and not self._spec.measures_training:
                raise InvalidArgumentError(
                    f"You must input validation data! The metric {name!r} is measured on it"
                )
            warn(f"there is no validation_data: {name} on the training rows is what decides")
        if warm_start is not None:
            _check_is_there("warm_start", warm_start)
        cores = OrcaContext.cores()
        columns = {
            key: value
            for key, value in (("feature_cols", feature_cols), ("label_cols", label_cols))
            if value is not None
        }
        if columns:
            _check_has_columns("data", data)
            _check_has_columns("validation_data", validation_data)
        made = self._spec.trials(
            data, validation_data, columns, measured, self._cores, frozenset(search_space)
        )
        folder = self._logs / self.name
        leaderboard = Path(f"{folder}_leaderboard")
        with _new_folders(self._logs, folder, leaderboard):
            study = Study(
                search_space,
                metric=name,
                mode=direction,
                search_alg=search_alg or "random",
                search_alg_params=search_alg_params,
                scheduler=scheduler,
                scheduler_params=scheduler_params,
                epochs=epochs,
                seed=secrets.randbits(63) if seed is None and not resume else seed,
                storage=folder / "study.db",
                name=self.name,
                resume=resume,
                retries=retries,
                warm_start=warm_start,
                generation=self._generation,
            )
        with contextlib.closing(study):  # An error's traceback would keep its file open.
            trials = n_sampling * int(study.space.native.grid_cells)
            parallel = min(max(1, cores // self._cores), study.max_concurrent or cores)
            run = Search(
                trials=made,
                study=study,
                folder=folder,
                epochs=epochs,
                threshold=metric_threshold,
                patience=trial_timeout,
                reuses=reuse_workers,
                keeps_states=retries > 0 or study.may_pause,
                remote=self._remote,
                keys=search_space,
                leaderboard=TensorboardLogger(str(leaderboard), name=self.name),
                make_ahead=self._spec.make_ahead,
            )
            self._has_fitted = True
            if self._cores > cores:
                _log.warning(
                    "resources_per_trial wants %d cores, the context has %d: one trial runs at a time",
                    self._cores,
                    cores,
                )
            try:
                run.run(math.inf if n_sampling == -1 else trials, parallel)
            finally:  # What was found before an interrupt is there, too.
                self._trials, self._bests, self._folders = study.trials, run.bests, run.folders
                if reuse_workers and self._spec.forget_trials is not None:
                    self._free_workers(parallel)
            run.complete_leaderboard()
            failures = self._failures()
            if failures and (raise_on_failed_trial or not self._bests):
                raise FailedPreconditionError(failures)
            if not self._bests:
                raise FailedPreconditionError(
                    f"no weights of {len(self._trials)} trials are in {folder}: its folders are gone; begin anew, "
                    "without resume"
                )
            _log.info("%s", run.summary())
            if unread := run.unread():
                self._tell_unread(unread, is_sure=not failures)

    def _tell_unread(self, keys: str, *, is_sure: bool) -> None:
        message = (
            f"{keys} of search_space had no effect: nothing has read it in any of {len(self._trials)} trials; correct the "
            "name, or leave it out"
        )
        if is_sure and self._generation.raises is Errors.OURS:
            raise InvalidArgumentError(
                f"{message}. What the trials have found is kept: get_best_model() gives it"
            )
        warn(message)

    def _free_workers(self, workers: int) -> None:
        """Has the workers forget the trials, and the data that they had mapped for the next one."""
        try:
            with running.time_limit(_FORGETTING):
                running.run(self._spec.forget_trials, workers=workers, threads=self._cores)
        except OrcaError as error:  # Who has died has forgotten, too.
            _log.debug("workers still keep trials: %s", error)

    def _failures(self) -> str:
        """How many trials failed, and why the first one did; empty when none did."""
        failed = [trial for trial in self._trials if trial.state == "failed"]
        if not failed:
            return ""
        return (
            f"{len(failed)} of {len(self._trials)} trials failed; the first one, trial {failed[0].number}:\n"
            f"{failed[0].error}"
        )

    @property
    def _found(self) -> Best:
        if not self._has_fitted:
            raise FailedPreconditionError("nothing has been fitted; call fit first")
        if not self._bests:
            why = self._failures() or "fit ended before a trial had reported anything"
            raise FailedPreconditionError(f"there is no best trial: {why}")
        return min(self._bests.values(), key=Best.order)

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return list(self._trials)

    def best_trials(self) -> list[tuple[Trial, Path]]:
        """Those that did not fail, each with the file of its best weights; the one with the best metric first."""
        bests = sorted(self._bests.values(), key=Best.order)
        return [(self._trial(best), best.weights) for best in bests]

    def folder_of(self, trial: Trial) -> Path | None:
        """Where a trial's files are."""
        folders = self._folders.get(trial.number)
        return folders[-1] if folders else None

    @translated
    def get_best_trial(self) -> Trial:
        """The trial with the best metric of any of its epochs."""
        return self._trial(self._found)

    @translated
    def get_best_config(self) -> dict[str, Any]:
        """Its configuration."""
        return dict(self._found.config)

    @translated
    def get_best_model(self) -> Any:
        """A new model with its weights of that epoch."""
        best = self._found
        return self._spec.load_best(converted(best.config), best.weights)

    def _trial(self, best: Best) -> Trial:
        """With the configuration of that epoch: PBT may have changed it since."""
        return dataclasses.replace(self._trials[best.number], config=best.config)

    def _metric(
        self, metric: Any, metric_mode: str | None, mode: str | None
    ) -> tuple[str, Any, str]:
        """The name, what is measured (None: the loss) and the direction of a metric."""
        if metric_mode is not None and mode is not None and mode != metric_mode:
            raise InvalidArgumentError(
                f"metric_mode {metric_mode!r} and mode {mode!r} differ; give one"
            )
        given = metric_mode if metric_mode is not None else mode
        if given not in (None, "min", "max"):
            name = "metric_mode" if metric_mode is not None else "mode"
            raise InvalidArgumentError(
                f"{name} {given!r} is not known: `mode` has to be one of ['min', 'max']"
            )
        if metric is None or metric in _LOSSES:
            return metric or _LOSSES[0], None, given or "min"
        if callable(metric):
            if given is None:
                raise InvalidArgumentError(
                    "You must specify `metric_mode` for your metric function"
                )
            return getattr(metric, "__name__", "metric"), metric, given
        return (metric, *self._spec.named_metric(metric, given))


def _samples(given: Any) -> int:
    try:
        return -1 if given == -1 else count("n_sampling", given, 1)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error}, or -1: as many as possible") from None


def _check_has_columns(name: str, data: Any) -> None:
    is_frame = hasattr(data, "iloc") or is_spark_frame(data) or isinstance(data, SparkXShards)
    if data is not None and not is_frame:
        raise InvalidArgumentError(
            f"feature_cols and label_cols are for data frames, and {name} is a {type(data).__name__}; leave them out, "
            "or give a data frame"
        )


def _check_is_there(name: str, given: Any) -> None:
    remedy = "give the folder or the file of an older search, or None"
    if not isinstance(given, str | os.PathLike):
        raise InvalidArgumentError(f"{name} {given!r} is a {type(given).__name__}; {remedy}")
    if not Path(given).exists():
        raise InvalidArgumentError(f"{name} {os.fspath(given)!r} is not there; {remedy}")


@contextlib.contextmanager
def _new_folders(*paths: Path) -> Iterator[None]:
    """Makes folders. What is new of them goes again when the body raises, unless something is in it."""
    new = [each for path in paths for each in (path, *path.parents) if not each.exists()]
    new.sort(key=lambda path: -len(path.parts))
    try:
        for path in paths:
            try:
                make_private(path)
            except UnavailableError as error:
                raise InvalidArgumentError(f"logs_dir cannot be used: {error}") from error
            except OSError as error:
                raise InvalidArgumentError(
                    f"the folder {path} of logs_dir and name cannot be made: {error}; give another logs_dir"
                ) from error
        yield
    except BaseException:
        for each in new:
            with contextlib.suppress(OSError):
                each.rmdir()
        raise


def _cores(resources: Any, generation: Generation) -> int:
    if resources is None:
        return 1
    remedy = "give {'cpu': number of cores}"
    if not isinstance(resources, Mapping):
        raise InvalidArgumentError(
            f"resources_per_trial {resources!r} is a {type(resources).__name__}; {remedy}"
        )
    others = [key for key in resources if key != "cpu" and resources[key]]
    if others:
        message = f"resources_per_trial has {', '.join(map(repr, others))}, but trials run on cores; {remedy}"
        if generation.raises is Errors.OURS:
            raise InvalidArgumentError(message)
        warn(f"{message}. It is ignored")
    cores = resources.get("cpu", 1)
    try:
        return count("cpu", cores, 1)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"cpu {cores!r} of resources_per_trial is not a whole number of 1 or more; {remedy}"
        ) from None

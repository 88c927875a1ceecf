"""Searches for the best hyper-parameters of a model: trials on the workers of the context."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import secrets
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orca import running
from orca.automl.events import TrialEvents
from orca.automl.experiment_state import write_experiment_state
from orca.automl.mirror import Mirror
from orca.automl.search.tensorboardlogger import TensorboardLogger
from orca.context import OrcaContext
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.tune import SpaceExhaustedError, Study, Trial, live

__all__ = ["AutoEstimator"]

_log = logging.getLogger("orca")
_LOSSES = ("mean_loss", "loss")


class AutoEstimator:
    """Made by ``from_torch`` or ``from_keras``.

    Example:
        >>> from orca.automl.auto_estimator import AutoEstimator
        >>> AutoEstimator.from_torch(model_creator=print, optimizer="Adam", loss="MSELoss").name
        'auto_pytorch_estimator'
    """

    # The spec is an adapter's: it has ``named_metric``, ``measures_training``, ``trials`` and ``load_best``.
    def __init__(self, spec: Any, logs_dir: str, resources: Any, name: str, remote: Any) -> None:
        self._spec = spec
        self._logs = Path(logs_dir).expanduser()
        self._cores = _cores(resources)
        self.name = name
        if remote is not None and (not isinstance(remote, str) or not remote):
            raise InvalidArgumentError(
                f"remote_dir {remote!r} is not a path; give one such as 'hdfs://host/folder', or None"
            )
        self._remote = remote
        self._trials: list[Trial] = []
        self._best: tuple[int, Path] | None = None
        self._mode = "min"
        self._has_fitted = False

    @staticmethod
    def from_torch(
        *,
        model_creator: Callable[[dict[str, Any]], Any],
        optimizer: Any,
        loss: Any,
        logs_dir: str = "/tmp/auto_estimator_logs",
        resources_per_trial: dict[str, Any] | None = None,
        name: str = "auto_pytorch_estimator",
        remote_dir: str | None = None,
    ) -> AutoEstimator:
        """An AutoEstimator of a PyTorch model.

        Args:
            model_creator: ``f(config)`` of a ``torch.nn.Module``.
            optimizer: ``f(model, config)``, or the name of a class of ``torch.optim``, whose rate is
                ``config["lr"]`` or 0.001.
            loss: A torch loss, ``f(config)`` of one, or the name of a class of ``torch.nn``.
            logs_dir: Where the folders of trials are.
            resources_per_trial: ``{"cpu": k}``: the cores of a trial; 1 by default.
            name: Of the folder in ``logs_dir``.
            remote_dir: Where the folders of trials are copied to while they grow: ``file://``, ``hdfs://``, ``s3://`` ...
        """
        from orca.adapters.torch.tuning import TorchSpec

        spec = TorchSpec(model_creator, optimizer, loss)
        return AutoEstimator(spec, logs_dir, resources_per_trial, name, remote_dir)

    @staticmethod
    def from_keras(
        *,
        model_creator: Callable[[dict[str, Any]], Any],
        logs_dir: str = "/tmp/auto_estimator_logs",
        resources_per_trial: dict[str, Any] | None = None,
        name: str = "auto_keras_estimator",
        remote_dir: str | None = None,
    ) -> AutoEstimator:
        """An AutoEstimator of a Keras model, on TensorFlow.

        Args:
            model_creator: ``f(config)`` of a compiled Keras 3 model.
            logs_dir: Where the folders of trials are.
            resources_per_trial: ``{"cpu": k}``: the cores of a trial, and TensorFlow's threads; 1 by default.
            name: Of the folder in ``logs_dir``.
            remote_dir: Where the folders of trials are copied to while they grow: ``file://``, ``hdfs://``, ``s3://`` ...

        Raises:
            ImportError: TensorFlow is not installed.
        """
        from orca.adapters.keras.tuning import KerasSpec

        spec = KerasSpec(model_creator)
        return AutoEstimator(spec, logs_dir, resources_per_trial, name, remote_dir)

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
            n_sampling: How often the space is sampled, for every point of its grids.
            search_space: A dict of ``orca.automl.hp``.
            search_alg: A name; docs/tune.md has all.
            search_alg_params: Its parameters.
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
        for what, given in (("search_alg", search_alg), ("scheduler", scheduler)):
            if given is not None and not isinstance(given, str):
                raise InvalidArgumentError(
                    f"{what} should be of type str. Got {type(given).__name__}"
                )
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise InvalidArgumentError(f"epochs {epochs!r} is not a whole number of 1 or more")
        if trial_timeout is not None and not trial_timeout > 0:
            raise InvalidArgumentError(
                f"trial_timeout {trial_timeout!r} is not a positive number of seconds"
            )
        if validation_data is None:
            if measured is not None and not self._spec.measures_training:
                raise InvalidArgumentError(
                    f"You must input validation data! The metric {name!r} is measured on it"
                )
            warnings.warn(
                f"there is no validation_data: {name} on the training rows is what decides",
                stacklevel=2,
            )
        cores = OrcaContext.cores()
        columns = {
            key: value
            for key, value in (("feature_cols", feature_cols), ("label_cols", label_cols))
            if value is not None
        }
        folder = self._logs / self.name
        folder.mkdir(parents=True, exist_ok=True)
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
        )
        trials = n_sampling * int(study.space.native.grid_cells)
        run = _Search(
            trials=self._spec.trials(data, validation_data, columns, measured, self._cores),
            study=study,
            folder=folder,
            epochs=epochs,
            threshold=metric_threshold,
            patience=trial_timeout,
            reuses=reuse_workers,
            keeps_states=retries > 0 or _may_pause(scheduler, scheduler_params),
            remote=self._remote,
        )
        self._has_fitted = True
        run.run(math.inf if n_sampling == -1 else trials, max(1, cores // self._cores))
        self._trials, self._best, self._mode = study.trials, run.best, direction
        run.write_leaderboard(self._logs / f"{self.name}_leaderboard", self.name)
        failed = [trial for trial in self._trials if trial.state == "failed"]
        if failed and (raise_on_failed_trial or self._best is None):
            raise FailedPreconditionError(
                f"{len(failed)} of {len(self._trials)} trials failed; the last one, trial {failed[-1].number}:\n"
                f"{failed[-1].error}"
            )
        _log.info("%s", run.summary())

    @property
    def _found(self) -> tuple[Trial, Path]:
        if self._best is None:
            raise FailedPreconditionError("nothing has been fitted; call fit first")
        number, path = self._best
        return self._trials[number], path

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return list(self._trials)

    def best_trials(self) -> list[tuple[Trial, Path]]:
        """Those that did not fail, each with the file of its best weights; the one with the best metric first."""
        sign = -1.0 if self._mode == "max" else 1.0
        found = []
        for trial in self._trials:
            folder = self.folder_of(trial)
            if trial.state == "failed" or not trial.reports or folder is None:
                continue
            loss = min(sign * value for _, value in trial.reports)
            found.append((loss, trial.number, trial, folder / "best.ckpt"))
        return [each[2:] for each in sorted(found, key=lambda each: each[:2])]

    def folder_of(self, trial: Trial) -> Path | None:
        """Where a trial's files are."""
        return _folder_of(self._logs / self.name, trial)

    def get_best_trial(self) -> Trial:
        """The trial with the best metric of any of its epochs."""
        return self._found[0]

    def get_best_config(self) -> dict[str, Any]:
        """Its configuration."""
        return dict(self._found[0].config)

    def get_best_model(self) -> Any:
        """A new model with its weights of that epoch."""
        trial, path = self._found
        return self._spec.load_best(_converted(trial.config), path)

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
            raise InvalidArgumentError("`mode` has to be one of ['min', 'max']")
        if metric is None or metric in _LOSSES:
            return metric or _LOSSES[0], None, given or "min"
        if callable(metric):
            if given is None:
                raise InvalidArgumentError(
                    "You must specify `metric_mode` for your metric function"
                )
            return getattr(metric, "__name__", "metric"), metric, given
        return (metric, *self._spec.named_metric(metric, given))


class _Search:
    """The trials of one ``fit``."""

    def __init__(
        self,
        *,
        trials: Callable[[dict[str, Any], int], Any],
        study: Study,
        folder: Path,
        epochs: int,
        threshold: float | None,
        patience: float | None,
        reuses: bool,
        keeps_states: bool,
        remote: str | None,
    ) -> None:
        self._remote = remote
        self._mirror: Mirror | None = None
        self._patience, self._keeps_states, self._reuses = patience, keeps_states, reuses
        self._states: dict[
            int, list[Path]
        ] = {}  # Files that others may take over, the oldest first.
        self._described = 0.0  # When the file that describes the search was written.
        self._trials, self._study, self._folder = trials, study, folder
        self._epochs, self._threshold = epochs, threshold
        self._running: dict[int, _Run] = {}  # Those that are under way or paused.
        # Of each trial that has not failed: the loss of its best epoch, its number, its weights.
        self._bests: dict[int, tuple[float, int, Path]] = {}
        self._changed = threading.Condition()
        self._active = 0  # Trials that run.
        self._is_stopped = False
        self._id = secrets.token_hex(3)[:5]
        self._began = time.time()
        if len(study) == study.added:  # It begins: what others left here is not its own.
            self._remove_states()
        for trial in study.trials:  # Of a study that goes on.
            self._take_in(trial)

    @property
    def best(self) -> tuple[int, Path] | None:
        """The number of the best trial, and its file of weights."""
        return min(self._bests.values())[1:] if self._bests else None

    def run(self, trials: float, parallel: int) -> None:
        """Runs until there are so many trials and none can go on."""
        if self._remote is not None:
            self._mirror = Mirror(self._remote)
        try:
            self._run(trials, parallel)
        finally:
            if self._mirror is not None:
                self._mirror.close()

    def _run(self, trials: float, parallel: int) -> None:
        shown = live.shown(self._study._native, trials, by_best_report=True)
        with shown, ThreadPoolExecutor(parallel, thread_name_prefix="orca-trial") as threads:
            workers = [threads.submit(self._work, trials) for _ in range(parallel)]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:  # An interrupt, say: the epochs under way are the last ones.
                with self._changed:
                    self._is_stopped = True
                    self._changed.notify_all()
                raise
        self._describe(0)
        self._remove_states()

    def _remove_states(self) -> None:
        for path in self._folder.glob("train_func_*/state-*.ckpt"):
            path.unlink(missing_ok=True)
            self._grown(path.parent)

    def _describe(self, pause: float) -> None:
        """Writes ``experiment_state-<when>.json`` as Ray Tune has it, unless it is younger than ``pause`` seconds."""
        with self._changed:
            if time.time() - self._described < pause:
                return
            self._described = time.time()
            write_experiment_state(self._folder, self._study, self._id, self._began)

    def _take_in(self, trial: Trial) -> None:
        """What a trial of an earlier run of this study found."""
        if trial.state not in ("finished", "pruned", "paused") or not trial.reports:
            return
        folders = self._folder.glob(f"train_func_*_{trial.number:05d}/best.ckpt")
        if files := sorted(folders, key=lambda path: path.stat().st_mtime):
            loss = min(self._loss(value) for _, value in trial.reports)
            self._bests[trial.number] = loss, trial.number, files[-1]

    def _work(self, trials: float) -> None:
        while (trial := self._next(trials)) is not None:
            try:
                self._run_trial(trial)
            finally:
                self._describe(10)
                with self._changed:
                    self._active -= 1
                    self._changed.notify_all()

    def _run_trial(self, trial: Trial) -> None:
        while True:
            try:
                self._go_on(trial)
                return
            except Exception as error:
                run = self._running.get(trial.number)
                again = False
                if _is_not_finite(error):  # It would be so again.
                    self._study.fail(trial, error)
                else:
                    again = self._study.retry(trial, error, 0 if run is None else run.step)
                self._note_failure(trial, error)
                if not again:
                    return
                _log.warning("trial %d runs again", trial.number)

    def _next(self, trials: float) -> Trial | None:
        """A trial to run; waits while the scheduler waits for others."""
        with self._changed:
            while not self._is_stopped:
                trial = self._ask(trials)
                if trial is not None:
                    self._active += 1
                    return trial
                if self._active == 0:
                    return None
                self._changed.wait(60)
            return None

    def _ask(self, trials: float) -> Trial | None:
        if len(self._study) - self._study.added >= trials:
            return self._study.ask_again()
        try:
            return self._study.ask() if self._study.can_ask() else None
        except SpaceExhaustedError:
            return None

    def _go_on(self, trial: Trial) -> None:
        run = self._running.get(trial.number)
        if run is None or trial.source is not None:
            if run is not None:
                run.close()
            run = self._running[trial.number] = self._new(trial)
        decision = "continue"
        known = trial.reports[-1][0] if trial.reports else 0
        untold = [
            pair for pair in run.reports if pair[0] > known
        ]  # The study lost them in a crash.
        reached = not untold and self._is_through(run.reports)
        while not reached and not self._is_stopped:
            step, value = untold.pop(0) if untold else self._epoch(run)
            reached = not untold and self._is_through(run.reports)
            decision = self._study.report(trial, value, step)
            self._forget_states(trial, run, keep=decision in ("save", "pause"))
            if decision == "pause":
                return
            if decision == "stop":
                break
        if not reached and decision != "stop":
            return  # It still runs, for whoever resumes the study.
        if decision != "stop":
            self._study.tell(trial, run.best)
        _log.info(
            "trial %d is %s after %d epochs: best %s %.6g with %s",
            trial.number,
            "stopped" if decision == "stop" else "finished",
            run.step,
            self._study.metric,
            run.best,
            trial.config,
        )
        self._end(run)

    def _end(self, run: _Run, *, has_failed: bool = False) -> None:
        del self._running[run.number]
        run.close(has_failed=has_failed)
        self._grown(run.folder)

    def _grown(self, folder: Path) -> None:
        """Something in a trial's folder has changed."""
        if self._mirror is not None:
            self._mirror.note(folder)

    def _epoch(self, run: _Run) -> tuple[int, float]:
        """Makes one. What it left is on the disk before the study hears of it."""
        with running.time_limit(self._patience), running.fresh_workers(not self._reuses):
            value = run.epoch()
        if not math.isfinite(value):
            raise _NotFiniteError(f"its {self._study.metric} is {value} after epoch {run.step}")
        run.reports.append((run.step, value))
        self._note(run, value)
        if self._keeps_states:
            run.write_state()
        return run.step, value

    def _is_through(self, reports: list[tuple[int, float]]) -> bool:
        return bool(reports) and (reports[-1][0] >= self._epochs or self._is_enough(reports[-1][1]))

    def _forget_states(self, trial: Trial, run: _Run, *, keep: bool) -> None:
        """Removes files of states: a trial's last one stays, and two that others may be told to take over."""
        if not self._keeps_states:
            return
        kept = self._states.setdefault(trial.number, [])
        if keep and run.state is not None:
            kept[:] = [path for path in kept if path != run.state][-1:] + [run.state]
        for path in run.folder.glob("state-*.ckpt"):
            if path != run.state and path not in kept:
                path.unlink(missing_ok=True)

    def _state_of(self, number: int, pattern: str) -> Path | None:
        """The newest file of a trial's states."""
        found = self._folder.glob(f"train_func_*_{number:05d}/state-{pattern}.ckpt")
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _new(self, trial: Trial) -> _Run:
        config = _converted(trial.config)
        seed = (self._study.seed + 1_000_003 * trial.number) % (1 << 31)
        made = self._trials(config, seed)
        own = self._state_of(trial.number, f"{trial.clones}-*") if self._keeps_states else None
        folder = self._folder / f"train_func_{self._id}_{trial.number:05d}"
        run = _Run(trial, made, own.parent if own else folder, config)
        if own is not None:
            run.take(made.load_state(own), own)
            self._states.setdefault(trial.number, [own])
            self._rank(run)
        elif trial.source is not None:
            state = self._state_of(trial.source, f"*-{trial.resumed_step:06d}")
            state = state or self._state_of(trial.source, "*")
            if state is None:
                _log.warning(
                    "trial %d begins anew: trial %d left no state", trial.number, trial.source
                )
            else:
                made.load_state(state, only_weights=True)
                run.step = trial.resumed_step
                run.reports = [pair for pair in trial.reports if pair[0] <= run.step]
        return run

    def _is_enough(self, value: float) -> bool:
        if self._threshold is None:
            return False
        return value >= self._threshold if self._study.mode == "max" else value <= self._threshold

    def _note(self, run: _Run, value: float) -> None:
        """What the trial's folder says of an epoch, and whether it is the best."""
        is_better = run.best is None or self._loss(value) < self._loss(run.best)
        if is_better:
            run.best = value
            run.trial.save(run.folder / "best.ckpt")
        run.write(self._study.metric, value)
        self._grown(run.folder)
        if is_better:
            self._rank(run)

    def _rank(self, run: _Run) -> None:
        with self._changed:
            self._bests[run.number] = self._loss(run.best), run.number, run.folder / "best.ckpt"

    def _loss(self, value: float) -> float:
        return -value if self._study.mode == "max" else value

    def _note_failure(self, trial: Trial, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        run = self._running.get(trial.number)
        folder = run.folder if run else self._folder / f"train_func_{self._id}_{trial.number:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(text)
        _log.warning("trial %d failed: %s", trial.number, error)
        with self._changed:  # It never wins, whatever it reported.
            self._bests.pop(trial.number, None)
        if run is not None:
            self._end(run, has_failed=True)
        self._grown(folder)

    def write_leaderboard(self, folder: Path, name: str) -> None:
        """All trials in TensorBoard's table of hyper-parameters."""
        configs: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for trial in self._study.trials:
            if trial.reports and (own := _folder_of(self._folder, trial)) is not None:
                configs[own.name] = trial.config
                found[own.name] = {self._study.metric: [value for _, value in trial.reports]}
        try:
            TensorboardLogger(str(folder), name=name).run(configs, found)
        except Exception as error:  # The search has its results.
            _log.warning("TensorBoard's table %s is not complete: %s", folder, error)

    def summary(self) -> str:
        """The best configuration."""
        loss, number, path = min(self._bests.values())
        trials = self._study.trials
        states = [trial.state for trial in trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        return (
            f"{len(states)} trials ({counts}); best {self._study.metric} {self._loss(loss):.6g} by trial {number} "
            f"with {trials[number].config} ({path.parent})"
        )


class _Run:
    """A trial under way."""

    def __init__(self, trial: Trial, made: Any, folder: Path, config: dict[str, Any]) -> None:
        self.number, self.trial, self.folder = trial.number, made, folder
        self.step = 0
        self.best: Any = None
        self.reports: list[tuple[int, float]] = []
        self.state: Path | None = None  # The file of its last one.
        self._clones = trial.clones
        self._began = time.time()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "params.json").write_text(json.dumps(config, default=str))
        self._events: TrialEvents | None = TrialEvents(folder, config)

    def epoch(self) -> float:
        """Makes one, and counts it."""
        value: float = self.trial.epoch()
        self.step += 1
        return value

    def write_state(self) -> None:
        """All that it goes on with, completely or not at all."""
        path = self.folder / f"state-{self._clones}-{self.step:06d}.ckpt"
        self.trial.save_state(path, {"reports": self.reports, "best": self.best})
        self.state = path

    def take(self, note: dict[str, Any], path: Path) -> None:
        """Goes on from such a file."""
        self.reports = [(int(step), float(value)) for step, value in note["reports"]]
        self.step, self.best, self.state = self.reports[-1][0], note["best"], path

    def write(self, metric: str, value: float) -> None:
        """A line of ``result.json`` and of ``progress.csv``."""
        row = {
            "training_iteration": self.step,
            metric: value,
            f"best_{metric}": self.best,
            "checkpoint": "best.ckpt",
            "time_total_s": time.time() - self._began,
            "trial_id": self.folder.name.removeprefix("train_func_"),
        }
        with (self.folder / "result.json").open("a") as file:
            file.write(json.dumps(row) + "\n")
        path = self.folder / "progress.csv"
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        assert self._events is not None  # A trial that has ended reports nothing.
        self._events.add(row, self.step)

    def close(self, *, has_failed: bool = False) -> None:
        """Frees its memory."""
        self.trial.close()
        if self._events is not None:
            self._events.close(has_failed=has_failed, began=self._began)
            self._events = None  # Closes the file.


def _folder_of(folder: Path, trial: Trial) -> Path | None:
    """Where the youngest run of a trial left its files."""
    folders = folder.glob(f"train_func_*_{trial.number:05d}")
    return max(folders, key=lambda path: path.stat().st_mtime, default=None)


class _NotFiniteError(FailedPreconditionError):
    """A metric is no number."""


def _is_not_finite(error: Exception) -> bool:
    remote = getattr(error, "remote_type", "")  # Where a loss is watched, on the worker.
    return isinstance(error, _NotFiniteError) or remote.endswith("NotFiniteError")


def _may_pause(scheduler: str | None, parameters: dict[str, Any] | None) -> bool:
    """Whether a scheduler pauses or clones trials."""
    name = (scheduler or "fifo").lower()
    if name in ("async_hyperband", "asynchyperband"):
        return (parameters or {}).get("form") == "promotion"
    return name not in ("fifo", "median_stopping_rule", "medianstopping")


def _converted(config: dict[str, Any]) -> dict[str, Any]:
    """What names of the old API stand for: searchers of floats only had no other way."""
    found = dict(config)
    chosen = [key for key in config if key.startswith("bayes_feature_")]
    if chosen:
        found["selected_features"] = [
            key.removeprefix("bayes_feature_") for key in chosen if config[key] >= 0.5
        ]
    for key, value in config.items():
        if key == "batch_size_log":
            found["batch_size"] = int(2**value)
        elif key.endswith("_float"):
            found[key.removesuffix("_float")] = int(value)
    return found


def _cores(resources: Any) -> int:
    if resources is None:
        return 1
    cores = resources.get("cpu", 1) if isinstance(resources, dict) else None
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise InvalidArgumentError(
            f"resources_per_trial {resources!r} is not known; give {{'cpu': number of cores}}"
        )
    return cores

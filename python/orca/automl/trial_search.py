"""The trials of one search: on workers, in folders, in a study."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import logging
import math
import numbers
import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orca import running
from orca.automl.events import TrialEvents
from orca.automl.experiment_state import write_experiment_state
from orca.automl.folders import folder_name, folders_by_number
from orca.automl.mirror import Mirror
from orca.automl.search.tensorboardlogger import TensorboardLogger
from orca.errors import FailedPreconditionError, OrcaError
from orca.files import append, make_lasting, write_content
from orca.tune import SpaceExhaustedError, Study, Trial, live

__all__ = ["Best", "Search", "converted"]

_log = logging.getLogger("orca")
_LOOK = 0.05  # Seconds between looks for signals.
_LOOKS = 100  # For the state of a trial that goes on, and puts another one in its place.


@dataclasses.dataclass(frozen=True, slots=True)
class Best:
    """The best epoch of a trial."""

    loss: float
    number: int
    weights: Path
    config: dict[str, Any]

    def order(self) -> tuple[float, int]:
        """The best one first, of equals the older."""
        return self.loss, self.number


class _Desk(threading.local):
    """What a thread has yet to write for people; nothing goes on from it."""

    def __init__(self) -> None:
        self.papers: list[Callable[[], None]] = []

    def write(self) -> None:
        """Writes it, in its order. A full disk costs a line, and not the trial."""
        while self.papers:
            paper = self.papers.pop(0)
            try:
                paper()
            except (OSError, OrcaError) as error:
                _log.warning("a trial's folder is not complete: %s", error)


class Search:
    """The trials of one ``fit``.

    Attributes:
        bests: Of each trial that has not failed, by its number.
        folders: Of each trial, the youngest last.
    """

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
        self._running: dict[int, Run] = {}  # Those that are under way or paused.
        self._policies: dict[str, str] = {}  # What PBT has done, by the names of files.
        self.bests: dict[int, Best] = {}
        self._changed = threading.Condition()
        self._active = 0  # Trials that run.
        self._desk = _Desk()
        self._is_stopped = False
        self._id = secrets.token_hex(3)[:5]
        self._began = time.time()
        runs = json.loads(study.memo or "[]")  # Of this study, which others may lie beside.
        is_old = not runs and len(study) > study.added  # Its file does not say.
        study.memo = json.dumps([*runs, self._id])
        if len(study) == study.added:  # It begins: what others left here is not its own.
            self._remove_states()
        self.folders = folders_by_number(folder, None if is_old else runs)
        for trial in study.trials:  # Of a study that goes on.
            self._take_in(trial)

    def run(self, trials: float, parallel: int) -> None:
        """Runs until there are so many trials and none can go on."""
        if self._remote is not None:
            self._mirror = Mirror(self._remote)
            for folders in self.folders.values():
                for folder in folders:
                    self._grown(folder)
        self._write_policies()
        try:
            self._run(trials, parallel)
        finally:
            for run in self._running.values():  # Paused ones.
                run.close()
            self._running.clear()
            if self._mirror is not None:
                self._mirror.close()

    def _run(self, trials: float, parallel: int) -> None:
        shown = live.shown(self._study._native, trials, by_best_report=True)
        with shown, ThreadPoolExecutor(parallel, thread_name_prefix="orca-trial") as threads:
            # A thread holds its lock until it ends: who waits for a future is deaf to a signal that came to another thread.
            ends = [threading.Lock() for _ in range(parallel)]
            for end in ends:
                end.acquire()
            try:
                workers = [threads.submit(self._work, trials, end) for end in ends]
                for worker, end in zip(workers, ends, strict=True):
                    while not end.acquire(timeout=_LOOK):
                        pass
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
            try:
                write_experiment_state(
                    self._folder, self._study, self.folders, self._id, self._began
                )
            except (OSError, TypeError, ValueError) as error:  # Nothing goes on from it.
                _log.warning("the search could not be described: %s", error)

    def _write_policies(self) -> None:
        """``pbt_global.txt``, and ``pbt_policy_<trial>.txt`` for scheduler ``pbt_replay``."""
        with self._changed:
            policies = self._study.policy_files()
            for name, text in policies.items():
                if self._policies.get(name) != text:
                    _write_text(f"{self._folder}/{name}", text)
            self._policies = policies

    def _take_in(self, trial: Trial) -> None:
        """What a trial of an earlier run of this study found."""
        if trial.state not in ("finished", "pruned", "paused") or not trial.reports:
            return
        if (best := self._best_of(trial)) is not None:
            self.bests[trial.number] = best

    def _best_of(self, trial: Trial) -> Best | None:
        """What the folders of a trial have as its best epoch."""
        files = [folder / "best.ckpt" for folder in self.folders.get(trial.number, ())]
        there = [path for path in files if path.exists()]
        if not there:
            return None
        weights = max(there, key=_age)
        try:
            known = json.loads(weights.with_suffix(".json").read_text())
        except FileNotFoundError:  # Its configuration was always the same.
            loss = min((self._loss(value) for _, value in trial.reports), default=math.inf)
            return Best(loss, trial.number, weights, trial.config)
        config = self._study.config_of(trial, known["study"])
        return Best(self._loss(known["value"]), trial.number, weights, config)

    def _work(self, trials: float, end: threading.Lock) -> None:
        try:
            while (trial := self._next(trials)) is not None:
                try:
                    self._run_trial(trial)
                finally:
                    with self._changed:
                        self._active -= 1
                        self._changed.notify_all()
                self._describe(10)
        finally:
            self._desk.write()
            end.release()

    def _run_trial(self, trial: Trial) -> None:
        while True:
            try:
                self._go_on(trial)
                return
            except Exception as error:
                run = self._running.get(trial.number)
                again = False
                if not self._study.is_running(trial):  # It has ended or paused; that counts.
                    _log.warning("behind the last report of trial %d: %s", trial.number, error)
                    return
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
            trial = None
            while not self._is_stopped:
                trial = self._ask(trials)
                if trial is not None:
                    self._active += 1
                if trial is not None or self._active == 0:
                    break
                self._changed.wait(60)
            stopped = self._study.take_stopped()
        for run in [self._running[each] for each in stopped if each in self._running]:
            self._end(run)
        return trial

    def _ask(self, trials: float) -> Trial | None:
        if len(self._study) - self._study.added >= trials:
            return self._study.ask_again()
        try:
            return self._study.ask() if self._study.can_ask() else None
        except SpaceExhaustedError:
            return None

    def _go_on(self, trial: Trial) -> None:
        run = self._running.get(trial.number)
        if run is not None:
            with run.reporting:
                pass  # Who has paused it is done with it.
        if run is None or trial.source is not None or run.described != self._described_now(trial):
            if run is not None:
                self._running.pop(trial.number).close()
            if trial.source is not None:
                self._write_policies()
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
            with run.reporting:
                decision = self._study.report(trial, value, step)
                self._forget_states(trial, run, keep=decision in ("save", "pause"))
                if decision == "pause":  # Another thread may go on with it.
                    self._desk.write()
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

    def _end(self, run: Run, *, has_failed: bool = False) -> None:
        del self._running[run.number]
        run.free()

        def close() -> None:
            run.close(has_failed=has_failed)
            self._grown(run.folder)

        self._desk.papers.append(close)

    def _grown(self, folder: Path) -> None:
        """Something in a trial's folder has changed."""
        if self._mirror is not None:
            self._mirror.note(folder)

    def _epoch(self, run: Run) -> tuple[int, float]:
        """Makes one. What it left is on the disk before the study hears of it."""
        with (
            running.time_limit(self._patience),
            running.fresh_workers(not self._reuses),
            running.meanwhile(self._desk.write),
        ):
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

    def _forget_states(self, trial: Trial, run: Run, *, keep: bool) -> None:
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
        folders = self.folders.get(number, ())
        found = [path for folder in folders for path in folder.glob(f"state-{pattern}.ckpt")]
        return max(found, key=_age, default=None)

    def _new(self, trial: Trial) -> Run:
        config = converted(trial.config)
        seed = (self._study.seed + 1_000_003 * trial.number) % (1 << 31)
        made = self._trials(config, seed)
        own = self._state_of(trial.number, f"{trial.clones}-*") if self._keeps_states else None
        folder = self._folder_for(trial.number, None if own is None else own.parent)
        run = Run(trial, made, folder, self._described_now(trial))
        self._desk.papers.append(run.open)
        if self._study.changes_configs and (best := self._best_of(trial)) is not None:
            run.best = self._loss(best.loss)  # Of any of its lives.
            self.bests[trial.number] = best
        if own is not None:
            note = made.load_state(own, only_weights=self._study.changes_configs)
            if self._study.changes_configs and note["config"] == run.described:
                made.load_state(own)
            run.take(note, own)
            self._states.setdefault(trial.number, sorted(own.parent.glob("state-*.ckpt"), key=_age))
            if not self._study.changes_configs:
                self._rank(run)
        elif trial.source is not None:
            if self._copy_weights(trial, made):
                run.step = trial.resumed_step
                run.reports = [pair for pair in trial.reports if pair[0] <= run.step]
            else:
                _log.warning(
                    "trial %d begins anew: trial %d left no state", trial.number, trial.source
                )
        return run

    def _described_now(self, trial: Trial) -> str:
        """A trial's configuration in words, where somebody may read them."""
        is_kept = self._keeps_states or self._study.changes_configs
        return self._study.described(trial) if is_kept else ""

    def _copy_weights(self, trial: Trial, made: Any) -> bool:
        """Those of the trial that it is a clone of; whether there were any."""
        assert trial.source is not None
        for _ in range(_LOOKS):
            state = self._state_of(trial.source, f"*-{trial.resumed_step:06d}")
            state = state or self._state_of(trial.source, "*")
            if state is None:
                return False
            with contextlib.suppress(
                FileNotFoundError
            ):  # The source goes on, and has a younger one.
                made.load_state(state, only_weights=True)
                return True
        return False

    def _folder_for(self, number: int, known: Path | None = None) -> Path:
        """Where a trial has its files from now on: a folder that is known, or one of this run, which is made."""
        folder = known or self._folder / folder_name(self._id, number)
        folders = self.folders.setdefault(number, [])
        if folder in folders:
            folders.remove(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        folders.append(folder)
        return folder

    def _is_enough(self, value: float) -> bool:
        if self._threshold is None:
            return False
        return value >= self._threshold if self._study.mode == "max" else value <= self._threshold

    def _note(self, run: Run, value: float) -> None:
        """Keeps an epoch's weights if it is the best; what the folder says of it is written later."""
        is_better = run.best is None or self._loss(value) < self._loss(run.best)
        if is_better:
            run.best = value
            run.trial.save(run.weights)
            if self._study.changes_configs:
                known = {"value": value, "config": run.config, "study": run.described}
                _write_text(f"{run.folder}/best.json", json.dumps(known, default=str))
        row = run.row(self._study.metric, value)

        def write() -> None:
            if (
                is_better
            ):  # Whoever kills this process cannot harm it any more; who stops the machine can.
                make_lasting(run.weights)
            run.write(row)
            self._grown(run.folder)

        self._desk.papers.append(write)
        if is_better:
            self._rank(run)

    def _rank(self, run: Run) -> None:
        with self._changed:
            self.bests[run.number] = Best(self._loss(run.best), run.number, run.weights, run.config)

    def _loss(self, value: float) -> float:
        return -value if self._study.mode == "max" else value

    def _note_failure(self, trial: Trial, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        run = self._running.get(trial.number)
        folder = run.folder if run else self._folder_for(trial.number)
        _write_text(f"{folder}/error.txt", text)
        _log.warning("trial %d failed: %s", trial.number, error)
        with self._changed:  # It never wins, whatever it reported.
            self.bests.pop(trial.number, None)
        if run is not None:
            self._end(run, has_failed=True)
        self._grown(folder)

    def write_leaderboard(self, folder: Path, name: str) -> None:
        """All trials in TensorBoard's table of hyper-parameters."""
        configs: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for trial in self._study.trials:
            if trial.reports and (folders := self.folders.get(trial.number)):
                own = folders[-1].name
                configs[own] = trial.config
                found[own] = {self._study.metric: [value for _, value in trial.reports]}
        try:
            TensorboardLogger(str(folder), name=name).run(configs, found)
        except Exception as error:  # The search has its results.
            _log.warning("TensorBoard's table %s is not complete: %s", folder, error)

    def summary(self) -> str:
        """The best configuration."""
        best = min(self.bests.values(), key=Best.order)
        trials = self._study.trials
        states = [trial.state for trial in trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        return (
            f"{len(states)} trials ({counts}); best {self._study.metric} {self._loss(best.loss):.6g} by trial {best.number} "
            f"with {best.config} ({best.weights.parent})"
        )


class Run:
    """A trial under way."""

    def __init__(self, trial: Trial, made: Any, folder: Path, described: str) -> None:
        self.number, self.trial, self.folder = trial.number, made, folder
        self.config, self.described = trial.config, described
        self.weights = folder / "best.ckpt"
        # Of who reports: another thread may be told to go on before this one has put its files in order.
        self.reporting = threading.Lock()
        self.step = 0
        self.best: Any = None
        self.reports: list[tuple[int, float]] = []
        self.state: Path | None = None  # The file of its last one.
        self._clones = trial.clones
        self._began = time.time()
        self._events: TrialEvents | None = None
        self._has_rows = False  # In its table.

    def open(self) -> None:
        """Begins the files of its folder."""
        _write_text(f"{self.folder}/params.json", json.dumps(self.config, default=str))
        self._events = TrialEvents(self.folder, self.config)

    def epoch(self) -> float:
        """Makes one, and counts it."""
        value: float = self.trial.epoch()
        self.step += 1
        return value

    def write_state(self) -> None:
        """All that it goes on with, completely or not at all."""
        path = self.folder / f"state-{self._clones}-{self.step:06d}.ckpt"
        note = {"reports": self.reports, "best": self.best, "config": self.described}
        self.trial.save_state(path, note)
        self.state = path

    def take(self, note: dict[str, Any], path: Path) -> None:
        """Goes on from such a file."""
        self.reports = [(int(step), float(value)) for step, value in note["reports"]]
        self.step, self.best, self.state = self.reports[-1][0], note["best"], path

    def row(self, metric: str, value: float) -> dict[str, Any]:
        """What is written of the last epoch."""
        return {
            "training_iteration": self.step,
            metric: value,
            f"best_{metric}": self.best,
            "checkpoint": "best.ckpt",
            "time_total_s": time.time() - self._began,
            "trial_id": self.folder.name.removeprefix("train_func_"),
        }

    def write(self, row: dict[str, Any]) -> None:
        """A line of ``result.json`` and of ``progress.csv``."""
        append(f"{self.folder}/result.json", f"{json.dumps(row)}\n".encode())
        lines = io.StringIO(newline="")
        writer = csv.writer(lines)
        if not self._has_rows and not _size(f"{self.folder}/progress.csv"):
            writer.writerow(row)
        writer.writerow(row.values())
        append(f"{self.folder}/progress.csv", lines.getvalue().encode())
        self._has_rows = True
        if self._events is not None:  # Else the disk was full.
            self._events.add(row, row["training_iteration"])

    def free(self) -> None:
        """Frees its memory; that of workers with their next call."""
        self.trial.close()

    def close(self, *, has_failed: bool = False) -> None:
        """Ends its files."""
        self.free()
        if self._events is not None:
            self._events.close(has_failed=has_failed, began=self._began)
            self._events = None  # Closes the file.


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:  # Somebody has just removed it.
        return 0, path.name


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a Path takes longer.
    except FileNotFoundError:
        return 0


def _write_text(path: str, text: str) -> None:
    """What people read: nothing goes on from it."""
    write_content(path, text.encode("utf-8", "backslashreplace"), is_lasting=False)


class _NotFiniteError(FailedPreconditionError):
    """A metric is no number."""


def _is_not_finite(error: Exception) -> bool:
    remote = getattr(error, "remote_type", "")  # Where a loss is watched, on the worker.
    return isinstance(error, _NotFiniteError) or remote.endswith("NotFiniteError")


def converted(config: dict[str, Any]) -> dict[str, Any]:
    """With what names of the old API stand for in their places: searchers of floats only had no other way."""
    found: dict[str, Any] = {}
    features: dict[str, bool] = {}
    for key, value in config.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            found[key] = value
        elif key.startswith("bayes_feature_"):
            features[key.removeprefix("bayes_feature_")] = float(value) >= 0.5
        elif key == "batch_size_log":
            found["batch_size"] = int(2 ** float(value))
        elif key.endswith("_float"):
            found[key.removesuffix("_float")] = int(float(value))
        else:
            found[key] = value
    if features:  # A text, as in the original.
        found["selected_features"] = json.dumps([name for name in features if features[name]])
    return found

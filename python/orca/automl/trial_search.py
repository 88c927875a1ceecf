"""The trials of one search: on workers, in folders, in a study."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import numbers
import secrets
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orca import running
from orca._native import _core
from orca.automl.events import hparams_of
from orca.automl.experiment_state import write_experiment_state
from orca.automl.folders import folder_name, folders_by_number
from orca.automl.mirror import Mirror
from orca.automl.search.tensorboardlogger import TensorboardLogger
from orca.context import OrcaContext
from orca.errors import (
    ContextLostError,
    FailedPreconditionError,
    OrcaError,
    UnavailableError,
    WorkerFailedError,
)
from orca.files import make_lasting, write_content
from orca.tune import Study, Trial, live

__all__ = ["Best", "Search", "converted"]

_log = logging.getLogger("orca")
_LOOK = 0.05  # Seconds between looks for signals.
_LOOKS = 100  # For the state of a trial that goes on, and puts another one in its place.
_TOGETHER = 16  # Trials that a worker makes in one call, at most.
_CALL = 0.04  # Seconds that such a call takes, at most.
_LEAST = 0.005  # Seconds for which it does not matter that others find nothing to do.
_encoded = json.JSONEncoder(default=str).encode


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
            except Exception as error:
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
        keys: Iterable[str],
        leaderboard: TensorboardLogger,
        make_ahead: Callable[[list[Any]], None] | None,
    ) -> None:
        self._leaderboard = leaderboard
        self._listed: set[int] = set()  # Trials in it.
        self._remote = remote
        # Where nothing is decided between trials, short ones are made some at a time, ahead of who asks for their epochs.
        is_plain = not (study.learns or study.space.has_functions or keeps_states)
        if not is_plain or epochs > 1 or patience is not None or not reuses:
            make_ahead = None
        self._make_ahead = make_ahead
        self._pace = math.inf  # Seconds that a worker needs for a trial.
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
        self._leader: Best | None = None  # Of this run.
        self._changed = threading.Condition()
        self._busy: set[int] = set()  # Threads with a trial.
        self._desk = _Desk()
        self._is_stopped = False
        # Keys that neither a trial nor a function of sample_from has read.
        self._unread = set(keys)
        self._has_read = False  # Whether a trial has told what it read.
        self._id = secrets.token_hex(3)[:5]
        self._began = time.time()
        runs = json.loads(study.memo or "[]")  # Of this study, which others may lie beside.
        is_old = not runs and len(study) > study.added  # Its file does not say.
        study.memo = json.dumps([*runs, self._id])
        self._is_resumed = len(study) > study.added
        if not self._is_resumed:  # What others left here is not its own.
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
        # With the spare ones a worker that is done with short trials finds the next ones waiting. Where there are more cores
        # than trials at a time they would find one.
        has_spares = self._make_ahead is not None and parallel == OrcaContext.cores()
        count = 2 * parallel if has_spares else parallel
        with shown, ThreadPoolExecutor(count, thread_name_prefix="orca-trial") as threads:
            # A thread holds its lock until it ends: who waits for a future is deaf to a signal that came to another thread.
            ends = [threading.Lock() for _ in range(count)]
            for end in ends:
                end.acquire()
            try:
                workers = [
                    threads.submit(self._work, trials, end, count, is_spare=i >= parallel)
                    for i, end in enumerate(ends)
                ]
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
        if self._keeps_states or self._is_resumed:
            self._remove_states()
        if self.bests:  # Who led may have failed since.
            weights = min(self.bests.values(), key=Best.order).weights
            self._desk.papers.append(lambda: make_lasting(weights))
            self._desk.write()

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
            known = _read_checked(weights.with_suffix(".json"))
        except FileNotFoundError:  # Its configuration was always the same.
            loss = min((self._loss(value) for _, value in trial.reports), default=math.inf)
            return Best(loss, trial.number, weights, trial.config)
        config = self._study.config_of(trial, known["study"])
        return Best(self._loss(known["value"]), trial.number, weights, config)

    def _work(self, trials: float, end: threading.Lock, count: int, *, is_spare: bool) -> None:
        told: list[tuple[Trial, float]] = []
        try:
            while batch := self._next(trials, told, count, is_spare=is_spare):
                if len(batch) > 1:
                    self._prepare(batch)
                told = [ended for trial in batch if (ended := self._run_trial(trial)) is not None]
                self._describe(10)
        finally:
            with self._changed:
                self._busy.discard(threading.get_ident())
                self._changed.notify_all()
            self._desk.write()
            end.release()

    def _prepare(self, batch: list[Trial]) -> None:
        """Has a worker make the trials in one call. Whoever cannot be made so is made alone, and fails then if it does."""
        assert self._make_ahead is not None
        runs = []
        for trial in batch:
            with contextlib.suppress(Exception):
                run = self._running[trial.number] = self._new(trial)
                runs.append(run)
        if not runs:
            return
        try:
            with running.meanwhile(self._desk.write):
                self._make_ahead([run.trial for run in runs])
        except Exception as error:  # A worker died, say: nobody knows of whom.
            _log.debug("trials are made one by one: %s", error)

    def _run_trial(self, trial: Trial) -> tuple[Trial, float] | None:
        """Runs it until it ends or pauses; what the study has yet to be told."""
        while True:
            try:
                return self._go_on(trial)
            except Exception as error:
                run = self._running.get(trial.number)
                again = False
                if _is_of_context(error):
                    raise self._stopped_by(error) from error
                if not self._study.is_running(trial):  # It has ended or paused; that counts.
                    _log.warning("behind the last report of trial %d: %s", trial.number, error)
                    return None
                if _is_of_node(error):  # Each node is lost once, so this ends.
                    _log.warning("trial %d runs again: %s", trial.number, error)
                    if run is not None:
                        self._running.pop(trial.number).close()
                    continue
                if _is_not_finite(error):  # It would be so again.
                    self._study.fail(trial, error)
                else:
                    again = self._study.retry(trial, error, 0 if run is None else run.step)
                self._note_failure(trial, error)
                if not again:
                    return None
                _log.warning("trial %d runs again", trial.number)

    def _stopped_by(self, error: Exception) -> ContextLostError:
        """Ends the search as an interrupt does: trials that run are stored as running, for whoever resumes it."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        return ContextLostError(
            f'{error}\nThe search is stored in {self._folder}. In a new context, fit with resume="auto" runs the '
            "trials that are left"
        )

    def _next(
        self, trials: float, told: list[tuple[Trial, float]], threads: int, *, is_spare: bool
    ) -> list[Trial]:
        """Trials to run, mostly one; waits while the scheduler waits for others.

        Args:
            trials: How many there will be.
            told: Trials that have ended, and their values: that and the start of the next ones are one commit.
            threads: How many call this.
            is_spare: Whether this thread is for short trials only.
        """
        with self._changed:
            batch: list[Trial] = []
            is_busy = threading.get_ident() in self._busy
            if told and self._is_stopped:
                self._study.tell_and_ask(told, 0)
            while not self._is_stopped:
                room = self._room(trials, threads)
                batch = []
                if told or room > 1 or not is_spare:
                    batch = self._study.tell_and_ask(told, room)
                told = []
                if is_busy:  # What this one told may let others go on.
                    self._changed.notify_all()
                is_busy = bool(batch)
                if is_busy:
                    self._busy.add(threading.get_ident())
                else:
                    self._busy.discard(threading.get_ident())
                is_over = self._make_ahead is not None and (room != 1 or not is_spare)
                if batch or is_over or not self._busy:
                    break
                self._changed.wait(60)
            stopped = self._study.take_stopped()
        for run in [self._running[each] for each in stopped if each in self._running]:
            self._end(run)
        return batch

    def _room(self, trials: float, threads: int) -> int:
        """How many trials a thread starts: short ones together, but not so many that others find none."""
        left = trials - len(self._study) + self._study.added
        if left < 1 or self._make_ahead is None:
            return int(left >= 1)
        pace = max(self._pace, 1e-6)
        fair = max(left // threads, _LEAST // pace)
        return int(max(1, min(_TOGETHER, _CALL // pace, fair, left)))

    def _go_on(self, trial: Trial) -> tuple[Trial, float] | None:
        """What ``_run_trial`` returns."""
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
                return None
            if decision == "stop":
                break
        if not reached and decision != "stop":
            return None  # It still runs, for whoever resumes the study.
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
        return None if decision == "stop" else (trial, run.best)

    def _end(self, run: Run, *, has_failed: bool = False) -> None:
        del self._running[run.number]
        run.free()

        def close() -> None:
            run.close(has_failed=has_failed)
            self._grown(run.folder)
            if run.reports:
                name = run.folder.name
                self._leaderboard.run({name: run.config}, {name: self._curve(run.reports)})
                self._listed.add(run.number)

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
        if self._unread:
            self._note_reads(run)
        if self._make_ahead is not None:  # What one alone needed may have been the machine's mood.
            old = self._pace if math.isfinite(self._pace) else run.trial.seconds
            self._pace = 0.75 * old + 0.25 * run.trial.seconds
        if not math.isfinite(value):
            raise _NotFiniteError(f"its {self._study.metric} is {value} after epoch {run.step}")
        run.reports.append((run.step, value))
        self._note(run, value)
        if self._keeps_states:
            run.write_state()
        return run.step, value

    def _note_reads(self, run: Run) -> None:
        if run.trial.read is None:
            return
        with self._changed:
            is_first, self._has_read = not self._has_read, True
            for key in list(self._unread):
                names = {key, _name_for_creators(key)}
                if names & run.trial.read or key in self._study.space.read:
                    self._unread.discard(key)
        if is_first and self._unread:
            _log.warning(
                "trial %d has read no %s of search_space", run.number, _listed(self._unread)
            )

    def unread(self) -> str:
        """Keys of the space that no trial has read; empty also where that is not known, as of a search that was resumed."""
        return _listed(self._unread) if self._has_read and not self._is_resumed else ""

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
        run = Run(trial, made, folder, self._study.metric, self._described_now(trial))
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
        """Where a trial has its files from now on: a folder that is known, or one of this run. Its first file makes it."""
        folder = known or self._folder / folder_name(self._id, number)
        folders = self.folders.setdefault(number, [])
        if folder in folders:
            folders.remove(folder)
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
                _write_text(f"{run.folder}/best.json", _checked(json.dumps(known, default=str)))
        leads = is_better and self._rank(run)
        report = (run.step, value, float(run.best), time.time() - run.began)

        def write() -> None:
            # Whoever kills this process cannot harm weights any more; who stops the machine can. The best ones are safe.
            if leads:
                make_lasting(run.weights)
            run.files.add(*report)
            self._grown(run.folder)

        self._desk.papers.append(write)

    def _rank(self, run: Run) -> bool:
        """Notes the best epoch of a trial; whether there is no better one."""
        best = Best(self._loss(run.best), run.number, run.weights, run.config)
        with self._changed:
            self.bests[run.number] = best
            leads = self._leader is None or best.order() <= self._leader.order()
            if leads:
                self._leader = best
        return leads

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

    def complete_leaderboard(self) -> None:
        """Adds those to it that did not end in this run."""
        configs, curves = {}, {}
        for trial in self._study.trials:
            folders = self.folders.get(trial.number)
            if trial.reports and folders and trial.number not in self._listed:
                configs[folders[-1].name] = trial.config
                curves[folders[-1].name] = self._curve(trial.reports)
        try:
            self._leaderboard.run(configs, curves)
        except Exception as error:  # The search has its results.
            where = self._leaderboard.logs_dir
            _log.warning("TensorBoard's table %s is not complete: %s", where, error)

    def _curve(self, reports: list[tuple[int, float]]) -> dict[str, list[float]]:
        return {self._study.metric: [value for _, value in reports]}

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

    def __init__(self, trial: Trial, made: Any, folder: Path, metric: str, described: str) -> None:
        self.number, self.trial, self.folder = trial.number, made, folder
        self.config, self.described = trial.config, described
        self.weights = folder / "best.ckpt"
        # Of who reports: another thread may be told to go on before this one has put its files in order.
        self.reporting = threading.Lock()
        self.step = 0
        self.best: Any = None
        self.reports: list[tuple[int, float]] = []
        self.state: Path | None = None  # The file of its last one.
        self.began = time.time()
        self.files = _core.TrialFolder(folder, metric, self.began)  # For people.
        self._clones = trial.clones

    def open(self) -> None:
        """Begins the files of its folder."""
        self.files.begin(_encoded(self.config), hparams_of(self.config))

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

    def free(self) -> None:
        """Frees its memory; that of workers with their next call."""
        self.trial.close()

    def close(self, *, has_failed: bool = False) -> None:
        """Ends its files."""
        self.free()
        self.files.end(has_failed)


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:  # Somebody has just removed it.
        return 0, path.name


def _write_text(path: str, text: str) -> None:
    """What people read: nothing goes on from it."""
    write_content(path, text.encode("utf-8", "backslashreplace"), is_lasting=False)


class _NotFiniteError(FailedPreconditionError):
    """A metric is no number."""


def _is_not_finite(error: Exception) -> bool:
    remote = getattr(error, "remote_type", "")  # Where a loss is watched, on the worker.
    return isinstance(error, _NotFiniteError) or remote.endswith("NotFiniteError")


def _is_of_context(error: Exception) -> bool:
    """Whether no trial can run any more."""
    if isinstance(error, ContextLostError):
        return True
    if isinstance(error, WorkerFailedError) or not isinstance(error, OrcaError):
        return False
    return not _is_not_finite(error) and running.context_is_lost()


def _is_of_node(error: Exception) -> bool:
    """Whether a trial's worker was lost with its node, while there are other nodes."""
    return isinstance(error, WorkerFailedError) and "was lost with its node: " in str(error)


def _checked(record: str) -> str:
    """A record of JSON with its checksum."""
    return f'{record[:-1]}, "crc32": "{zlib.crc32(record.encode()):08x}"}}'


def _read_checked(path: Path) -> dict[str, Any]:
    """What ``_checked`` made, or a record of before that."""
    content = path.read_bytes()
    try:
        known: dict[str, Any] = json.loads(content)
        said = known.pop("crc32", None)
        found = f"{zlib.crc32(json.dumps(known).encode()):08x}"
        if said not in (None, found):
            raise ValueError(f"its checksum is {found} instead of {said}")
        known["value"], known["study"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnavailableError(
            f"{path} is damaged: {error}; remove it and best.ckpt beside it to go on without this trial's weights"
        ) from error
    return known


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(keys)))


def _name_for_creators(key: str) -> str:
    """Under which creators find a key; see ``converted``."""
    if key.startswith("bayes_feature_"):
        return "selected_features"
    return "batch_size" if key == "batch_size_log" else key.removesuffix("_float")


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

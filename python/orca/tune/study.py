"""The study: asks the engine for configurations and tells it what became of them."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import secrets
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orca._native import _core
from orca.errors import ContextLostError, FailedPreconditionError, InvalidArgumentError, OrcaError
from orca.generations import ORCA, Errors, Generation
from orca.tune import live
from orca.tune.arguments import (
    changes_configs,
    check_mutations,
    count,
    parameters_of,
    positive,
    scheduler_parameters,
    taken_functions,
    warn,
)
from orca.tune.crew import Attempt, Crew
from orca.tune.space import SearchSpace

__all__ = ["SpaceExhaustedError", "Study", "Trial", "search_names", "search_parameters"]

_log = logging.getLogger("orca")

_MODES = ("min", "max")


class SpaceExhaustedError(OrcaError):
    """Every point of a finite space has been tried."""


@dataclass(slots=True)
class Trial:
    """One configuration and what became of it.

    Attributes:
        number: Trials are numbered from 0 in the order in which they were asked for.
        config: As the space, with a value for every domain.
        state: ``"running"``, ``"paused"``, ``"finished"``, ``"pruned"`` or ``"failed"``.
        value: Of a finished one; else None.
        reports: Pairs of step and value.
        error: Why it failed.
        resumed_step: Of one that ``ask`` gives again: the step whose stored state it goes on from; 0: it begins.
        source: The number of the trial whose stored state that is; None: its own.
        clones: How often it took over another trial's state.
        retries: How often it was run again.
    """

    number: int
    config: dict[str, Any]
    state: str = "running"
    value: float | None = None
    reports: list[tuple[int, float]] = field(default_factory=list)
    error: str = ""
    resumed_step: int = 0
    source: int | None = None
    clones: int = 0
    retries: int = 0


def search_names() -> list[str]:
    """All names that ``search_alg`` may have.

    Example:
        >>> from orca.tune import search_names
        >>> "hyperopt" in search_names()
        True
    """
    names: list[str] = _core.tune_search_names()
    return names


def search_parameters(
    search_alg: str, parameters: Mapping[str, Any], generation: Generation = ORCA
) -> dict[str, float]:
    """Those of ``parameters`` that an algorithm takes.

    Args:
        search_alg: Its name, in any case.
        parameters: As the user gave them.
        generation: Unknown ones are an error under ``orca``; under the old roots, which dropped them in
            silence, a warning.

    Returns:
        Numbers by name.

    Raises:
        InvalidArgumentError: The name or a parameter is unknown, or a value is no number.
    """
    known = _core.tune_search_parameters(search_alg)
    ignored = _core.tune_ignored_search_parameters(search_alg)
    taken: dict[str, float] = {}
    for name, value in parameters.items():
        if name in ignored:
            _log.info("%s of search_alg %r has no effect", name, search_alg)
            continue
        if name not in known:
            message = (
                f"search_alg {search_alg!r} has no parameter {name!r}; known: "
                f"{', '.join(sorted([*known, 'points_to_evaluate']))}"
            )
            if generation.raises is Errors.OURS:
                raise InvalidArgumentError(message)
            warn(f"{message}. It is ignored")
            continue
        if value is None:
            continue
        try:
            taken[name] = float(value)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{name} {value!r} of search_alg {search_alg!r} is not a number"
            ) from None
    return taken


class Study:
    """A search for the configuration with the best value. Any thread may call it.

    The next configuration is a function of the seed, its number and the trials so far.

    Args:
        space: A dict whose values are domains of ``orca.automl.hp``, constants, or dicts and lists of such.
        metric: What the value is, for people; and the key when an objective returns a dict.
        mode: ``"min"`` or ``"max"``.
        search_alg: One of ``search_names()``.
        search_alg_params: Parameters of the algorithm.
        seed: Of all random numbers; None takes any.
        batch: With ``k``, proposals use whole batches of ``k`` trials only: the study is the same for any
            number of parallel trials up to ``k``.
        points_to_evaluate: Configurations that come first; what they leave out is drawn.
        n_trials: How many trials there will be, if that is known; ``"auto"`` takes it into account.
        allow_duplicates: Whether a configuration of a finite space may come twice. It may where a ``sample_from`` makes
            another one of it.
        scheduler: Decides by reports which trials stop, pause and go on: ``"async_hyperband"`` and others
            (docs/tune.md).
        scheduler_params: Parameters of the scheduler.
        epochs: How many steps a whole trial has. Who reports that step is through: it is not stopped there.
        storage: A file. What is decided over a trial is in it before anybody hears of it.
        name: Of the study in that file, which may have many.
        resume: ``"auto"`` goes on with the youngest study of that name, if there is one: trials that ran when its
            process ended are asked for again, first.
        full_sync: Whether decisions outlive the machine's power, and not only the process.
        retries: How often a trial that raised, died or hung is run again. The same error twice at the same step
            is the last one.
        warm_start: The file of an older study, or its folder: its finished trials are known to a study that begins,
            and not counted.
        generation: Unknown parameters are an error under ``orca``, a warning under the old roots.

    Attributes:
        max_concurrent: How many trials may run at the same time, by ``search_alg_params``; 0: any number.

    Example:
        >>> from orca.automl import hp
        >>> from orca.tune import Study
        >>> study = Study({"x": hp.randint(0, 10)}, mode="max", seed=1)
        >>> trial = study.ask()
        >>> study.tell(trial, trial.config["x"])
        >>> study.best_value == trial.config["x"]
        True
    """

    def __init__(
        self,
        space: Mapping[str, Any],
        metric: str = "value",
        mode: str = "min",
        search_alg: str = "auto",
        search_alg_params: Mapping[str, Any] | None = None,
        seed: int | None = None,
        batch: int = 0,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
        n_trials: int | None = None,
        allow_duplicates: bool = False,
        scheduler: str | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        storage: str | os.PathLike[str] | None = None,
        name: str = "study",
        resume: str | bool = False,
        full_sync: bool = False,
        retries: int = 0,
        warm_start: str | os.PathLike[str] | None = None,
        generation: Generation = ORCA,
    ) -> None:
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode {mode!r} is not known; give 'min' or 'max'")
        if resume not in ("auto", True, False):
            raise InvalidArgumentError(f"resume {resume!r} is not known; give 'auto' or False")
        self.metric = metric
        self.mode = mode
        file = "" if storage is None else os.fspath(storage)
        if seed is None and file and resume:
            seed = _core.tune_stored_seed(file, name)
        self.seed = secrets.randbits(63) if seed is None else count("seed", seed)
        if self.seed >> 64:
            raise InvalidArgumentError(f"seed {self.seed} is larger than {(1 << 64) - 1}")
        self.space = SearchSpace(space)
        searching = parameters_of("search_alg_params", search_alg_params, metric, mode)
        scheduling = parameters_of("scheduler_params", scheduler_params, metric, mode)
        self.max_concurrent = count("max_concurrent", searching.pop("max_concurrent", None) or 0)
        points = _points(searching.pop("points_to_evaluate", None), points_to_evaluate)
        if changes_configs(scheduler or "") and search_alg.lower() == "auto":
            search_alg = (
                "random"  # What learns would learn of configurations that others have changed.
            )
        check_mutations(search_alg, scheduler or "", scheduling, space, self.space.names)
        self._configs: dict[int, dict[str, Any]] = {}
        self._made: dict[int, dict[str, Any]] = {}  # By functions of sample_from, for each trial.
        self._functions = taken_functions(
            scheduler or "", scheduling, self.space, lambda trial: self._made.get(trial, {})
        )
        self._native = _core.TuneStudy(
            self.space.native,
            maximize=mode == "max",
            search_alg=search_alg,
            parameters=search_parameters(search_alg, searching, generation),
            seed=self.seed,
            batch=count("batch", batch),
            points=[self.space.point(point) for point in points],
            budget=count("n_trials", n_trials or 0),
            allow_duplicates=allow_duplicates or self.space.has_functions,
            scheduler=scheduler or "fifo",
            scheduler_parameters=scheduler_parameters(scheduling),
            epochs=count("epochs", epochs or 0),
            file=file,
            name=name,
            metric=metric,
            resume=bool(resume),
            full_sync=full_sync,
            retries=count("retries", retries),
            warm_start="" if warm_start is None else os.fspath(warm_start),
            constants=json.dumps(self.space.constants()),
            ignore_unknown=generation.raises is not Errors.OURS,
            **self._weak_functions(),
        )
        for note in self._native.scheduler_notes:
            if " has no parameter " in note:
                warn(f"{note}. It is ignored")
        if self.space.has_functions:
            self._made.update(
                {trial.number: _read(trial.memo)[1] for trial in self._native.trials()}
            )
        self._epochs = epochs or 0
        # Of the budget of the first ``optimize``.
        self._restored = self._native.size - self._native.added
        self._paused: dict[int, tuple[Generator[Any, Any, Any], int]] = {}  # With the last step.

    def _weak_functions(self) -> dict[str, Any]:
        """What the engine calls. It holds no function of the user, who may hold the study: Python finds no garbage in the engine."""
        mine = weakref.ref(self)

        def draw(key: str) -> Callable[[int], str]:
            return lambda random: mine()._functions["draws"][key](random)  # type: ignore[union-attr]

        found: dict[str, Any] = {
            "draws": {key: draw(key) for key in self._functions.get("draws", ())}
        }
        if "explore" in self._functions:
            found["explore"] = lambda *given: mine()._functions["explore"](*given)  # type: ignore[union-attr]
        return found

    @property
    def algorithm(self) -> str:
        """What proposes configurations, e.g. ``"tpe"``."""
        name: str = self._native.algorithm
        return name

    @property
    def may_pause(self) -> bool:
        """Whether the scheduler may decide that a trial pauses or saves its state."""
        return bool(self._native.may_pause)

    @property
    def changes_configs(self) -> bool:
        """Whether the scheduler may give trials other configurations."""
        return bool(self._native.changes_configs)

    @property
    def learns(self) -> bool:
        """Whether it matters for the next trials how others did; else they may be asked for ahead of time."""
        return bool(self._native.learns)

    @property
    def memo(self) -> str:
        """A text that is stored with the study."""
        text: str = self._native.memo
        return text

    @memo.setter
    def memo(self, text: str) -> None:
        self._native.set_memo(text)

    def policy_files(self) -> dict[str, str]:
        """What PBT has done, as ``pbt_global.txt`` and ``pbt_policy_<trial>.txt``, by their names."""
        files: dict[str, str] = self._native.policy_files()
        return files

    # --- one trial

    def can_ask(self) -> bool:
        """Whether ``ask`` may be called: not while a batch, or the scheduler, waits for trials that run."""
        return bool(self._native.can_ask())

    def ask(self) -> Trial:
        """Starts the next trial, or goes on with one that was paused, or that ran when the study was stored last.

        Raises:
            SpaceExhaustedError: All configurations of a finite space have been tried, or the scheduler starts no more.
            FailedPreconditionError: A batch, or the scheduler, waits for trials that run.
        """
        native = self._native.ask()
        if native is None:
            raise SpaceExhaustedError(
                f"space exhausted: there is nothing to try after {self._native.size} trials"
            )
        return self._begun(native)

    def ask_again(self) -> Trial | None:
        """As ``ask``, but starts no new trial: None when there is nothing to go on with."""
        native = self._native.ask_again()
        return None if native is None else self._begun(native)

    def take_stopped(self) -> list[int]:
        """The numbers of paused trials that the scheduler has stopped since the last call: nobody asks for them again."""
        stopped: list[int] = self._native.take_stopped()
        for number in stopped:
            if (paused := self._paused.pop(number, None)) is not None:
                paused[0].close()
        return stopped

    def _begun(self, native: Any) -> Trial:
        try:
            if native.config or native.number not in self._configs:
                self._configs[native.number] = self._config(native)
        except BaseException as error:  # Of a function of sample_from.
            self._configs[native.number] = {}
            self._native.fail(native.number, repr(error))
            raise
        return self._trial(native)

    def _config(self, native: Any) -> dict[str, Any]:
        """The configuration of a trial. Functions of ``sample_from`` are called once; what they made is stored, and a clone has its source's."""
        made: dict[str, Any] = {}
        if self.space.has_functions:
            clones, made = _read(native.memo)
            if clones != native.clones and native.source >= 0:
                made = dict(self._made.get(native.source, made))
        if native.config:
            config = self.space.changed(native.point, json.loads(native.config), made)
        else:
            config = self.space.config(native.point, made)
        if made:
            self._made[native.number] = made
            if (memo := _memo(native.clones, made)) != native.memo:
                self._native.set_memo(native.number, memo)
        return config

    def described(self, trial: Trial | int) -> str:
        """The configuration that a trial has now, in words that other processes understand; see ``config_of``."""
        number = _number(trial)
        config = json.loads(self._native.config_text(self._native.at(number)))
        made = json.loads(_memo(0, self._made.get(number, {})))["made"]
        return json.dumps({"config": config, "made": made}, sort_keys=True)

    def config_of(self, trial: Trial | int, description: str) -> dict[str, Any]:
        """The configuration that ``described`` told of a trial."""
        number = _number(trial)
        if description == self.described(number):
            return self._trial(self._native.at(number)).config
        told = json.loads(description)
        made = {path: _decoded(value) for path, value in told["made"].items()}
        return self.space.changed(self._native.at(number).point, told["config"], made)

    def tell(self, trial: Trial | int, value: float) -> None:
        """Ends a trial with its value. One that is not finite makes it a failed one."""
        self._native.tell(_number(trial), float(value))

    def tell_and_ask(
        self, told: Iterable[tuple[Trial | int, float]], wanted: int = 1
    ) -> list[Trial]:
        """``tell`` for trials that have ended, and ``ask`` behind it for the ``wanted`` next ones, stored in one commit.

        Args:
            told: The trials, with their values.
            wanted: How many to start; 0: ``ask_again``. Not more than one of a space with functions, which may raise.

        Returns:
            The next trials; fewer than wanted: there is nothing more to run now.
        """
        if wanted > 1 and self.space.has_functions:
            raise InvalidArgumentError(
                f"wanted {wanted}: the space has functions of sample_from; ask for one trial at a time"
            )
        ended = [(_number(trial), float(value)) for trial, value in told]
        return [self._begun(native) for native in self._native.tell_and_ask(ended, wanted)]

    def fail(self, trial: Trial | int, error: str | BaseException = "") -> None:
        """Ends a trial that has no value."""
        self._native.fail(_number(trial), error if isinstance(error, str) else _traceback(error))

    def retry(self, trial: Trial | int, error: str | BaseException, step: int = 0) -> bool:
        """Decides over a trial that crashed or hung.

        Args:
            trial: What ``ask`` gave.
            error: Why.
            step: Behind which step.

        Returns:
            True: it still runs, and is to be run again, from its last checkpoint or from the beginning. False: it has
            failed: ``retries`` are used up, or the same error came twice at the same step.
        """
        text = error if isinstance(error, str) else _traceback(error)
        return bool(self._native.retry(_number(trial), text, step))

    def is_running(self, trial: Trial | int) -> bool:
        """Whether a trial runs: it has neither ended nor paused."""
        return bool(self._native.at(_number(trial)).state == "running")

    def prune(self, trial: Trial | int) -> None:
        """Ends a trial that was stopped early; its last report is what is known of it."""
        self._native.prune(_number(trial))

    def report(self, trial: Trial | int, value: float, step: int | None = None) -> str:
        """Notes a value of a running trial.

        Args:
            trial: What ``ask`` gave.
            value: Of the metric.
            step: Ascends from 1; None: the next one.

        Returns:
            What the trial shall do: ``"continue"``; ``"save"``: store its state, and continue; ``"pause"``: store
            its state, and end until ``ask`` gives it again; ``"stop"``: it has ended. Nothing is to be told
            after the last two.
        """
        number = _number(trial)
        if step is None:
            reports = self._native.at(number).reports
            step = reports[-1][0] + 1 if reports else 1
        decision: str = self._native.add_report(number, step, float(value))
        return decision

    def add_trial(self, config: Mapping[str, Any], value: float) -> Trial:
        """Adds a finished trial of another study, so that proposals know of it."""
        point = self.space.point(config)
        native = _core.TuneTrial(0, point, "finished", float(value), [], "")
        number = self._native.add(native)
        self._configs[number] = self.space.config(point)
        return self._trial(self._native.at(number))

    # --- many trials

    def optimize(
        self,
        function: Callable[[dict[str, Any]], Any],
        n_trials: int | None = None,
        parallel: int = 1,
        timeout: float | None = None,
        trial_timeout: float | None = None,
        quiet: bool = False,
    ) -> None:
        """Runs trials until there are ``n_trials`` more, the time is over, or the space is exhausted.

        Args:
            function: Takes a configuration and returns its value, or a dict with the metric. If it yields them
                instead, each is the report of a step, after which the scheduler may end or pause the trial, and the last
                is the value. A trial in which it raises has failed; the study goes on.
            n_trials: How many trials to start. Trials of a study that was resumed count: the same call, made again,
                ends with the same number of trials.
            parallel: How many run at the same time, each in a thread.
            timeout: Seconds after which no trial is started.
            trial_timeout: Seconds after which a trial that has reported nothing has failed, or is run again
                (``retries``). Its thread is left behind: Python cannot end it.
            quiet: Whether no table of the trials is shown.

        Raises:
            FailedPreconditionError: No trial of the study succeeded.
        """
        is_endless = self.space.has_functions or self.space.native.cardinality == float("inf")
        if n_trials is None and timeout is None and is_endless:
            raise InvalidArgumentError(
                "optimize has no end: give n_trials, timeout, or a finite search space"
            )
        left = float("inf") if n_trials is None else count("n_trials", n_trials)
        parallel = min(count("parallel", parallel, 1), self.max_concurrent or sys.maxsize)
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        last = self._native.size - self._restored + left
        self._restored = 0
        patience = positive("trial_timeout", trial_timeout)
        with contextlib.ExitStack() as stack:
            if not quiet:
                stack.enter_context(live.shown(self._native, last - self.added, timeout))
            if parallel == 1 and patience is None:
                self._run_in_turn(function, last, deadline)
            else:
                self._run_parallel(function, last, deadline, parallel, patience)
        if self._native.size and self._native.best() is None:
            raise FailedPreconditionError(self._failures())

    def _next(self, last: float, deadline: float) -> Trial | None:
        """A trial to run; None: there is none now."""
        self.take_stopped()
        if self._native.size >= last or time.monotonic() >= deadline:
            return self.ask_again()
        try:
            return self.ask() if self.can_ask() else None
        except SpaceExhaustedError:
            return None

    def _run_in_turn(self, function: Callable[..., Any], last: float, deadline: float) -> None:
        """Runs one trial after the other. The end of one and the start of the next are stored in one commit."""
        trial = self._next(last, deadline)
        while trial is not None:
            next_trial: list[Trial | None] = []

            def tell(
                ended: Trial, value: float, next_trial: list[Trial | None] = next_trial
            ) -> None:
                may_start = self._native.size < last and time.monotonic() < deadline
                found = self.tell_and_ask([(ended, value)], 1 if may_start else 0)
                next_trial.append(found[0] if found else None)

            self._end(Attempt(trial), function, tell)
            trial = next_trial[0] if next_trial else self._next(last, deadline)
            self.take_stopped()

    def _run_parallel(
        self,
        function: Callable[..., Any],
        last: float,
        deadline: float,
        parallel: int,
        patience: float | None,
    ) -> None:
        """Runs trials in threads. The thread of one that is silent for too long is left behind."""
        crew = Crew(lambda attempt: self._end(attempt, function, self.tell))
        try:
            while True:
                while crew.size < parallel and (trial := self._next(last, deadline)) is not None:
                    crew.begin(Attempt(trial))
                if crew.size == 0:
                    return
                for attempt in crew.wait(patience):
                    with attempt.lock:
                        if attempt.has_ended:
                            continue
                        attempt.is_abandoned = True
                        text = f"it reported nothing for {patience:g} seconds behind step {attempt.step}"
                        again = self.retry(attempt.trial, text, attempt.step)
                    _log.warning("trial %d: %s", attempt.trial.number, text)
                    crew.leave(attempt)
                    if again:
                        crew.begin(Attempt(attempt.trial))
        finally:
            crew.end(patience)

    def _end(
        self,
        attempt: Attempt,
        function: Callable[..., Any],
        tell: Callable[[Trial, float], None],
    ) -> None:
        """Runs a trial to its end, or until it is paused; again when it raises, as long as that is allowed."""
        trial = attempt.trial
        while True:
            try:
                steps, step = self._paused.pop(trial.number, (None, 0))
                result = function(trial.config) if steps is None else steps
                if inspect.isgenerator(result):
                    result = self._drive(attempt, result, step)
                    if result is None:
                        return
                value = self._value(result)
            except ContextLostError:  # No fault of the trial: it still runs, for whoever resumes.
                with attempt.ending():
                    raise
            except Exception as error:
                with attempt.ending() as goes_on:
                    if not goes_on or not self.retry(trial, error, attempt.step):
                        return
                    attempt.has_ended = False
                    attempt.heard = time.monotonic()
            except BaseException as error:
                with attempt.ending() as goes_on:
                    if goes_on:
                        self.fail(trial, error)
                raise
            else:
                with attempt.ending() as goes_on:
                    if goes_on:
                        tell(trial, value)
                return

    def _drive(self, attempt: Attempt, steps: Generator[Any, Any, Any], step: int) -> Any:
        """Reports what is yielded; returns the last of it, or None where the trial ends without being told."""
        trial = attempt.trial
        if trial.source is not None:
            raise InvalidArgumentError(
                f"the scheduler lets trial {trial.number} go on from the state of trial {trial.source}, which a "
                "function that yields cannot do; use ask, report and tell, or another scheduler"
            )
        found = None
        for found in steps:
            step += 1
            value = self._value(found)
            with attempt.lock:
                if attempt.is_abandoned:
                    steps.close()
                    return None
                # Before it is told that it pauses: another thread may go on with it at once.
                self._paused[trial.number] = (steps, step)
                decision = self.report(trial, value, step)
                if decision != "pause":
                    del self._paused[trial.number]
                attempt.heard, attempt.step = time.monotonic(), step
                attempt.has_ended = decision in ("pause", "stop")
            if decision == "pause":
                return None
            if decision == "stop":
                steps.close()
                return None
            if step == self._epochs:
                steps.close()
                break
        if found is None:
            raise InvalidArgumentError(
                "the objective yielded nothing; yield a value after every step"
            )
        return found

    def _value(self, found: Any) -> float:
        if isinstance(found, Mapping):
            if self.metric not in found:
                raise InvalidArgumentError(
                    f"the objective returned {', '.join(map(str, found))}, but not the metric "
                    f"{self.metric!r}"
                )
            found = found[self.metric]
        return float(found)

    def _failures(self) -> str:
        failed = [trial for trial in self._native.trials() if trial.state == "failed"]
        if not failed:
            return f"none of {self._native.size} trials is finished"
        return (
            f"all {len(failed)} trials that ended failed; the last one, trial {failed[-1].number}:\n"
            f"{failed[-1].error}"
        )

    def close(self) -> None:
        """Ends the use of its file: another study may write there. Nothing else can be called afterwards."""
        for steps, _ in self._paused.values():
            steps.close()
        self._paused.clear()
        self._native = _Closed()  # type: ignore[assignment]

    # --- results

    def __len__(self) -> int:
        """How many trials there are."""
        return int(self._native.size)

    @property
    def added(self) -> int:
        """How many of them are of other studies."""
        return int(self._native.added)

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return [self._trial(native) for native in self._native.trials()]

    @property
    def best_trial(self) -> Trial:
        """The finished trial with the best value."""
        native = self._native.best()
        if native is None:
            raise FailedPreconditionError("no trial is finished yet; tell one first")
        return self._trial(native)

    @property
    def best_value(self) -> float:
        """The best value."""
        value = self.best_trial.value
        assert value is not None
        return value

    @property
    def best_config(self) -> dict[str, Any]:
        """The configuration with the best value."""
        return self.best_trial.config

    def _trial(self, native: Any) -> Trial:
        config = self._configs.get(native.number)
        if config is None:  # Of a study that was resumed.
            try:
                config = self._configs[native.number] = self._config(native)
            except Exception as error:  # Of a function of sample_from.
                _log.warning("the configuration of trial %d is not known: %s", native.number, error)
                config = {}
        return Trial(
            native.number,
            config,
            native.state,
            native.value,
            native.reports,
            native.error,
            native.resumed_step,
            None if native.source < 0 else native.source,
            native.clones,
            native.retries,
        )


class _Closed:
    """In the place of the engine's study."""

    def __getattr__(self, _name: str) -> Any:
        raise FailedPreconditionError(
            'the study was closed; open its file again, with resume="auto"'
        )


def _points(in_parameters: Any, given: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Those of ``points_to_evaluate``, wherever they were given."""
    if in_parameters and given:
        raise InvalidArgumentError(
            "points_to_evaluate are given twice, as an argument and in search_alg_params; give them once"
        )
    points = in_parameters or given
    if not isinstance(points, list | tuple):
        raise InvalidArgumentError(
            f"points_to_evaluate {points!r} is a {type(points).__name__}; give a list of dicts"
        )
    return points


def _memo(clones: int, made: Mapping[str, Any]) -> str:
    """What a file keeps of the values that functions made: those that JSON has words for."""
    found = {}
    for path, value in made.items():
        try:
            found[path] = _coded(value)
        except TypeError:
            continue
    return json.dumps({"clones": clones, "made": found})


def _read(memo: str) -> tuple[int, dict[str, Any]]:
    """Of how many clones it is, and what functions had made."""
    found = json.loads(memo or '{"clones": -1, "made": {}}')
    return found["clones"], {path: _decoded(value) for path, value in found["made"].items()}


_TUPLE = "()"  # The key of a tuple in JSON.


def _coded(value: Any) -> Any:
    """As JSON, from which it comes out as it went in."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [_coded(part) for part in value]
    if type(value) is tuple:
        return {_TUPLE: [_coded(part) for part in value]}
    if type(value) is dict and _TUPLE not in value and all(type(key) is str for key in value):
        return {key: _coded(part) for key, part in value.items()}
    raise TypeError(f"{value!r} is not JSON")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    if isinstance(value, dict) and _TUPLE in value:
        return tuple(_decoded(part) for part in value[_TUPLE])
    if isinstance(value, dict):
        return {key: _decoded(part) for key, part in value.items()}
    return value


def _number(trial: Trial | int) -> int:
    return trial.number if isinstance(trial, Trial) else trial


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))

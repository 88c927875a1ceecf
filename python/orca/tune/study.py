"""The study: asks the engine for configurations and tells it what became of them."""

from __future__ import annotations

import logging
import secrets
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError, OrcaError
from orca.generations import ORCA, Errors, Generation
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
        state: ``"running"``, ``"finished"``, ``"pruned"`` or ``"failed"``.
        value: Of a finished one; else None.
        reports: Pairs of step and value.
        error: Why it failed.
    """

    number: int
    config: dict[str, Any]
    state: str = "running"
    value: float | None = None
    reports: list[tuple[int, float]] = field(default_factory=list)
    error: str = ""


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
                f"search_alg {search_alg!r} has no parameter {name!r}; known: {', '.join(known)}"
            )
            if generation.raises is Errors.OURS:
                raise InvalidArgumentError(message)
            warnings.warn(f"{message}. It is ignored", UserWarning, stacklevel=3)
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
        allow_duplicates: Whether a configuration of a finite space may come twice.

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
    ) -> None:
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode {mode!r} is not known; give 'min' or 'max'")
        self.metric = metric
        self.mode = mode
        self.seed = secrets.randbits(63) if seed is None else _count("seed", seed)
        self.space = SearchSpace(space)
        self._configs: dict[int, dict[str, Any]] = {}
        self._native = _core.TuneStudy(
            self.space.native,
            maximize=mode == "max",
            search_alg=search_alg,
            parameters=search_parameters(search_alg, search_alg_params or {}),
            seed=self.seed,
            batch=_count("batch", batch),
            points=[self.space.point(point) for point in points_to_evaluate],
            budget=_count("n_trials", n_trials or 0),
            allow_duplicates=allow_duplicates,
        )

    @property
    def algorithm(self) -> str:
        """What proposes configurations, e.g. ``"tpe"``."""
        name: str = self._native.algorithm
        return name

    # --- one trial

    def can_ask(self) -> bool:
        """Whether ``ask`` may be called: with ``batch``, all earlier batches must have ended."""
        return bool(self._native.can_ask())

    def ask(self) -> Trial:
        """Starts the next trial.

        Raises:
            SpaceExhaustedError: All configurations of a finite space have been tried.
            FailedPreconditionError: Trials of the batch before still run.
        """
        native = self._native.ask()
        if native is None:
            raise SpaceExhaustedError(
                f"space exhausted: all {self._native.size} configurations have been tried"
            )
        number: int = native.number
        try:
            config = self.space.config(native.point)
        except BaseException as error:  # Of a function of sample_from.
            self._native.fail(number, repr(error))
            raise
        self._configs[number] = config
        return Trial(number, config)

    def tell(self, trial: Trial | int, value: float) -> None:
        """Ends a trial with its value. One that is not finite makes it a failed one."""
        self._native.tell(_number(trial), float(value))

    def fail(self, trial: Trial | int, error: str | BaseException = "") -> None:
        """Ends a trial that has no value."""
        self._native.fail(_number(trial), error if isinstance(error, str) else _traceback(error))

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
            What the trial shall do: ``"continue"``.
        """
        number = _number(trial)
        if step is None:
            reports = self._native.at(number).reports
            step = reports[-1][0] + 1 if reports else 1
        self._native.add_report(number, step, float(value))
        return "continue"

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
    ) -> None:
        """Runs trials until there are ``n_trials`` more, the time is over, or the space is exhausted.

        Args:
            function: Takes a configuration and returns its value, or a dict with the metric. A trial in which
                it raises has failed; the study goes on.
            n_trials: How many trials to start.
            parallel: How many run at the same time, each in a thread.
            timeout: Seconds after which no trial is started.

        Raises:
            FailedPreconditionError: No trial of the study succeeded.
        """
        if n_trials is None and timeout is None and self.space.native.cardinality == float("inf"):
            raise InvalidArgumentError(
                "optimize has no end: give n_trials, timeout, or a finite search space"
            )
        left = float("inf") if n_trials is None else _count("n_trials", n_trials)
        parallel = _count("parallel", parallel)
        if parallel == 0:
            raise InvalidArgumentError("parallel 0 runs nothing; give 1 or more")
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        if parallel == 1:
            self._run(function, left, deadline)
        else:
            self._run_parallel(function, left, deadline, parallel)
        if self._native.size and self._native.best() is None:
            raise FailedPreconditionError(self._failures())

    def _run(self, function: Callable[..., Any], left: float, deadline: float) -> None:
        while left > 0 and time.monotonic() < deadline:
            try:
                trial = self.ask()
            except SpaceExhaustedError:
                return
            self._end(trial, function)
            left -= 1

    def _run_parallel(
        self, function: Callable[..., Any], left: float, deadline: float, parallel: int
    ) -> None:
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(parallel, thread_name_prefix="orca-trial") as threads:
            while running or left > 0:
                while (
                    left > 0
                    and len(running) < parallel
                    and time.monotonic() < deadline
                    and self.can_ask()
                ):
                    try:
                        trial = self.ask()
                    except SpaceExhaustedError:
                        left = 0
                        break
                    running.add(threads.submit(self._end, trial, function))
                    left -= 1
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()

    def _end(self, trial: Trial, function: Callable[..., Any]) -> None:
        try:
            result = function(trial.config)
            if isinstance(result, Mapping):
                if self.metric not in result:
                    raise InvalidArgumentError(
                        f"the objective returned {', '.join(map(str, result))}, but not the metric "
                        f"{self.metric!r}"
                    )
                result = result[self.metric]
            value = float(result)
        except Exception as error:
            self.fail(trial, error)
        except BaseException as error:
            self.fail(trial, error)
            raise
        else:
            self.tell(trial, value)

    def _failures(self) -> str:
        failed = [trial for trial in self._native.trials() if trial.state == "failed"]
        if not failed:
            return f"none of {self._native.size} trials is finished"
        return (
            f"all {len(failed)} trials that ended failed; the last one, trial {failed[-1].number}:\n"
            f"{failed[-1].error}"
        )

    # --- results

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
        config = self._configs.get(native.number, {})
        return Trial(
            native.number, config, native.state, native.value, native.reports, native.error
        )


def _number(trial: Trial | int) -> int:
    return trial.number if isinstance(trial, Trial) else trial


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgumentError(f"{name} {value!r} is not a whole number of 0 or more")
    return value

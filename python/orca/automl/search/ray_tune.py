"""The search engine of the old API, on studies and workers of Orca."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from orca.automl.auto_estimator import AutoEstimator
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import Generation, translated
from orca.tune import Trial

__all__ = ["Analysis", "RayTuneSearchEngine", "TrialOutput", "TrialResult"]


@dataclass(frozen=True)
class TrialOutput:
    """A good trial.

    Attributes:
        config: Its configuration.
        model_path: The file of its best weights.
    """

    config: dict[str, Any]
    model_path: str


@dataclass(frozen=True)
class TrialResult:
    """A trial as Ray Tune shows it.

    Attributes:
        config: Its configuration.
        status: ``"TERMINATED"``, ``"ERROR"``, ``"PAUSED"`` or ``"RUNNING"``.
        logdir: Its folder; empty when it made none.
        last_result: What it reported last, by name.
    """

    config: dict[str, Any]
    status: str
    logdir: str
    last_result: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """All of its reports."""
        path = Path(self.logdir) / "progress.csv"
        if not self.logdir or not path.exists():
            return []
        with path.open(newline="") as file:
            return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


class Analysis:
    """What a search found.

    Attributes:
        trials: All of them, in the order of their numbers.
        best_config: The configuration of the best one.
    """

    def __init__(self, trials: list[TrialResult], best_config: dict[str, Any]) -> None:
        self.trials, self.best_config = trials, best_config

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        """Configurations by the folders of the trials."""
        return {trial.logdir: trial.config for trial in self.trials if trial.logdir}

    def fetch_trial_dataframes(self) -> dict[str, Any]:
        """A pandas frame of its reports for each trial, by its folder."""
        import pandas

        return {t.logdir: pandas.DataFrame(t.rows()) for t in self.trials if t.logdir}


class RayTuneSearchEngine:
    """Searches in two steps: ``compile`` takes what to do, ``run`` does it.

    Args:
        logs_dir: Where the folders of trials are; by default here.
        resources_per_trial: ``{"cpu": k}``.
        name: Of the folder in ``logs_dir``.
        remote_dir: Where the folders of trials are copied to while they grow.
    """

    _estimators: ClassVar[type[AutoEstimator]] = AutoEstimator  # Those of the same root.

    def __init__(
        self,
        logs_dir: str = "",
        resources_per_trial: dict[str, Any] | None = None,
        name: str = "",
        remote_dir: str | None = None,
    ) -> None:
        self.logs_dir = str(Path(logs_dir).expanduser().absolute())
        self.name = name or "AutoML"
        self._resources, self._remote = resources_per_trial, remote_dir
        self._builder: Any = None
        self._arguments: dict[str, Any] = {}
        self._estimator: AutoEstimator | None = None

    @property
    def _generation(self) -> Generation:
        return self._estimators._generation

    @translated
    def compile(
        self,
        data: Any,
        model_builder: Any,
        metric_mode: str | None = None,
        epochs: int = 1,
        validation_data: Any = None,
        metric: str | Callable[[Any, Any], Any] | None = None,
        metric_threshold: float | None = None,
        n_sampling: int = 1,
        search_space: dict[str, Any] | None = None,
        search_alg: str | None = None,
        search_alg_params: dict[str, Any] | None = None,
        scheduler: str | None = None,
        scheduler_params: dict[str, Any] | None = None,
        mc: bool = False,
        feature_cols: Any = None,
        label_cols: Any = None,
    ) -> None:
        """Takes what ``run`` shall do.

        Args:
            data: As that of ``AutoEstimator.fit``, and so the other arguments.
            model_builder: A ``PytorchModelBuilder``, a ``KerasModelBuilder`` or an ``XGBoostModelBuilder``.
            metric_mode: See there.
            epochs: See there.
            validation_data: See there.
            metric: See there.
            metric_threshold: See there.
            n_sampling: See there.
            search_space: See there.
            search_alg: See there.
            search_alg_params: See there.
            scheduler: See there.
            scheduler_params: See there.
            mc: Must be False: trials are measured without dropout.
            feature_cols: See there.
            label_cols: See there.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        if not hasattr(arguments.pop("model_builder"), "spec"):
            raise InvalidArgumentError(
                f"model_builder is a {type(model_builder).__name__}; give a PytorchModelBuilder, a "
                "KerasModelBuilder or an XGBoostModelBuilder"
            )
        if arguments.pop("mc"):
            raise InvalidArgumentError("mc=True is not in this release; leave it out")
        self._builder, self._arguments = model_builder, arguments

    @translated
    def run(self) -> Analysis:
        """Runs the trials on the workers of the context."""
        if self._builder is None:
            raise FailedPreconditionError("there is nothing to run; call compile first")
        estimator = self._estimators(
            self._builder.spec, self.logs_dir, self._resources, self.name, self._remote
        )
        self._estimator = estimator
        estimator.fit(**self._arguments)
        return Analysis([self._result(t) for t in estimator.trials], estimator.get_best_config())

    @property
    def _found(self) -> AutoEstimator:
        if self._estimator is None:
            raise FailedPreconditionError("nothing has been searched; call compile and run first")
        return self._estimator

    def _result(self, trial: Trial) -> TrialResult:
        states = {"failed": "ERROR", "paused": "PAUSED", "running": "RUNNING"}
        folder = self._found.folder_of(trial)
        state = states.get(trial.state, "TERMINATED")
        found = TrialResult(trial.config, state, "" if folder is None else str(folder), {})
        found.last_result.update(next(reversed(found.rows()), {}))
        return found

    @translated
    def get_best_trials(self, k: int = 1) -> list[TrialOutput]:
        """The ``k`` best ones, each by its best report, the best first. Failed ones are not among them."""
        return [
            TrialOutput(trial.config, str(path)) for trial, path in self._found.best_trials()[:k]
        ]

    def get_best_trial(self) -> TrialOutput:
        """The best one."""
        self._found.get_best_trial()  # Says why there is none.
        return self.get_best_trials()[0]

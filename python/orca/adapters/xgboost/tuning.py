"""A trial of XGBoost: one worker fits and measures, once for each report."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from orca import running
from orca.adapters.xgboost.model import (
    XGBoostModelBuilder,
    metric_mode,
    parameters,
    typos,
    unknown_names,
)
from orca.automl.metrics import Evaluator
from orca.data import Shard, SparkXShards
from orca.data.rows import is_spark_frame, store_of
from orca.errors import InvalidArgumentError
from orca.files import read_sealed, sealed, write_whole
from orca.pickles import dumps

_log = logging.getLogger("orca")


class XGBoostSpec:
    """What all trials of a search have in common.

    Args:
        builder: Of the model of a configuration.
    """

    measures_training = False
    forget_trials = None
    make_ahead = None

    def __init__(self, builder: XGBoostModelBuilder) -> None:
        self.builder = builder
        defaults = {"regressor": "rmse", "classifier": "logloss"}
        self.default_metric = builder.model_config.get("metric", defaults[builder.model_type])

    def named_metric(self, name: str, mode: str | None) -> tuple[Any, str]:
        """What measures a metric of XGBoost, its name, or one of ``Evaluator``, a function; and its direction."""
        own = metric_mode(name)
        if own is not None:
            return name, mode or own
        Evaluator.check_metric(name)
        return Evaluator.metrics_func[name.lower()], mode or Evaluator.get_metric_mode(name)

    def trials(
        self,
        data: Any,
        validation: Any,
        columns: dict[str, Any],
        metric: Any,
        threads: int,
        keys: Collection[str],
    ) -> Callable[[dict[str, Any], int], XGBoostTrial]:
        """What makes a trial of a configuration and a seed; XGBoost's own is its ``random_state``, for all trials the same."""
        if validation is None:
            raise InvalidArgumentError("You must input validation data!")
        self._check_names(keys, has_creator=callable(data) or callable(validation))
        train, held = XGBoostData(data, columns), XGBoostData(validation, columns)
        measured = self.default_metric if metric is None else metric
        names = ("the parameters of XGBoost", "metric", "data", "validation_data")
        dumps(
            (self.builder, measured, train.given, held.given), names
        )  # Names what cannot be sent.

        def new(config: dict[str, Any], seed: int) -> XGBoostTrial:
            return XGBoostTrial(self.builder, config, train, held, measured, threads)

        return new

    def load_best(self, config: dict[str, Any], path: Path) -> Any:
        """The regressor or classifier that a trial saved."""
        model = self.builder.build(config)
        model.restore(path)
        return model.model

    def _check_names(self, keys: Collection[str], *, has_creator: bool) -> None:
        """Of a search space. What is no parameter may be a creator's."""
        kind = self.builder.model_type
        unknown = unknown_names(kind, sorted(key.removesuffix("_float") for key in keys))
        wrong = typos(unknown)
        if wrong and not has_creator:
            raise InvalidArgumentError(f"search_space: {wrong}")
        if wrong:
            _log.warning("search_space: %s It has no effect on the trees", wrong)
        elif unknown and not has_creator:
            _log.warning(
                "%s of search_space is no parameter of XGBoost and has no effect; known: %s",
                ", ".join(map(repr, unknown)),
                ", ".join(sorted(parameters(kind))),
            )


class XGBoostData:
    """Training or validation rows, in memory that all trials share, or what creates them.

    Args:
        data: ``(x, y)``, a creator ``f(config)`` of it, shards or a data frame.
        columns: ``feature_cols`` and ``label_cols`` of data frames, whose columns are put side by side.
    """

    def __init__(self, data: Any, columns: dict[str, Any]) -> None:
        self.given: Any = data
        if callable(data):
            return
        if isinstance(data, SparkXShards) or is_spark_frame(data) or hasattr(data, "iloc"):
            features, labels = columns.get("feature_cols"), columns.get("label_cols")
            store, _ = store_of(data, features, labels, wants_target=True)
            (rows,) = store.batches(len(store), shuffle=False)
            data = (_side_by_side(rows["x"]), _side_by_side(rows["y"]))
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise InvalidArgumentError(
                f"data is a {type(data).__name__}; give (x, y), a creator f(config) of it, XShards, or a data frame with "
                "feature_cols and label_cols"
            )
        x, y = (np.asarray(part) for part in data)
        if x.ndim != 2:
            raise InvalidArgumentError(
                f"x has the shape {x.shape}; XGBoost takes a table, one row for each row of y"
            )
        if len(x) != len(y):
            raise InvalidArgumentError(f"x has {len(x)} rows, y has {len(y)}; give as many")
        self.given = Shard({"x": x, "y": y})


def _side_by_side(columns: Any) -> Any:
    parts = columns if isinstance(columns, list | tuple) else [columns]
    return np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1)


class XGBoostTrial:
    """One configuration under way.

    Args:
        builder: Of its model.
        config: Its values.
        data: To fit.
        validation: To measure.
        metric: A name, or ``f(y_true, y_pred)``.
        threads: Of its worker.
    """

    def __init__(
        self,
        builder: XGBoostModelBuilder,
        config: dict[str, Any],
        data: XGBoostData,
        validation: XGBoostData,
        metric: str | Callable[[Any, Any], Any],
        threads: int,
    ) -> None:
        self._arguments = (builder, config, data.given, validation.given, metric)
        self._threads = threads
        self._trees = b""
        self.read = None  # XGBoostSpec looks at the names.

    def epoch(self) -> float:
        """Fits from the beginning, as the original did; returns the metric."""
        ((value, self._trees),) = running.run(
            _fit_eval, self._arguments, workers=1, threads=self._threads
        )
        return float(value)

    def save(self, path: Path) -> None:
        """Writes the trees."""
        write_whole(path, lambda file: file.write(sealed(self._trees)), is_lasting=False)

    def save_state(self, path: Path, note: dict[str, Any]) -> None:
        """Writes a note of plain values: there is nothing else to go on with, as every fit begins anew."""
        write_whole(path, lambda file: file.write(sealed(json.dumps(note).encode())))

    def load_state(self, path: Path, *, only_weights: bool = False) -> dict[str, Any]:
        """Reads the note of what ``save_state`` wrote."""
        note: dict[str, Any] = json.loads(read_sealed(path))
        return note

    def close(self) -> None:
        """Frees its memory."""
        self._trees = b""


def _fit_eval(
    builder: XGBoostModelBuilder,
    config: dict[str, Any],
    data: Any,
    validation: Any,
    metric: str | Callable[[Any, Any], Any],
) -> tuple[float, bytes]:
    """On a worker."""
    model = builder.build(config)
    measured = {"metric": metric} if isinstance(metric, str) else {"metric_func": metric}
    (value,) = model.fit_eval(_rows(data), _rows(validation), **measured).values()
    return value, model.to_bytes()


def _rows(given: Any) -> Any:
    if not isinstance(given, Shard):
        return given
    rows = given.own_view()  # A metric may write to what it gets.
    return rows["x"], rows["y"]

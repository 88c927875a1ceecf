"""AutoEstimator: what bad calls say, and that they leave nothing behind."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca.automl import hp
from orca.errors import FailedPreconditionError, InvalidArgumentError
from test_auto_estimator import SPACE, auto, loader, rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def test_bad_calls_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="valid torch optimizer name"):
        auto(tmp_path, optimizer="Adamm")
    with pytest.raises(InvalidArgumentError, match="valid torch loss name"):
        auto(tmp_path, loss="MSE")
    with pytest.raises(InvalidArgumentError, match="cpu"):
        auto(tmp_path, resources_per_trial={"cpu": 0})
    with pytest.raises(InvalidArgumentError, match="logs_dir 3 is a int; give the path"):
        auto(tmp_path, logs_dir=3)
    with pytest.raises(InvalidArgumentError, match="x has no rows; give some"):
        auto(tmp_path).fit(
            (np.zeros((0, 4)), np.zeros(0)),
            validation_data=rows(64),
            metric="mse",
            search_space=SPACE,
        )
    est = auto(tmp_path)
    good: dict[str, Any] = {"validation_data": rows(64), "metric": "mse", "search_space": SPACE}
    for changes, message in (
        ({"metric": "mze"}, "metric mze is not supported"),
        ({"metric": lambda a, b: 0.0}, "`metric_mode`"),
        ({"metric_mode": "least"}, r"one of \['min', 'max'\]"),
        ({"metric_mode": "max", "mode": "min"}, "differ"),
        ({"search_space": None}, "search_space"),
        ({"validation_data": (np.zeros((0, 4)), np.zeros(0))}, "x has no rows; give some"),
        ({"validation_data": None}, "You must input validation data!"),
        ({"search_alg": 3}, "search_alg should be of type str. Got int"),
        ({"search_alg": "tpee"}, "known"),
        ({"scheduler": "hyperbond"}, "hyperband"),
        ({"epochs": 0}, "epochs 0"),
        ({"search_alg": "tpe"}, "[Gg]rid"),
    ):
        with pytest.raises(RuntimeError, match=message):
            est.fit(rows(), **(good | changes))
    with pytest.raises(FailedPreconditionError, match="call fit first"):
        est.get_best_model()
    est.fit(rows(), **good)  # A fit that failed its checks may be repeated.
    with pytest.raises(RuntimeError, match="has already been fitted"):
        est.fit(rows(), **good)
    est = auto(tmp_path, name="model", model_creator=lambda config: 3)
    with pytest.raises(FailedPreconditionError, match="You must create a torch model"):
        est.fit(rows(), **good)


def test_without_logs_dir_the_folders_are_in_orcas_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCA_HOME", str(tmp_path / "orca"))
    est = auto(tmp_path, logs_dir=None)
    assert not (tmp_path / "orca").exists()
    est.fit(rows(), validation_data=rows(64), metric="mse", search_space=SPACE, seed=1)
    logs = tmp_path / "orca/auto_estimator_logs"
    assert est.best_trials()[0][1].is_relative_to(logs / est.name)
    for folder in (logs, logs / est.name, logs / f"{est.name}_leaderboard"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("where", ["logs", "logs/test", "logs/test_leaderboard"])
def test_logs_that_another_user_may_have_laid_are_refused(where: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "experiment_state-1.json").touch()
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).symlink_to(target)
    good = {"validation_data": rows(64), "metric": "mse", "search_space": SPACE}
    with pytest.raises(
        InvalidArgumentError, match=f"logs_dir cannot be used: .*{where} is a link; give"
    ):
        auto(tmp_path / "logs", name="test").fit(rows(), **good)
    assert [path.name for path in target.iterdir()] == ["experiment_state-1.json"]
    if os.geteuid() != 0:
        return  # Only root makes files of another user.
    (tmp_path / where).unlink()
    (tmp_path / where).mkdir()
    os.chown(tmp_path / where, 65534, 65534)
    with pytest.raises(InvalidArgumentError, match=f"{where} belongs to another user"):
        auto(tmp_path / "logs", name="test").fit(rows(), **good)
    assert not list((tmp_path / where).iterdir())


def test_a_call_that_is_refused_leaves_nothing_behind_and_may_be_repeated(tmp_path: Path) -> None:
    lock = threading.Lock()
    logs = tmp_path / "some" / "logs"
    est = auto(logs)
    good: dict[str, Any] = {"data": rows(), "validation_data": rows(64), "metric": "mse"}
    good |= {"search_space": SPACE, "seed": 1}
    x, y = rows()
    for changes, message in (
        ({"metric": lambda a, b: str(lock), "mode": "min"}, "metric.*cannot be sent"),
        ({"data": lambda config: str(lock)}, "data.*cannot be sent"),
        ({"validation_data": lambda config: str(lock)}, "validation_data.*cannot be sent"),
        ({"data": 3}, "data is a int; give"),
        ({"data": (x, y[1:])}, "x has 256 rows, y has 255"),
        ({"validation_data": (x, y[1:])}, "x has 256 rows, y has 255"),
        ({"search_space": {"lr": 0.1}}, 'put "batch_size" into search_space'),
        ({"search_alg": "tpee"}, "known"),
        ({"scheduler": "hyperband", "scheduler_params": {"max": 3}}, "has no parameter max"),
        ({"scheduler": "pbt"}, "hyperparam_mutations"),
        ({"warm_start": tmp_path / "nowhere"}, "warm_start.*nowhere.* is not there; give"),
        ({"warm_start": 3}, "warm_start 3 is a int; give"),
        ({"retries": -1}, "retries -1"),
        ({"resume": "yes"}, "resume 'yes'"),
        ({"seed": 0.5}, "seed 0.5"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            est.fit(**(good | changes))
        assert not list(tmp_path.iterdir()), changes
    est.fit(**good)
    assert len(est.trials) == 2
    (logs / "file").touch()
    with pytest.raises(InvalidArgumentError, match=r"file is not a folder; give another path"):
        auto(logs / "file").fit(**good)
    with pytest.raises(InvalidArgumentError, match=r"model_creator.*cannot be sent"):
        auto(tmp_path / "new", model_creator=lambda config: str(lock)).fit(**good)
    for name in ("", None, 3):
        with pytest.raises(InvalidArgumentError, match=r"name .* of a folder"):
            auto(tmp_path, name=name)
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_sampling": 0}, "n_sampling 0 is not .* of 1 or more, or -1: as many as possible"),
        ({"n_sampling": -2}, "n_sampling -2 is not"),
        ({"n_sampling": 2.5}, "n_sampling 2.5 is not"),
        ({"n_sampling": True}, "n_sampling True is not"),
        ({"n_sampling": None}, "n_sampling None is not"),
        ({"epochs": 2.0}, "epochs 2.0 is not a whole number of 1 or more"),
        ({"epochs": "2"}, "epochs '2' is not a whole number of 1 or more"),
        ({"metric_threshold": "low"}, "metric_threshold 'low' is a str; give a number"),
        ({"metric_threshold": float("nan")}, "metric_threshold nan is not a number"),
        ({"trial_timeout": "9"}, "trial_timeout '9' is a str; give a positive number"),
        ({"trial_timeout": 0}, "trial_timeout 0 is not a positive number of seconds"),
        ({"trial_timeout": float("nan")}, "trial_timeout nan"),
        ({"metric_mode": "least"}, r"metric_mode 'least' .* one of \['min', 'max'\]"),
        ({"mode": "MIN"}, r"^mode 'MIN' .* one of \['min', 'max'\]"),
        ({"mode": 1}, "^mode 1 "),
        ({"feature_cols": "x"}, "feature_cols .* and data is a tuple; leave"),
        ({"label_cols": ["y"]}, "label_cols .* and data is a tuple; leave"),
        ({"search_space": {}}, "search_space"),
        ({"search_space": {"batch_size": 32, 3: 1}}, "search_space has the key 3, a int; give"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    est = auto(tmp_path)
    good = {"validation_data": rows(64), "metric": "mse", "search_space": SPACE}
    with pytest.raises(InvalidArgumentError, match=message):
        est.fit(rows(), **(good | changes))
    assert not list(tmp_path.iterdir())


def test_columns_are_for_data_frames(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": list(rows()[0]), "y": rows()[1]})
    good = {"metric": "mse", "search_space": SPACE, "feature_cols": "x", "label_cols": "y"}
    for data, held, said in (
        (frame, rows(), "validation_data is a tuple"),
        (loader, frame, "data is a function"),
        (dict(zip("xy", rows(), strict=True)), frame, "data is a dict"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"feature_cols and label_cols .*{said}"):
            auto(tmp_path).fit(data, validation_data=held, **good)


def test_numbers_may_be_of_numpy(tmp_path: Path) -> None:
    est = auto(tmp_path, resources_per_trial={"cpu": np.int64(1)})
    est.fit(
        rows(),
        epochs=np.int64(2),
        validation_data=rows(64),
        metric="mse",
        metric_threshold=np.float32(1e-9),
        n_sampling=np.int32(2),
        search_space={"lr": hp.uniform(0.001, 0.01), "batch_size": np.int64(64)},
        trial_timeout=np.float64(600),
        retries=np.int64(1),
        seed=np.int64(4),
    )
    assert [len(trial.reports) for trial in est.trials] == [2, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu": 0}, "cpu 0 of resources_per_trial is not a whole number of 1 or more"),
        ({"cpu": 1.5}, "cpu 1.5 of resources_per_trial"),
        ({"cpu": "2"}, "cpu '2' of resources_per_trial"),
        ({"cpus": 2}, r"resources_per_trial has 'cpus'.*give \{'cpu': number of cores\}"),
        ({"cpu": 1, "gpu": 1}, "resources_per_trial has 'gpu'"),
        (2, r"resources_per_trial 2 is a int; give \{'cpu': number of cores\}"),
    ],
)
def test_resources_are_cores(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        auto(tmp_path, resources_per_trial=given)

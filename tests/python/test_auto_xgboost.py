"""AutoXGBClassifier and AutoXGBRegressor against plain XGBoost, and what bad calls say."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import xgboost

from orca.automl import hp
from orca.automl.xgboost import AutoXGBClassifier, AutoXGBRegressor
from orca.automl.xgboost.XGBoost import XGBoost, XGBoostModelBuilder
from orca.data import XShards
from orca.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

pytestmark = pytest.mark.usefixtures("context")


def rows(count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 4))
    return x, x[:, 0] * 2 - np.abs(x[:, 1]) + 0.1 * random.normal(size=count)


def classes(count: int = 200, seed: int = 0, of: int = 2) -> tuple[np.ndarray, np.ndarray]:
    x, y = rows(count, seed)
    return x, np.digitize(y, np.quantile(y, np.arange(1, of) / of))


DEFAULTS = {
    "max_depth": 5,
    "tree_method": "hist",
    "learning_rate": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "random_state": 2,
}


def test_the_best_regressor_is_the_one_of_plain_xgboost(tmp_path: Path) -> None:
    data, held = rows(), rows(100, seed=1)
    est = AutoXGBRegressor(
        logs_dir=str(tmp_path), cpus_per_trial=1, name="reg", min_child_weight=2, n_jobs=7
    )
    space = {
        "n_estimators": hp.grid_search([5, 40]),
        "max_depth": hp.grid_search([2, 4]),
        "lr": hp.loguniform(0.05, 0.3),
    }
    est.fit(data, validation_data=held, metric="rmse", search_space=space, seed=3)
    assert [trial.state for trial in est.trials] == ["finished"] * 4
    for trial in est.trials:
        given = {**trial.config, "learning_rate": trial.config["lr"]}
        del given["lr"]
        plain = xgboost.XGBRegressor(**DEFAULTS | {"min_child_weight": 2, "n_jobs": 1} | given)
        found = plain.fit(*data).predict(held[0])
        truth = sklearn.metrics.root_mean_squared_error(held[1], found)
        assert trial.value == pytest.approx(truth, rel=1e-5)
        if trial.number == est.get_best_trial().number:
            model = est.get_best_model()
            assert isinstance(model, xgboost.XGBRegressor)
            np.testing.assert_array_equal(model.predict(held[0]), found)
            assert model.get_params()["n_jobs"] == 1
    assert est.get_best_trial().value == min(trial.value for trial in est.trials)
    assert set(est.get_best_config()) == set(space)


@pytest.mark.parametrize("of", [2, 3])
def test_the_best_classifier_is_the_one_of_plain_xgboost(of: int, tmp_path: Path) -> None:
    data, held = classes(of=of), classes(100, seed=1, of=of)
    est = AutoXGBClassifier(logs_dir=str(tmp_path), cpus_per_trial=2, n_estimators=20)
    est.fit(data, validation_data=held, search_space={"max_depth": hp.grid_search([1, 3])})
    assert est.name == "auto_xgb_classifier"
    config = est.get_best_config()
    plain = xgboost.XGBClassifier(**DEFAULTS | {"n_estimators": 20, "n_jobs": 2} | config)
    plain.fit(*data)
    model = est.get_best_model()
    np.testing.assert_array_equal(model.predict(held[0]), plain.predict(held[0]))
    chances = plain.predict_proba(held[0])
    np.testing.assert_array_equal(model.predict_proba(held[0]), chances)
    # Its default metric is the log loss, whatever the number of classes.
    assert est.get_best_trial().value == pytest.approx(
        sklearn.metrics.log_loss(held[1], chances), rel=1e-4
    )
    assert model.get_params()["n_jobs"] == 2


def wrong(y_true: Any, y_pred: Any) -> float:
    return float(np.mean(y_true != y_pred))


@pytest.mark.parametrize(
    ("metric", "mode"),
    [("error", None), ("error@0.7", None), ("auc", None), ("accuracy", None), (wrong, "min")],
)
def test_metrics_of_xgboost_of_evaluator_and_functions(
    metric: Any, mode: str | None, tmp_path: Path
) -> None:
    data, held = classes(), classes(100, seed=1)
    est = AutoXGBClassifier(logs_dir=str(tmp_path), name="m")
    est.fit(
        data,
        validation_data=held,
        metric=metric,
        metric_mode=mode,
        search_space={"n_estimators": hp.grid_search([1, 30])},
    )
    model = est.get_best_model()
    chances, found = model.predict_proba(held[0])[:, 1], model.predict(held[0])
    truth = {
        "error": lambda: np.mean(found != held[1]),
        "error@0.7": lambda: np.mean((chances > 0.7) != held[1]),
        "auc": lambda: sklearn.metrics.roc_auc_score(held[1], chances),
        "accuracy": lambda: np.mean(found == held[1]),
        wrong: lambda: np.mean(found != held[1]),
    }[metric]()
    best = est.get_best_trial()
    assert best.value == pytest.approx(truth, rel=1e-5)
    pick = max if metric in ("auc", "accuracy") else min
    assert best.value == pick(trial.value for trial in est.trials)
    name = metric if isinstance(metric, str) else "wrong"
    (file,) = (tmp_path / "m").glob(f"train_func_*_{best.number:05d}/result.json")
    (line,) = file.read_text().splitlines()
    assert json.loads(line)[name] == best.value


@pytest.mark.parametrize("of", [2, 3])
@pytest.mark.parametrize("metric", ["error", "merror", "logloss", "mlogloss"])
def test_metrics_of_classes_are_those_of_any_number_of_them(
    metric: str, of: int, tmp_path: Path
) -> None:
    data, held = classes(of=of), classes(100, seed=1, of=of)
    model = XGBoost("classifier", {"n_estimators": 5, "max_depth": 2})
    found = model.fit_eval(data, held, metric=metric)
    if metric.endswith("error"):
        truth = 1 - sklearn.metrics.accuracy_score(held[1], model.predict(held[0]))
    else:
        truth = sklearn.metrics.log_loss(held[1], model.model.predict_proba(held[0]))
    assert found == {metric: pytest.approx(truth, rel=1e-5)}
    est = AutoXGBClassifier(logs_dir=str(tmp_path), n_estimators=5)
    est.fit(data, validation_data=held, metric=metric, search_space={"max_depth": 2})
    assert est.get_best_trial().value == found[metric]


def test_a_threshold_is_of_two_classes() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'error@0.7' is of two classes, and y has 3"):
        XGBoost("classifier", {"n_estimators": 2}).fit_eval(
            classes(of=3), classes(50, of=3), metric="error@0.7"
        )


def create(count: int, config: dict[str, Any], seed: int = 0) -> tuple[Any, Any]:
    x, y = rows(count, seed)
    return x[:, config["features"]], y


def test_creators_get_the_configuration(tmp_path: Path) -> None:
    est = AutoXGBRegressor(logs_dir=str(tmp_path), n_estimators=20)
    est.fit(
        functools.partial(create, 200),
        epochs=2,
        validation_data=functools.partial(create, 100, seed=1),
        metric="mse",
        search_space={"features": hp.grid_search([[0, 1], [2, 3]])},
    )
    assert est.get_best_config() == {"features": [0, 1]}
    assert est.get_best_model().n_features_in_ == 2
    # A report is a whole fit, so the second one says the same.
    for trial in est.trials:
        (one, first), (two, second) = trial.reports
        assert (one, two, first) == (1, 2, second)


def frame(count: int, seed: int) -> pd.DataFrame:
    x, y = rows(count, seed)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1].astype(np.float32), "t": y})


@pytest.mark.parametrize("shards", [False, True])
def test_frames_have_features_side_by_side(shards: bool, tmp_path: Path) -> None:
    data, held = frame(200, 0), frame(100, 1)
    est = AutoXGBRegressor(logs_dir=str(tmp_path), n_estimators=20)
    given = [data, held]
    if shards:
        given = [
            XShards.partition(
                {"a": f.a.to_numpy(), "b": f.b.to_numpy(), "t": f.t.to_numpy()}
            ).transform_shard(pd.DataFrame)
            for f in given
        ]
    est.fit(
        given[0],
        validation_data=given[1],
        metric="mae",
        search_space={"max_depth": hp.choice([2])},
        feature_cols=["a", "b"],
        label_cols="t",
    )
    x = data[["a", "b"]].to_numpy(np.float64)
    plain = xgboost.XGBRegressor(**DEFAULTS | {"n_estimators": 20, "max_depth": 2})
    found = plain.fit(x, data.t).predict(held[["a", "b"]].to_numpy(np.float64))
    np.testing.assert_array_equal(est.get_best_model().predict(held[["a", "b"]]), found)


def test_training_that_stops_early_is_measured_at_its_best_round(tmp_path: Path) -> None:
    held = rows(100, seed=1)
    est = AutoXGBRegressor(
        logs_dir=str(tmp_path), n_estimators=200, early_stopping_rounds=3, learning_rate=0.9
    )
    est.fit(rows(), validation_data=held, metric="mae", search_space={"max_depth": 6})
    model = est.get_best_model()
    truth = sklearn.metrics.mean_absolute_error(held[1], model.predict(held[0]))
    assert est.get_best_trial().value == pytest.approx(truth, rel=1e-5)
    assert model.best_iteration < 199


def test_a_trial_that_fails_never_wins_and_unused_names_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    est = AutoXGBRegressor(logs_dir=str(tmp_path), n_estimators=5, name="f")
    with caplog.at_level(logging.WARNING, "orca"):
        est.fit(
            rows(),
            validation_data=rows(50),
            search_space={"tree_method": hp.grid_search(["hist", "none"]), "widht": 3},
        )
    assert sorted(trial.state for trial in est.trials) == ["failed", "finished"]
    assert est.get_best_config()["tree_method"] == "hist"
    (text,) = tmp_path.glob("f/*/error.txt")
    assert "Invalid Input: 'none'" in text.read_text()
    assert sum("'widht' of search_space" in record.message for record in caplog.records) == 1


def test_names_that_are_near_to_parameters_are_typos(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"n_estimator.*did you mean 'n_estimators'"):
        AutoXGBRegressor(logs_dir=str(tmp_path), n_estimator=5)
    with pytest.raises(InvalidArgumentError, match=r"'max_bins'.*did you mean 'max_bin'"):
        XGBoostModelBuilder("regressor", 1, max_bins=5)
    est = AutoXGBRegressor(logs_dir=str(tmp_path), n_estimators=5, name="t", purpose="a test")
    given: dict[str, Any] = {"validation_data": rows(50), "metric": "rmse"}
    for name, near in (("max_dept", "max_depth"), ("max_dept_float", "max_depth"), ("gama", "gam")):
        space = {name: hp.uniform(1.0, 3.0), "subsample": 0.5}
        said = f"search_space: '{name.removesuffix('_float')}' .*did you mean '{near}"
        with pytest.raises(InvalidArgumentError, match=said):
            est.fit(rows(), search_space=space, **given)
    assert not list(tmp_path.iterdir())
    # It may be the creator's own.
    with caplog.at_level(logging.WARNING, "orca"):
        est.fit(lambda config: rows(), search_space={"max_dept": hp.choice([1])}, **given)
    assert sum("did you mean 'max_depth'" in record.message for record in caplog.records) == 1


def test_bad_calls_say_what_is_wrong(tmp_path: Path) -> None:
    lock = threading.Lock()
    est = AutoXGBRegressor(logs_dir=str(tmp_path))
    good: dict[str, Any] = {"validation_data": rows(50), "search_space": {"n_estimators": 2}}
    for data, changes, message in (
        (rows(), {"validation_data": None}, "You must input validation data!"),
        (rows(), {"metric": "mze"}, "metric mze is not supported"),
        (rows(), {"metric": wrong}, "`metric_mode`"),
        (np.zeros(3), {}, "give \\(x, y\\)"),
        ((np.zeros(3), np.zeros(3)), {}, "takes a table"),
        ((np.zeros((3, 1)), np.zeros(2)), {}, "x has 3 rows, y has 2"),
        (frame(9, 0), {}, "feature_cols must be provided"),
        (lambda config: str(lock), {}, "data.*cannot be sent"),
        (rows(), {"metric": lambda a, b: str(lock), "mode": "min"}, "metric.*cannot be sent"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            est.fit(data, **(good | changes))
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidArgumentError, match="cpus_per_trial 0 is not"):
        AutoXGBRegressor(cpus_per_trial=0)
    with pytest.raises(InvalidArgumentError, match="model_type can only be"):
        XGBoostModelBuilder("forest")


def test_a_creator_that_returns_no_rows_hears_what_to_return() -> None:
    for made in (None, rows()[0], (*rows(), 3)):
        said = rf"a {type(made).__name__}.*return \(x, y\)"
        with pytest.raises(InvalidArgumentError, match=said):
            XGBoost().fit_eval(lambda config, made=made: made, rows(9))


def test_the_model_of_a_trial_by_itself(tmp_path: Path) -> None:
    data, held = rows(), rows(50, seed=1)
    model = XGBoost(config={"n_estimators": 5, "max_depth": 2, "tree_method": "hist"})
    with pytest.raises(FailedPreconditionError, match="fit_eval"):
        model.predict(held[0])
    frames = [(pd.DataFrame(x), pd.DataFrame(y)) for x, y in (data, held)]
    assert set(model.fit_eval(frames[0], [frames[1]])) == {"rmse"}
    assert set(model.fit_eval(data, [held], metric="mse")) == {"mse"}
    assert set(model.fit_eval(data, held, metric_func=wrong)) == {"wrong"}
    with pytest.raises(ValueError, match="wrong_metric"):
        model.fit_eval(data, held, metric="wrong_metric")
    plain = xgboost.XGBRegressor(**DEFAULTS | {"n_estimators": 5, "max_depth": 2})
    found = plain.fit(*data).predict(held[0])
    np.testing.assert_array_equal(model.predict(held[0]), found)
    (error,) = model.evaluate(held[0], held[1][:, None], ["mae"])
    assert error == pytest.approx(sklearn.metrics.mean_absolute_error(held[1], found))
    both = model.evaluate(held[0], held[1], ["mae", sklearn.metrics.mean_absolute_error])
    np.testing.assert_allclose(both, [error, error])
    for one in ("mae", sklearn.metrics.mean_absolute_error):  # No list around it.
        np.testing.assert_allclose(model.evaluate(held[0], held[1][:, None], one), [error])
    assert model.fit_eval(data, held, metric=wrong) == {"wrong": 1.0}
    model.fit_eval(data, held)
    model.save(tmp_path / "model")
    again = XGBoost()
    again.restore(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(held[0]), found)
    plain.load_model(bytearray((tmp_path / "model").read_bytes()))  # XGBoost reads it, too.
    np.testing.assert_array_equal(plain.predict(held[0]), found)
    damaged = bytearray((tmp_path / "model").read_bytes())
    damaged[damaged.index(b"split_conditions") + 40] ^= 1
    (tmp_path / "model").write_bytes(damaged)
    with pytest.raises(UnavailableError, match="model is damaged"):
        again.restore(tmp_path / "model")
    (tmp_path / "model").write_bytes(b"{L")
    with pytest.raises(UnavailableError, match="not a model of XGBoost"):
        again.restore(tmp_path / "model")
    built = XGBoostModelBuilder("regressor", 1, n_estimators=5).build({"features": [0, 1]})
    made = built.fit_eval(
        functools.partial(create, 20),
        validation_data=functools.partial(create, 5, seed=1),
        metric="mae",
    )
    assert made["mae"] > 0


def test_the_example_runs(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/auto_xgboost.py"
    done = subprocess.run(
        [sys.executable, str(example), "--trials", "3", "--logs", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("error ")


@pytest.mark.parametrize("scheduler", ["hyperband", "pbt"])
def test_schedulers_that_pause_and_clone(scheduler: str, tmp_path: Path) -> None:
    params: dict[str, Any] = {"max_t": 3}
    if scheduler == "pbt":
        params = {"perturbation_interval": 1, "hyperparam_mutations": {"n_estimators": [5, 50]}}
    remote = tmp_path / "remote"
    est = AutoXGBRegressor(logs_dir=str(tmp_path), name="p", remote_dir=str(remote))
    est.fit(
        rows(),
        validation_data=rows(100, seed=1),
        metric="rmse",
        epochs=3,
        n_sampling=4,
        search_space={"n_estimators": hp.choice([1, 5, 50]), "max_depth": 2},
        scheduler=scheduler,
        scheduler_params=params,
        seed=2,
    )
    assert {trial.state for trial in est.trials} <= {"finished", "pruned"}
    assert est.get_best_config()["n_estimators"] == 50
    # States of trials are gone at the end, here and in the copy.
    names = {p.relative_to(tmp_path / "p") for p in tmp_path.glob("p/train_func_*/*")}
    assert names == {p.relative_to(remote) for p in remote.glob("*/*")}
    assert not any(name.name.startswith("state-") for name in names)

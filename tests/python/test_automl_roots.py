"""AutoEstimators and their kin below bigdl and zoo: what differs from those of orca, and what does not."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from orca.automl import auto_estimator, hp, search, xgboost
from orca.automl.model.base_pytorch_model import PytorchModelBuilder
from orca.automl.search import ray_tune, tensorboardlogger
from orca.automl.xgboost import XGBoost
from orca.errors import FailedPreconditionError, InvalidArgumentError, OrcaError

pytestmark = pytest.mark.usefixtures("context")

OLD = ["bigdl", "zoo"]
BAD_ARGUMENT = {"orca": InvalidArgumentError, "bigdl": RuntimeError, "zoo": ValueError}
BAD_STATE = {"orca": FailedPreconditionError, "bigdl": RuntimeError, "zoo": RuntimeError}


def module(root: str, name: str) -> Any:
    below = "automl" if root == "orca" else "orca.automl"
    return importlib.import_module(f"{root}.{below}.{name}")


def linear(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(4, 1)


def rows(count: int = 32) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 4))
    return x, x.sum(axis=1)


def auto(root: str, folder: Path) -> Any:
    return module(root, "auto_estimator").AutoEstimator.from_torch(
        model_creator=linear, optimizer="SGD", loss="MSELoss", logs_dir=str(folder)
    )


SPACE = {"lr": hp.uniform(0.01, 0.1), "batch_size": 32}
GOOD: dict[str, Any] = {"validation_data": rows(), "metric": "mse", "search_space": SPACE}
TYPOS = [
    ({"search_alg": "hyperopt", "search_alg_params": {"gama": 1}}, "no parameter 'gama'"),
    ({"scheduler": "hyperband", "scheduler_params": {"maxt": 1}}, "no parameter maxt"),
]


@pytest.mark.parametrize(("given", "message"), TYPOS)
def test_a_parameter_that_nobody_knows_is_an_error_under_orca(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        auto("orca", tmp_path).fit(rows(), **GOOD, **given)


@pytest.mark.parametrize("root", OLD)
@pytest.mark.parametrize(("given", "message"), TYPOS)
def test_a_parameter_that_nobody_knows_is_a_warning_under_the_old_roots(
    root: str, given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    est = auto(root, tmp_path)
    with pytest.warns(UserWarning, match=f"{message}.*ignored") as caught:
        est.fit(rows(), **GOOD, **given)
    assert [warning.filename for warning in caught] == [__file__]  # The line of the user.
    assert est.get_best_trial().state == "finished"


@pytest.mark.parametrize("root", OLD)
def test_the_warning_comes_from_trees_and_engines_too(root: str, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    given, message = TYPOS[0]
    trees = module(root, "xgboost").AutoXGBRegressor(logs_dir=str(tmp_path), n_estimators=2)
    with pytest.warns(UserWarning, match=message):
        trees.fit(
            rows(), validation_data=rows(), search_space={"max_depth": hp.randint(1, 3)}, **given
        )
    engine = module(root, "search").SearchEngineFactory.create_engine(logs_dir=str(tmp_path))
    engine.compile(rows(), PytorchModelBuilder(linear, "SGD", "MSELoss"), **GOOD, **given)
    with pytest.warns(UserWarning, match=message):
        assert len(engine.run().trials) == 1


@pytest.mark.parametrize("given", [{"CPU": 2}, {"cpu": 1, "gpu": 1}, {"cpu": 1, "memory": 2**30}])
def test_resources_that_trials_have_not_are_not_passed_over(given: dict[str, Any]) -> None:
    def make(root: str) -> Any:
        return module(root, "auto_estimator").AutoEstimator.from_torch(
            model_creator=linear, optimizer="SGD", loss="MSELoss", resources_per_trial=given
        )

    message = f"resources_per_trial has '{list(given)[-1]}'.*give {{'cpu': number of cores}}"
    with pytest.raises(InvalidArgumentError, match=message):
        make("orca")
    for root in OLD:
        with pytest.warns(UserWarning, match=message) as caught:
            make(root)
        assert [warning.filename for warning in caught] == [__file__]


def test_no_gpu_is_no_wish(tmp_path: Path) -> None:
    auto_estimator.AutoEstimator.from_torch(
        model_creator=linear, optimizer="SGD", loss="MSELoss", resources_per_trial={"gpu": 0}
    )


def test_without_validation_data_the_line_of_the_user_is_warned(tmp_path: Path) -> None:
    est = auto("orca", tmp_path)
    with pytest.warns(UserWarning, match="no validation_data") as caught:
        est.fit(rows(), metric="mean_loss", search_space=SPACE)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("root", ["orca", *OLD])
def test_errors_are_those_of_the_root(root: str, tmp_path: Path) -> None:
    def raised(kind: dict[str, type[BaseException]], message: str, call: Any) -> None:
        with pytest.raises(kind[root], match=message) as caught:
            call()
        assert type(caught.value) is kind[root]
        assert isinstance(caught.value if root == "orca" else caught.value.__cause__, OrcaError)

    made = module(root, "auto_estimator").AutoEstimator
    raised(
        BAD_ARGUMENT,
        "valid torch optimizer name",
        lambda: made.from_torch(model_creator=linear, optimizer="Adamm", loss="MSELoss"),
    )
    est = auto(root, tmp_path)
    raised(BAD_ARGUMENT, "`metric_mode`", lambda: est.fit(rows(), **GOOD | {"metric": max}))
    raised(BAD_STATE, "call fit first", est.get_best_config)
    raised(BAD_STATE, "call fit first", est.get_best_model)
    raised(BAD_STATE, "call fit first", est.get_best_trial)
    factory = module(root, "search").SearchEngineFactory
    raised(BAD_ARGUMENT, "not supported", lambda: factory.create_engine(backend="spark"))
    engine = factory.create_engine(logs_dir=str(tmp_path))
    raised(BAD_ARGUMENT, "give a PytorchModelBuilder", lambda: engine.compile(rows(), linear))
    raised(BAD_STATE, "call compile first", engine.run)
    raised(BAD_STATE, "call compile and run first", engine.get_best_trials)
    pytest.importorskip("xgboost")
    trees = module(root, "xgboost").AutoXGBClassifier
    raised(BAD_ARGUMENT, "cpus_per_trial|cpu", lambda: trees(cpus_per_trial=0))


@pytest.mark.parametrize("root", OLD)
def test_the_classes_are_those_of_orca_too(root: str, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    estimators = module(root, "auto_estimator")
    trees = module(root, "xgboost")
    engines = module(root, "search.ray_tune")
    for found, ours in (
        (estimators.AutoEstimator, auto_estimator.AutoEstimator),
        (trees.AutoXGBRegressor, xgboost.AutoXGBRegressor),
        (trees.AutoXGBClassifier, xgboost.AutoXGBClassifier),
        (trees.AutoXGBRegressor, estimators.AutoEstimator),
        (trees.AutoXGBClassifier, estimators.AutoEstimator),
        (engines.RayTuneSearchEngine, ray_tune.RayTuneSearchEngine),
        (module(root, "search").SearchEngineFactory, search.SearchEngineFactory),
    ):
        assert issubclass(found, ours)
        assert found.__name__ == found.__qualname__
        assert found.__module__.startswith(f"{root}.orca.automl.")
        assert pickle.loads(pickle.dumps(found)) is found
        assert found.__doc__
    est = auto(root, tmp_path)
    assert type(est) is estimators.AutoEstimator
    assert type(pickle.loads(pickle.dumps(est))) is estimators.AutoEstimator
    engine = module(root, "search").SearchEngineFactory.create_engine(logs_dir=str(tmp_path))
    assert type(engine) is engines.RayTuneSearchEngine
    signature = inspect.signature(auto_estimator.AutoEstimator.fit)
    assert inspect.signature(estimators.AutoEstimator.fit) == signature
    assert "search_space" in signature.parameters
    # What is a value, or trains in this process, is the same everywhere.
    assert module(root, "xgboost.XGBoost").XGBoost is XGBoost.XGBoost
    assert module(root, "xgboost").XGBoost is XGBoost
    assert module(root, "search.tensorboardlogger") is tensorboardlogger
    assert module(root, "search").TensorboardLogger is search.TensorboardLogger
    assert engines.Analysis is ray_tune.Analysis


def test_trees_have_the_folders_of_their_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("xgboost")
    shown = {
        (root, name): inspect.signature(getattr(module(root, "xgboost"), name))
        .parameters["logs_dir"]
        .default
        for root in ("orca", *OLD)
        for name in ("AutoXGBClassifier", "AutoXGBRegressor")
    }
    zoo_regressor = shown.pop(("zoo", "AutoXGBRegressor"))
    assert zoo_regressor == "~/auto_xgb_regressor_logs"
    assert set(shown.values()) == {None}
    for name in ("AutoXGBClassifier", "AutoXGBRegressor"):
        kind = re.sub("AutoXGB", "", name).lower()
        assert getattr(module("bigdl", "xgboost"), name)._default_logs == f"auto_xgb_{kind}_logs"
    monkeypatch.setenv("HOME", str(tmp_path))
    trees = module("zoo", "xgboost").AutoXGBRegressor(n_estimators=2)
    trees.fit(rows(), validation_data=rows(), search_space={"max_depth": 2})
    assert list((tmp_path / "auto_xgb_regressor_logs").glob("*/train_func_*"))

"""What a search leaves behind: TensorBoard's files, copies in remote_dir; and the old search engine on top of it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orca.automl import hp
from orca.automl.mirror import Mirror
from orca.automl.model.base_keras_model import KerasModelBuilder
from orca.automl.model.base_pytorch_model import PytorchBaseModel, PytorchModelBuilder
from orca.automl.search import SearchEngineFactory
from orca.automl.search.ray_tune import RayTuneSearchEngine
from orca.automl.search.tensorboardlogger import TensorboardLogger
from orca.automl.xgboost import AutoXGBRegressor
from orca.automl.xgboost.XGBoost import XGBoostModelBuilder
from orca.data import file
from orca.errors import FailedPreconditionError, InvalidArgumentError

pytestmark = pytest.mark.usefixtures("context")


def rows(count: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 4)).astype(np.float32)
    return x, x[:, 0] * 2 - np.abs(x[:, 1])


SPACE = {"n_estimators": hp.grid_search([2, 20]), "tree_method": "hist"}


def searched(folder: Path, **changes: Any) -> AutoXGBRegressor:
    given = {"space": SPACE, "epochs": 2, "remote_dir": None} | changes
    est = AutoXGBRegressor(logs_dir=str(folder), name="s", remote_dir=given["remote_dir"])
    est.fit(
        rows(),
        validation_data=rows(50, 1),
        metric="rmse",
        epochs=given["epochs"],
        search_space=given["space"],
    )
    return est


# --- TensorBoard


def table(folder: Path, metric: str) -> dict[str, tuple[dict[str, Any], list[float], int]]:
    """What TensorBoard's own back end makes of a folder: hyper-parameters, metric and status of each run."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(TBContext(data_provider=provider))
    ask = RequestContext()
    experiment = context.experiment_from_metadata(
        ask, "e", True, context.hparams_metadata(ask, "e"), []
    )
    names = [info.name for info in experiment.hparam_infos]
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=99,
        include_metrics=True,
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE],
        col_params=[
            {"metric": {"tag": metric}, "include_in_result": True},
            *({"hparam": name, "include_in_result": True} for name in names),
        ],
    )
    groups = list_session_groups.Handler(ask, context, "e", request).run().session_groups
    return {
        session.name: (
            {k: getattr(v, v.WhichOneof("kind")) for k, v in group.hparams.items()},
            [m.value for m in session.metric_values if m.name.tag == metric],
            session.status,
        )
        for group in groups
        for session in group.sessions
    }


def test_tensorboard_shows_trials_and_their_table(tmp_path: Path) -> None:
    est = searched(tmp_path)
    found = table(tmp_path / "s_leaderboard", "s/rmse")
    folders = sorted((tmp_path / "s").glob("train_func_*"))
    assert sorted(found) == [folder.name for folder in folders]
    own = table(tmp_path / "s", "ray/tune/rmse")
    for folder, trial in zip(folders, est.trials, strict=True):
        value = float(np.float32(trial.reports[-1][1]))
        config, values, status = found[folder.name]
        assert config == {f"s/{key}": trial.config[key] for key in SPACE}
        assert (values, status) == ([value], api_pb2.STATUS_SUCCESS)
        assert own[folder.name] == (dict(trial.config), [value], api_pb2.STATUS_SUCCESS)
        events = EventAccumulator(str(folder))
        events.Reload()
        read = [(event.step, event.value) for event in events.Scalars("ray/tune/rmse")]
        assert read == [(step, float(np.float32(v))) for step, v in trial.reports]
        assert "ray/tune/best_rmse" in events.Tags()["scalars"]


def test_a_failed_trial_has_failed_in_the_table(tmp_path: Path) -> None:
    searched(tmp_path, space={"tree_method": hp.grid_search(["none", "hist"]), "n_estimators": 2})
    states = {c["tree_method"]: s for c, _, s in table(tmp_path / "s", "ray/tune/rmse").values()}
    assert states == {"none": api_pb2.STATUS_FAILURE, "hist": api_pb2.STATUS_SUCCESS}


def test_the_logger_takes_values_and_lists_of_them(tmp_path: Path) -> None:
    logger = TensorboardLogger(str(tmp_path), name="test")
    config = {
        "run1": {"lr": 0.001, "units": np.int32(32), "wide": True, "none": None, "of": [1, 2]},
        "a/run2": {"lr": float("nan"), "units": 64, "wide": False, "kind": "x", "of": (3,)},
    }
    metric = {
        "run1": {"acc": 0.91, "time": 32.13, "note": "text"},
        "a/run2": {"acc": [0.93, np.float64(0.95)], "time": [float("nan"), 62.0]},
    }
    logger.run(config, metric)
    logger.close()
    found = table(tmp_path, "test/acc")
    assert found["run1"][0] == {
        "test/lr": 0.001,
        "test/units": 32.0,
        "test/wide": True,
        "test/of": "[1, 2]",
    }
    assert found["a_run2"][0] == {
        "test/units": 64.0,
        "test/wide": False,
        "test/kind": "x",
        "test/of": "(3,)",
    }
    events = EventAccumulator(str(tmp_path / "a_run2"))
    events.Reload()
    assert [e.value for e in events.Scalars("test/acc")] == pytest.approx([0.93, 0.95])
    assert [(e.step, e.value) for e in events.Scalars("test/time")] == [(1, 62.0)]
    with pytest.raises(InvalidArgumentError, match=r"exactly the same.*run2"):
        logger.run({"run1": {}}, {"run1": {}, "run2": {}})


def test_the_logger_takes_the_folder_of_a_writer(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    logger = TensorboardLogger(writer=SummaryWriter(str(tmp_path)))
    logger.run({"r": {"lr": 1}}, {"r": {"acc": 1}})
    logger.close()
    assert table(tmp_path, "AutoML/acc")["r"][:2] == ({"AutoML/lr": 1.0}, [1.0])


# --- remote_dir


def assert_same(folder: Path, remote: str) -> None:
    trials = sorted(folder.glob("train_func_*"))
    assert trials
    assert file.listdir(remote) == [trial.name for trial in trials]
    for trial in trials:
        names = sorted(path.name for path in trial.iterdir())
        assert file.listdir(f"{remote}/{trial.name}") == names
        assert {"best.ckpt", "params.json", "progress.csv", "result.json"} <= set(names)
        for name in names:
            with file.open_input(f"{remote}/{trial.name}/{name}") as stream:
                assert stream.read() == (trial / name).read_bytes()


@pytest.mark.parametrize("scheme", ["file://{}", "{}", "memory://orca-test{}"])
def test_folders_of_trials_are_copied_to_remote_dir(scheme: str, tmp_path: Path) -> None:
    remote = scheme.format(tmp_path / "remote/deep")
    searched(tmp_path, remote_dir=remote)
    assert_same(tmp_path / "s", remote)


def test_copies_are_made_while_a_trial_runs(tmp_path: Path) -> None:
    folder, remote = tmp_path / "trial", tmp_path / "remote"
    folder.mkdir()
    mirror = Mirror(f"file://{remote}")
    for count in range(1, 4):
        with (folder / "result.json").open("a") as out:
            out.write(f"{count}\n")
        (folder / ".best.ckpt.tmp").write_text("half")
        (folder / f"state-{count}").write_text("whole")
        (folder / f"state-{count - 1}").unlink(missing_ok=True)
        mirror.note(folder)
        deadline = time.monotonic() + 60
        copy = remote / "trial/result.json"
        while not copy.exists() or len(copy.read_text().split()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert mirror.close()
    names = sorted(path.name for path in (remote / "trial").iterdir())
    assert names == ["result.json", "state-3"]


def test_a_place_that_cannot_be_reached_is_told_once_and_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "orca"):
        est = searched(tmp_path, remote_dir=f"file://{tmp_path}/taken/remote")
    assert [trial.state for trial in est.trials] == ["finished", "finished"]
    assert est.get_best_config()["n_estimators"] == 20
    warnings = [r.levelname for r in caplog.records if "taken/remote" in r.getMessage()]
    assert warnings == ["WARNING", "ERROR"]
    assert "are not complete in" in caplog.text


def test_a_place_that_comes_back_gets_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, remote = tmp_path / "trial", tmp_path / "remote"
    folder.mkdir()
    (folder / "a").write_text("1")
    remote.write_text("not a folder yet")
    mirror = Mirror(str(remote))
    mirror.note(folder)
    deadline = time.monotonic() + 60
    while "cannot copy" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    remote.unlink()
    assert mirror.close()
    assert (remote / "trial/a").read_text() == "1"


def test_remote_dir_is_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="remote_dir 3"):
        AutoXGBRegressor(logs_dir=str(tmp_path), remote_dir=3)  # type: ignore[arg-type]


# --- the old engine, and its model builders


def linear(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(4, 1)


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config["lr"])


BUILDER = PytorchModelBuilder(linear, sgd, lambda config: nn.MSELoss())


def test_the_engine_searches_models_of_torch(tmp_path: Path) -> None:
    data, held = rows(), rows(50, 1)
    engine = SearchEngineFactory.create_engine(
        backend="ray", logs_dir=str(tmp_path), resources_per_trial={"cpu": 1}, name="e"
    )
    assert isinstance(engine, RayTuneSearchEngine)
    with pytest.raises(FailedPreconditionError, match="compile"):
        engine.run()
    engine.compile(
        data=data,
        validation_data=held,
        model_builder=BUILDER,
        metric="mse",
        metric_mode="min",
        epochs=2,
        search_space={"lr": hp.grid_search([1e-6, 0.1, 0.01]), "batch_size": 25},
    )
    analysis = engine.run()
    assert [trial.status for trial in analysis.trials] == ["TERMINATED"] * 3
    assert analysis.best_config["lr"] == 0.1
    best = engine.get_best_trials(k=2)
    ranked = sorted(analysis.trials, key=lambda trial: trial.last_result["best_mse"])
    assert [trial.config for trial in best] == [trial.config for trial in ranked[:2]]
    model = BUILDER.build(best[0].config)
    model.restore(best[0].model_path)
    # Everything that the engine hands out tells of the same trial.
    (found,) = [trial for trial in analysis.trials if trial.config == best[0].config]
    assert model.evaluate(*held, metrics=["mse"], multioutput="uniform_average") == pytest.approx(
        [found.last_result["best_mse"]], rel=1e-5
    )
    assert analysis.get_all_configs()[found.logdir] == best[0].config
    frame = analysis.fetch_trial_dataframes()[found.logdir]
    assert frame["training_iteration"].tolist() == [1, 2]
    assert frame["best_mse"].iloc[-1] == found.last_result["best_mse"]
    assert (tmp_path / "e_leaderboard").is_dir()


def test_the_engine_says_why_there_is_no_best_trial(tmp_path: Path) -> None:
    engine = SearchEngineFactory.create_engine("ray", str(tmp_path), name="none")
    builder = XGBoostModelBuilder("regressor", 1, n_estimators=2)
    space = {"tree_method": hp.grid_search(["none", "no"])}
    engine.compile(rows(), builder, "min", validation_data=rows(50, 1), search_space=space)
    said = r"(?s)2 of 2 trials failed; the first one, trial 0:.*'none'"
    with pytest.raises(FailedPreconditionError, match=said):
        engine.run()
    with pytest.raises(FailedPreconditionError, match=said):
        engine.get_best_trial()
    assert engine.get_best_trials(3) == []


def test_the_engine_searches_trees(tmp_path: Path) -> None:
    engine = SearchEngineFactory.create_engine("ray", str(tmp_path), name="trees")
    builder = XGBoostModelBuilder("regressor", 1, n_estimators=5)
    space = {"max_depth": hp.grid_search([1, 3]), "tree_method": hp.grid_search(["hist", "none"])}
    engine.compile(rows(), builder, "min", validation_data=rows(50, 1), search_space=space)
    states = [trial.status for trial in engine.run().trials]
    assert sorted(states) == ["ERROR", "ERROR", "TERMINATED", "TERMINATED"]
    outputs = engine.get_best_trials(9)
    assert [trial.config["max_depth"] for trial in outputs] == [3, 1]  # Failed ones are not there.
    assert engine.get_best_trial() == outputs[0]
    model = builder.build(outputs[0].config)
    model.restore(outputs[0].model_path)
    assert model.model.get_booster().num_boosted_rounds() == 5


def test_the_engine_says_what_it_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="'spark' is not supported"):
        SearchEngineFactory.create_engine("spark")
    engine = SearchEngineFactory.create_engine(logs_dir=str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="model_builder is a function"):
        engine.compile(rows(), linear, "min")
    with pytest.raises(InvalidArgumentError, match="mc=True"):
        engine.compile(rows(), BUILDER, "min", mc=True)
    model = BUILDER.build({"lr": 0.1, "batch_size": 4})
    for call in (
        lambda: model.fit_eval(rows(), validation_data=rows(), metric="mse", mc=True),
        lambda: model.predict_with_onnx(rows()[0], mc=True),
    ):
        with pytest.raises(InvalidArgumentError, match="mc=True"):
            call()
    with pytest.raises(FailedPreconditionError, match="compile and run"):
        engine.get_best_trials()


def loader(config: dict[str, Any]) -> DataLoader[Any]:
    x, y = rows()
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y)[:, None])
    return DataLoader(tensors, batch_size=config["batch_size"])


def test_a_built_model_trains_as_plain_torch_does(tmp_path: Path) -> None:
    data, held = rows(), rows(50, 1)
    torch.manual_seed(1)
    model = BUILDER.build({"lr": 0.05, "batch_size": 100})
    torch.manual_seed(1)
    plain = linear({})
    optimizer = sgd(plain, {"lr": 0.05})
    x, y = torch.from_numpy(data[0]), torch.from_numpy(data[1])[:, None]
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
    found = model.fit_eval(data, held, epochs=2, metric="mse")
    assert set(found) == {"mse"}
    found = model.fit_eval(loader, loader, metric="mse")  # A batch has all rows: order is nothing.
    for mine, theirs in zip(model.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        outputs = plain(torch.from_numpy(held[0])).numpy()
        assert found["mse"] == pytest.approx(float(((plain(x) - y) ** 2).mean()), rel=1e-5)
    np.testing.assert_allclose(model.predict(held[0], batch_size=7), outputs, rtol=1e-5, atol=1e-6)
    error = np.mean((outputs[:, 0] - held[1]) ** 2)
    assert model.evaluate(*held, multioutput="uniform_average") == pytest.approx([error], rel=1e-5)
    model.save(tmp_path / "m.ckpt")
    again = PytorchBaseModel(linear, torch.optim.SGD, "MSELoss")
    with pytest.raises(FailedPreconditionError, match="fit_eval or restore"):
        again.predict(held[0])
    again.restore(tmp_path / "m.ckpt")
    np.testing.assert_array_equal(again.predict(held[0]), model.predict(held[0]))
    assert again.config == {"lr": 0.05, "batch_size": 100}
    assert again.optimizer.param_groups[0]["lr"] == 0.05
    own = model.fit_eval(
        data, held, metric_func=lambda truth, got: float(np.abs(truth - got).max())
    )
    assert list(own) == ["<lambda>"]


def test_a_built_model_says_what_is_wrong() -> None:
    model = BUILDER.build({"lr": 0.1})
    for data, more, message in (
        (rows(), {"metric": "mse"}, "You must input validation data!"),
        (rows(), {"validation_data": rows()}, "valid metric value"),
        (rows(), {"validation_data": rows(), "metric": "mse"}, "batch_size"),
        ("x", {"validation_data": rows(), "metric": "mse"}, "tuple or data creator"),
        (rows(), {"validation_data": rows(), "metric": "mse", "epochs": 0}, "epochs 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            model.fit_eval(data, **more)
    with pytest.raises(InvalidArgumentError, match="valid torch optimizer name"):
        PytorchModelBuilder(linear, "Sgd", "MSELoss")


def test_onnx_gives_the_same_or_says_what_is_missing(tmp_path: Path) -> None:
    held = rows(50, 1)
    model = BUILDER.build({"lr": 0.1})
    if any(
        importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")
    ):
        with pytest.raises(ImportError, match="pip install onnx onnxruntime"):
            model.predict_with_onnx(held[0])
        return
    outputs = model.predict_with_onnx(held[0], dirname=str(tmp_path), batch_size=7)
    np.testing.assert_allclose(outputs, model.predict(held[0]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.evaluate_with_onnx(*held), model.evaluate(*held), rtol=1e-5)


@pytest.mark.parametrize("root", ["bigdl", "zoo"])
def test_the_old_roots_have_what_is_no_search(root: str) -> None:
    for module, name, ours in (  # test_automl_roots.py has the searches.
        ("search.tensorboardlogger", "TensorboardLogger", TensorboardLogger),
        ("model.base_pytorch_model", "PytorchModelBuilder", PytorchModelBuilder),
        ("model.base_keras_model", "KerasModelBuilder", KerasModelBuilder),
        ("pytorch_utils", "LR_NAME", "lr"),
    ):
        assert getattr(importlib.import_module(f"{root}.orca.automl.{module}"), name) is ours

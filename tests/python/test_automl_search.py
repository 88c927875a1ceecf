"""What a search leaves behind: TensorBoard's files, copies in remote_dir; and the old search engine on top of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

import orca
from orca.automl import hp
from orca.automl.mirror import Mirror
from orca.automl.search.tensorboardlogger import TensorboardLogger
from orca.automl.xgboost import AutoXGBRegressor
from orca.data import file
from orca.errors import InvalidArgumentError


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


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
        mirror.note(folder)
        deadline = time.monotonic() + 60
        copy = remote / "trial/result.json"
        while not copy.exists() or len(copy.read_text().split()) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert mirror.close()
    assert [path.name for path in (remote / "trial").iterdir()] == ["result.json"]


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

"""What users' scripts call of the PyTorch Estimator, through both old import roots."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import checks_estimator as checks
import orca
from processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

ROOTS = ["zoo", "bigdl"]
ENGINE = "bigdl"
OTHERS = ["torch_distributed", "ray", "spark", "horovod"]


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def module(root: str, name: str) -> Any:
    return importlib.import_module(f"{root}.orca.learn.{name}")


def estimator(root: str, workers: int = 2, **changes: Any) -> Any:
    given = {"backend": "spark", "estimator_class": checks.estimator_class(root)}
    return checks.estimator(workers, **(given | changes))


def job_batch(root: str, rows: int, workers: int = 2) -> int:
    """The ``batch_size`` that makes steps of so many rows: under zoo it counts a worker's."""
    return rows // workers if root == "zoo" else rows


def trained(epochs: int = 1, count: int = 24, optimizer: Any = None) -> nn.Module:
    return checks.trained_plainly(optimizer or checks.OPTIMIZERS["sgd"], epochs, 8, count)


def outputs_of(model: nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


def same(found: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-11, atol=1e-13)


# --- 1.3: a setting that Estimators obey


class Alone:
    """A data creator that must not run twice at a time."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "inside"

    def __call__(self, config: dict[str, Any], batch_size: int) -> Any:
        self.mark.touch(exist_ok=False)
        assert sum(range(2_000_000)) > 0  # Takes a while.
        self.mark.unlink()
        return DataLoader(tensors(), batch_size)


def test_data_creators_may_run_one_at_a_time(root: str, tmp_path: Path) -> None:
    settings = importlib.import_module(f"{root}.orca").OrcaContext
    settings.serialize_data_creator = True
    try:
        est = estimator(root, 4)
        alone = Alone(tmp_path)
        est.fit(alone, batch_size=8, validation_data=alone)
        assert est.evaluate(alone, batch_size=8)["num_samples"] == 24
    finally:
        settings.serialize_data_creator = False


# --- 4.1, 4.8: modules


def test_estimators_have_the_bases_of_the_originals(root: str) -> None:
    base = module(root, "base_estimator").BaseEstimator
    of_spark, of_ray = module(root, "spark_estimator").Estimator, module(root, "ray_estimator")
    assert issubclass(of_spark, base)
    assert issubclass(of_ray.Estimator, base)
    est = estimator(root)
    assert isinstance(est, of_spark)
    assert isinstance(est, of_ray.Estimator)
    with pytest.raises(TypeError, match="abstract"):
        base()

    class Half(base):  # type: ignore[misc, valid-type]
        def fit(self) -> None: ...

    with pytest.raises(TypeError, match="predict"):
        Half()


def test_the_latest_checkpoint_is_found(root: str, tmp_path: Path) -> None:
    find = module(root, "utils").find_latest_checkpoint
    assert find(str(tmp_path)) == (None, None, None)
    every = module(root, "trigger").SeveralIteration(2)
    est = estimator(root, backend=ENGINE, model_dir=str(tmp_path))
    est.fit(checks.rows(24), epochs=2, batch_size=8, checkpoint_trigger=every)
    folder, prefix, version = find(str(tmp_path), model_type="pytorch")
    (expected,) = (tmp_path / "models").iterdir()
    assert (folder, prefix, version) == (str(expected), None, 6)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", expected.name)
    other = estimator(root, backend=ENGINE)
    other.load_orca_checkpoint(folder, version=version, prefix=prefix)
    same(other.get_model(), est.get_model())
    # Files of the originals' engine are found by the names of their optimizers.
    later = tmp_path / "models" / "2999-01-01_00-00-00"
    later.mkdir()
    for name in ("model.4", "optimMethod-TorchModelf53bddcc.4", "optimMethod-TFParkTraining.9"):
        (later / name).touch()
    assert find(str(tmp_path), "pytorch") == (str(later), "optimMethod-TorchModelf53bddcc", 4)
    assert find(str(tmp_path), "tf") == (str(later), "optimMethod-TFParkTraining", 9)
    with pytest.raises(ValueError, match="model_type 'mxnet' is not known"):
        find(str(tmp_path), "mxnet")
    with pytest.raises(ImportError, match="dataframe_to_xshards is not in this release"):
        exec(f"from {root}.orca.learn.utils import dataframe_to_xshards")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {root}.orca.learn.utils import nothing")


# --- 4.2: what data look like


class Sum(nn.Module):
    """Takes its inputs one by one, or as a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = checks.Net()

    def forward(self, *inputs: Any) -> torch.Tensor:
        if isinstance(inputs[0], dict):
            inputs = tuple(inputs[0].values())
        return self.inner(sum(inputs))


@pytest.mark.parametrize("kind", ["array", "list", "tuple", "dict"])
def test_data_are_x_and_y_of_arrays(root: str, kind: str) -> None:
    x, y = checks.rows(24)
    half = x / 2
    features: Any = {"array": x, "list": [half, half], "tuple": (half, half)}.get(kind)
    if kind == "dict":
        features = {"a": half, "b": half}
    est = estimator(root, model=lambda config: Sum())
    est.fit({"x": features, "y": y}, batch_size=job_batch(root, 8))
    plain = checks.trained_plainly(checks.OPTIMIZERS["sgd"], 1, 8, 24, Sum())
    same(est.get_model(), plain)
    with torch.no_grad():
        expected = plain(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(est.predict({"x": features}), expected, rtol=1e-9)
    with pytest.raises((RuntimeError, ValueError), match="key x should be there"):
        est.fit({"features": x, "y": y})


# --- 4.6: metrics


@pytest.mark.parametrize("backend", [ENGINE, "spark"])
def test_metrics_of_a_root_have_the_names_of_their_backend(root: str, backend: str) -> None:
    metrics = module(root, "metrics")
    x, y = checks.rows(24)
    chosen = [metrics.Accuracy(), metrics.Top5Accuracy()]
    est = estimator(root, backend=backend, metrics=chosen, config={"classes": 6})
    found = est.evaluate((x, y), batch_size=8)
    if backend == ENGINE:
        assert list(found) == ["Top1Accuracy", "Top5Accuracy"]
    else:
        assert set(found) == {"num_samples", "Accuracy", "Top5Accuracy", "val_loss"}
    with torch.no_grad():
        outputs = est.get_model()(torch.from_numpy(x))
    right = (outputs.argmax(1).numpy() == y).mean()
    assert float(next(v for k, v in found.items() if "1" in k or k == "Accuracy")) == right
    with pytest.raises((RuntimeError, ValueError), match=r"Only orca metrics .*but get str"):
        estimator(root, metrics="accuracy")


# --- 4.9: epochs


def test_epochs_of_the_engine_are_absolute(root: str, tmp_path: Path) -> None:
    data = checks.rows(24)
    est = estimator(root, backend=ENGINE, model_dir=str(tmp_path))
    every = module(root, "trigger").EveryEpoch()
    est.fit(data, epochs=2, batch_size=8, checkpoint_trigger=every)
    est.fit(data, epochs=2, batch_size=8)
    same(est.get_model(), trained(2))
    other = estimator(root, backend=ENGINE)
    other.load_orca_checkpoint(str(tmp_path))
    other.fit(data, epochs=3, batch_size=8)
    assert other.get_state_dict()["epoch"] == 3
    same(other.get_model(), trained(3))


@pytest.mark.parametrize("backend", OTHERS)
def test_epochs_of_other_backends_add_up(root: str, backend: str) -> None:
    data = checks.rows(24)
    est = estimator(root, backend=backend)
    for _ in range(2):
        est.fit(data, epochs=1, batch_size=job_batch(root, 8))
    same(est.get_model(), trained(2))


# --- 4.10: summaries


def test_summaries_have_the_tags_of_the_engine(root: str, tmp_path: Path) -> None:
    metrics = module(root, "metrics")
    x, y = checks.rows(24)
    est = estimator(root, backend=ENGINE, metrics=[metrics.Accuracy()])
    est.set_tensorboard(str(tmp_path), "app")
    assert est.get_train_summary("Loss") is None
    every = module(root, "trigger").EveryEpoch()
    est.fit((x, y), 2, 8, validation_data=(x[:9], y[:9]), checkpoint_trigger=every)
    for tag in ("Loss", "LearningRate", "Throughput"):
        found = est.get_train_summary(tag)
        assert [each[0] for each in found] == list(range(1, 7))
        assert all(len(each) == 3 for each in found)
    scores = est.get_validation_summary("Top1Accuracy")
    expected = est.evaluate((x[:9], y[:9]), batch_size=8)["Top1Accuracy"]
    assert [each[0] for each in scores] == [3, 6]
    assert scores[-1][1] == pytest.approx(expected, rel=1e-6)
    assert len(est.get_validation_summary("Loss")) == 2
    assert (tmp_path / "app" / "train").is_dir()
    assert (tmp_path / "app" / "validation").is_dir()


# --- 5.1: from_torch


@pytest.mark.parametrize("backend", [ENGINE, *OTHERS])
@pytest.mark.parametrize("kind", ["instances", "creators"])
def test_model_optimizer_and_loss_are_instances_or_creators(
    root: str, backend: str, kind: str
) -> None:
    given: dict[str, Any] = {"config": {"shuffle": False, "lr": 0.05}}
    if kind == "creators":
        given["optimizer"] = lambda model, config: torch.optim.Adam(
            model.parameters(), config["lr"]
        )
        given["loss"] = lambda config: nn.CrossEntropyLoss()
    else:
        given["model"] = checks.net({})
        given["optimizer"] = torch.optim.Adam(given["model"].parameters(), 0.05)
    est = estimator(root, backend=backend, **given)
    batch = 8 if backend == ENGINE else job_batch(root, 8)
    found = est.fit(checks.rows(24), epochs=2, batch_size=batch)
    assert (found is est) == (backend == ENGINE)
    adam = lambda m, c: torch.optim.Adam(m.parameters(), 0.05)  # noqa: E731
    same(est.get_model(), trained(2, optimizer=adam))


@pytest.mark.parametrize("backend", [ENGINE, "horovod"])
def test_orcas_optimizers_and_functions_as_losses_are_taken(root: str, backend: str) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target)

    sgd = module(root, "optimizers").SGD(learningrate=0.05)
    est = estimator(root, backend=backend, optimizer=sgd, loss=loss)
    est.fit(checks.rows(24), batch_size=8 if backend == ENGINE else job_batch(root, 8))
    plain = lambda m, c: torch.optim.SGD(m.parameters(), 0.05)  # noqa: E731
    same(est.get_model(), trained(optimizer=plain))


def test_the_engine_has_an_optimizer_of_its_own(root: str) -> None:
    est = estimator(root, backend=ENGINE, optimizer=None)
    est.fit(checks.rows(24), batch_size=8)
    plain = lambda m, c: torch.optim.SGD(m.parameters(), 1e-3)  # noqa: E731
    same(est.get_model(), trained(optimizer=plain))


def test_what_is_missing_is_named_when_it_is_needed(root: str) -> None:
    est = estimator(root, optimizer=None)
    assert est.evaluate(checks.rows(8))["num_samples"] == 8
    with pytest.raises(RuntimeError, match="optimizer"):
        est.fit(checks.rows(8))
    with pytest.raises(RuntimeError, match="you must provide a custom training operator"):
        estimator(root, loss=None).fit(checks.rows(8))


@pytest.mark.parametrize(("frequency", "steps"), [("batch", 6), ("epoch", 2), ("manual", 0)])
def test_schedulers_step_when_they_should(root: str, frequency: str, steps: int) -> None:
    est = estimator(
        root,
        backend="horovod",
        scheduler_creator=lambda o, c: torch.optim.lr_scheduler.ExponentialLR(o, c["gamma"]),
        scheduler_step_freq=frequency,
        config={"shuffle": False, "gamma": 0.5},
    )
    est.fit(checks.rows(24), epochs=2, batch_size=job_batch(root, 8))

    def rate() -> float:
        return float(est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"])

    assert rate() == pytest.approx(0.05 * 0.5**steps)
    est.update_schedulers()
    est.update_scheduler()
    assert rate() == pytest.approx(0.05 * 0.5 ** (steps + 2))


def test_settings_reach_the_workers(root: str, tmp_path: Path) -> None:
    """``config``, ``workers_per_node``, ``initialization_hook``, and what has no effect here."""
    folder = tmp_path

    def hook() -> None:
        (folder / f"hook-{orca.rank()}").touch()

    def model(config: dict[str, Any]) -> nn.Module:
        assert config["given"] == "yes"
        config["given"] = "changed"  # Every creator has a copy.
        return checks.net(config)

    est = estimator(
        root,
        3,
        model=model,
        config={"given": "yes"},
        initialization_hook=hook,
        use_tqdm=True,
        sync_stats=True,
        log_level=logging.WARNING,
        log_to_driver=False,
    )
    est.fit(checks.rows(8), batch_size=4)
    assert est.num_workers == 3
    assert {path.name for path in tmp_path.iterdir()} == {"hook-0", "hook-1", "hook-2"}
    with pytest.raises((RuntimeError, ValueError), match="do not specify batch_size in config"):
        estimator(root, config={"batch_size": 4})


def test_the_config_says_how_arrays_become_batches(root: str) -> None:
    x, y = checks.rows(27)
    batch = job_batch(root, 8)
    est = estimator(root, config={"shuffle": False, "drop_last": True})
    stats = est.fit((x, y), epochs=2, batch_size=batch, validation_data=(x, y))
    assert [(s["batch_count"], s["num_samples"]) for s in stats] == [(3, 24)] * 2
    assert stats[0]["val_num_samples"] == 27
    whole = estimator(root)
    whole.fit((x[:24], y[:24]), epochs=2, batch_size=batch)
    same(est.get_model(), whole.get_model())
    shuffled = estimator(root, config={})
    shuffled.fit(checks.rows(24), epochs=1, batch_size=batch)
    assert not torch.equal(shuffled.get_model().first.weight, trained().first.weight)
    few = estimator(root, config={"drop_last": True})
    with pytest.raises(RuntimeError, match="epoch 1 has no rows to train on"):
        few.fit(checks.rows(5), batch_size=batch)


def test_the_state_of_the_spark_backend_is_in_model_dir(root: str, tmp_path: Path) -> None:
    est = estimator(root, model_dir=str(tmp_path))
    est.fit(checks.rows(8), batch_size=4)
    other = estimator(root)
    other.load(tmp_path / "state.pkl")
    same(other.get_model(), est.get_model())
    # It is private; a file that the user asks for by name has the mode of the umask.
    assert (tmp_path / "state.pkl").stat().st_mode & 0o777 == 0o600
    before = os.umask(0o022)
    try:
        est.save(str(tmp_path / "saved.pt"))
    finally:
        os.umask(before)
    assert (tmp_path / "saved.pt").stat().st_mode & 0o777 == 0o644
    assert estimator(root, model_dir="dbfs:/here/model")._model_dir == "/dbfs/here/model"


# --- 5.2, 5.3, 5.5: fit, evaluate, predict


def tensors() -> TensorDataset:
    return TensorDataset(*(torch.from_numpy(part) for part in checks.rows(24)))


CREATORS: dict[str, Any] = {
    "nothing": lambda: DataLoader(tensors(), batch_size=4),
    "config": lambda config: DataLoader(tensors(), batch_size=config["rows"]),
    "config and batch_size": lambda config, batch_size: DataLoader(tensors(), batch_size),
    "defaults": lambda config={}, batch_size=1, download=True: DataLoader(tensors(), batch_size),
}


@pytest.mark.parametrize("backend", [ENGINE, *OTHERS])
@pytest.mark.parametrize("takes", sorted(CREATORS))
def test_data_creators_take_what_they_want(root: str, backend: str, takes: str) -> None:
    est = estimator(root, backend=backend, config={"rows": 4})
    batch = 8 if backend == ENGINE else job_batch(root, 8)
    est.fit(data=CREATORS[takes], epochs=2, batch_size=batch)
    same(est.get_model(), trained(2))


@pytest.mark.parametrize("backend", [ENGINE, *OTHERS])
def test_a_data_loader_has_its_own_batch_size(root: str, backend: str) -> None:
    metrics = [module(root, "metrics").Accuracy()]
    est = estimator(root, backend=backend, metrics=metrics)
    loader = DataLoader(tensors(), batch_size=8)
    est.fit(data=loader, epochs=2, validation_data=loader)
    same(est.get_model(), trained(2))
    outputs = outputs_of(trained(2), checks.rows(24)[0])
    expected = (outputs.argmax(1) == checks.rows(24)[1]).mean()
    found = est.evaluate(loader)
    name = "Top1Accuracy" if backend == ENGINE else "Accuracy"
    assert float(found[name]) == pytest.approx(expected, abs=1e-12)


def test_columns_are_features_and_labels(root: str) -> None:
    x, y = checks.rows(24)
    frame = pd.DataFrame({"features": list(x), "label": y})
    est = estimator(root)
    given = {"feature_cols": ["features"], "label_cols": ["label"]}
    batch = job_batch(root, 8)
    est.fit(frame, batch_size=batch, validation_data=frame, **given)
    same(est.get_model(), trained())
    assert est.evaluate(frame, **given)["num_samples"] == 24
    expected = outputs_of(trained(), x)
    np.testing.assert_allclose(est.predict(frame, feature_cols=["features"]), expected, rtol=1e-9)
    with pytest.raises((RuntimeError, ValueError), match="feature_cols must be provided"):
        est.predict(frame)


@pytest.mark.parametrize("backend", OTHERS)
def test_statistics_are_as_the_originals_gave_them(root: str, backend: str) -> None:
    """5.8: two workers, and what a caller can rely on."""
    metrics = [module(root, "metrics").Accuracy()]
    est = estimator(root, backend=backend, metrics=metrics)
    x, y = checks.rows(100)
    batch = job_batch(root, 16)
    stats = est.fit((x, y), epochs=2, batch_size=batch, validation_data=(x[:40], y[:40]))
    assert [s["epoch"] for s in stats] == [1, 2]
    assert {s["batch_count"] for s in stats} == {7}  # ceil(100 / 16)
    assert {(s["num_samples"], s["val_num_samples"]) for s in stats} == {(100, 40)}
    assert stats[0]["train_loss"] > stats[1]["train_loss"]
    assert {"last_train_loss", "val_loss"} <= set(stats[0])
    assert isinstance(stats[0]["val_accuracy"], torch.Tensor)
    unreduced = est.fit((x, y), epochs=1, batch_size=batch, profile=True, reduce_results=False)
    assert [len(epoch) for epoch in unreduced] == [2]
    assert sum(s["num_samples"] for s in unreduced[0]) == 100
    assert {"mean_train_epoch_s", "mean_fwd_s", "mean_bwd_s"} <= set(unreduced[0][0]["profile"])
    scores = est.evaluate((x, y), batch_size=batch, profile=True)
    assert scores["num_samples"] == 100
    assert isinstance(scores["Accuracy"], torch.Tensor)
    assert scores["profile"]["mean_validation_s"] > scores["profile"]["mean_eval_fwd_s"] > 0
    each = est.evaluate((x, y), batch_size=batch, profile=True, reduce_results=False)
    assert len({worker["profile"]["mean_eval_fwd_s"] for worker in each}) == 2
    (epoch,) = est.fit((x, y), epochs=1, batch_size=batch, profile=True, validation_data=(x, y))
    named = {
        "mean_train_epoch_s",
        "mean_fwd_s",
        "mean_bwd_s",
        "mean_validation_s",
        "mean_eval_fwd_s",
    }
    assert named == set(epoch["profile"])
    assert len(est.evaluate((x, y), reduce_results=False)) == 2
    assert est.evaluate((x, y), batch_size=batch, num_steps=2)["num_samples"] == 32


def test_a_step_of_two_workers_is_one_on_the_joined_batch(root: str) -> None:
    """5.8: w goes 1, 0.5, 0.25, to the bit."""

    class Weight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w * x

    est = estimator(
        root,
        model=lambda config: Weight(),
        optimizer=lambda m, c: torch.optim.SGD(m.parameters(), 0.5),
        loss=nn.MSELoss(),
    )
    x = np.array([[0.0], [1.0]], dtype=np.float32)
    for expected in (0.5, 0.25):
        est.fit((x, np.zeros_like(x)), epochs=1, batch_size=job_batch(root, 2))
        assert est.get_model().w.item() == expected


def test_validation_methods_are_metrics_of_a_call(root: str) -> None:
    """Seed 000."""
    from bigdl.optim.optimizer import Loss, Top1Accuracy

    x, y = checks.rows(24)
    est = estimator(root, backend=ENGINE)
    methods = [Top1Accuracy(), Loss()]
    every = module(root, "trigger").EveryEpoch()
    est.fit(
        (x, y),
        epochs=1,
        batch_size=8,
        validation_data=(x, y),
        validation_methods=methods,
        checkpoint_trigger=every,
    )
    same(est.get_model(), trained())
    found = est.evaluate((x, y), validation_methods=methods, batch_size=8)
    assert list(found) == ["Top1Accuracy", "Loss"]


def test_arguments_have_the_places_of_their_time(root: str) -> None:
    from bigdl.optim.optimizer import Top1Accuracy

    metrics = [module(root, "metrics").Accuracy()]
    data = checks.rows(24)
    every = module(root, "trigger").EveryEpoch()
    est = estimator(root, backend=ENGINE, metrics=metrics)
    # Seed 000: fit(data, epochs, batch_size, validation_data, validation_methods, trigger).
    est.fit(data, 1, 8, data, [Top1Accuracy()], every)
    same(est.get_model(), trained())
    assert list(est.evaluate(data, [Top1Accuracy()], 8)) == ["Top1Accuracy"]
    # Analytics Zoo 0.10: fit(data, epochs, batch_size, feature_cols, label_cols, ...).
    frame = pd.DataFrame({"features": list(data[0].astype("float32")), "label": data[1]})
    short = estimator(
        root,
        backend=ENGINE,
        config={"dtype": "float32"},
        loss=lambda config: lambda output, target: F.cross_entropy(output, target.long()),
        metrics=metrics,
    )
    assert short.fit(frame, 1, 8, ["features"], ["label"], frame, every) is short
    assert list(short.evaluate(frame, 8, ["features"], ["label"])) == ["Top1Accuracy"]
    # Seed 000: fit(data, epochs, profile, reduce_results, info) of horovod.
    other = estimator(root, backend="horovod")
    stats = other.fit(CREATORS["config and batch_size"], 1, True, False, {"a": 1})
    assert [len(epoch) for epoch in stats] == [2]
    assert "profile" in stats[0][0]
    with pytest.raises(TypeError, match="multiple values"):
        est.fit(data, 1, 8, data, validation_data=data)


def test_predictions_lose_trailing_dimensions_of_one(root: str) -> None:
    x, _ = checks.rows(7)
    est = estimator(root, config={"classes": 1}, optimizer=None)
    assert est.predict(x, batch_size=4).shape == (7,)
    assert est.predict({"x": x}, batch_size=4, profile=True, output_cols=None).shape == (7,)


def test_steps_may_be_limited(root: str) -> None:
    est = estimator(root)
    stats = est.fit(checks.rows(24), epochs=1, batch_size=job_batch(root, 8), max_steps=4)
    assert [s["batch_count"] for s in stats] == [3, 1]


@pytest.mark.parametrize("backend", [ENGINE, "torch_distributed"])
def test_gradients_are_clipped(root: str, backend: str) -> None:
    """Seed 000: set before fit, and cleared again."""
    data = checks.rows(24)
    batch = 24 if backend == ENGINE else job_batch(root, 24)
    plain = lambda m, c: torch.optim.SGD(m.parameters(), lr=1.0)  # noqa: E731
    x, y = (torch.from_numpy(part) for part in data)
    for kind in ("constant", "norm", "cleared"):
        est = estimator(root, backend=backend, optimizer=plain)
        est.set_constant_gradient_clipping(-0.01, 0.02)
        if kind == "norm":
            est.set_l2_norm_gradient_clipping(0.1)
        elif kind == "cleared":
            est.clear_gradient_clipping()
        est.fit(data, epochs=1, batch_size=batch)
        model = checks.net({})
        F.cross_entropy(model(x), y).backward()
        if kind == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for p in model.parameters():
            assert p.grad is not None
            if kind == "constant":
                p.grad.clamp_(-0.01, 0.02)
            p.data -= p.grad
        same(est.get_model(), model)
    with pytest.raises((RuntimeError, ValueError), match="not below max"):
        est.set_constant_gradient_clipping(1, 1)


@pytest.mark.parametrize("backend", [ENGINE, *OTHERS])
def test_models_are_saved_loaded_and_given_back(root: str, backend: str, tmp_path: Path) -> None:
    est = estimator(root, backend=backend)
    est.fit(checks.rows(8), batch_size=4)
    model = est.get_model()
    assert isinstance(model, checks.Net)
    assert {"epoch", "models", "optimizers", "schedulers"} <= set(est.get_state_dict())
    for save, load in (("save", "load"), ("save_checkpoint", "load_checkpoint")):
        path = str(tmp_path / save)
        assert getattr(est, save)(path) == path
        other = estimator(root, backend=backend, config={"seed": 9})
        getattr(other, load)(path)
        same(other.get_model(), model)
    other = estimator(root, backend=backend, config={"seed": 9})
    other.load_state_dict(est.get_state_dict(), blocking=True)
    same(other.get_model(), model)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load(str(tmp_path / "weights.pt"), loss=nn.CrossEntropyLoss(reduction="sum"))
    same(other.get_model(), model)
    with pytest.raises((RuntimeError, ValueError), match="check your model path"):
        est.load(str(tmp_path / "nothing"))
    est.shutdown(force=True)
    est.shutdown()


def test_an_entire_model_needs_no_creator(root: str, tmp_path: Path) -> None:
    est = estimator(root)
    path = est.save(str(tmp_path / "entire"), entire=True)
    other = estimator(root, model=None, optimizer=None)
    with pytest.warns(UserWarning, match="is a pickle of this user's"):
        other.load(path)
    x, _ = checks.rows(6)
    np.testing.assert_array_equal(other.predict(x), est.predict(x))


# --- 5.4: training operators


def test_a_training_operator_may_change_everything(root: str, tmp_path: Path) -> None:
    base = checks.estimator_class(root)
    package = importlib.import_module(f"{root}.orca.learn.pytorch")
    assert package.Estimator is base
    helpers = module(root, "pytorch.utils")
    kind = package.TrainingOperator
    assert kind is module(root, "pytorch.training_operator").TrainingOperator

    class Operator(kind):  # type: ignore[misc, valid-type]
        def setup(self, config: dict[str, Any]) -> None:
            self.seen = config["begin"]

        def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
            meters = helpers.AverageMeterCollection()
            for index, batch in enumerate(iterator):
                found = self.train_batch(batch, {**info, "batch_idx": index})
                meters.update(found, n=found[helpers.NUM_SAMPLES])
            assert info["name"] == "given"
            return dict(meters.summary())

        def forward_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            features, target = batch
            output = self.model(features)
            return output, target, self.criterion(output, target)

        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
            self.seen += 1
            return super().train_batch(batch, batch_info)

        def validate(self, val_iterator: Any, info: Any, metrics: Any = None) -> Any:
            return {"num_samples": sum(len(b[1]) for b in val_iterator), "val_loss": info["loss"]}

        def predict_batch(self, batch: Any) -> Any:
            return super().predict_batch(batch) * 2

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = state["seen"]

    x, y = checks.rows(24)
    given = {
        "backend": "torch_distributed",
        "training_operator_cls": Operator,
        "config": {"shuffle": False, "begin": 100},
    }
    est = estimator(root, **given)
    stats = est.fit((x, y), epochs=1, batch_size=job_batch(root, 8), info={"name": "given"})
    assert stats[0]["num_samples"] == 24
    same(est.get_model(), trained())
    assert est.evaluate((x, y), info={"loss": 7.0})["val_loss"] == 7.0
    outputs = outputs_of(trained(), x)
    np.testing.assert_allclose(est.predict(x), 2 * outputs, rtol=1e-9)
    assert est.get_state_dict()["operator"] == {"seen": 103}
    other = estimator(root, **given)
    other.load(est.save(str(tmp_path / "state")))
    other.fit((x, y), epochs=1, batch_size=job_batch(root, 8), info={"name": "given"})
    assert other.get_state_dict()["operator"] == {"seen": 106}


def test_a_training_operator_shows_what_it_was_given(root: str) -> None:
    kind = module(root, "pytorch.training_operator").TrainingOperator
    model = checks.net({})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loss = nn.CrossEntropyLoss()
    operator = kind({"a": 1}, model, optimizer, 3, loss, scheduler, use_fp16=True, use_tqdm=True)
    assert operator.config == {"a": 1}
    assert (operator.model, operator.models) == (model, [model])
    assert (operator.optimizer, operator.optimizers) == (optimizer, [optimizer])
    assert (operator.scheduler, operator.schedulers) == (scheduler, [scheduler])
    assert (operator.world_rank, operator.criterion) == (3, loss)
    assert (operator.use_fp16, operator.use_tqdm, operator.global_step) == (True, True, 0)
    with pytest.raises(ValueError, match="subclass of TrainingOperator"):
        kind({}, [model, model], optimizer, 0)


def test_helpers_of_training_operators_count_and_time(root: str) -> None:
    helpers = module(root, "pytorch.utils")
    meters = helpers.AverageMeterCollection()
    meters.update({"train_loss": 2.0, helpers.NUM_SAMPLES: 2}, n=2)
    meters.update({"train_loss": 5.0, helpers.NUM_SAMPLES: 1}, n=1)
    found = meters.summary()
    assert (found["train_loss"], found["last_train_loss"]) == (3.0, 5.0)
    assert (found["batch_count"], found["num_samples"]) == (2, 3)
    timers = helpers.TimerCollection()
    timers.disable()
    with timers.record("off"):
        pass
    timers.enable()
    with timers.record("on"):
        pass
    assert list(timers.stats()) == ["mean_on_s"]
    timers.reset()
    assert timers.stats() == {}
    stats = [{"num_samples": 1, "loss": 1.0}, {"num_samples": 3, "loss": 2.0}]
    assert helpers.process_stats(stats) == {"num_samples": 4, "loss": 1.75}


# --- 5.6: callbacks


def test_callbacks_see_the_runner(root: str, tmp_path: Path) -> None:
    package = module(root, "pytorch.callbacks")
    path = str(tmp_path / "mine.ckpt")

    class Look(package.Callback):  # type: ignore[misc, name-defined]
        def before_run(self, runner: Any) -> None:
            runner.put("steps", 0)

        def after_train_iter(self, runner: Any) -> None:
            runner.update("steps", runner.get("steps") + 1)
            assert runner.batch_idx < 3
            assert runner.output.shape[1] == 3
            assert len(runner.target) == len(runner.batch[1])
            assert runner.loss.item() > 0
            if self.every_n_iter(runner, 3):
                runner.stop = runner.epochs == 1

        def after_train_epoch(self, runner: Any) -> None:
            assert runner.epoch_stats["epoch"] == runner.epochs
            if runner.epochs == 1:
                runner.save_checkpoint(path)
            runner.save_checkpoint(f"{path}.weights", save_weights_only=True)
            runner.remove_checkpoint(f"{path}.weights")

        def after_run(self, runner: Any) -> None:
            assert runner.get("steps") == 6
            runner.remove("steps")
            assert (runner.num_epochs, runner.epochs, runner.global_step) == (9, 2, 6)
            assert runner.config == {"shuffle": False}
            assert runner.model is self.model
            assert runner.optimizer is not None
            assert runner.scheduler is None
            assert isinstance(runner.criterion, nn.CrossEntropyLoss)
            assert runner.rank in (0, 1)
            assert self.trainer is runner
            assert self.params["epochs"] == 9

    est = estimator(root)
    stats = est.fit(checks.rows(24), epochs=9, batch_size=job_batch(root, 8), callbacks=[Look()])
    assert len(stats) == 2
    other = estimator(root)
    other.load(path)
    same(other.get_model(), trained(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.ckpt"]


def test_a_main_callback_may_change_forward_and_schedule(root: str) -> None:
    package = module(root, "pytorch.callbacks")

    class Main(package.MainCallback):  # type: ignore[misc, name-defined]
        def on_train_forward(self, runner: Any) -> None:
            super().on_train_forward(runner)

        def on_iter_forward(self, runner: Any) -> None:
            *features, runner.target = runner.batch
            runner.output = runner.model(*features)
            runner.loss = runner.criterion(runner.output, runner.target)

        def on_lr_adjust(self, runner: Any) -> None:
            for group in runner.optimizer.param_groups:
                group["lr"] = 0.0

        def on_val_forward(self, runner: Any) -> None:
            super().on_val_forward(runner)
            runner.loss = runner.loss * 0 + 3.0

        def on_pred_forward(self, runner: Any) -> None:
            runner.output = np.full(len(runner.batch[0]), 5.0)

    x, y = checks.rows(24)
    est = estimator(root, scheduler_step_freq="epoch")
    est.fit((x, y), epochs=3, batch_size=job_batch(root, 8), callbacks=[Main()])
    same(est.get_model(), trained(1))  # Later steps have a rate of 0.
    assert est.evaluate((x, y), callbacks=[Main()])["val_loss"] == 3.0
    assert est.predict(x, callbacks=[Main()]).tolist() == [5.0] * 24


@pytest.mark.parametrize(("by_epoch", "interval"), [(True, -1), (True, 2), (False, 3)])
def test_checkpoints_of_the_callback_have_their_names(
    root: str, by_epoch: bool, interval: int, tmp_path: Path
) -> None:
    callbacks = module(root, "pytorch.callbacks.model_checkpoint")
    pattern = "net-{epoch}" if by_epoch else "net-{iter}"
    callback = callbacks.ModelCheckpoint(
        filepath=str(tmp_path / pattern), by_epoch=by_epoch, interval=interval
    )
    est = estimator(root)
    with pytest.raises((RuntimeError, FileNotFoundError), match=r"Latest checkpoint .* not found"):
        est.latest_checkpoint(str(tmp_path))
    est.fit(checks.rows(24), epochs=2, batch_size=job_batch(root, 8), callbacks=[callback])
    expected = {
        (True, -1): ["net-epoch=1.ckpt", "net-epoch=2.ckpt"],
        (True, 2): ["net-epoch=2.ckpt"],
        (False, 3): ["net-iter=3.ckpt", "net-iter=6.ckpt"],
    }[by_epoch, interval]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", *expected]
    other = estimator(root)
    other.load_checkpoint(est.latest_checkpoint(str(tmp_path)))
    same(other.get_model(), est.get_model())


def test_ready_made_callbacks_run(root: str, tmp_path: Path) -> None:
    board = module(root, "pytorch.callbacks.tensorboard").TensorBoardCallback
    limit = module(root, "pytorch.callbacks.maxsteps").MaxstepsCallback
    est = estimator(root)
    callbacks = [board(str(tmp_path), freq=2), limit(max_step=5)]
    stats = est.fit(checks.rows(24), epochs=9, batch_size=job_batch(root, 8), callbacks=callbacks)
    assert sum(s["batch_count"] for s in stats) == 5
    from orca._native import _core

    steps = [step for step, _, _ in _core.read_scalars(str(tmp_path), "train_loss")]
    assert {2, 4} <= set(steps)


def test_a_bar_shows_every_epoch(root: str, capfd: pytest.CaptureFixture[str]) -> None:
    bar = module(root, "pytorch.callbacks.tqdm").TqdmCallback
    est = estimator(root)
    stats = est.fit(checks.rows(24), epochs=2, batch_size=job_batch(root, 8), callbacks=[bar()])
    assert len(stats) == 2
    said = ""

    def is_shown() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return all(text in said for text in ("epoch 1/2", "epoch 2/2", "3batch", "loss="))

    wait_until(is_shown, "the bars are shown")


def log_records(data: bytes) -> Iterator[bytes]:
    """LevelDB's log format behind a header: records of (sum, length, kind), in blocks of 32 KiB."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        at += 7 + length
        if at > len(data):  # It is still being written.
            return
        record += data[at - length : at]
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def logged(folder: Path) -> tuple[list[float], dict[str, str]]:
    """The losses and the config of the only run below a folder."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    losses, config = [], {}
    for data in log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        config |= {item.key: item.value_json for item in record.run.config.update}
        items = {tuple(item.nested_key): item.value_json for item in record.history.item}
        if ("train_loss",) in items:
            losses.append(float(items["train_loss",]))
    return losses, config


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed (30 packages)"
)
def test_statistics_go_to_weights_and_biases(root: str, tmp_path: Path) -> None:
    callback = module(root, "pytorch.callbacks.wandb").WandbLoggerCallback
    logger = callback("project", log_config=True, watch_model=True, mode="offline", dir=tmp_path)
    est = estimator(root)
    stats = est.fit(checks.rows(24), epochs=2, batch_size=job_batch(root, 8), callbacks=[logger])
    # Another process writes the file.
    wait_until(lambda: len(logged(tmp_path)[0]) == 2, "both epochs are in the file")
    losses, config = logged(tmp_path)
    assert losses == pytest.approx([epoch["train_loss"] for epoch in stats], rel=1e-6)
    assert config["shuffle"] == "false"


def test_a_logger_that_is_not_installed_is_named_on_the_driver(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = module(root, "pytorch.callbacks.wandb").WandbLoggerCallback
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="run 'pip install wandb'"):
        callback("project")


def test_what_is_not_in_this_release_says_so(root: str) -> None:
    for name in ("pytorch.torch_runner", "tf2", "horovod"):
        with pytest.raises(ImportError, match=f"{name} is not in this release"):
            module(root, name)
    with pytest.raises(RuntimeError, match="from_mmcv is not in this release"):
        checks.estimator_class(root).from_mmcv(mmcv_runner_creator=None)

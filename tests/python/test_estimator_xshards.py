"""XShards as the data of Estimators."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import checks_estimator as checks
import orca
from checks_estimator import OPTIMIZERS, net, rows
from orca.data import SparkXShards, XShards
from orca.learn.metrics import MSE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


def estimator(root: str = "orca", backend: str = "spark") -> Any:
    return importlib.import_module(f"{root}.learn.pytorch").Estimator.from_torch(
        model=net,
        optimizer=OPTIMIZERS["sgd"],
        loss=torch.nn.CrossEntropyLoss(),
        metrics=importlib.import_module("orca.learn.metrics").Accuracy(),
        workers_per_node=2,
        backend=backend,
    )


@pytest.mark.parametrize("backend", ["bigdl", "torch_distributed", "spark", "ray", "horovod"])
@pytest.mark.parametrize("root", ["bigdl.orca", "zoo.orca"])
def test_shards_train_as_their_arrays_do(root: str, backend: str) -> None:
    x, y = rows(43)
    shards = importlib.import_module(f"{root}.data").XShards.partition({"x": x, "y": y}, 5)
    on_shards, on_arrays = estimator(root, backend), estimator(root, backend)
    for made, data in ((on_shards, shards), (on_arrays, {"x": x, "y": y})):
        made.fit(data, epochs=2, batch_size=8, seed=3, validation_data=data)
    a, b = (made.get_model().state_dict() for made in (on_shards, on_arrays))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert on_shards.evaluate(shards, batch_size=8) == on_arrays.evaluate({"x": x, "y": y}, 8)


def test_arrays_of_any_order_in_memory_train_alike() -> None:
    x, y = rows(12)
    wide = np.c_[x, y, x]
    given = ({"x": x, "y": y}, {"x": np.asfortranarray(x), "y": y}, {"x": wide[:, :5], "y": y})
    weights = []
    for data in given:
        for form in (data, XShards.partition(data, 2)):
            made = estimator()
            made.fit(form, batch_size=4, seed=3)
            weights.append(made.get_model().state_dict())
    for found in weights[1:]:
        assert all(torch.equal(found[name], weights[0][name]) for name in found)


def test_predictions_come_back_with_their_shards() -> None:
    x, y = rows(20)
    made = estimator()
    made.fit({"x": x, "y": y}, batch_size=8)
    expected = made.predict(x, batch_size=8)
    found = made.predict(XShards.partition({"x": x}, 3), batch_size=8)
    assert isinstance(found, SparkXShards)
    shards = found.collect()
    assert [len(shard["x"]) for shard in shards] == [7, 7, 6]
    np.testing.assert_allclose(np.concatenate([s["prediction"] for s in shards]), expected)
    np.testing.assert_array_equal(np.concatenate([s["x"] for s in shards]), x)


def test_frames_in_shards_are_trained_by_columns() -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "f": list(random.normal(size=(12, 5))),
            "label": random.integers(0, 3, 12),
            "name": [f"row {i}" for i in range(12)],
        }
    )
    shards = SparkXShards([[frame[:5]], [frame[5:]]])
    made, plain = estimator(), estimator()
    made.fit(shards, batch_size=4, seed=1, feature_cols=["f"], label_cols=["label"])
    data = {"x": np.stack(frame["f"].to_numpy()), "y": frame["label"].to_numpy()}
    plain.fit(data, batch_size=4, seed=1)
    a, b = (e.get_model().state_dict() for e in (made, plain))
    assert all(torch.equal(a[name], b[name]) for name in a)
    found = made.predict(shards, batch_size=4, feature_cols=["f"]).collect()
    assert list(found[0].columns) == ["f", "label", "name", "prediction"]
    np.testing.assert_allclose(
        np.stack([np.array(p) for part in found for p in part["prediction"]]),
        plain.predict(data["x"]),
    )


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.arange(4, dtype=np.uint32), r"has the dtype uint32; give .astype\('int64'\)"),
        (list("abca"), "has the dtype .*; Estimators take numbers: encode it"),
        (pd.Categorical(list("abca")), "has the dtype .*; Estimators take numbers: encode it"),
        (pd.date_range("2020", periods=4), "has the dtype datetime64.*; Estimators take numbers"),
        (np.ones(4, np.longdouble), r"has the dtype float128; give .astype\('float64'\)"),
        (
            [np.ones(2), np.ones(3), np.ones(2), np.ones(2)],
            r"has rows of the shapes \[\(2,\), \(3,\)\]",
        ),
    ],
)
def test_a_column_that_cannot_be_trained_on_is_named(column: Any, message: str) -> None:
    shards = SparkXShards([[pd.DataFrame({"good": np.ones(4), "bad": column, "label": [0] * 4})]])
    with pytest.raises(orca.errors.OrcaError, match=f"column 'bad' {message}"):
        estimator().fit(shards, batch_size=2, feature_cols=["good", "bad"], label_cols=["label"])


@pytest.mark.parametrize("kind", ["dicts", "frames"])
def test_shards_without_rows_are_left_out(kind: str) -> None:
    x, y = rows(12)
    bounds = [(0, 0), (0, 5), (5, 5), (5, 12), (12, 12)]
    columns: dict[str, Any] = {}
    if kind == "dicts":
        parts: Any = [{"x": x[a:b], "y": y[a:b]} for a, b in bounds]
    else:
        frame = pd.DataFrame({"f": list(x), "label": y})
        parts = [frame[a:b] for a, b in bounds]
        columns = {"feature_cols": ["f"], "label_cols": ["label"]}
    shards = SparkXShards([[part] for part in parts])
    made, plain = estimator(), estimator()
    made.fit(shards, batch_size=4, seed=1, **columns)
    plain.fit({"x": x, "y": y}, batch_size=4, seed=1)
    assert made.evaluate(shards, batch_size=4, **columns) == plain.evaluate({"x": x, "y": y}, 4)
    columns.pop("label_cols", None)
    found = made.predict(shards, batch_size=4, **columns).collect()
    assert [len(shard["prediction"]) for shard in found] == [0, 5, 0, 7, 0]
    np.testing.assert_allclose(
        np.stack([np.array(p) for shard in found for p in shard["prediction"]]), plain.predict(x)
    )
    nothing = made.predict(SparkXShards([[parts[0]]]), batch_size=4, **columns).first()
    assert len(nothing["prediction"]) == 0


class TwoOutputs(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"first": x[:, 0], "twice": 2 * x}


def test_frames_get_a_dict_a_row_of_predictions_in_dicts() -> None:
    x, _ = rows(6)
    made = importlib.import_module("orca.learn.pytorch").Estimator.from_torch(
        model=lambda config: TwoOutputs(), optimizer=None, loss=None, workers_per_node=2
    )
    frame = pd.DataFrame({"f": list(x)})
    shards = SparkXShards([[frame[:2]], [frame[2:]]])
    found = pd.concat(made.predict(shards, batch_size=4, feature_cols=["f"]).collect())
    expected = [{"first": row[0], "twice": (2 * row).tolist()} for row in x]
    assert found["prediction"].tolist() == expected


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ([1, 2], "each shard should be an dict"),
        ({"z": np.ones(3)}, "key x should in each shard"),
        ({"x": np.ones((3, 5))}, "key y should in each shard"),
        ({"x": "text", "y": np.ones(3)}, "value of x and y should be a ndarray"),
        ({"x": np.ones(3), "y": np.ones(4)}, "with the same number of rows"),
        (
            {"x": (np.ones(3), np.ones(3, np.uint16)), "y": np.ones(3)},
            r"x\[1\] has the dtype uint16; give .astype\('int64'\) of it",
        ),
        ({"x": np.ones(3), "y": np.array(["a", "b", "c"])}, "y has the dtype <U1; Estimators take"),
        ({"x": np.ones((0, 5)), "y": np.ones(0)}, "the XShards has no rows"),
        (pd.DataFrame({"a": [1.0]}), "feature_cols must be provided"),
    ],
)
def test_shards_of_another_form_are_named(shard: Any, message: str) -> None:
    with pytest.raises(orca.errors.OrcaError, match=message):
        estimator().fit(SparkXShards([[shard]]), batch_size=2)


class Kinds(nn.Module):
    """Refuses what is not of the kinds that it was told."""

    def __init__(self, kinds: list[torch.dtype]) -> None:
        super().__init__()
        self.kinds = kinds
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        assert [part.dtype for part in parts] == self.kinds
        return sum(part.float() for part in parts) * self.scale


@pytest.mark.parametrize(("backend", "kind"), [("bigdl", torch.float32), ("spark", torch.int64)])
def test_features_that_are_integers_are_float32_with_the_bigdl_backend(
    backend: str, kind: torch.dtype
) -> None:
    data = {"x": [np.arange(8), np.arange(8.0)], "y": np.arange(8, dtype=np.float32)}
    est = checks.estimator(
        2,
        backend=backend,
        model=lambda config: Kinds([kind, torch.float64]),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=1e-6),
        loss=nn.MSELoss(),
        metrics=[MSE()],
    )
    shards = XShards.partition(data, num_shards=2)
    est.fit(shards, batch_size=4)
    est.evaluate(shards, batch_size=4)
    assert len(est.predict(shards, batch_size=4).collect()) == 2
    est.shutdown()

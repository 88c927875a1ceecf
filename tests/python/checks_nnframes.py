"""NNFrames and the wrappers of torch, on one Spark. Run by test_spark_nnframes.py in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import orca
from bigdl.dllib.feature.common import (
    ArrayToTensor,
    ChainedPreprocessing,
    FeatureLabelPreprocessing,
    MLlibVectorToTensor,
    ScalarToTensor,
    SeqToMultipleTensors,
    SeqToTensor,
    TensorToSample,
)
from bigdl.dllib.nnframes import NNClassifier, NNClassifierModel, NNEstimator, NNModel
from bigdl.dllib.optim.optimizer import MAE, SGD, MaxEpoch, MaxIteration, MinLoss, SeveralIteration
from bigdl.orca.torch import TorchLoss, TorchModel, TorchOptim
from orca.errors import InvalidArgumentError
from orca.learn.trigger import EveryEpoch

ROWS = [([2.0, 1.0], 1.0), ([1.0, 2.0], 0.0), ([2.0, 1.0], 1.0), ([1.0, 2.0], 0.0)]


@pytest.fixture
def no_residue() -> None:
    """Spark keeps its connections from test to test."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from bigdl.dllib.nncontext import init_spark_on_local

    init_spark_on_local(cores=2)
    yield SparkSession.builder.getOrCreate()
    orca.stop_orca_context()


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(Vectors.dense(x), y) for x, y in ROWS], ["features", "label"])


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1), nn.Sigmoid())


def train(model: nn.Module, optimizer: Any, epochs: int, scheduler: Any = None) -> np.ndarray:
    """What plain torch makes of it: one batch of all rows an epoch."""
    x = torch.tensor([x for x, _ in ROWS])
    y = torch.tensor([[y] for _, y in ROWS])
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if isinstance(scheduler, ReduceLROnPlateau):
            with torch.no_grad():
                scheduler.step(float((model(x) - y).abs().mean()))
        elif scheduler is not None:
            scheduler.step()
    return flat(model)


def flat(model: Any) -> np.ndarray:
    module = model.module if isinstance(model, TorchModel) else model
    return np.concatenate([p.detach().numpy().reshape(-1) for p in module.parameters()])


def estimator(model: nn.Module, **given: Any) -> NNEstimator:
    made = NNEstimator(TorchModel.from_pytorch(model), TorchLoss.from_pytorch(nn.MSELoss()))
    return made.setBatchSize(4)


def test_training_is_that_of_plain_torch(df: DataFrame) -> None:
    model, same = make_model(), make_model()
    before = flat(model)
    optimizer = torch.optim.Adam(model.parameters())
    made = estimator(model).setOptimMethod(TorchOptim.from_pytorch(optimizer))
    found = made.setLearningRate(0.01).setMaxEpoch(10).fit(df)
    wanted = train(same, torch.optim.Adam(same.parameters(), lr=0.01), 10)
    np.testing.assert_allclose(flat(found.getModel()), wanted, rtol=1e-5, atol=1e-6)
    assert (flat(model) == before).all()
    assert optimizer.param_groups[0]["lr"] == 0.001
    again = made.fit(df, {made.maxEpoch: 1})
    wanted = train(other := make_model(), torch.optim.Adam(other.parameters(), lr=0.01), 1)
    np.testing.assert_allclose(flat(again.getModel()), wanted, rtol=1e-5, atol=1e-6)


def test_an_optimizer_of_orca_and_the_default_train(df: DataFrame) -> None:
    for method, rate in ((SGD(learningrate=0.5), 0.5), (None, 1e-3)):
        made = estimator(make_model()).setMaxEpoch(3)
        found = (made if method is None else made.setOptimMethod(method)).fit(df)
        model = make_model()
        wanted = train(model, torch.optim.SGD(model.parameters(), lr=rate), 3)
        np.testing.assert_allclose(flat(found.getModel()), wanted, rtol=1e-5, atol=1e-6)
    found = estimator(make_model()).setOptimMethod(SGD(learningrate=9.0)).setLearningRate(0.1)
    model = make_model()
    wanted = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    got = flat(found.setMaxEpoch(2).fit(df).getModel())
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", ["EpochDecay", "IterationDecay", "EpochDecayByScore"])
def test_a_scheduler_steps_when_its_decay_says(df: DataFrame, decay: str) -> None:
    def make(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if decay == "EpochDecayByScore":
            return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        return StepLR(optimizer, 2, gamma=0.1)

    model, same = make_model(), make_model()
    made = estimator(model).setOptimMethod(TorchOptim.from_pytorch(make(model), decay))
    made.setMaxEpoch(6).setValidation(EveryEpoch(), df, [MAE()], 4)
    scheduler = make(same)
    wanted = train(same, scheduler.optimizer, 6, scheduler)
    np.testing.assert_allclose(flat(made.fit(df).getModel()), wanted, rtol=1e-5, atol=1e-6)


def test_triggers_end_training(df: DataFrame) -> None:
    def steps(trigger: Any) -> np.ndarray:
        made = estimator(make_model()).setOptimMethod(SGD(learningrate=0.5)).setEndWhen(trigger)
        return flat(made.fit(df).getModel())

    def plain(count: int) -> np.ndarray:
        model = make_model()
        return train(model, torch.optim.SGD(model.parameters(), lr=0.5), count)

    for trigger in (MaxEpoch(3), MaxIteration(3)):
        np.testing.assert_allclose(steps(trigger), plain(3), rtol=1e-5, atol=1e-6)
    model, losses = make_model(), []
    x, y = torch.tensor([x for x, _ in ROWS]), torch.tensor([[y] for _, y in ROWS])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    limit = (losses[4] + losses[5]) / 2
    np.testing.assert_allclose(steps(MinLoss(limit)), plain(6), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="endWhen and maxEpoch cannot be both set"):
        estimator(make_model()).setEndWhen(MaxEpoch(1)).setMaxEpoch(2).fit(df)


def test_a_classifier_says_one_or_zero(df: DataFrame) -> None:
    model = NNClassifierModel(TorchModel.from_pytorch(Above()))
    found = model.setPredictionCol("class").transform(df)
    assert found.columns == ["features", "label", "class"]
    assert [row["class"] for row in found.collect()] == [1.0, 0.0, 1.0, 0.0]
    assert model.getThreshold() == 0.5


class Above(nn.Module):
    """1 where the first number is above the second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, :1] > x[:, 1:]).float()


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, 2 * x], 1)


def test_a_classifier_of_several_outputs_counts_from_one(df: DataFrame) -> None:
    found = NNClassifierModel(nn.Identity()).transform(df)
    assert [row.prediction for row in found.collect()] == [1.0, 2.0, 1.0, 2.0]


def test_a_model_adds_its_outputs_as_an_array_of_floats(df: DataFrame) -> None:
    found = NNModel(Twice()).transform(df)
    assert dict(found.dtypes)["prediction"] == "array<float>"
    rows = found.collect()
    assert [row.prediction for row in rows] == [[*x, *(2 * n for n in x)] for x, _ in ROWS]
    assert [row.label for row in rows] == [y for _, y in ROWS]
    twice = NNModel(Twice()).setPredictionCol("label").transform(found)
    assert twice.columns == found.columns  # What was in the column before is gone.
    assert twice.first().label == [2.0, 1.0, 4.0, 2.0]
    none = NNModel(Twice()).transform(df.limit(0))
    assert (none.count(), dict(none.dtypes)["prediction"]) == (0, "array<float>")


def test_a_model_of_doubles_gives_doubles(df: DataFrame) -> None:
    module = nn.Linear(2, 1).double()
    found = NNModel(module).transform(df)
    assert dict(found.dtypes)["prediction"] == "array<double>"
    x = torch.tensor([x for x, _ in ROWS], dtype=torch.float64)
    wanted = module(x).detach().numpy()
    np.testing.assert_array_equal([row.prediction for row in found.collect()], wanted)


def test_features_may_be_numbers_arrays_and_vectors_of_both_kinds(spark: SparkSession) -> None:
    from pyspark.mllib.linalg import Vectors as OldVectors

    numbers = spark.createDataFrame([(1,), (2,)], ["features"])
    arrays = spark.createDataFrame([([1.0],), ([2.0],)], ["features"])
    old = spark.createDataFrame(
        [(OldVectors.dense([1.0]),), (OldVectors.dense([2.0]),)], ["features"]
    )
    sparse = spark.createDataFrame(
        [(Vectors.sparse(1, [0], [1.0]),), (Vectors.dense([2.0]),)], ["features"]
    )
    for frame in (numbers, arrays, old, sparse):
        found = NNModel(Twice()).transform(frame)
        assert [row.prediction for row in found.collect()] == [[1.0, 2.0], [2.0, 4.0]]
    with pytest.raises(ValueError, match="column 'features' is of type string; NNFrames take"):
        NNModel(Twice()).transform(spark.createDataFrame([("a",)], ["features"]))


class Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert a.shape[1:] == (2, 1), a.shape
        return a.sum(dim=(1, 2)).reshape(-1, 1) * 10 + b


def test_a_preprocessing_cuts_the_features(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, 3.0],)], ["features"])
    found = NNModel(Sum(), [[2, 1], [1]]).transform(frame)
    assert found.collect()[0].prediction == [33.0]
    with pytest.raises(RuntimeError, match="a row has 3 numbers, and the sizes"):
        NNModel(Sum(), [[2, 1], [5]]).transform(frame).collect()
    with pytest.raises(ValueError, match="feature_preprocessing 'abc' is not in this release"):
        NNModel(Sum(), "abc")


def test_a_classifier_is_a_stage_of_a_pipeline(df: DataFrame) -> None:
    model = make_model()
    optimizer = TorchOptim.from_pytorch(torch.optim.Adam(model.parameters(), lr=0.05))
    stage = NNClassifier(TorchModel.from_pytorch(model), TorchLoss.from_pytorch(nn.BCELoss()))
    stage.setBatchSize(4).setMaxEpoch(40).setOptimMethod(optimizer).setLabelCol("y")
    found = Pipeline(stages=[stage]).fit(df.withColumnRenamed("label", "y")).transform(df)
    assert [row.prediction for row in found.collect()] == [1.0, 0.0, 1.0, 0.0]


def test_gradients_are_clipped_and_checkpoints_written(df: DataFrame, tmp_path: Path) -> None:
    made = estimator(make_model()).setOptimMethod(SGD(learningrate=1.0)).setMaxEpoch(1)
    before = flat(make_model())
    made.setConstantGradientClipping(-1e-4, 1e-4)
    assert np.abs(flat(made.fit(df).getModel()) - before).max() == pytest.approx(1e-4, rel=0.01)
    made.setGradientClippingByL2Norm(1e-3).setCheckpoint(str(tmp_path), SeveralIteration(1))
    moved = flat(made.fit(df).getModel()) - before
    assert np.linalg.norm(moved) == pytest.approx(1e-3, rel=0.01)
    assert list(tmp_path.rglob("model.1"))
    made.clearGradientClipping()
    assert np.linalg.norm(flat(made.fit(df).getModel()) - before) > 1e-2


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.one(x), self.other(x)


def of_two(input: Any, label: torch.Tensor) -> torch.Tensor:
    assert label.dtype is torch.float32
    mse = nn.functional.mse_loss
    return mse(input[0], label) + 0.4 * mse(input[1], label)


def test_a_loss_may_be_a_function_of_several_outputs(df: DataFrame) -> None:
    made = NNEstimator(TorchModel.from_pytorch(Two), TorchLoss.from_pytorch(of_two))
    found = made.setBatchSize(4).setMaxEpoch(2).setOptimMethod(SGD(learningrate=0.1)).fit(df)
    model = Two()
    x, y = torch.tensor([x for x, _ in ROWS]), torch.tensor([[y] for _, y in ROWS])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        of_two(model(x), y).backward()
        optimizer.step()
    np.testing.assert_allclose(flat(found.getModel()), flat(model), rtol=1e-5, atol=1e-6)


# --- the wrappers alone


def test_a_model_has_its_weights_as_one_array() -> None:
    model = TorchModel.from_pytorch(make_model)
    (weights,) = model.get_weights()
    assert weights.shape == (17,)
    model.set_weights([np.arange(17, dtype=np.float32)])
    assert model.get_weights()[0].tolist() == list(range(17))
    assert flat(model.to_pytorch()).tolist() == list(range(17))
    assert model.to_pytorch() is not model.module
    with pytest.raises(ValueError, match="there are 3 weights and the model has 17"):
        model.set_weights([np.zeros(3)])
    with pytest.raises(ValueError, match="is no PyTorch model"):
        TorchModel.from_pytorch(5)


def test_a_model_predicts_arrays_and_rdds(spark: SparkSession) -> None:
    module = make_model()
    x = np.asarray([x for x, _ in ROWS], np.float32)
    model = TorchModel.from_pytorch(module)
    wanted = module(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(model.evaluate().forward(x), wanted)
    np.testing.assert_allclose(model.predict(x, batch_size=3), wanted, rtol=1e-6)
    rdd = spark.sparkContext.parallelize(list(x), 2)
    np.testing.assert_allclose(
        np.stack(model.predict(rdd, batch_size=3).collect()), wanted, rtol=1e-6
    )


def test_a_model_is_written_and_read(tmp_path: Path) -> None:
    model = TorchModel.from_pytorch(make_model())
    model.saveModel(tmp_path / "model")
    with pytest.raises(RuntimeError, match="is there already; give over_write=True"):
        model.saveModel(tmp_path / "model")
    model.saveModel(tmp_path / "model", over_write=True)
    assert (flat(TorchModel.loadModel(tmp_path / "model")) == flat(model)).all()


def test_losses_and_optimizers_are_checked() -> None:
    loss = TorchLoss.from_pytorch(nn.MSELoss())
    assert loss.forward(np.zeros(2, np.float32), np.ones(2, np.float32)) == 1.0
    with pytest.raises(ValueError, match="is no loss"):
        TorchLoss.from_pytorch(3)
    with pytest.raises(ValueError, match="is neither a torch optimizer nor"):
        TorchOptim.from_pytorch("adam")
    optimizer = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="decayType 'Never' is not known"):
        TorchOptim.from_pytorch(optimizer, "Never")


def test_an_optimizer_of_another_model_is_made_anew(df: DataFrame) -> None:
    other = torch.optim.Adam(make_model().parameters(), lr=0.01)
    made = estimator(make_model()).setOptimMethod(TorchOptim.from_pytorch(other)).setMaxEpoch(2)
    model = make_model()
    wanted = train(model, torch.optim.Adam(model.parameters(), lr=0.01), 2)
    np.testing.assert_allclose(flat(made.fit(df).getModel()), wanted, rtol=1e-5, atol=1e-6)


def test_a_model_is_saved_and_loaded_alone_and_in_a_pipeline(df: DataFrame, tmp_path: Path) -> None:
    fitted = Pipeline(stages=[estimator(make_model()).setMaxEpoch(2)]).fit(df)
    expected = [row["prediction"] for row in fitted.transform(df).collect()]
    model = fitted.stages[0]
    model.setPredictionCol("found").setBatchSize(7)
    model.save(str(tmp_path / "model"))
    loaded = NNModel.load(str(tmp_path / "model"))
    assert (loaded.uid, loaded.getPredictionCol(), loaded.getBatchSize()) == (model.uid, "found", 7)
    assert [row["found"] for row in loaded.transform(df).collect()] == expected
    with pytest.raises(Exception, match="already exists"):
        model.save(str(tmp_path / "model"))
    model.write().overwrite().save(str(tmp_path / "model"))
    fitted.save(str(tmp_path / "pipeline"))
    again = PipelineModel.load(str(tmp_path / "pipeline"))
    assert [row["found"] for row in again.transform(df).collect()] == expected


def test_a_saved_model_keeps_its_class_and_its_shapes(
    df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orca.adapters.spark import nnframes

    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.stack([a[:, 0] * 2, b[:, 0, 0]], 1)

    monkeypatch.setattr(nnframes, "_PART", 1000)  # Large models are written in parts.
    model = NNClassifierModel(Two(), SeqToMultipleTensors([[1], [1, 1]])).setThreshold(0.25)
    model.save(str(tmp_path / "model"))
    loaded = NNClassifierModel.load(str(tmp_path / "model"))
    assert type(loaded) is NNClassifierModel
    assert loaded.getThreshold() == 0.25
    found = [row["prediction"] for row in loaded.transform(df).collect()]
    assert found == [1.0 if 2 * x[0] >= x[1] else 2.0 for x, _ in ROWS]
    with pytest.raises(Exception, match="class name"):
        NNModel.load(str(tmp_path / "model"))


def test_preprocessings_say_what_lists_say(df: DataFrame) -> None:
    class Matrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.inner = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1:] == (2, 1)
            return self.inner(x[:, :, 0])

    weights = []
    for shape, label in (
        ([2, 1], [1]),
        (SeqToTensor([2, 1]), ScalarToTensor()),
        (MLlibVectorToTensor([2, 1]), None),
        (ChainedPreprocessing([ArrayToTensor([2, 1]), TensorToSample()]), None),
        (FeatureLabelPreprocessing(SeqToTensor([2, 1]), ScalarToTensor()), None),
    ):
        made = NNEstimator(Matrix(), nn.MSELoss(), shape, label).setBatchSize(4).setMaxEpoch(2)
        weights.append(flat(made.fit(df).getModel()))
        assert (weights[0] == weights[-1]).all(), shape
    made = NNEstimator(Matrix(), nn.MSELoss()).setBatchSize(4).setMaxEpoch(2)
    made.setSamplePreprocessing(FeatureLabelPreprocessing(SeqToTensor([2, 1]), ScalarToTensor()))
    assert (flat(made.fit(df).getModel()) == weights[0]).all()


def test_data_cache_levels_are_accepted_and_wrong_ones_are_named() -> None:
    made = NNEstimator(make_model(), nn.MSELoss())
    assert made.getDataCacheLevel() == "DRAM"
    assert made.setDataCacheLevel("disk_and_dram", 4).getDataCacheLevel() == ("DISK_AND_DRAM", 4)
    with pytest.raises(InvalidArgumentError, match="'PMEM' is not known"):
        made.setDataCacheLevel("PMEM")

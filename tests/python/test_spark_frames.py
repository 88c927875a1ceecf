"""DataFrames of Spark into fit, evaluate and predict."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import xgboost
from pyspark.ml.linalg import DenseVector, Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from torch import nn

import bigdl.orca
import orca
import zoo.orca
from bigdl.orca.learn.pytorch import Estimator
from orca import guests
from orca.automl.xgboost import AutoXGBRegressor
from orca.errors import InvalidArgumentError
from orca.learn.pytorch import Estimator as OurEstimator
from zoo.orca.learn.pytorch import Estimator as ZooEstimator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "3")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def context(spark):
    with orca.init_orca_context("local", cores=2):
        yield


def linear(outputs=1, inputs=3):
    torch.manual_seed(7)
    return nn.Linear(inputs, outputs)


def numbers(rows=40):
    random = np.random.default_rng(3)
    x = random.random((rows, 3)).astype(np.float32)
    return x, (x @ np.float32([1, -2, 3]))[:, None]


def frame_of(spark, x, y, partitions=3):
    rows = [(i, [float(v) for v in x[i]], float(y[i, 0])) for i in range(len(x))]
    schema = StructType(
        [
            StructField("id", IntegerType()),
            StructField("x", ArrayType(FloatType())),
            StructField("y", FloatType()),
        ]
    )
    return spark.createDataFrame(rows, schema).repartitionByRange(partitions, "id")


def estimator(kind=OurEstimator, model=None, backend="spark", **more):
    return kind.from_torch(
        model=model or linear(),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        backend=backend,
        workers_per_node=2,
        **more,
    )


class Squeeze(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x)[:, 0]


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_training_on_a_frame_gives_the_bits_of_training_on_its_arrays(context, spark, partitions):
    x, y = numbers()
    frame = frame_of(spark, x, y, partitions)
    ours = estimator(model=Squeeze())
    ours.fit(frame, epochs=3, batch_size=8, feature_cols=["x"], label_cols=["y"], seed=1)
    theirs = estimator(model=Squeeze())
    theirs.fit((x, y[:, 0]), epochs=3, batch_size=8, seed=1)
    for name, value in ours.get_model().state_dict().items():
        assert torch.equal(value, theirs.get_model().state_dict()[name]), name
    scores = ours.evaluate(frame, batch_size=8, feature_cols=["x"], label_cols="y")
    assert scores["num_samples"] == 40
    assert scores["val_loss"] == pytest.approx(theirs.evaluate((x, y[:, 0]))["val_loss"], rel=1e-5)


@pytest.mark.parametrize("backend", ["bigdl", "torch_distributed", "ray", "spark", "horovod"])
def test_all_backends_take_frames_through_both_old_roots(context, spark, backend):
    x, y = numbers(24)
    frame = frame_of(spark, x, y)
    for kind in (Estimator, ZooEstimator):
        est = estimator(kind, model=Squeeze(), backend=backend)
        est.fit(
            frame,
            epochs=1,
            batch_size=8,
            feature_cols=["x"],
            label_cols=["y"],
            validation_data=frame,
        )
        found = est.predict(frame, feature_cols=["x"]).collect()
        expected = est.get_model()(torch.tensor(x)).detach().numpy()
        assert [row["id"] for row in found] == list(range(24))
        np.testing.assert_allclose([row["prediction"] for row in found], expected, rtol=1e-5)


class Typed(nn.Module):
    """Says what it got."""

    def forward(self, *inputs):
        kinds = [str(one.dtype).removeprefix("torch.") for one in inputs]
        assert kinds == [
            "float32",
            "float64",
            "float64",
            "int32",
            "int64",
            "int64",
            "float32",
            "float32",
        ]
        shapes = [tuple(one.shape[1:]) for one in inputs]
        assert shapes == [(), (), (), (), (), (), (2,), (2, 2)]
        return sum(one.double().reshape(len(one), -1).sum(1) for one in inputs)


def test_every_column_type_reaches_the_model(context, spark):
    import datetime
    import decimal

    when = datetime.datetime(1970, 1, 1, 0, 0, 1)
    schema = StructType(
        [
            StructField("float", FloatType()),
            StructField("double", DoubleType()),
            StructField("decimal", DecimalType(12, 3)),
            StructField("int", IntegerType()),
            StructField("long", LongType()),
            StructField("time", TimestampType()),
            StructField("vector", VectorUDT()),
            StructField("nested", ArrayType(ArrayType(FloatType()))),
            StructField("text", StringType()),
        ]
    )
    rows = [
        (
            1.5,
            2.5,
            decimal.Decimal("0.125"),
            3,
            4,
            when,
            Vectors.dense(5, 6),
            [[1.0, 1.0], [1.0, 1.0]],
            "a",
        ),
        (
            0.0,
            0.0,
            decimal.Decimal("0"),
            0,
            0,
            when,
            Vectors.sparse(2, {1: 9.0}),
            [[0.0] * 2] * 2,
            None,
        ),
    ]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    est = OurEstimator.from_torch(model=Typed(), backend="spark")
    names = [field.name for field in schema.fields[:-1]]
    found = est.predict(frame, feature_cols=names).collect()
    zone = when.astimezone().timestamp() * 1e9
    assert [row["prediction"] for row in found] == [zone + 26.125, zone + 9]
    assert [row["text"] for row in found] == ["a", None]
    assert found[1]["vector"] == Vectors.sparse(2, {1: 9.0})


def test_many_columns_keep_their_places_and_types(context, spark):
    class Weighted(nn.Module):
        def forward(self, *inputs):
            assert [one.dtype for one in inputs] == [torch.float32, torch.int32] * 6
            return sum((i + 1) * one.double() for i, one in enumerate(inputs))

    values = np.random.default_rng(2).integers(0, 100, (50, 12))
    names = [f"{'fi'[i % 2]}.{i}" for i in range(12)]
    schema = ", ".join(f"`{n}` {'float' if n[0] == 'f' else 'int'}" for n in names)
    rows = [tuple(float(v) if i % 2 == 0 else int(v) for i, v in enumerate(row)) for row in values]
    frame = spark.createDataFrame(rows, schema)
    est = OurEstimator.from_torch(model=Weighted(), backend="spark")
    found = [row["prediction"] for row in est.predict(frame, feature_cols=names).collect()]
    assert found == (values @ np.arange(1, 13)).tolist()
    from orca.adapters.spark import frames

    pulled = np.concatenate([np.stack(s.view()["x"], 1) for s in frames.pull(frame, names)])
    np.testing.assert_array_equal(pulled, values)
    holes = frame.withColumn("f.4", F.when(F.col("`i.1`") < 101, None).cast("float"))
    with pytest.raises(Exception, match=r"column 'f\.4' has no value in row 0"):
        frames.pull(holes, names)
    holes = frame.coalesce(1).withColumn(
        "f.4", F.when(F.col("`f.0`") != values[40, 0], 1.0).cast("float")
    )
    first = int(np.flatnonzero(values[:, 0] == values[40, 0])[0])
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 7)
    try:
        with pytest.raises(Exception, match=rf"column 'f\.4' has no value in row {first} "):
            frames.pull(holes, names)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_what_a_task_holds_grows_with_what_it_has_put():
    from orca.adapters.spark import frames

    class Batch:
        num_rows, nbytes = 10, 1 << 20

    sizes = [len(chunk) for chunk in frames._chunks(Batch() for _ in range(2000))]
    assert sum(sizes) == 2000
    assert sizes[:9] == [4] * 9
    assert sorted(sizes[:-1]) == sizes[:-1]
    assert max(sizes) == 64
    assert [len(c) for c in frames._chunks((Batch() for _ in range(5)), 20)] == [2, 2, 1]


def test_a_row_becomes_a_sample(spark):
    from bigdl.orca.data.utils import row_to_sample

    frame = spark.createDataFrame(
        [([1.0, 2.0], Vectors.dense(3, 4), 5.0)],
        StructType(
            [
                StructField("a", ArrayType(FloatType())),
                StructField("v", VectorUDT()),
                StructField("y", FloatType()),
            ]
        ),
    )
    sample = row_to_sample(frame.first(), frame.schema, ["a", "v"], ["y"])
    assert [one.to_ndarray().tolist() for one in sample.features] == [[1, 2], [3, 4]]
    assert sample.label.to_ndarray().tolist() == [5]


def test_a_map_is_a_dict_of_arrays(context, spark):
    class Summed(nn.Module):
        def forward(self, x):
            return x["a"].sum(1) - x["b"].sum(1)

    schema = StructType([StructField("m", MapType(StringType(), ArrayType(FloatType())))])
    frame = spark.createDataFrame(
        [({"a": [1.0, 2.0], "b": [4.0]},), ({"b": [1.0], "a": [1.0, 1.0]},)], schema
    )
    est = OurEstimator.from_torch(model=Summed(), backend="spark")
    assert [row["prediction"] for row in est.predict(frame, feature_cols=["m"]).collect()] == [
        -1.0,
        1.0,
    ]


class Outputs(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        return {
            "number": lambda: x.sum(1),
            "one": lambda: x.sum(1, keepdim=True),
            "vector": lambda: x * 2,
            "matrix": lambda: x[:, :, None].repeat(1, 1, 2),
            "pair": lambda: (x.sum(1), x.mean(1)),
            "mixed": lambda: (x.sum(1), x * 2),
            "dict": lambda: {"s": x.sum(1), "m": x.mean(1)},
            "squeezed": lambda: x.sum(1, keepdim=True).squeeze(),
            "single": lambda: (x.sum(1),),
        }[self.kind]()


def predicted(spark, kind, **more):
    frame = spark.createDataFrame([([1.0, 2.0, 3.0],), ([4.0, 5.0, 6.0],)], "x array<float>")
    est = OurEstimator.from_torch(model=Outputs(kind), backend="spark")
    return est.predict(frame, feature_cols=["x"], **more)


def test_predictions_have_the_form_of_the_originals(context, spark):
    assert [r["prediction"] for r in predicted(spark, "number").collect()] == [6.0, 15.0]
    assert [r["prediction"] for r in predicted(spark, "one").collect()] == [6.0, 15.0]
    vectors = [r["prediction"] for r in predicted(spark, "vector").collect()]
    assert vectors == [DenseVector([2, 4, 6]), DenseVector([8, 10, 12])]
    assert predicted(spark, "matrix").first()["prediction"] == [[1, 1], [2, 2], [3, 3]]
    assert predicted(spark, "pair").first()["prediction"] == [6.0, 2.0]
    assert predicted(spark, "dict").first()["prediction"] == {"s": 6.0, "m": 2.0}
    split = predicted(spark, "mixed", output_cols=["s", "v"]).first()
    assert (split["s"], split["v"]) == (6.0, DenseVector([2, 4, 6]))
    assert [r["prediction"] for r in predicted(spark, "squeezed").collect()] == [6.0, 15.0]
    assert predicted(spark, "single", output_cols=["p"]).first()["p"] == 6.0
    with pytest.raises(InvalidArgumentError, match="output_cols has 1 names and the model gives 2"):
        predicted(spark, "pair", output_cols=["s"])
    with pytest.raises(InvalidArgumentError, match="has a column 'x' already"):
        predicted(spark, "number", output_cols=["x"])


def test_predictions_are_those_of_the_weights_at_the_call(context, spark):
    x, y = numbers(20)
    frame = frame_of(spark, x, y)
    est = estimator(model=Squeeze())
    est.fit(frame, epochs=1, batch_size=4, feature_cols=["x"], label_cols=["y"])
    expected = est.get_model()(torch.tensor(x)).detach().numpy()
    lazily = est.predict(frame, feature_cols=["x"])
    est.fit(frame, epochs=2, batch_size=4, feature_cols=["x"], label_cols=["y"])
    later = est.get_model()(torch.tensor(x)).detach().numpy()
    assert np.abs(later - expected).max() > 1e-3
    for _ in range(2):
        np.testing.assert_allclose([r["prediction"] for r in lazily.collect()], expected, rtol=1e-5)
    again = est.predict(frame, feature_cols=["x"])
    np.testing.assert_allclose([r["prediction"] for r in again.collect()], later, rtol=1e-5)


def where(seconds=0.0):
    class Where(nn.Module):  # In a function, so that its code travels with it.
        """Says which process it runs in, and takes its time."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            time.sleep(seconds)
            x += 1  # Models may write to what they get.
            return torch.full((len(x),), float(os.getpid())), self.weight * x.sum(1)

    return Where()


def places(est, frame):
    found = est.predict(frame, feature_cols=["x"], output_cols=["pid", "sum"]).collect()
    assert [row["sum"] for row in found] == [sum(row["x"]) + len(row["x"]) for row in found]
    return [int(row["pid"]) for row in found]


def workers_of(context):
    return set(orca.run(os.getpid, workers=2))


def forget_imports(spark):
    """From now on Spark's Python processes are new ones."""
    spark.sparkContext.environment["ORCA_TEST"] = str(time.monotonic())


def test_spark_s_own_processes_predict_once_that_is_worth_an_import(context, spark):
    forget_imports(spark)
    rows = [([float(i), 2.0],) for i in range(8)]
    frame = spark.createDataFrame(rows, "x array<float>").repartition(8)
    est = OurEstimator.from_torch(model=where(0.5), backend="spark")
    pids = [pid for _ in range(2) for pid in places(est, frame)]
    workers = workers_of(context)
    assert pids[0] in workers  # Nobody waits for an import that is not worth it.
    assert not set(pids[8:]) <= workers
    quick = places(OurEstimator.from_torch(model=where(), backend="spark"), frame)
    assert not set(quick) & workers


def test_a_model_whose_code_only_workers_find_is_predicted_by_them(
    context, spark, tmp_path, monkeypatch
):
    (tmp_path / "only_here.py").write_text(
        "import os, time, torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        time.sleep(0.5)\n"
        "        return x.sum(1).double() * 0 + os.getpid()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    frame = spark.createDataFrame([([1.0, 2.0],)] * 8, "x array<float>").repartition(8)
    found = OurEstimator.from_torch(model=only_here.Net(), backend="spark").predict(
        frame, feature_cols=["x"]
    )
    # In the second action an import was worth it, as in the test above.
    pids = {int(row["prediction"]) for _ in range(2) for row in found.collect()}
    assert pids <= workers_of(context)


def test_after_a_training_that_failed_all_rows_have_the_same_weights(context, spark):
    frame = spark.createDataFrame([([1.0, 2.0, 3.0],)] * 8, "x array<float>").repartition(4)
    x, y = numbers(40)
    est = estimator(model=Squeeze())
    est.fit((x, y[:, 0]), epochs=1, batch_size=4)
    est.predict(frame, feature_cols=["x"]).collect()
    y[30] = np.nan
    with pytest.raises(Exception, match=r"not finite|NaN|nan"):
        est.fit((x, y[:, 0]), epochs=1, batch_size=4)
    found = {row["prediction"] for row in est.predict(frame, feature_cols=["x"]).collect()}
    assert len(found) == 1


def test_few_small_predictions_are_not_worth_java_s_collector(context, spark, monkeypatch):
    from orca.adapters.spark import xshards

    monkeypatch.setattr(xshards, "_kept", [])
    monkeypatch.setattr(xshards, "_collected", [0.0, 0.0])
    est, frame = estimator(model=Squeeze()), frame_of(spark, *numbers(4))
    few = [est.predict(frame, feature_cols=["x"]) for _ in range(3)]
    assert xshards._collected == [0.0, 0.0]
    many = [est.predict(frame, feature_cols=["x"]) for _ in range(16)]
    assert xshards._collected[0] > 0.0
    assert few[0].count() == many[0].count() == 4


def test_predictions_that_spark_has_forgotten_are_forgotten(context, spark, monkeypatch):
    from orca.adapters.spark import xshards

    monkeypatch.setattr(xshards, "_WORTH", 0)
    est = estimator(model=Squeeze())
    frame = frame_of(spark, *numbers(4))
    est.predict(frame, feature_cols=["x"])
    listeners = guests._listeners[orca.context.active_context()]
    before = set(listeners)
    kept = [est.predict(frame, feature_cols=["x"]) for _ in range(3)]
    made = set(listeners) - before
    assert len(made) == 3
    kept.pop().collect()
    del kept
    deadline = time.monotonic() + 30
    while len(made & set(listeners)) > 1:  # The JVM may keep the last plan that it ran.
        assert time.monotonic() < deadline, "Spark's predictions are kept for ever"
        gc.collect()
        xshards._collected[:] = [0.0, 0.0]  # Java's collector may need more than one look.
        xshards._sweep()
        time.sleep(0.1)


def test_the_same_column_twice_and_names_with_any_sign(context, spark):
    class Two(nn.Module):
        def forward(self, a, b):
            return a + b

    frame = spark.createDataFrame([(1.0,), (2.0,)], StructType([StructField("a`b.c", FloatType())]))
    est = OurEstimator.from_torch(model=Two(), backend="spark")
    lazily = est.predict(frame, feature_cols=["a`b.c", "a`b.c"])
    assert [row["prediction"] for row in lazily.collect()] == [2.0, 4.0]


def test_rows_of_other_shapes_in_other_partitions_are_named(context, spark):
    rows = [(i, [1.0] * (1 if i < 5 else 2), 1.0) for i in range(10)]
    frame = spark.createDataFrame(rows, "id int, x array<float>, y float")
    frame = frame.repartitionByRange(2, "id")
    with pytest.raises(Exception, match="Elements in the same column must have the same shape"):
        estimator().fit(frame, feature_cols=["x"], label_cols=["y"])


def test_a_frame_without_rows(context, spark):
    empty = frame_of(spark, *numbers(0))
    est = estimator(model=Squeeze())
    both = OurEstimator.from_torch(model=Outputs("pair"), backend="spark")
    assert both.predict(empty, feature_cols=["x"], output_cols=["a", "b"]).columns[-2:] == [
        "a",
        "b",
    ]
    assert est.predict(empty, feature_cols=["x"]).collect() == []
    with pytest.raises(InvalidArgumentError, match="the DataFrame has no rows"):
        est.fit(empty, feature_cols=["x"], label_cols=["y"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_cols": ["y"]}, "feature_col must be provided if data is a spark dataframe"),
        ({"feature_cols": ["x"]}, "label_cols must be provided if data is a spark dataframe"),
        ({"feature_cols": ["z"], "label_cols": ["y"]}, "there is no column 'z' in the DataFrame"),
        ({"feature_cols": ["s"], "label_cols": ["y"]}, "unsupported field 's' of the type string"),
        (
            {"feature_cols": ["x"], "label_cols": ["y"], "validation_data": numbers(4)},
            "validation data must be a spark DataFrame when data is a DataFrame",
        ),
    ],
)
def test_wrong_arguments_are_named(context, spark, arguments, message):
    frame = frame_of(spark, *numbers(4)).withColumn("s", F.lit("a"))
    with pytest.raises(InvalidArgumentError, match=message):
        estimator(model=Squeeze()).fit(frame, **arguments)


def test_a_column_with_a_hole_is_named_with_spark_s_own_error(context, spark):
    frame = spark.createDataFrame([(1.0, 1.0), (None, 2.0)], "x float, y float").coalesce(1)
    with pytest.raises(Exception, match="column 'x' has no value in row 1"):
        estimator(model=nn.Linear(1, 1)).fit(frame, feature_cols=["x"], label_cols=["y"])
    shapes = spark.createDataFrame([([1.0],), ([1.0, 2.0],)], "x array<float>").coalesce(1)
    with pytest.raises(Exception, match="Elements in the same column must have the same shape"):
        estimator().fit(shapes.withColumn("y", F.lit(1.0)), feature_cols=["x"], label_cols=["y"])


def test_spark_s_own_errors_reach_the_user(context, spark):
    @F.udf("float")
    def fail(value):
        raise ValueError("the udf has failed")

    frame = frame_of(spark, *numbers(4)).withColumn("y", fail("y"))
    with pytest.raises(Exception, match="the udf has failed"):
        estimator(model=Squeeze()).fit(frame, feature_cols=["x"], label_cols=["y"])


def test_a_task_that_is_tried_again_duplicates_no_row(context, spark, tmp_path):
    marker = str(tmp_path / "failed")

    @F.udf("float")
    def fail_once(number, value):
        # The last rows of the second partition, when the first batch is put already.
        if number == 30 and not os.path.exists(marker):  # noqa: PTH110
            open(marker, "w").close()
            raise OSError("a disk was lost")
        return value

    x, y = numbers(60)
    frame = frame_of(spark, x, y, 2).withColumn("y", fail_once("id", "y"))
    scores = estimator(model=Squeeze()).evaluate(frame, feature_cols=["x"], label_cols=["y"])
    assert os.path.exists(marker)  # noqa: PTH110
    assert scores["num_samples"] == 60


@pytest.mark.long
def test_a_task_that_spark_runs_twice_at_a_time_duplicates_no_row(tmp_path):
    """Speculation, on a cluster of its own."""
    folders = f"{Path(orca.__file__).parents[1]}:{Path(__file__).parent}"
    script = Path(__file__).with_name("checks_speculation.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_killed_python_process_of_spark_costs_nothing(context, spark, tmp_path):
    marker = str(tmp_path / "killed")

    @F.udf("float")
    def die_once(number, value):
        if number == 50 and not os.path.exists(marker):  # noqa: PTH110
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    x, y = numbers(60)
    frame = frame_of(spark, x, y, 2).withColumn("y", die_once("id", "y"))
    est = estimator(model=Squeeze())
    assert est.evaluate(frame, feature_cols=["x"], label_cols=["y"])["num_samples"] == 60
    assert os.path.exists(marker)  # noqa: PTH110
    os.unlink(marker)  # noqa: PTH108
    found = est.predict(frame, feature_cols=["x"]).collect()
    assert [row["id"] for row in found] == list(range(60))


def test_a_killed_worker_is_replaced(context, spark, tmp_path):
    marker = str(tmp_path / "killed")

    class DiesOnce(nn.Module):
        def forward(self, x):
            if len(x) > 1 and not os.path.exists(marker):  # noqa: PTH110
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return x.sum(1)

    x, y = numbers(60)
    est = OurEstimator.from_torch(model=DiesOnce(), loss=nn.MSELoss(), backend="spark")
    frame = frame_of(spark, x, y, 2)
    found = est.predict(frame, feature_cols=["x"]).collect()
    assert os.path.exists(marker)  # noqa: PTH110
    np.testing.assert_allclose([row["prediction"] for row in found], x.sum(1), rtol=1e-6)
    os.unlink(marker)  # noqa: PTH108
    scores = est.evaluate(frame, feature_cols=["x"], label_cols=["y"])
    assert os.path.exists(marker)  # noqa: PTH110
    assert scores["num_samples"] == 60


def test_an_action_while_the_estimator_trains_waits_and_is_right(context, spark):
    x, y = numbers(200)
    frame = frame_of(spark, x, y)
    est = estimator(model=Squeeze())
    expected = est.get_model()(torch.tensor(x)).detach().numpy()
    lazily = est.predict(frame, feature_cols=["x"])
    training = threading.Thread(target=lambda: est.fit((x, y[:, 0]), epochs=20, batch_size=2))
    training.start()
    time.sleep(0.2)
    np.testing.assert_allclose([r["prediction"] for r in lazily.collect()], expected, rtol=1e-5)
    training.join()


def test_an_error_of_the_model_reaches_the_user(context, spark):
    class Fails(nn.Module):
        def forward(self, x):
            assert len(x) == 1 or float(x.sum()) < 0, "the model has failed"
            return x.sum(1)

    frame = frame_of(spark, *numbers(10), 1)
    lazily = OurEstimator.from_torch(model=Fails(), backend="spark").predict(
        frame, feature_cols=["x"]
    )
    with pytest.raises(Exception, match="the model has failed"):
        lazily.collect()


def test_a_prediction_feeds_another_training(context, spark):
    x, y = numbers(30)
    est = estimator(model=Squeeze())
    frame = est.predict(frame_of(spark, x, y), feature_cols=["x"])
    second = estimator(model=nn.Sequential(nn.Linear(1, 1)))
    stats = second.fit(
        frame.withColumn("p", F.array(F.col("prediction").cast("float"))).withColumn(
            "t", F.array("y")
        ),
        feature_cols=["p"],
        label_cols=["t"],
    )
    assert stats[0]["num_samples"] == 30


def test_a_search_of_trees_has_the_columns_side_by_side(context, spark, tmp_path):
    x, y = numbers(60)
    frame = frame_of(spark, x, y).withColumn("z", F.col("id").cast("double"))
    search = AutoXGBRegressor(logs_dir=str(tmp_path), n_estimators=5)
    search.fit(
        frame,
        validation_data=frame,
        metric="rmse",
        search_space={"max_depth": 2},
        feature_cols=["x", "z"],
        label_cols="y",
    )
    table = np.column_stack([x, np.arange(60.0)])
    plain = xgboost.XGBRegressor(**search.get_best_model().get_params()).fit(table, y[:, 0])
    found = search.get_best_model().predict(table)
    np.testing.assert_array_equal(found, plain.predict(table))


def test_after_the_end_of_the_context_an_action_says_so(spark):
    if orca.context.active_context() is not None:
        orca.stop_orca_context()
    frame = frame_of(spark, *numbers(4))
    for root in (bigdl.orca, zoo.orca):
        root.init_orca_context(cores=1)
        lazily = estimator(model=Squeeze()).predict(frame, feature_cols=["x"])
        root.stop_orca_context()
        with pytest.raises(Exception, match=r"use the data before stop_orca_context\(\)"):
            lazily.collect()

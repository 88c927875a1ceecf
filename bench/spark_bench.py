"""DataFrames of Spark into tensors and predictions back, against Spark's own ways; and the start.

    python bench/spark_bench.py frames | predict | start

``frames``: 2 M rows of 32 floats, cached, local[2], until all of them are tensors: as one column of arrays (what a
VectorAssembler or ``array`` gives) and as 32 columns; against ``toPandas`` with Arrow, and against the dataset that
TorchDistributor hands to a training function, once around; and against the same columns into Python processes that only count
the rows. ``predict``: a column of predictions for 1 M rows, summed by
Spark; against a ``pandas_udf`` that calls the same model on the whole batch, and against an ``arrow_udf`` that gives ones; each side
has a Spark of its own. What only counts, and what gives ones, is compared with the peers as well: Spark's own way to Python
and back allows no more. Each comparison is also made of the CPU time of all processes, which a busy machine changes less.
``start``: from ``init_orca_context`` to the
first result of Spark, against a session of Spark and its first result. Every side checks what it got. Lines that
begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from runtime_bench import report

ROWS, WIDTH = 2_000_000, 32
ROUNDS = 5
OURS = """
import sys, time
import bigdl.orca
begin = time.perf_counter()
sc = bigdl.orca.init_orca_context(cores=2)
assert sc.parallelize(range(10), 2).sum() == 45
print(time.perf_counter() - begin)
bigdl.orca.stop_orca_context()
"""
THEIRS = """
import sys, time
from pyspark.sql import SparkSession
begin = time.perf_counter()
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert session.sparkContext.parallelize(range(10), 2).sum() == 45
print(time.perf_counter() - begin)
session.stop()
"""


def cpu_seconds() -> float:
    """What this process, and all that it has started and that live, have used of the cores."""
    parents, used = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            fields = file.read_text().rpartition(")")[2].split()
            parents[int(file.parent.name)] = int(fields[1])
            used[int(file.parent.name)] = sum(map(int, fields[11:15]))

    def is_ours(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return sum(used[pid] for pid in used if is_ours(pid)) / os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """What a side took, once."""

    seconds: float
    cpu: float

    @staticmethod
    def of(work: Callable[[], Any]) -> tuple[Turn, Any]:
        """And what it made."""
        cpu, begin = cpu_seconds(), time.perf_counter()
        made = work()
        seconds = time.perf_counter() - begin
        return Turn(seconds, cpu_seconds() - cpu), made


def compare(name: str, ours: list[Turn], peer: list[Turn]) -> None:
    """Two comparisons: of the time on the wall, and of that of the cores."""
    report(name, [turn.seconds for turn in ours], [turn.seconds for turn in peer])
    report(f"{name}-cpu", [turn.cpu for turn in ours], [turn.cpu for turn in peer])


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore", FutureWarning)  # pyspark's, of pandas 3
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def numbers(spark: Any, rows: int) -> Any:
    """Floats that add up exactly, as columns."""
    from pyspark.sql import functions

    return spark.range(0, rows, 1, 4).select(
        *(
            ((functions.col("id") * (i + 3)) % 256).cast("float").alias(f"c{i}")
            for i in range(WIDTH)
        )
    )


def total(rows: int) -> float:
    each = np.arange(rows, dtype=np.int64)
    return float(sum(int((each * (i + 3) % 256).sum()) for i in range(WIDTH)))


def bench_frames() -> None:
    import torch
    from pyspark.sql import functions

    import orca
    from orca.adapters.spark import frames

    spark = session()
    names = [f"c{i}" for i in range(WIDTH)]
    columns = numbers(spark, ROWS).cache()
    arrays = columns.select(functions.array(*names).alias("x")).cache()
    expected = total(ROWS)
    assert columns.count() == arrays.count() == ROWS

    def check(tensors: list[torch.Tensor]) -> None:
        found = sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors)
        assert all(tensor.dtype == torch.float32 for tensor in tensors)
        assert found == expected, (found, expected)

    def ours(frame: Any, features: list[str]) -> Turn:
        turn, views = Turn.of(
            lambda: [shard.view("torch")["x"] for shard in frames.pull(frame, features)]
        )
        check([tensor for view in views for tensor in (view if isinstance(view, list) else [view])])
        return turn

    def pandas(frame: Any, features: list[str]) -> Turn:
        def to_tensor() -> torch.Tensor:
            found = frame.toPandas()
            if len(features) == 1:
                return torch.from_numpy(np.stack(found["x"].to_numpy()))
            return torch.from_numpy(found.to_numpy())

        turn, tensor = Turn.of(to_tensor)
        check([tensor])
        return turn

    def limit(frame: Any, features: list[str]) -> Turn:
        """The same columns into Spark's Python processes, which count the rows."""
        selected = frame.select(*frames._selected(features, frames._groups(frame, features)))
        turn, found = Turn.of(lambda: selected.mapInArrow(count, "rows long").collect())
        assert sum(row[0] for row in found) == ROWS
        return turn

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"rows": [sum(b.num_rows for b in batches)]})

    with orca.init_orca_context(cores=2):
        for name, frame, features in (("array", arrays, ["x"]), ("columns", columns, names)):
            turns = [
                (ours(frame, features), pandas(frame, features), limit(frame, features))
                for _ in range(2 + ROUNDS)
            ]
            mine, theirs, least = map(list, zip(*turns[2:], strict=True))  # Java is warm.
            compare(f"frame-pandas/{name}", mine, theirs)
            compare(f"frame-{name}-limit", mine, least)
            compare(f"frame-{name}-bound", least, theirs)
            if name == "array":
                report("frame-distributor", [mine[-1].seconds], [distributor(frame, expected)])
    spark.stop()


def distributor(frame: Any, expected: float) -> float:
    """All rows through the dataset that TorchDistributor hands to a training function."""
    from pyspark.sql.types import StructType

    schema = frame.schema.json()

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import json

        import pyarrow
        import torch
        from pyspark.ml.torch.data import _SparkPartitionTorchDataset

        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            path, rows, writer = Path(folder) / "data.arrow", 0, None
            with path.open("wb") as file:
                for batch in batches:
                    writer = writer or pyarrow.ipc.new_stream(file, batch.schema)
                    writer.write_batch(batch)
                    rows += batch.num_rows
                if writer is not None:
                    writer.close()
            kinds = StructType.fromJson(json.loads(schema))
            data = _SparkPartitionTorchDataset(str(path), kinds, rows)
            found = 0.0
            for (x,) in torch.utils.data.DataLoader(data, batch_size=1024):
                parts = x if isinstance(x, torch.Tensor) else torch.stack(x)
                found += float(parts.sum(dtype=torch.float64))
        yield pyarrow.RecordBatch.from_pydict({"sum": [found]})

    begin = time.perf_counter()
    found = frame.mapInArrow(task, "sum double").collect()
    seconds = time.perf_counter() - begin
    assert sum(row[0] for row in found) == expected
    return seconds


def predict_side(side: str) -> None:
    """One side of the comparison, with a Spark of its own: predicts whenever it reads a line."""
    import torch
    from pyspark.sql import functions
    from torch import nn

    import orca
    from orca.learn.pytorch import Estimator

    spark = session()
    names = [f"c{i}" for i in range(WIDTH)]
    frame = numbers(spark, 1_000_000).select(functions.array(*names).alias("x")).cache()
    frame.count()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))

    def answer(make: Any) -> None:
        for _ in sys.stdin:
            turn, (found,) = Turn.of(lambda: make().agg(functions.sum("prediction")).collect())
            print("TURN", *turn, found[0], flush=True)

    if side == "ours":
        with orca.init_orca_context(cores=2):
            est = Estimator.from_torch(model=model, backend="spark", workers_per_node=2)
            answer(lambda: est.predict(frame, feature_cols=["x"]))
    else:
        best = {"arrow": model, "limit": None}
        udf = model_udf(spark, model) if side == "udf" else arrow_udf(spark, best[side])
        answer(lambda: frame.withColumn("prediction", udf("x")))
    spark.stop()


def model_udf(spark: Any, model: Any) -> Any:
    """The model on every batch of Spark's."""
    import pandas
    import torch
    from pyspark.sql import functions

    sent = spark.sparkContext.broadcast(model)

    def model_of(x: pandas.Series) -> pandas.Series:
        torch.set_num_threads(1)
        with torch.no_grad():
            rows = torch.from_numpy(np.stack(x.to_numpy()))
            return pandas.Series(sent.value(rows).double().numpy())

    # Spark reads the types, which are texts in this file.
    model_of.__annotations__ = {"x": pandas.Series, "return": pandas.Series}
    return functions.pandas_udf(model_of, "double")


def arrow_udf(spark: Any, model: Any) -> Any:
    """What Spark takes to bring the features and to take a column back; with a model, also to run it on them."""
    from pyspark.sql import functions

    sent = None if model is None else spark.sparkContext.broadcast(model)

    def predict(parts: Iterator[Any]) -> Iterator[Any]:
        import gc

        import numpy
        import pyarrow

        if not gc.get_freeze_count():
            gc.freeze()  # Spark looks for garbage after every task.
        for part in parts:
            if sent is None:
                yield pyarrow.array(numpy.ones(len(part)))
                continue
            import torch

            torch.set_num_threads(1)
            values = part.flatten().to_numpy(zero_copy_only=True).reshape(len(part), -1)
            with torch.no_grad():
                found = [sent.value(rows).double() for rows in torch.from_numpy(values).split(1024)]
            yield pyarrow.array(torch.cat(found).numpy())

    return functions.arrow_udf(predict, "double", functionType=functions.ArrowUDFType.SCALAR_ITER)


def bench_predict() -> None:
    turns: dict[str, list[Turn]] = {"ours": [], "udf": [], "arrow": [], "limit": []}
    with contextlib.ExitStack() as stack:
        # What one side imports into Spark's processes is no burden to the other.
        programs = {
            side: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", __file__, f"predict-{side}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for side in turns
        }
        for turn in range(-5, ROUNDS):  # Java compiles what runs often.
            sums = {}
            for side, program in programs.items():
                assert program.stdin is not None
                assert program.stdout is not None
                print(file=program.stdin, flush=True)
                line = next(line for line in program.stdout if line.startswith("TURN"))
                _, seconds, cpu, sums[side] = line.split()
                if turn >= 0:
                    turns[side].append(Turn(float(seconds), float(cpu)))
            ours, theirs = float(sums["ours"]), float(sums["udf"])
            assert abs(ours - theirs) < 1e-5 * abs(theirs), (ours, theirs)
            assert float(sums["limit"]) == 1_000_000
    compare("frame-predict", turns["ours"], turns["udf"])
    compare("frame-predict-arrow", turns["ours"], turns["arrow"])
    compare("frame-predict-limit", turns["ours"], turns["limit"])
    compare("frame-predict-bound", turns["limit"], turns["udf"])


def bench_start() -> None:
    mine, theirs = [], []
    for turn in range(-1, ROUNDS):
        for program, times in ((OURS, mine), (THEIRS, theirs)):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", program],
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=120,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )
            if turn >= 0:
                (line,) = (line for line in done.stdout.splitlines() if line[:1].isdigit())
                times.append(float(line))
    # The goal allows half a second more.
    report("start-spark", mine, [seconds + 0.5 for seconds in theirs])


def main() -> None:
    parser = argparse.ArgumentParser()
    sides = {
        f"predict-{side}": functools.partial(predict_side, side)
        for side in ("ours", "udf", "arrow", "limit")
    }
    benches = {"frames": bench_frames, "predict": bench_predict, "start": bench_start} | sides
    parser.add_argument("what", choices=benches, metavar="|".join(list(benches)[:3]))
    benches[parser.parse_args().what]()


if __name__ == "__main__":
    main()

"""A DataFrame into shards while Spark really runs a task twice. Run by test_spark_frames.py in a process of its own.

Only a cluster speculates, and only on another host: this one has its hosts at two addresses of this machine.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import orca
from launcher import free_port
from orca.adapters.spark import frames

ROWS, PARTS = 400_000, 4
FOLDER = Path(sys.argv[1])


def slow(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows; the first one who has brought those of part 1 then waits for a second one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    part, attempt = context.partitionId(), context.attemptNumber()
    yield from batches
    (FOLDER / f"{part}-{attempt}").touch()
    deadline = time.monotonic() + 200
    while part == 1 and attempt == 0 and time.monotonic() < deadline:
        time.sleep(0.1)  # Until Spark ends this process.


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """The address of a master with two workers, a core each."""
    home = Path(pyspark.__file__).parent
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    pages = ["--webui-port", "0"]
    kinds = [["master.Master", "--host", "127.0.0.1", "--port", str(port), *pages]] + [
        ["worker.Worker", "--host", f"127.0.0.{i}", "-c", "1", "-m", "1g", *pages, master]
        for i in (1, 2)
    ]
    with contextlib.ExitStack() as stack:
        for name, *arguments in kinds:
            command = [home / "bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments]
            environment = {
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_WORKER_DIR": str(FOLDER / "work"),
            }
            process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield master


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with cluster() as master:
        run(master)


def run(master: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.range(0, ROWS, 1, PARTS).select("id", F.array_repeat("id", 8).alias("x"))
    with orca.init_orca_context("local", cores=2):
        shards = frames.pull(frame.mapInArrow(slow, frame.schema), ["x", "id"])
        found = np.concatenate([shard.view()["x"][1] for shard in shards])
        twice = sorted(path.name for path in FOLDER.glob("1-*"))
        print("attempts", twice, "rows", len(found))
        assert len(twice) > 1, "Spark did not run the task twice"
        np.testing.assert_array_equal(found, np.arange(ROWS))
    spark.stop()


if __name__ == "__main__":
    main()

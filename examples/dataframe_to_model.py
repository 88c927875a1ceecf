"""From a DataFrame of Spark to a model and back: fit, evaluate, and a column of predictions that Spark goes on with.

python examples/dataframe_to_model.py --rows 20000
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.pytorch import Estimator


def model_creator(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))


def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    init_orca_context("local", cores=2)

    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()  # With the cores and the memory of the context.
    trips = spark.range(options.rows).select(
        "id",
        (F.rand(1) * 30).alias("km"),
        F.floor(F.rand(2) * 24).cast("double").alias("hour"),
        (F.rand(3) < 0.2).cast("double").alias("rain"),
    )
    minutes = (
        F.col("km") * 2 + F.col("rain") * 5 + F.when(F.col("hour").between(7, 9), 12).otherwise(0)
    )
    trips = trips.withColumn("minutes", F.array((minutes / 60).cast("float")))
    trips = trips.withColumn("scaled_km", F.col("km") / 30).withColumn("day", F.col("hour") / 24)
    assembler = VectorAssembler(inputCols=["scaled_km", "day", "rain"], outputCol="features")
    train, test = assembler.transform(trips).randomSplit([0.8, 0.2], seed=1)

    estimator = Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=nn.MSELoss(),
        backend="spark",
        workers_per_node=2,
    )
    columns = {"feature_cols": ["features"], "label_cols": ["minutes"]}
    estimator.fit(train, epochs=10, batch_size=64, **columns)
    print(f"loss on the test rows: {estimator.evaluate(test, **columns)['val_loss']:.5f}")

    predicted = estimator.predict(test, feature_cols=["features"])  # Lazy: the model runs below.
    error = F.abs(F.col("prediction") - F.col("minutes")[0]) * 60
    row = predicted.groupBy().agg(F.avg(error).alias("error"), F.count("*").alias("rows")).first()
    assert row is not None
    print(f"mean error {row['error']:.1f} minutes over {row['rows']} trips")
    stop_orca_context()

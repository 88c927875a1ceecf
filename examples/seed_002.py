"""A PyTorch model on a Spark DataFrame, as Analytics Zoo's NNFrames trained it.

python examples/seed_002.py
"""

import torch
import torch.nn as nn
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from zoo.common.nncontext import *
from zoo.pipeline.api.torch import TorchLoss, TorchModel, TorchOptim
from zoo.pipeline.nnframes import *


# define model with Pytorch
class SimpleTorchModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense1 = nn.Linear(2, 4)
        self.dense2 = nn.Linear(4, 1)

    def forward(self, x):
        x = self.dense1(x)
        x = torch.sigmoid(self.dense2(x))
        return x


if __name__ == "__main__":
    sc = init_spark_on_local(cores=1)
    spark = SparkSession.builder.getOrCreate()

    df = spark.createDataFrame(
        [
            (Vectors.dense([2.0, 1.0]), 1.0),
            (Vectors.dense([1.0, 2.0]), 0.0),
            (Vectors.dense([2.0, 1.0]), 1.0),
            (Vectors.dense([1.0, 2.0]), 0.0),
        ],
        ["features", "label"],
    )

    torch.manual_seed(0)  # The same table each time.
    torch_model = SimpleTorchModel()
    torch_criterion = nn.MSELoss()
    torch_optimizer = torch.optim.Adam(torch_model.parameters())

    az_model = TorchModel.from_pytorch(torch_model)
    az_criterion = TorchLoss.from_pytorch(torch_criterion)
    az_optimizer = TorchOptim.from_pytorch(torch_optimizer)

    classifier = (
        NNClassifier(az_model, az_criterion)
        .setBatchSize(4)
        .setOptimMethod(az_optimizer)
        .setLearningRate(0.01)
        .setMaxEpoch(10)
    )

    nnClassifierModel = classifier.fit(df)

    print("After training: ")
    res = nnClassifierModel.transform(df)
    res.show(10, False)

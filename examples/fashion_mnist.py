"""LeNet on Fashion-MNIST with arrays: the twin of examples/cpp/fashion_mnist.cc, which reaches the same losses.

python examples/fashion_mnist.py data/FashionMNIST/raw --epochs 2
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import orca
from orca.learn.metrics import Accuracy
from orca.learn.pytorch import Estimator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", default="data/FashionMNIST/raw", type=Path)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def read(part):
    def array(kind, header):
        return np.fromfile(args.folder / f"{part}-{kind}-ubyte", np.uint8)[header:]

    images = array("images-idx3", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 127.5 - 1
    return images, array("labels-idx1", 8).astype(np.int64)


def sgd(model, config):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


with orca.init_orca_context("local"):
    estimator = Estimator.from_torch(
        model=lambda config: Net(),
        optimizer=sgd,
        loss=nn.CrossEntropyLoss(),
        metrics=[Accuracy()],
        workers_per_node=args.workers,
    )
    for epoch in estimator.fit(read("train"), epochs=args.epochs, batch_size=64, seed=0):
        print(f"epoch {epoch['epoch']}: loss {epoch['train_loss']:.7f}")
    scores = estimator.evaluate(read("t10k"), batch_size=256)
    print(f"test loss {scores['val_loss']:.7f}, accuracy {scores['Accuracy']:.4f}")

"""LeNet on Fashion-MNIST, written for BigDL's Orca; runs as it is.

python examples/bigdl_fashion_mnist.py --data_dir data --epochs 1
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms

from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cluster_mode", default="local", help="where the workers run")
parser.add_argument("--data_dir", default="./data", help="the folder of FashionMNIST/raw")
parser.add_argument("--backend", default="spark")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.001)
args = parser.parse_args()


def train_data_creator(config={}, batch_size=4, download=False, data_dir=args.data_dir):  # noqa: B006
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
    trainset = torchvision.datasets.FashionMNIST(
        root=data_dir, download=download, train=True, transform=transform
    )
    return torch.utils.data.DataLoader(trainset, batch_size=batch_size, shuffle=True, num_workers=0)


def validation_data_creator(config={}, batch_size=4, download=False, data_dir=args.data_dir):  # noqa: B006
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
    testset = torchvision.datasets.FashionMNIST(
        root=data_dir, train=False, download=download, transform=transform
    )
    return torch.utils.data.DataLoader(testset, batch_size=batch_size, shuffle=False, num_workers=0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def model_creator(config):
    return Net()


criterion = nn.CrossEntropyLoss()


def optimizer_creator(model, config):
    return optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)


init_orca_context(cluster_mode=args.cluster_mode)

with tempfile.TemporaryDirectory() as folder:
    orca_estimator = Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=criterion,
        metrics=[Accuracy()],
        model_dir=folder,
        backend=args.backend,
        workers_per_node=args.workers,
    )
    begin = time.perf_counter()
    stats = orca_estimator.fit(train_data_creator, epochs=args.epochs, batch_size=args.batch_size)
    seconds = time.perf_counter() - begin
    print(f"Train stats: {stats}")
    rows = sum(epoch["num_samples"] for epoch in stats)
    print(f"{rows} images in {seconds:.1f} s: {rows / seconds:.0f} images/s")
    val_stats = orca_estimator.evaluate(validation_data_creator, batch_size=args.batch_size)
    print(f"Validation stats: {val_stats}")

    path = orca_estimator.save(os.path.join(folder, "lenet.pt"))
    print(f"Saved {Path(path).stat().st_size} bytes, and loaded them again")
    orca_estimator.load(path)
    images, labels = next(iter(validation_data_creator(batch_size=10000)))
    predictions = orca_estimator.predict(images, batch_size=args.batch_size)
    accuracy = float((predictions.argmax(1) == labels.numpy()).mean())
    print(f"Predictions of shape {predictions.shape}: {accuracy:.4f} of them are right")
    assert abs(accuracy - float(val_stats["Accuracy"])) < 1e-3, "a loaded model is the saved one"

stop_orca_context()

"""LeNet on Fashion-MNIST with DDP. Any backend of torch.distributed runs the same script.

torchrun --standalone --nproc-per-node 2 examples/fashion_mnist_ddp.py --backend orca
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """The LeNet of the tutorial."""

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


def load(name, root, train):
    """Returns images in [-1, 1] as (n, 1, 28, 28) and their classes, all in memory."""
    if name == "fashion-mnist":
        from torchvision.datasets import FashionMNIST

        data = FashionMNIST(root, train=train)
        images, classes = data.data.unsqueeze(1).float() / 255, data.targets
    else:
        from sklearn.datasets import load_digits

        images, classes = map(torch.from_numpy, load_digits(return_X_y=True))
        part = slice(None, 1440) if train else slice(1440, None)
        images, classes = images[part].float().view(-1, 1, 8, 8) / 16, classes[part].long()
        images = F.interpolate(images, size=(28, 28), mode="bilinear")
    return (images - 0.5) / 0.5, classes


def train_epoch(model, optimizer, images, classes, batch_size, epoch):
    """Trains on this rank's share of a shuffled epoch. Returns the number of images and seconds."""
    rank, world = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    # Every rank makes the same number of full steps.
    steps = len(order) // (batch_size * world)
    batches = order[: steps * batch_size * world].view(steps, world, batch_size)[:, rank]
    start = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[batch]), classes[batch])
        loss.backward()
        optimizer.step()
    return steps * batch_size * world, time.perf_counter() - start


@torch.no_grad()
def accuracy(model, images, classes):
    """The share of right answers; every rank looks at its part."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = slice(rank, None, world)
    right = (model(images[mine]).argmax(1) == classes[mine]).sum()
    dist.all_reduce(right)
    return right.item() / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="orca", help="gloo, orca, ...")
    parser.add_argument("--data", default="fashion-mnist", choices=["fashion-mnist", "digits"])
    parser.add_argument("--root", default="data", help="folder that holds FashionMNIST/raw")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images a step on each rank")
    parser.add_argument("--result", type=Path, help="file for rates and accuracy, as JSON")
    arguments = parser.parse_args()
    if arguments.backend == "orca":
        import orca.distributed  # noqa: F401  registers the backend

    dist.init_process_group(arguments.backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    images, classes = load(arguments.data, arguments.root, train=True)
    tests = load(arguments.data, arguments.root, train=False)

    trained, seconds = 0, 0.0
    for epoch in range(arguments.epochs):
        count, took = train_epoch(model, optimizer, images, classes, arguments.batch_size, epoch)
        trained, seconds = trained + count, seconds + took
        right = accuracy(model, *tests)
        if dist.get_rank() == 0:
            print(
                f"{arguments.backend}: epoch {epoch + 1} of {arguments.epochs}: "
                f"{count / took:.0f} images/s, test accuracy {right:.4f}",
                flush=True,
            )
    if dist.get_rank() == 0 and arguments.result:
        result = {"images_per_second": trained / seconds, "accuracy": right}
        arguments.result.write_text(json.dumps(result))
    # A gloo thread that still holds a tensor while the interpreter ends would abort the process.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

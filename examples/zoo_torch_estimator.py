"""The PyTorch Estimator with the calls of Analytics Zoo: its own backend, then torch.distributed and Horovod.

python examples/zoo_torch_estimator.py
"""

import argparse

import torch
import torch.nn as nn

from zoo.orca import init_orca_context, stop_orca_context
from zoo.orca.learn.metrics import Accuracy
from zoo.orca.learn.pytorch import Estimator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--rows", type=int, default=2000)
args = parser.parse_args()


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(args.rows, 20, generator=generator)
    return torch.utils.data.TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())


class LeNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2), nn.LogSoftmax(dim=1))


init_orca_context(cores=2)

# The BigDL backend takes a model, an optimizer and a DataLoader as they are.
model = LeNet()
model.train()
criterion = nn.NLLLoss()
adam = torch.optim.Adam(model.parameters(), args.lr)
est = Estimator.from_torch(model=model, optimizer=adam, loss=criterion, metrics=Accuracy())
train_loader = torch.utils.data.DataLoader(make_data(), batch_size=64, shuffle=True)
est.set_l2_norm_gradient_clipping(5.0)
est.fit(data=train_loader, epochs=args.epochs)
print("bigdl:", est.evaluate(train_loader))


# The others take functions, which run on every worker.
def model_creator(config):
    model = LeNet()
    model.train()
    return model


def optimizer_creator(model, config):
    return torch.optim.Adam(model.parameters(), config["lr"])


def train_loader_func(config, batch_size):
    return torch.utils.data.DataLoader(make_data(), batch_size=batch_size, shuffle=True)


for backend in ("torch_distributed", "horovod"):
    est = Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=nn.NLLLoss(),
        metrics=[Accuracy()],
        config={"lr": args.lr},
        workers_per_node=2,
        backend=backend,
    )
    stats = est.fit(data=train_loader_func, epochs=args.epochs)
    print(f"{backend}: loss {stats[0]['train_loss']:.3f}, then {stats[-1]['train_loss']:.3f}")
    print(f"{backend}: {est.evaluate(train_loader_func)}")
    est.shutdown()

stop_orca_context()

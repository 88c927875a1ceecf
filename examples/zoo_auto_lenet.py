"""The search of Analytics Zoo's documentation: LeNet with creator functions, a grid and random draws.

python examples/zoo_auto_lenet.py --rows 2000
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from zoo.orca import init_orca_context, stop_orca_context
from zoo.orca.automl import hp
from zoo.orca.automl.auto_estimator import AutoEstimator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rows", type=int, default=10_000)
parser.add_argument("--logs", default="/tmp/zoo_automl_logs")
args = parser.parse_args()


def images(rows, seed):
    """Noise with a bright spot, whose place is the class."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (rows,), generator=source)
    x = torch.randn(rows, 1, 28, 28, generator=source)
    for i, label in enumerate(y.tolist()):
        x[i, 0, 2 * label : 2 * label + 5, 4:9] += 1.5
    return torch.utils.data.TensorDataset(x, y)


def train_loader_creator(config):
    return torch.utils.data.DataLoader(
        images(args.rows, 0), batch_size=config["batch_size"], shuffle=True
    )


def test_loader_creator(config):
    return torch.utils.data.DataLoader(images(1000, 1), batch_size=config["batch_size"])


class LeNet(nn.Module):
    def __init__(self, fc1_hidden_size=500):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5, 1)
        self.conv2 = nn.Conv2d(20, 50, 5, 1)
        self.fc1 = nn.Linear(4 * 4 * 50, fc1_hidden_size)
        self.fc2 = nn.Linear(fc1_hidden_size, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 2)
        x = F.relu(self.fc1(x.view(-1, 4 * 4 * 50)))
        return F.log_softmax(self.fc2(x), dim=1)


def model_creator(config):
    return LeNet(fc1_hidden_size=config["fc1_hidden_size"])


def optim_creator(model, config):
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


if __name__ == "__main__":
    init_orca_context(cores=2)
    auto_est = AutoEstimator.from_torch(
        model_creator=model_creator,
        optimizer=optim_creator,
        loss=nn.NLLLoss(),
        logs_dir=args.logs,
        resources_per_trial={"cpu": 2},
        name="lenet_mnist",
    )
    search_space = {
        "fc1_hidden_size": hp.grid_search([500, 600]),
        "lr": hp.loguniform(0.001, 0.1),
        "batch_size": hp.choice([160, 320, 640]),
    }
    auto_est.fit(
        data=train_loader_creator,
        validation_data=test_loader_creator,
        search_space=search_space,
        n_sampling=2,
        epochs=1,
        metric="accuracy",
    )
    best_model = auto_est.get_best_model()
    print(f"{type(best_model).__name__} with {auto_est.get_best_config()}")
    print(f"accuracy {auto_est.get_best_trial().value:.3f}")
    stop_orca_context()

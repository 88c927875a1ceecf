"""Search algorithms and schedulers by name, as Analytics Zoo's documentation calls them.

python examples/zoo_auto_search.py --samples 8
"""

import argparse

import numpy as np
import torch
import torch.nn as nn

from zoo.orca import init_orca_context, stop_orca_context
from zoo.orca.automl import hp
from zoo.orca.automl.auto_estimator import AutoEstimator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, default=8)
parser.add_argument("--logs", default="/tmp/zoo_automl_logs")
args = parser.parse_args()


class Bell(nn.Module):
    """A bell as wide and as high as the configuration says; one number is learned."""

    def __init__(self, width, height):
        super().__init__()
        self.width, self.height = width, height
        self.middle = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.height * torch.exp(-(((x - self.middle) / (self.width + 0.1)) ** 2))


def make_search(name):
    return AutoEstimator.from_torch(
        model_creator=lambda config: Bell(config["width"], config["height"]),
        optimizer="Adam",
        loss=nn.MSELoss(),
        logs_dir=args.logs,
        name=name,
    )


if __name__ == "__main__":
    init_orca_context(cores=2)
    x = np.linspace(-10, 10, 256)
    data = x, 40 * np.exp(-((x / 5.1) ** 2))
    search_space = {
        "width": hp.uniform(0, 20),
        "height": hp.uniform(-100, 100),
        "batch_size": 64,
    }
    # Without validation data the loss of the training rows decides, and a warning says so.
    auto_estimator = make_search("bayesopt")
    auto_estimator.fit(
        data,
        search_space=search_space,
        metric="mean_loss",
        mode="min",
        search_alg="bayesopt",
        n_sampling=args.samples,
    )
    print(f"bayesopt: {auto_estimator.get_best_config()}")

    scheduler_params = {"max_t": 50, "grace_period": 1, "reduction_factor": 3, "brackets": 3}
    auto_estimator = make_search("skopt")
    auto_estimator.fit(
        data,
        epochs=9,
        search_space=search_space,
        metric="mean_loss",
        mode="min",
        search_alg="skopt",
        scheduler="AsyncHyperBand",
        scheduler_params=scheduler_params,
        n_sampling=args.samples,
    )
    states = [trial.state for trial in auto_estimator.trials]
    print(f"skopt: {states.count('pruned')} of {len(states)} trials were stopped early")
    stop_orca_context()

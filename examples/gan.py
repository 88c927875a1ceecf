"""A training loop of its own on the workers: a GAN that learns the shape of a ring.

python examples/gan.py --workers 2 --steps 400
"""

import argparse

import torch
from torch import nn

import orca

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch", type=int, default=128, help="rows of a step, over all workers")
args = parser.parse_args()


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs)
    )


def average(model):
    """Gradients of all workers: their rows are equally many, so it is the mean."""
    for parameter in model.parameters():
        orca.allreduce(parameter.grad, "average")


def train(steps, rows):
    torch.manual_seed(1)  # The same weights everywhere ...
    maker, judge = network(2, 2), network(2, 1)
    makes = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.9))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.9))
    says = nn.BCEWithLogitsLoss()
    torch.manual_seed(100 + orca.rank())  # ... and other rows.
    for step in range(steps):
        angle = torch.rand(rows) * 6.2832
        real = torch.stack([angle.cos(), angle.sin()], 1)
        fake = maker(torch.randn(rows, 2))

        judges.zero_grad()
        truth, lie = judge(real), judge(fake.detach())
        loss = says(truth, torch.ones_like(truth)) + says(lie, torch.zeros_like(lie))
        loss.backward()
        average(judge)
        judges.step()

        makes.zero_grad()
        answer = judge(fake)
        fooled = says(answer, torch.ones_like(answer))
        fooled.backward()
        average(maker)
        makes.step()
        orca.report(step, judge=loss.item(), maker=fooled.item())
    with torch.no_grad():
        radius = maker(torch.randn(2000, 2)).norm(dim=1)
    weights = torch.cat([p.detach().flatten() for p in maker.parameters()])
    return float(radius.mean()), float(weights.sum())


orca.init_orca_context("local")
results = orca.run(train, args=(args.steps, args.batch // args.workers), workers=args.workers)
radius, weights = results[0]
assert all(other[1] == weights for other in results), "all workers have the same weights"
print(f"the points lie {radius:.2f} from the middle; the ring has a radius of 1")
orca.stop_orca_context()

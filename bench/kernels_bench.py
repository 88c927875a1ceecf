"""Convolutions and pooling by the engine, against torch's own, on one core.

    python bench/kernels_bench.py [--rounds 15]

``conv1`` and ``conv2`` are those of LeNet at batch 320, ``cifar`` the first one of many networks for colour images. Of each the output,
and both gradients as a step needs them. ``limit-...``: against a product of matrices of as many operations, by the
library that torch has for it. ``step``: a whole step of LeNet with Adam. Rounds of the two sides alternate in one process; what
they give is compared with doubles. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from runtime_bench import report
from torch import nn

from orca.adapters.torch.plugin import load_plugin

PLUGIN = load_plugin()
CASES = {  # Images, channels, size, output channels, kernel, padding, whether the input's gradient is needed.
    "conv1": (320, 1, 28, 20, 5, 0, False),
    "conv2": (320, 20, 12, 50, 5, 0, True),
    "cifar": (64, 3, 32, 20, 3, 1, False),
}


def seconds(compute: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    compute()
    return time.perf_counter() - begin


def compare(name: str, compute: Callable[[], Any], rounds: int) -> None:
    """Alternates ours and torch's."""
    ours, theirs = [], []
    for turn in range(rounds + 1):
        PLUGIN.use_kernels(True)
        mine = seconds(compute)
        PLUGIN.use_kernels(False)
        peer = seconds(compute)
        if turn > 0:  # The first one finds caches and memory cold.
            ours.append(mine)
            theirs.append(peer)
    report(name, ours, theirs)


def check(name: str, found: Any, exact: Any) -> None:
    for mine, right in zip(found, exact, strict=True):
        error = ((mine - right).abs().max() / right.abs().max()).item()
        assert error < 1e-4, f"{name}: {error}"


def bench_convolution(name: str, rounds: int) -> None:
    images, channels, size, out, kernel, padding, whole = CASES[name]
    x = torch.randn(images, channels, size, size, requires_grad=whole)
    weight = torch.randn(out, channels, kernel, kernel, requires_grad=True)
    bias = torch.randn(out, requires_grad=True)
    wanted = (x, weight, bias) if whole else (weight, bias)

    def step(x: Any, weight: Any, bias: Any, gradient: Any, wanted: Any) -> Any:
        output = F.conv2d(x, weight, bias, padding=padding)
        return output.detach(), *torch.autograd.grad(output, wanted, gradient)

    gradient = torch.randn_like(F.conv2d(x, weight, bias, padding=padding))
    doubles = [each.detach().double() for each in (x, weight, bias, gradient)]
    of = [each.requires_grad_() for each in doubles[:3]][-len(wanted) :]
    exact = step(*doubles, of)
    PLUGIN.use_kernels(True)
    check(name, step(x, weight, bias, gradient, wanted), exact)
    compare(f"kernel-{name}", lambda: step(x, weight, bias, gradient, wanted), rounds)
    # As many operations: forward, weights, and perhaps the input.
    rows, inner = images * gradient.shape[2] * gradient.shape[3], channels * kernel * kernel
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    products = (3 if whole else 2) * rows * inner * out / 1024**3
    exact_rounds = max(1, round(products))

    def product() -> None:
        for _ in range(exact_rounds):
            torch.mm(left, right)

    scale = products / exact_rounds
    ours, limit = [], []
    for _ in range(rounds):
        PLUGIN.use_kernels(True)
        ours.append(seconds(lambda: step(x, weight, bias, gradient, wanted)))
        limit.append(seconds(product) * scale)
    report(f"kernel-limit-{name}", ours, limit)


def bench_pooling(rounds: int) -> None:
    x = torch.randn(320, 20, 24, 24)
    PLUGIN.use_kernels(False)
    exact = F.max_pool2d(x, 2, return_indices=True)
    PLUGIN.use_kernels(True)
    assert all(map(torch.equal, F.max_pool2d(x, 2, return_indices=True), exact))
    compare("kernel-pool", lambda: F.max_pool2d(x, 2, return_indices=True), rounds)


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(800, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.view(-1, 800)))), dim=1)


def bench_step(batch: int, rounds: int) -> None:
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def begun() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = LeNet()
        return model, torch.optim.Adam(model.parameters(), fused=True)

    def step(model: Any, optimizer: Any) -> float:
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = []
    for use in (True, False):
        PLUGIN.use_kernels(use)
        one = begun()
        losses.append([step(*one) for _ in range(5)])
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 1e-3, losses
    one = begun()
    compare(f"kernel-step/{batch}", lambda: step(*one), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name in CASES:
        bench_convolution(name, rounds)
    bench_pooling(rounds)
    for batch in (4, 32, 320, 640):
        bench_step(batch, rounds)


if __name__ == "__main__":
    main()

"""A step of Adam of 25 M float32 parameters by one thread: the engine's against torch's, fused and default.

    python bench/update_bench.py [PARAMETERS]

All run in turns in one process, each on weights and states of its own, with the same gradients, which are written before
every step. At the end all weights must be near each other. update_bench.cc has the limit that memory sets. Lines that begin
with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from orca._native import _core

TURNS = 15
RATE = 1e-3


class Ours:
    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights.clone()
        self.states = [torch.zeros_like(weights), torch.zeros_like(weights)]
        self.rule = _core.Update("adam")
        self.rule.lr = RATE
        self.steps = 0

    def step(self, gradient: torch.Tensor) -> None:
        self.steps += 1
        self.rule.step = self.steps
        self.rule.apply([gradient], [1.0], self.weights, self.states)


class Theirs:
    def __init__(self, weights: torch.Tensor, fused: bool) -> None:
        self.weights = weights.clone()
        self.optimizer = torch.optim.Adam([self.weights], lr=RATE, fused=fused or None)

    def step(self, gradient: torch.Tensor) -> None:
        self.weights.grad = gradient
        self.optimizer.step()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 25_000_000
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    weights = torch.randn(count, generator=source)
    gradient = torch.empty(count)
    sides = {
        "ours": Ours(weights),
        "fused": Theirs(weights, fused=True),
        "torch": Theirs(weights, fused=False),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-2, TURNS):
        for name, side in sides.items():
            gradient.uniform_(-1, 1, generator=torch.Generator().manual_seed(turn + 2))
            start = time.perf_counter()
            side.step(gradient)
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    for name in ("fused", "torch"):
        apart = float((sides["ours"].weights - sides[name].weights).abs().max())
        if not apart < 1e-5:
            raise AssertionError(f"the weights of {name} are {apart} away from ours")
        ratios = [peer / ours for ours, peer in zip(times["ours"], times[name], strict=True)]
        ours, peer = (statistics.median(times[side]) * 1e6 for side in ("ours", name))
        print(
            f"RESULT update-{name} ours_us={ours:.2f} peer_us={peer:.2f} "
            f"ratio={statistics.median(ratios):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""A step's way through the engine, against gloo and torch's Adam; and how long a checkpoint stops training, against torch.save.

    python bench/step_bench.py step | checkpoint [--rounds N]

``step``: two workers have the gradients of 25 million parameters where each side joins them: ours in memory that all see,
gloo's in one flat tensor. Timed is until the updated weights are there for both, and compared with an all-reduce over gloo and a
step of torch.optim.Adam, fused and default; and once more with the copy from where autograd leaves gradients, which DDP makes, too.
All end with the same weights. ``checkpoint``: what the state of a net with Adam (400 MB) costs training when it is saved: the step in which that happens
against the median step, and against torch.save of the same tensors in the loop; the last checkpoint is opened and compared. Lines
that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from estimator_bench import answer
from runtime_bench import report

COMMON = """
import json, os, statistics, sys, time
import numpy as np, torch
from torch import nn
PARTS, SIZE, STEPS, RATE = 25, 1_000_000, 12, 1e-3
def tensors(seed):
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=source) for _ in range(PARTS)]
def gradients(rank, out):  # of the step that comes: written anew, as a backward pass would
    for i, tensor in enumerate(out): tensor.copy_(BASE[i]).mul_(rank + 1.0)
BASE = tensors(7)
torch.set_num_threads(1)
"""
OURS = (
    COMMON
    + """
import orca
folder = sys.argv[1]
def worker():
    import types
    from orca.adapters.torch.shared_state import SharedState
    torch.set_num_threads(1)
    parameters = {str(i): nn.Parameter(t) for i, t in enumerate(tensors(1))}
    optimizer = torch.optim.Adam(parameters.values(), lr=RATE)
    state = SharedState(parameters, [optimizer])
    policy = types.SimpleNamespace(is_sum=False, limits=(None, None), goes_on=lambda total: True)
    mine, times, copies = [torch.empty(SIZE) for _ in range(PARTS)], [], []
    for step in range(-2, STEPS):
        gradients(orca.rank(), mine)
        for parameter, gradient in zip(state.parameters, mine): parameter.grad = gradient
        orca.barrier(); copied = time.perf_counter()
        state.exchange.collect(state._pointers())
        orca.barrier(); begin = time.perf_counter()
        total = state.exchange.meet(1.0, 0.0, 1, False, False)
        state._update(total, policy)
        state.exchange.leave()
        end = time.perf_counter()
        if step >= 0: times.append(end - begin); copies.append(begin - copied)
    assert state.is_fused
    if orca.rank() == 0: np.save(folder + "/ours.npy", torch.cat([p.detach() for p in state.parameters]).numpy())
    return statistics.median(times), statistics.median(copies)
orca.init_orca_context(cores=2)
found = orca.run(worker, workers=2)
print(json.dumps({"seconds": max(f[0] for f in found), "copy": max(f[1] for f in found)}))
orca.stop_orca_context()
"""
)
GLOO = (
    COMMON
    + """
import torch.distributed as dist
folder, fused = sys.argv[1], sys.argv[2] == "fused"
dist.init_process_group("gloo")
flat = torch.cat(tensors(1)); times = []
weight = nn.Parameter(flat); weight.grad = torch.empty_like(flat)
optimizer = torch.optim.Adam([weight], lr=RATE, fused=fused or None)
parts = list(weight.grad.split(SIZE))
for step in range(-2, STEPS):
    gradients(dist.get_rank(), parts)
    dist.barrier(); begin = time.perf_counter()
    dist.all_reduce(weight.grad); weight.grad /= 2
    optimizer.step()
    dist.barrier()
    if step >= 0: times.append(time.perf_counter() - begin)
if dist.get_rank() == 0:
    np.save(folder + "/" + sys.argv[2] + ".npy", weight.detach().numpy())
    print(json.dumps({"seconds": statistics.median(times)}))
dist.destroy_process_group()
"""
)
# 33 million parameters with two moments each.
CHECKPOINT = """
import json, os, shutil, statistics, sys, time
import numpy as np, torch
from torch import nn
import orca
from orca.data import ArrayStore
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from orca.learn.trigger import SeveralIteration
folder, EVERY, STEPS = sys.argv[1], 12, 60
def wide(config=None):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(512, 4000), nn.ReLU(), nn.Linear(4000, 4000), nn.ReLU(),
                         nn.Linear(4000, 3800), nn.ReLU(), nn.Linear(3800, 10))
class Watch(Callback):
    def before_train_epoch(self, runner): self.times = []
    def before_train_iter(self, runner): self.times.append(time.perf_counter())
    def after_train_epoch(self, runner):
        if orca.rank() == 0:
            with open(folder + "/times", "w") as file: json.dump(self.times, file)
random = np.random.default_rng(0)
x, y = random.normal(size=(32 * STEPS, 512)).astype(np.float32), random.integers(0, 10, 32 * STEPS)
orca.init_orca_context(cores=2)
store = ArrayStore(); store.put({"x": x, "y": y})
est = Estimator.from_torch(model=wide, optimizer=lambda m, c: torch.optim.Adam(m.parameters(), lr=1e-4),
    loss=nn.CrossEntropyLoss(), workers_per_node=2, model_dir=folder + "/models")
def fit(trigger):
    begin = time.perf_counter()
    est.fit(store, epochs=1, batch_size=32, callbacks=[Watch()], checkpoint_trigger=trigger)
    return time.perf_counter() - begin, np.diff(json.load(open(folder + "/times")))
fit(SeveralIteration(EVERY))
stalls, saves, grown = [], [], []
for _ in range(int(sys.argv[2])):
    plain, _ = fit(None)
    whole, steps = fit(SeveralIteration(EVERY))
    usual = float(np.median(steps))
    stalls += [float(steps[i]) - usual for i in range(EVERY - 1, len(steps), EVERY)]
    grown.append((whole - plain) / (STEPS // EVERY))
    state = est.get_state_dict()
    for i in range(2):
        begin = time.perf_counter()
        torch.save(state, folder + "/plain.pt")
        saves.append(time.perf_counter() - begin)
size = os.path.getsize(folder + "/plain.pt")
kept = est.get_state_dict()["models"][0]  # The last checkpoint is of the last step.
est.load_orca_checkpoint(folder)
found = est.get_state_dict()["models"][0]
assert size > 390e6 and all(torch.equal(kept[name], found[name]) for name in kept), size
print(json.dumps({"stall": statistics.median(stalls), "save": statistics.median(saves), "grown": statistics.median(grown),
                  "bytes": size, "usual": usual}))
orca.stop_orca_context()
"""


def bench_step(rounds: int) -> None:
    seconds: dict[str, list[float]] = {"ours": [], "fused": [], "default": []}
    copied = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            found = answer(OURS, [folder])
            seconds["ours"].append(found["seconds"])
            copied.append(found["seconds"] + found["copy"])
            for kind in ("fused", "default"):
                seconds[kind].append(answer(GLOO, [folder, kind], ranks=2)["seconds"])
        weights = {n: torch.from_numpy(np.load(Path(folder) / f"{n}.npy")) for n in seconds}
        for kind in ("fused", "default"):
            torch.testing.assert_close(weights["ours"], weights[kind], rtol=1e-6, atol=1e-6)
    for kind in ("fused", "default"):
        report(f"step-{kind}", seconds["ours"], seconds[kind])
    report("step-copied", copied, seconds["fused"])


def bench_checkpoint(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = answer(CHECKPOINT, [folder, str(rounds)])
    report("checkpoint-stall", [found["stall"]], [found["save"]])
    report("checkpoint-whole", [found["grown"]], [found["save"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"step": bench_step, "checkpoint": bench_checkpoint}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    parts[given.part](given.rounds)


if __name__ == "__main__":
    main()

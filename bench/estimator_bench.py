"""Estimators against torchrun with DDP over gloo, and against what the machine can do without any synchronisation.

    python bench/estimator_bench.py lenet | crowd | scale | single | infer | gpu | start | mlp | deterministic
    python bench/estimator_bench.py script [--ray PYTHON] [--spark PYTHON]

Every program trains the same net on the same rows with the same optimizer, and checks that it learned, or that it made the
steps that were timed. ``script`` times whole programs, from their start to their end, also under Ray Train and Spark's
TorchDistributor; the PYTHONs are those of environments with Ray or pyspark, and torch. Lines that begin with RESULT are read by
bench/run.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from runtime_bench import report, timed

ROWS = 16384

NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5); self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5); self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84); self.fc3 = nn.Linear(84, 10)
    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x))); x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
"""
COMMON = f"""
import json, os, statistics, sys, time
import numpy as np, torch, torch.nn.functional as F
from torch import nn
ROWS = {ROWS}
{NET}def data():
    random = np.random.default_rng(0)
    y = random.integers(0, 10, ROWS)
    x = random.normal(size=(ROWS, 1, 28, 28)).astype(np.float32)
    x[np.arange(ROWS), 0, y * 2, y * 2] += 8  # Something to learn.
    return x, y
def adam(model, config=None):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
"""
# In the place of LeNet: ResNet-18 for images of 32 x 32, with half its channels.
RESNET = """
ROWS = 4096
class Block(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.one = nn.Conv2d(ins, outs, 3, stride, 1, bias=False); self.norm1 = nn.BatchNorm2d(outs)
        self.two = nn.Conv2d(outs, outs, 3, 1, 1, bias=False); self.norm2 = nn.BatchNorm2d(outs)
        self.short = nn.Identity() if ins == outs else nn.Sequential(
            nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))
    def forward(self, x):
        return F.relu(self.norm2(self.two(F.relu(self.norm1(self.one(x))))) + self.short(x))
def Net():
    blocks, ins = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()], 32
    for outs in (32, 64, 128, 256):
        blocks += [Block(ins, outs, 1 if outs == 32 else 2), Block(outs, outs, 1)]; ins = outs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
def data():
    random = np.random.default_rng(0)
    y = random.integers(0, 10, ROWS)
    x = random.normal(size=(ROWS, 3, 32, 32)).astype(np.float32)
    x[np.arange(ROWS), 0, y * 3, y * 3] += 8  # Something to learn.
    return x, y
"""
OURS = (
    COMMON
    + """
import orca
from orca.learn.pytorch import Estimator
batch, epochs, workers = map(int, sys.argv[1:])
def model(config): torch.manual_seed(1); return Net()
orca.init_orca_context(cores=min(workers, len(os.sched_getaffinity(0))))
est = Estimator.from_torch(
    model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=workers)
from orca.data import ArrayStore
x, y = data()
store = ArrayStore(); store.put({"x": x, "y": y})
est.fit(store, epochs=1, batch_size=workers * batch)
begin = time.perf_counter()
stats = est.fit(store, epochs=epochs, batch_size=workers * batch)
seconds = time.perf_counter() - begin
print(json.dumps({"rate": ROWS * epochs / seconds, "loss": stats[-1]["train_loss"]}))
orca.stop_orca_context()
"""
)
DDP = (
    COMMON
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
batch, epochs = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(Net()); optimizer = adam(model)
x, y = data()
dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
sampler = DistributedSampler(dataset); loader = DataLoader(dataset, batch_size=batch, sampler=sampler)
def epoch(number):
    sampler.set_epoch(number); total = 0.0
    for xs, ys in loader:
        optimizer.zero_grad(); loss = F.cross_entropy(model(xs), ys); loss.backward(); optimizer.step()
        total += loss.item()
    return total / len(loader)
epoch(0); dist.barrier(); begin = time.perf_counter()
for number in range(epochs): loss = epoch(number + 1)
dist.barrier(); seconds = time.perf_counter() - begin
if dist.get_rank() == 0: print(json.dumps({"rate": ROWS * epochs / seconds, "loss": loss}))
dist.destroy_process_group()
"""
)
# Processes, each with its part of the rows in memory, and nothing between them, or only a barrier after each step.
ALONE = (
    COMMON
    + """
import torch.distributed as dist
batch, epochs = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = Net(); optimizer = adam(model)
x, y = data(); rank, world = dist.get_rank(), dist.get_world_size()
x, y = torch.from_numpy(x[rank::world].copy()), torch.from_numpy(y[rank::world].copy())
def epoch():
    total, count = 0.0, 0
    order = torch.randperm(len(x))
    for begin in range(0, len(x), batch):
        rows = order[begin : begin + batch]
        optimizer.zero_grad(); loss = F.cross_entropy(model(x.index_select(0, rows)), y.index_select(0, rows))
        loss.backward(); optimizer.step(); total += loss.item(); count += 1
        if len(sys.argv) > 3: dist.barrier()
    return total / count
epoch(); dist.barrier(); begin = time.perf_counter()
for _ in range(epochs): loss = epoch()
dist.barrier(); seconds = time.perf_counter() - begin
if rank == 0: print(json.dumps({"rate": ROWS * epochs / seconds, "loss": loss}))
dist.destroy_process_group()
"""
)
SINGLE = (
    COMMON
    + """
import orca
from orca.data import ArrayStore
from orca.learn.pytorch import Estimator
rounds = int(sys.argv[1])
x, y = data()
def model(config=None): torch.manual_seed(1); return Net()
orca.init_orca_context(cores=1)
est = Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss())
store = ArrayStore(); store.put({"x": x, "y": y})
def ours():
    return est.fit(store, epochs=1, batch_size=32)[0]["train_loss"]
torch.set_num_threads(1)
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
plain = model(); optimizer = adam(plain)
tx, ty = torch.from_numpy(x), torch.from_numpy(y)
def theirs():
    order, total, count = torch.randperm(ROWS), 0.0, 0
    for begin in range(0, ROWS, 32):
        rows = order[begin : begin + 32]
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(tx.index_select(0, rows)), ty.index_select(0, rows))
        loss.backward(); optimizer.step(); total += loss.item(); count += 1
    return total / count
ours(); theirs()
pairs = []
for _ in range(rounds):
    begin = time.perf_counter(); a = ours(); middle = time.perf_counter(); b = theirs()
    pairs.append((middle - begin, time.perf_counter() - middle))
assert a < 0.5 and b < 0.5, (a, b)
ratios = [t / o for o, t in pairs]
mean = statistics.mean(ratios)
bound = mean - 1.729 * statistics.stdev(ratios) / len(ratios) ** 0.5
print(json.dumps({"ratio": mean, "bound": bound, "ours": statistics.median(o for o, _ in pairs), "theirs": statistics.median(t for _, t in pairs)}))
orca.stop_orca_context()
"""
)

INFER = (
    COMMON
    + """
import orca
from orca.data import ArrayStore
from orca.learn.metrics import Accuracy
from orca.learn.pytorch import Estimator
rounds = int(sys.argv[1])
x, y = data()
def model(config=None): torch.manual_seed(1); return Net()
orca.init_orca_context(cores=2)
est = Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), metrics=[Accuracy()], workers_per_node=2)
store, inputs = ArrayStore(), ArrayStore()
store.put({"x": x, "y": y}); inputs.put({"x": x})
plain = model().eval(); tx, ty = torch.from_numpy(x), torch.from_numpy(y)
def score():
    loss, right = 0.0, 0
    with torch.no_grad():
        for begin in range(0, ROWS, 64):
            out = plain(tx[begin : begin + 64]); target = ty[begin : begin + 64]
            loss += F.cross_entropy(out, target, reduction="sum").item(); right += int((out.argmax(1) == target).sum())
    return loss / ROWS, right / ROWS
def outputs():
    with torch.no_grad():
        return torch.cat([plain(tx[begin : begin + 64]) for begin in range(0, ROWS, 64)]).numpy()
def timed(function):
    begin = time.perf_counter(); found = function(); return time.perf_counter() - begin, found
times = {name: [] for name in ("evaluate", "predict", "evaluate-1", "predict-1", "evaluate-2", "predict-2")}
for _ in range(rounds + 1):
    seconds, found = timed(lambda: est.evaluate(store, batch_size=128)); times["evaluate"].append(seconds)
    seconds, made = timed(lambda: est.predict(inputs, batch_size=64)); times["predict"].append(seconds)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        seconds, expected = timed(score); times[f"evaluate-{threads}"].append(seconds)
        seconds, wanted = timed(outputs); times[f"predict-{threads}"].append(seconds)
    assert abs(found["val_loss"] - expected[0]) < 1e-5 and abs(float(found["Accuracy"]) - expected[1]) < 1e-9
    assert np.allclose(made, wanted, atol=1e-5)
print(json.dumps({name: statistics.median(t[1:]) for name, t in times.items()}))
orca.stop_orca_context()
"""
)
# Two processes, each with its half of the rows in memory, and nothing between them.
INFER_ALONE = (
    COMMON
    + """
import torch.distributed as dist
rounds = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
x, y = data(); rank = dist.get_rank(); half = ROWS // 2
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
mine = slice(rank * half, (rank + 1) * half)
tx, ty = torch.from_numpy(x[mine].copy()), torch.from_numpy(y[mine].copy())
torch.manual_seed(1); plain = Net().eval()
def score():
    loss, right = 0.0, 0
    with torch.no_grad():
        for begin in range(0, half, 64):
            out = plain(tx[begin : begin + 64]); target = ty[begin : begin + 64]
            loss += F.cross_entropy(out, target, reduction="sum").item(); right += int((out.argmax(1) == target).sum())
    return loss
def outputs():
    with torch.no_grad():
        return torch.cat([plain(tx[begin : begin + 64]) for begin in range(0, half, 64)]).numpy()
found = {}
for name, function in (("evaluate", score), ("predict", outputs)):
    times = []
    for _ in range(rounds + 1):
        dist.barrier(); begin = time.perf_counter(); function(); dist.barrier(); times.append(time.perf_counter() - begin)
    found[name] = statistics.median(times[1:])
if rank == 0: print(json.dumps(found))
dist.destroy_process_group()
"""
)
START = (
    COMMON
    + """
import orca
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
x, y = data(); x, y = x[:256], y[:256]
class FirstStep(Callback):
    def after_train_iter(self, runner):
        if runner.global_step == 1 and runner.rank == 0: print("FIRST", time.time(), flush=True)
def model(config=None): torch.manual_seed(1); return Net()
orca.init_orca_context(cores=2)
orca.run(lambda: torch.ones(1), workers=2)
est = Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=2)
print("BEGIN", time.time(), flush=True)
stats = est.fit((x, y), batch_size=64, callbacks=[FirstStep()])
assert stats[0]["batch_count"] == 4 and stats[0]["num_samples"] == 256, stats
times = []
for _ in range(10):
    begin = time.perf_counter(); stats = est.fit((x, y), batch_size=256, max_steps=1); times.append(time.perf_counter() - begin)
assert stats[0]["num_samples"] == 256 and est.get_state_dict()["global_step"] == 14, stats
print("SECOND", statistics.median(times), flush=True)
orca.stop_orca_context()
"""
)

# One GPU. The plain loops gather into pinned memory and copy one batch ahead, as the Estimator does; one never looks at its
# loss before the end of an epoch, one at every step, as the Estimator must to stop at a loss that is not finite.
GPU = (
    COMMON
    + """
import orca
from orca.data import ArrayStore
from orca.learn.pytorch import Estimator
rounds, batch, epochs, ROWS = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 61440
x, y = data()
def model(config=None): torch.manual_seed(1); return Net()
orca.init_orca_context()
est = Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), device="cuda:0")
store = ArrayStore(); store.put({"x": x, "y": y})
def ours(): return est.fit(store, epochs=epochs, batch_size=batch)[-1]["train_loss"]
plain = model().cuda(); optimizer = adam(plain)
tx, ty = torch.from_numpy(x), torch.from_numpy(y)
side = torch.cuda.Stream()
room = [(torch.empty(batch, 1, 28, 28).pin_memory(), torch.empty(batch, dtype=torch.int64).pin_memory(), torch.cuda.Event()) for _ in range(2)]
def batches():
    order, ahead = torch.randperm(ROWS), None
    for number in range(ROWS // batch):
        px, py, done = room[number % 2]; done.synchronize()
        rows = order[number * batch : (number + 1) * batch]
        torch.index_select(tx, 0, rows, out=px); torch.index_select(ty, 0, rows, out=py)
        with torch.cuda.stream(side):
            sent = px.to("cuda", non_blocking=True), py.to("cuda", non_blocking=True)
            done.record(side)
        event = torch.cuda.Event(); event.record(side)
        if ahead is not None: yield ahead
        ahead = (*sent, event)
    yield ahead
def theirs(looks):
    for _ in range(epochs):
        total = 0.0 if looks else torch.zeros((), device="cuda")
        for xs, ys, event in batches():
            current = torch.cuda.current_stream(); current.wait_event(event)
            xs.record_stream(current); ys.record_stream(current)
            optimizer.zero_grad()
            loss = F.cross_entropy(plain(xs), ys); loss.backward(); optimizer.step()
            total += loss.item() if looks else loss.detach()
        total = float(total) * batch / ROWS
    return total
programs = {"ours": ours, "plain": lambda: theirs(False), "plain-looks": lambda: theirs(True)}
times = {name: [] for name in programs}
for number in range(rounds + 1):
    for name, program in programs.items():
        begin = time.perf_counter(); loss = program(); seconds = time.perf_counter() - begin
        if number: times[name].append(seconds); assert loss < 0.5, (name, loss)
print(json.dumps({name: ROWS * epochs / statistics.median(found) for name, found in times.items()}))
orca.stop_orca_context()
"""
)

# 25 million parameters, Adam: the weights and two moments are three times 100 MB.
WIDE = """
import json, os, statistics, sys, time
import numpy as np, torch, torch.nn.functional as F
from torch import nn
ROWS, STEPS, BATCH = 2048, 12, 64
def wide(config=None):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(512, 3400), nn.ReLU(), nn.Linear(3400, 3400), nn.ReLU(),
                         nn.Linear(3400, 3400), nn.ReLU(), nn.Linear(3400, 10))
def adam(model, config=None): return torch.optim.Adam(model.parameters(), lr=1e-4)
def data():
    random = np.random.default_rng(0)
    y = random.integers(0, 10, ROWS); x = random.normal(size=(ROWS, 512)).astype(np.float32)
    x[np.arange(ROWS), y] += 6
    return x, y
def pss(pids):
    total = 0
    for pid in pids:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith("Pss:"): total += int(line.split()[1])
    return total / 1024
"""
WIDE_OURS = (
    WIDE
    + """
import orca
from orca.data import ArrayStore
from orca.learn.pytorch import Estimator
orca.init_orca_context(cores=2)
x, y = data(); store = ArrayStore(); store.put({"x": x, "y": y})
est = Estimator.from_torch(model=wide, optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=2)
before = pss(orca.run(os.getpid, workers=2))
est.fit(store, max_steps=2, batch_size=BATCH)
begin = time.perf_counter()
stats = est.fit(store, epochs=1, max_steps=STEPS, batch_size=BATCH)
seconds = (time.perf_counter() - begin) / STEPS
grown = pss(orca.run(os.getpid, workers=2)) - before
parameters = sum(p.numel() for p in est.get_model().parameters())
print(json.dumps({"seconds": seconds, "loss": stats[-1]["train_loss"], "mb": grown, "parameters": parameters}))
orca.stop_orca_context()
"""
)
# The same fit with and without blocks, in turns.
DETERMINISTIC = """
import orca
from orca.data import ArrayStore
from orca.learn.pytorch import Estimator
orca.init_orca_context(cores=2)
x, y = data(); store = ArrayStore(); store.put({"x": x, "y": y})
def fresh(workers):
    return Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=workers)
def weights(est):
    return [p.numpy().tobytes() for p in est.get_state_dict()["models"][0].values()]
def timed(est, **options):
    begin = time.perf_counter()
    loss = est.fit(store, batch_size=batch, seed=1, **options)[-1]["train_loss"]
    return time.perf_counter() - begin, loss
plain, fixed, alone = fresh(2), fresh(2), fresh(1)
few = {"epochs": 1, "max_steps": 3, "deterministic": True}
timed(alone, **few); timed(fixed, **few); timed(plain, epochs=1, max_steps=3)
assert weights(alone) == weights(fixed)  # What is paid for.
pairs = []
for _ in range(rounds):
    (a, first), (b, second) = timed(plain, epochs=1), timed(fixed, epochs=1, deterministic=True)
    pairs.append((a, b))
assert first < limit and second < limit, (first, second)
print(json.dumps({"plain": [a for a, _ in pairs], "fixed": [b for _, b in pairs]}))
orca.stop_orca_context()
"""
DETERMINISTIC_LENET = (
    COMMON
    + """
def model(config=None): torch.manual_seed(1); return Net()
rounds, batch, limit = int(sys.argv[1]), int(sys.argv[2]), 2.2
"""
    + DETERMINISTIC
)
DETERMINISTIC_WIDE = (
    WIDE
    + """
model = wide
rounds, batch, limit = int(sys.argv[1]), int(sys.argv[2]), 2.3
"""
    + DETERMINISTIC
)
WIDE_DDP = (
    WIDE
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1); dist.init_process_group("gloo")
model = DistributedDataParallel(wide()); optimizer = adam(model)
x, y = map(torch.from_numpy, data())
def run(steps, first):
    total = 0.0
    for step in range(first, first + steps):
        rows = slice((step * 2 + dist.get_rank()) * BATCH // 2, (step * 2 + dist.get_rank() + 1) * BATCH // 2)
        optimizer.zero_grad(); loss = F.cross_entropy(model(x[rows]), y[rows]); loss.backward(); optimizer.step()
        total += loss.item()
    return total / steps
run(2, 0); dist.barrier(); begin = time.perf_counter(); loss = run(STEPS, 2); dist.barrier()
seconds = (time.perf_counter() - begin) / STEPS
if dist.get_rank() == 0: print(json.dumps({"seconds": seconds, "loss": loss}))
dist.destroy_process_group()
"""
)


SCRIPT = (
    """
import os, sys, time
import numpy as np, torch, torch.nn.functional as F
from torch import nn
FOLDER = sys.argv[1]
"""
    + NET
    + """
def adam(model, config=None):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
def data():
    return np.load(f"{FOLDER}/x.npy").astype(np.float32) / 255, np.load(f"{FOLDER}/y.npy")
def done(loss):
    with open(f"{FOLDER}/loss", "w") as file: file.write(str(loss))
def train(model):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
    torch.set_num_threads(1)
    model = DistributedDataParallel(model); optimizer = adam(model)
    x, y = data()
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    sampler = DistributedSampler(dataset); loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch); total = 0.0
        for xs, ys in loader:
            optimizer.zero_grad(); loss = F.cross_entropy(model(xs), ys); loss.backward(); optimizer.step()
            total += loss.item()
    if dist.get_rank() == 0: done(total / len(loader))
"""
)
SCRIPT_ORCA = """
import orca
from orca.learn.pytorch import Estimator
orca.init_orca_context(cores=2)
est = Estimator.from_torch(model=lambda config: Net(), optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=2)
done(est.fit(data(), epochs=2, batch_size=64)[-1]["train_loss"])
orca.stop_orca_context()
"""
SCRIPT_TORCHRUN = """
import torch.distributed as dist
dist.init_process_group("gloo")
train(Net())
dist.destroy_process_group()
"""
SCRIPT_RAY = """
os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
import ray, tempfile
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=2)
def function(): train(Net())
with tempfile.TemporaryDirectory() as storage:
    TorchTrainer(function, torch_config=TorchConfig(backend="gloo"), scaling_config=ScalingConfig(num_workers=2),
                 run_config=RunConfig(storage_path=storage)).fit()
ray.shutdown()
"""
SCRIPT_SPARK = """
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
def function():
    import torch.distributed as dist
    dist.init_process_group("gloo")
    train(Net())
    dist.destroy_process_group()
TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(function)
spark.stop()
"""
# What cannot be had for less: a driver that imports torch and reads the data, then two processes that import torch and train
# a half each on batches in memory, with nothing between them.
SCRIPT_LIMIT = """
import subprocess
if len(sys.argv) == 2:
    x, y = data()
    for rank in range(2):
        np.save(f"{FOLDER}/x{rank}.npy", x[rank::2]); np.save(f"{FOLDER}/y{rank}.npy", y[rank::2])
    halves = [subprocess.Popen([sys.executable, __file__, FOLDER, str(rank)]) for rank in range(2)]
    assert [half.wait() for half in halves] == [0, 0]
else:
    torch.set_num_threads(1)
    x, y = (torch.from_numpy(np.load(f"{FOLDER}/{name}{sys.argv[2]}.npy")) for name in "xy")
    model = Net(); optimizer = adam(model)
    for epoch in range(2):
        order = torch.randperm(len(x)); total = 0.0
        for rows in order.split(32):
            optimizer.zero_grad(); loss = F.cross_entropy(model(x.index_select(0, rows)), y.index_select(0, rows))
            loss.backward(); optimizer.step(); total += loss.item()
    if sys.argv[2] == "0": done(total * 32 / len(x))
"""


def answer(program: str, arguments: list[str], ranks: int = 0) -> dict[str, float]:
    found: dict[str, float] = json.loads(lines(program, arguments, ranks)[-1])
    return found


def lines(program: str, arguments: list[str] | None = None, ranks: int = 0) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(textwrap.dedent(program))
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *(launch if ranks else []), str(path), *(arguments or [])]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} if ranks else os.environ
        for attempt in range(3):
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                timeout=600,
                env=environment,
                check=False,
            )
            if done.returncode == 0:
                break
            # gloo's threads sometimes abort a peer while it ends.
            print(f"{command[1:]} ended with {done.returncode}", file=sys.stderr)
            if attempt == 2 or not ranks:
                sys.exit("it failed too often")
    return done.stdout.strip().splitlines()


def bench_lenet(rounds: int) -> None:
    for batch, epochs in ((4, 1), (32, 2), (256, 3)):
        compare(rounds, "lenet", batch, epochs, workers=2, loss=0.7)


def bench_crowd(rounds: int) -> None:
    """Twice as many workers as cores."""
    workers = 2 * len(os.sched_getaffinity(0))
    compare(rounds, "crowd", 32, 3, workers=workers, loss=0.9)


def bench_scale(rounds: int) -> None:
    """A worker on each core, however many there are."""
    workers = len(os.sched_getaffinity(0))
    compare(rounds, "scale-lenet", 32, 40, workers=workers, loss=0.7)
    compare(rounds, "scale-resnet", 32, 6, workers=workers, loss=2.5, net=RESNET)


def compare(
    rounds: int, name: str, batch: int, epochs: int, *, workers: int, loss: float, net: str = ""
) -> None:
    """The time an image takes against DDP over gloo and against processes that exchange nothing."""
    sides = {"ours": (OURS, 0), "gloo": (DDP, workers), "limit": (ALONE, workers)}
    if name.startswith("scale"):
        sides["meet"] = (ALONE, workers)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (program, ranks) in sides.items():
            arguments = [str(batch), str(epochs)]
            arguments += [str(workers)] if side in ("ours", "meet") else []
            found = answer(program.replace(COMMON, COMMON + net), arguments, ranks)
            assert found["loss"] < loss, (side, found)
            seconds[side].append(1 / found["rate"])
    for side in list(sides)[1:]:
        report(f"{name}-{side}/{batch}", seconds["ours"], seconds[side])


def bench_single(rounds: int) -> None:
    found = answer(SINGLE, [str(max(rounds, 20))])
    report("single", [found["ours"]], [found["theirs"]])
    report("single-bound", [found["ours"]], [found["ours"] * found["bound"]])


def bench_infer(rounds: int) -> None:
    found = answer(INFER, [str(max(rounds, 5))])
    alone = answer(INFER_ALONE, [str(max(rounds, 5))], 2)
    for name in ("evaluate", "predict"):
        report(f"{name}/limit", [found[name]], [alone[name]])
        for threads in (1, 2):
            report(f"{name}/{threads}", [found[name]], [found[f"{name}-{threads}"]])


def bench_gpu(rounds: int) -> None:
    for batch, epochs in ((256, 4), (2048, 20)):
        found = answer(GPU, [str(max(rounds, 5)), str(batch), str(epochs)])
        ours, plain, looks = found["ours"], found["plain"], found["plain-looks"]
        print(
            f"RESULT gpu-lenet-{batch} images_s={ours:.0f} plain={ours / plain:.2f}x "
            f"plain_that_looks_at_its_loss={ours / looks:.2f}x"
        )


def bench_start(rounds: int) -> None:
    firsts, seconds = [], []
    for _ in range(rounds):
        words = dict(
            line.removeprefix("[rank 0] ").split()
            for line in lines(START)
            if len(line.split()) in (2, 4)
        )
        firsts.append(float(words["FIRST"]) - float(words["BEGIN"]))
        seconds.append(float(words["SECOND"]))
    report("first-step", firsts, [0.3] * rounds)
    report("second-fit", seconds, [0.05] * rounds)


def bench_mlp(rounds: int) -> None:
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(answer(WIDE_OURS, []))
        theirs.append(answer(WIDE_DDP, [], 2))
    assert all(found["loss"] < 2.3 for found in (*ours, *theirs))
    report("mlp-step", [o["seconds"] for o in ours], [t["seconds"] for t in theirs])
    grown = statistics.median(o["mb"] for o in ours)
    # Once the weights and two moments; a gradient of every worker's own, and where it is joined.
    once = statistics.median(o["parameters"] for o in ours) * 4 / 2**20 * (3 + 2 * 2)
    print(f"RESULT mlp-memory ours_mb={grown:.0f} peer_mb={once:.0f} ratio={once / grown:.3f}")


def bench_deterministic(rounds: int) -> None:
    for name, program, batch in (
        ("lenet", DETERMINISTIC_LENET, 64),
        ("lenet", DETERMINISTIC_LENET, 512),
        ("mlp", DETERMINISTIC_WIDE, 128),
    ):
        found = json.loads(lines(program, [str(rounds), str(batch)])[-1])
        report(f"deterministic-{name}/{batch}", found["fixed"], found["plain"])


def bench_script(rounds: int, ray: str, spark: str) -> None:
    """Whole programs that read the files, train two epochs at batch 32 a worker, and print the loss."""
    programs = {"orca": SCRIPT_ORCA, "torchrun": SCRIPT_TORCHRUN, "limit": SCRIPT_LIMIT}
    programs |= {"ray": SCRIPT_RAY} if ray else {}
    programs |= {"spark": SCRIPT_SPARK} if spark else {}
    interpreters = {"ray": ray, "spark": spark}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        commands = {}
        for each, program in programs.items():
            path = folder / f"{each}_program.py"
            path.write_text(SCRIPT + program)
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            command = [interpreters.get(each, sys.executable)]
            command += launch if each == "torchrun" else []
            commands[each] = [*command, str(path), str(folder)]
        times: dict[str, list[float]] = {each: [] for each in commands}
        for turn in range(-1, rounds):
            for each, command in commands.items():
                seconds = timed_again(command) if each == "torchrun" else timed(command)
                loss = float((folder / "loss").read_text())
                (folder / "loss").unlink()
                assert loss < 0.6, (each, loss)
                if turn >= 0:
                    times[each].append(seconds)
        for each in list(commands)[1:]:
            report(f"script-{each}", times["orca"], times[each])


def timed_again(command: list[str]) -> float:
    """As ``timed``; gloo's threads sometimes abort a peer while it ends, which is not what is measured."""
    for _ in range(3):
        try:
            return timed(command)
        except subprocess.CalledProcessError as error:
            print(f"a peer ended with {error.returncode}", file=sys.stderr)
    sys.exit("it failed too often")


def write_images(folder: Path) -> None:
    """60,000 pictures of ten kinds, as large as Fashion-MNIST's, that a LeNet can tell apart."""
    import numpy as np

    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 60000)
    images = random.integers(0, 90, size=(60000, 1, 28, 28), dtype=np.uint8)
    images[np.arange(60000), 0, labels * 2 + 2, 8:20] += 120
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {
        "lenet": bench_lenet,
        "crowd": bench_crowd,
        "scale": bench_scale,
        "single": bench_single,
        "infer": bench_infer,
        "gpu": bench_gpu,
        "start": bench_start,
        "mlp": bench_mlp,
        "deterministic": bench_deterministic,
    }
    parser.add_argument("part", nargs="?", default="lenet", choices=[*parts, "script"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", default="")
    parser.add_argument("--spark", default="")
    given = parser.parse_args()
    if given.part == "script":
        bench_script(given.rounds, given.ray, given.spark)
    else:
        parts[given.part](given.rounds)


if __name__ == "__main__":
    main()

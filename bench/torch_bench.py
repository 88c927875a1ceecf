"""torch.distributed over Orca against its peers, in the same processes, in turns.

    torchrun --nproc-per-node 2 bench/torch_bench.py allreduce|dispatch|ddp [--pin] [--sizes ...]

Every rank rewrites its whole buffer before each timed call, a call's time is that of the slowest rank, both sides are
warmed up alike and take turns, and every answer is checked. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu

import orca.distributed as orca_dist

KIB, MIB = 1 << 10, 1 << 20


def report(name: str, ours: list[float], peer: list[float]) -> None:
    """Print one comparison: medians in microseconds, and the median of the ratios of the rounds."""
    if dist.get_rank() != 0:
        return
    ratio = statistics.median(p / o for o, p in zip(ours, peer, strict=True))
    print(
        f"RESULT {name} ours_us={statistics.median(ours) * 1e6:.2f} "
        f"peer_us={statistics.median(peer) * 1e6:.2f} ratio={ratio:.3f}",
        flush=True,
    )


class Turns:
    """Times two sides in turns; the slowest rank counts."""

    def __init__(self, control: dist.ProcessGroup) -> None:
        self.control = control

    def time(self, prepare: Callable[[], None], call: Callable[[], None]) -> float:
        prepare()
        dist.barrier(self.control)
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def slowest(self, times: list[float]) -> list[float]:
        tensor = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, self.control)
        return tensor.tolist()


def rounds_for(size: int) -> int:
    return 11 if size >= 64 * MIB else 31 if size >= 16 * MIB else 101 if size >= MIB else 201


def compare_allreduce(turns: Turns, name: str, size: int, ours, peer, *, registered: bool) -> None:
    """All-reduce ``size`` bytes over the groups ``ours`` and ``peer``."""
    rank, world, count = dist.get_rank(), dist.get_world_size(), size // 4
    mine = orca_dist.empty(count) if registered else torch.empty(count)
    theirs = torch.empty(count)
    ramp = torch.arange(count, dtype=torch.float32) % 16
    times: dict[str, list[float]] = {"ours": [], "peer": [], "limit": []}
    for turn in range(-3, rounds_for(size)):
        base = float(sum(r + 1 + turn % 7 for r in range(world)))
        sides = [("ours", mine, ours), ("peer", theirs, peer)]
        for label, tensor, group in sides if turn % 2 else reversed(sides):
            seconds = turns.time(
                lambda tensor=tensor, turn=turn: torch.add(ramp, rank + 1 + turn % 7, out=tensor),
                lambda tensor=tensor, group=group: dist.all_reduce(tensor, group=group),
            )
            if not torch.equal(tensor, ramp * world + base):
                raise AssertionError(f"{label} returned a wrong sum for {size} bytes")
            if turn >= 0:
                times[label].append(seconds)
        # The same bytes of the same pages, without an exchange: every rank loads and stores its own.
        if registered and turn >= 0 and size >= 64 * MIB:
            times["limit"].append(
                turns.time(lambda turn=turn: mine.fill_(turn), lambda: mine.add_(1.0))
            )
    slowest = {label: turns.slowest(values) for label, values in times.items() if values}
    report(f"{name}/{size}", slowest["ours"], slowest["peer"])
    if "limit" in slowest:
        report(f"{name}-limit/{size}", slowest["ours"], slowest["limit"])


def bench_allreduce(turns: Turns, sizes: list[int]) -> None:
    gloo = dist.group.WORLD
    orca = dist.new_group(backend="orca")
    tcp = dist.new_group(backend="orca", pg_options=orca_dist.Options(transport="tcp"))
    for size in sizes or [KIB, 64 * KIB, MIB, 256 * MIB]:
        compare_allreduce(turns, "registered", size, orca, gloo, registered=True)
    for size in sizes or [MIB, 16 * MIB, 64 * MIB]:
        compare_allreduce(turns, "plain", size, orca, gloo, registered=False)
    for size in sizes or [KIB, 64 * MIB]:
        compare_allreduce(turns, "tcp", size, tcp, gloo, registered=False)


def bench_dispatch(turns: Turns) -> None:
    """A call of 1 KiB and a barrier against what torch itself needs to dispatch a call that does nothing."""
    import torch.testing._internal.distributed.fake_pg

    orca = dist.new_group(backend="orca")
    fake = dist.new_group(backend="fake")
    tensor, fake_tensor = orca_dist.empty(256), torch.empty(256)
    calls = {
        "dispatch-allreduce": (
            lambda: dist.all_reduce(tensor, group=orca),
            lambda: dist.all_reduce(fake_tensor, group=fake),
        ),
        "dispatch-barrier": (lambda: dist.barrier(orca), lambda: dist.barrier(fake)),
    }
    batch = 200
    for name, (ours, peer) in calls.items():
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        for turn in range(-3, 31):
            for label, call in (("ours", ours), ("peer", peer)):

                def run(call: Callable[[], None] = call) -> None:
                    for _ in range(batch):
                        call()

                seconds = turns.time(lambda: tensor.fill_(0.0), run) / batch
                if turn >= 0:
                    times[label].append(seconds)
        tensor.fill_(1.0)
        ours()
        if name.endswith("allreduce") and tensor[0].item() != dist.get_world_size():
            raise AssertionError("orca returned a wrong sum")
        report(name, turns.slowest(times["ours"]), turns.slowest(times["peer"]))


class LeNet(nn.Module):
    """The network of the Fashion-MNIST tutorial: 44,426 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(relu(self.conv1(x)))
        x = self.pool(relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        return self.fc3(relu(self.fc2(relu(self.fc1(x)))))


def keep_gradients(_, bucket):  # Annotations would be strings, which DDP refuses.
    """What remains of DDP when nothing is sent."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def bench_ddp_batch(turns: Turns, groups: dict[str, dist.ProcessGroup | None], batch: int) -> None:
    torch.manual_seed(1)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    models: dict[str, nn.Module] = {}
    for name, group in groups.items():
        torch.manual_seed(7)
        model = LeNet()
        models[name] = (
            model
            if group is None
            else nn.parallel.DistributedDataParallel(model, process_group=group)
        )
    models["mute"].register_comm_hook(None, keep_gradients)
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        for name, model in models.items()
    }
    steps = 60 if batch <= 16 else 20 if batch <= 64 else 8

    def train(name: str) -> None:
        model, optimizer = models[name], optimizers[name]
        for _ in range(steps):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()

    for name in models:
        train(name)
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(15):
        names = list(models)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(turns.time(lambda: None, lambda name=name: train(name)) / steps)
    times = {name: turns.slowest(values) for name, values in times.items()}
    # The data is the same on all ranks, so with and without synchronisation the model is the same.
    expected = [parameter.detach() for parameter in models["alone"].parameters()]
    for name in ("orca", "gloo"):
        for parameter, reference in zip(models[name].parameters(), expected, strict=True):
            if not torch.allclose(parameter, reference, rtol=1e-3, atol=1e-4):
                raise AssertionError(f"training over {name} gave another model")
    world = dist.get_world_size()
    report(f"ddp{world}-alone/{batch}", times["orca"], times["alone"])
    report(f"ddp{world}-gloo/{batch}", times["orca"], times["gloo"])
    report(f"ddp{world}-limit/{batch}", times["orca"], times["mute"])


def bench_ddp(turns: Turns, batches: list[int]) -> None:
    """Training steps with DDP over orca, over gloo and with a hook that sends nothing, and of the bare model."""
    groups = {
        "alone": None,
        "orca": dist.new_group(backend="orca"),
        "gloo": dist.group.WORLD,
        "mute": dist.group.WORLD,
    }
    for batch in batches or [4, 64, 256]:
        bench_ddp_batch(turns, groups, batch)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["allreduce", "dispatch", "ddp"])
    parser.add_argument("--pin", action="store_true", help="one core a rank")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[], help="bytes, or batch sizes for ddp"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    local_rank = int(os.environ["LOCAL_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    if arguments.pin:
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
    dist.init_process_group("gloo")
    turns = Turns(dist.new_group(backend="orca"))
    if arguments.what == "allreduce":
        bench_allreduce(turns, arguments.sizes)
    elif arguments.what == "dispatch":
        bench_dispatch(turns)
    else:
        bench_ddp(turns, arguments.sizes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

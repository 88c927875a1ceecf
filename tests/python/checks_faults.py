"""The faults of a training, a function each: it raises when what must follow does not.

    python tests/python/checks_faults.py F05

runs one in a program of its own, at the usual time limits unless ORCA_SILENCE says others, and prints what it measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import orca
from mutants import Mutated
from orca.errors import WorkerFailedError
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from orca.learn.trigger import SeveralIteration
from processes import (
    descendants,
    is_alive,
    memory_cgroup,
    nursery_of,
    proportional_memory,
    spare_of,
    wait_until,
)

ROWS, BATCH, EPOCHS = 120, 10, 2
STEPS = EPOCHS * ROWS // BATCH
NOTICED = 42  # How a program ends that saw something wrong;
NOT_HERE = 77  # and one that cannot do this on this machine.


def silence() -> float:
    """Seconds without a sign of life after which a worker is given up."""
    return float(os.environ.get("ORCA_SILENCE", "5"))


# --- what is trained


class Net(nn.Module):
    """Counts its rows (O1), beside what a step can depend on: weights, buffers, random numbers (O2)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.counts = nn.Parameter(torch.zeros(ROWS))
        self.first, self.norm = nn.Linear(5, 12), nn.BatchNorm1d(12)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(12, 1)

    def forward(self, row: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(hidden)[:, 0], self.counts[row]


class Loss(nn.Module):
    """A step adds 1 to the counts of its rows."""

    reduction = "sum"

    def forward(
        self, prediction: torch.Tensor, counts: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        return 0.01 * ((prediction - y) ** 2).sum() - counts.sum()


def rows() -> dict[str, Any]:
    x = np.random.default_rng(3).normal(size=(ROWS, 5)).astype(np.float32)
    return {"x": [np.arange(ROWS), x], "y": x.sum(1)}


_RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001, centered=True),
}


def optimizers(name: str) -> Callable[[Net, Any], list[torch.optim.Optimizer]]:
    """The engine makes the steps of "sgd" and "adam", torch those of "rmsprop"."""

    def create(model: Net, _config: Any) -> list[torch.optim.Optimizer]:
        others = [p for name, p in model.named_parameters() if name != "counts"]
        return [torch.optim.SGD([model.counts], lr=1.0), _RULES[name](others)]

    return create


# --- what happens meanwhile


@dataclass(frozen=True)
class Event:
    """What happens to a worker, once.

    Attributes:
        step: From 0; -1: when it begins after a death, before any step.
        rank: Whose.
        how: A signal, "exit", a method of ``Fate``, or a process that is killed with it.
        when: Seconds after the step began; "before" and "after" it.
    """

    step: int
    rank: int
    how: str | int = "SIGKILL"
    when: float | str = "before"


@dataclass
class Fate(Callback):
    """Lets events happen on the workers, and writes down which steps they make."""

    folder: Path
    events: Sequence[Event]
    _timers: list[tuple[int, threading.Timer]] = field(default_factory=list)

    def before_run(self, runner: Any) -> None:
        for event in self.events:
            if event.step < 0 and event.rank == orca.rank() and runner.is_resumed:
                self._happen(event)

    def after_run(self, runner: Any) -> None:
        for _, timer in self._timers:
            timer.cancel()

    def before_train_iter(self, runner: Any) -> None:
        step = runner.global_step
        self._write("begin", step)
        # What comes too late would meet another event.
        for _, timer in (timer for timer in self._timers if timer[0] < step - 1):
            timer.cancel()
        for event in self._now(step):
            if event.when == "before":
                self._happen(event)
            elif isinstance(event.when, float):
                timer = threading.Timer(event.when, self._happen, [event])
                timer.daemon = True
                timer.start()
                self._timers.append((step, timer))

    def after_train_iter(self, runner: Any) -> None:
        step = runner.global_step - 1
        self._write("end", step)
        for event in self._now(step):
            if event.when == "after":
                self._happen(event)

    def _now(self, step: int) -> list[Event]:
        return [e for e in self.events if e.step == step and e.rank == orca.rank()]

    def _write(self, what: str, step: int) -> None:
        line = json.dumps([time.monotonic(), what, step, orca.rank(), os.getpid()])
        with (self.folder / f"steps.{os.getpid()}").open("a") as file:
            file.write(line + "\n")

    def _happen(self, event: Event) -> None:
        mark = self.folder / f"event.{self.events.index(event)}"
        try:
            with mark.open("x") as file:
                file.write(json.dumps([time.monotonic(), os.getpid()]))
        except FileExistsError:
            return
        if isinstance(event.how, int):
            os.kill(event.how, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif event.how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, event.how))
        else:
            getattr(self, event.how)()

    # --- events that are not signals

    def exit(self) -> None:
        os._exit(0)

    def hold_the_lock(self) -> None:
        """The interpreter's, for three times as long as one may be silent."""
        ctypes.PyDLL(None).usleep(int(3e6 * silence()))

    def take_memory(self) -> None:
        np.ones(3 << 30, np.uint8)

    def fill_the_disk(self) -> None:
        """The one with the checkpoints, but for what is there already."""
        with contextlib.suppress(OSError), (self.folder / "disk/rest").open("wb", 0) as file:
            while True:
                file.write(bytes(1 << 16))

    def empty_the_disk(self) -> None:
        (self.folder / "disk/rest").unlink()

    def close_the_disk(self) -> None:
        self._remount("ro")

    def open_the_disk(self) -> None:
        time.sleep(0.5)  # The writer, which nobody sees, has tried.
        self._remount("rw")

    def _remount(self, how: str) -> None:
        command = ["mount", "-o", f"remount,{how}", str(self.folder / "disk")]
        # While a checkpoint is written it cannot be.
        wait_until(lambda: subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0, how)


@dataclass
class Slow(Callback):
    """Keeps the others waiting."""

    rank: int
    seconds: float

    def before_train_iter(self, runner: Any) -> None:
        if orca.rank() == self.rank:
            time.sleep(self.seconds)


@dataclass
class Trained:
    """What came out of it.

    Attributes:
        digest: Of weights, buffers and the optimizers' states.
        stats: Of the epochs.
        counts: How often each row was trained on.
        steps: What the workers wrote: [time, "begin" or "end", step, rank, process].
        events: When each happened, and to which process.
    """

    digest: str
    stats: list[dict[str, Any]]
    counts: list[float]
    steps: list[list[Any]]
    events: dict[int, tuple[float, int]]

    def same_as(self, other: Trained) -> bool:
        """O2."""
        return self.digest == other.digest and self.stats == other.stats

    def pids(self, rank: int) -> list[int]:
        """Of those that made the steps of a rank, in their order."""
        found: dict[int, None] = {}
        for _, _, _, whose, pid in self.steps:
            if whose == rank:
                found[pid] = None
        return list(found)

    def resumed(self, event: int) -> float:
        """Seconds from an event to the end of the next step."""
        since, _ = self.events[event]
        # Who does not know of it yet ends the step that it is in.
        again = next(t for t, what, *_ in self.steps if t > since + 0.02 and what == "begin")
        return min(t for t, what, *_ in self.steps if t > again and what == "end") - since


def train(
    folder: Path,
    events: Sequence[Event] = (),
    *,
    workers: int = 2,
    optimizer: str = "adam",
    data: Any = None,
    callbacks: Sequence[Any] = (),
    model_dir: str | None = None,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Trains while things happen."""
    own = Path(tempfile.mkdtemp(dir=folder)) if model_dir is None else folder
    estimator = Estimator.from_torch(
        model=Net(),
        optimizer=optimizers(optimizer),
        loss=Loss(),
        workers_per_node=workers,
        model_dir=model_dir,
        **(more or {}),
    )
    try:
        stats = estimator.fit(
            rows() if data is None else data,
            callbacks=[Mutated(), Fate(own, tuple(events)), *callbacks],
            **({"epochs": EPOCHS, "batch_size": BATCH, "seed": 11, "max_restarts": 20} | options),
        )
        state = estimator.get_state_dict()
    finally:
        estimator.shutdown()
    digest = hashlib.sha256()
    for value in _tensors([state["models"], state["optimizers"]]):
        digest.update(value.numpy().tobytes())
    return Trained(
        digest=digest.hexdigest(),
        stats=[{k: v for k, v in epoch.items() if "time" not in k} for epoch in stats],
        counts=state["models"][0]["counts"].tolist(),
        steps=_steps(own),
        events={
            int(mark.suffix[1:]): tuple(json.loads(mark.read_text()))
            for mark in own.glob("event.*")
        },
    )


def _steps(folder: Path) -> list[list[Any]]:
    lines = [line for f in folder.glob("steps.*") for line in f.read_text().splitlines()]
    return sorted(json.loads(line) for line in lines if line.endswith("]"))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree.detach().contiguous()
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(value)


def check_once(found: Trained) -> None:
    """O1: every row, once an epoch."""
    assert found.counts == [EPOCHS] * ROWS, found.counts
    assert [epoch["num_samples"] for epoch in found.stats] == [ROWS] * EPOCHS


def check_same(found: Trained, expected: Trained, events: int) -> None:
    """O1 and O2, and all of it has happened."""
    check_once(found)
    assert len(found.events) == events, found.events
    assert found.same_as(expected), (found.stats, expected.stats)


def fails(*args: Any, **kwargs: Any) -> str:
    try:
        train(*args, **kwargs)
    except WorkerFailedError as error:
        return str(error)
    raise AssertionError("training went on")


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """What the driver's log gets meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


# --- the faults


def f01_a_worker_is_killed(folder: Path) -> dict[str, float]:
    """At any place of a step; the others keep their processes."""
    took: dict[str, float] = {}
    for optimizer in ("adam", "rmsprop"):
        expected = train(folder, optimizer=optimizer)
        check_once(expected)
        events = [Event(4, 1), Event(7, 0, when="after"), Event(11, 1, when="after"), Event(17, 0)]
        found = train(folder, events, optimizer=optimizer)
        check_same(found, expected, 4)
        assert [len(found.pids(rank)) for rank in range(2)] == [3, 3]
        took[optimizer] = found.resumed(0)
    return took


def f02_a_worker_crashes(folder: Path) -> dict[str, float]:
    """The error has the signal and the stack; another takes its place if it may."""
    expected = train(folder)
    for name in ("SIGSEGV", "SIGABRT"):
        text = fails(folder, [Event(3, 1, name)], on_failure="raise")
        assert "rank 1 (" in text, text
        assert name in text, text
        assert "in _happen" in text, text
    found = train(folder, [Event(3, 1, "SIGSEGV"), Event(9, 0, "SIGABRT")])
    check_same(found, expected, 2)
    return {"resumed": found.resumed(0)}


def f03_a_worker_leaves_early(folder: Path) -> dict[str, float]:
    """That is a failure, also with exit code 0."""
    expected = train(folder)
    text = fails(folder, [Event(5, 1, "exit")], on_failure="raise")
    assert "rank 1 (" in text, text
    assert "left with exit code 0 before its function returned" in text, text
    found = train(folder, [Event(5, 1, "exit"), Event(13, 0, "exit", "after")])
    check_same(found, expected, 2)
    return {"resumed": found.resumed(0)}


def f04_a_worker_is_told_to_leave(folder: Path) -> dict[str, float]:
    """It finishes its step: nobody makes that one again."""
    expected = train(folder)
    found = train(folder, [Event(6, 1, "SIGTERM"), Event(15, 0, "SIGTERM")])
    check_same(found, expected, 2)
    for step in (6, 15):
        made = [line for line in found.steps if line[2] == step]
        assert sorted(line[1] for line in made) == ["begin", "begin", "end", "end"], made
    return {"resumed": found.resumed(0)}


def f05_a_worker_is_stopped(folder: Path) -> dict[str, float]:
    """It is found by its silence and killed, so that it cannot wake up later."""
    expected = train(folder)
    found = train(folder, [Event(5, 1, "SIGSTOP")])
    check_same(found, expected, 1)
    assert not is_alive(found.events[0][1])
    return {"resumed": found.resumed(0)}


def f06_the_lock_is_held(folder: Path) -> dict[str, float]:
    """Whoever computes for long is not taken for dead."""
    expected = train(folder)
    found = train(folder, [Event(5, 1, "hold_the_lock")], max_restarts=0)
    check_same(found, expected, 1)
    return {}


def f07_memory_runs_out(folder: Path) -> dict[str, float]:
    """The message says so, with the limit; another worker takes the place."""
    with memory_cgroup(1500 << 20) as group:
        for _ in range(3):
            done = _program("memory", folder, group)
            # Once in a hundred times the kernel kills the driver, too, which cannot say anything then.
            if done.returncode != -signal.SIGKILL:
                break
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert "rank 1 (" in said["text"], said
    assert "by the kernel, because memory ran out" in said["text"], said
    assert "cgroup" in said["text"], said
    return {"resumed": said["resumed"]}


def _memory(folder: Path, group: str) -> None:
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    with orca.init_orca_context("local", cores=2):
        expected = train(folder)
        text = fails(folder, [Event(5, 1, "take_memory")], on_failure="raise")
        found = train(folder, [Event(5, 1, "take_memory")])
        check_same(found, expected, 1)
    print(json.dumps({"text": text, "resumed": found.resumed(0)}))


def f09_a_worker_is_slow(folder: Path) -> dict[str, float]:
    """It is named, and nothing else happens."""
    expected = train(folder)
    with logged() as lines:
        # Long enough for two signs of life from each.
        found = train(folder, callbacks=[Slow(1, silence() / 20)], max_restarts=0)
        check_same(found, expected, 0)
        report = "is slower than the others"
        wait_until(lambda: any(report in line for line in lines), "it is named")
    told = next(line for line in lines if report in line)
    assert told.startswith(f"rank 1 ({os.uname().nodename}, process "), told
    return {}


def f19_the_driver_is_killed(folder: Path, *, worker: bool = False) -> dict[str, float]:
    """Nothing is left after 5 s, and the same program goes on in the middle of an epoch."""
    (folder / "whole").mkdir()
    (folder / "killed").mkdir()
    whole = _program("resume", folder / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    with _started("resume", folder / "killed", 17) as killed:
        wait_until((folder / "killed/reached").exists, "it is in the second epoch")
        written = (folder / "killed/models/models").rglob
        wait_until(
            lambda: any(int(f.suffix[1:]) > 12 for f in written("model.*") if f.is_dir()),
            "there is a checkpoint of it",
        )
        everyone = descendants(killed.pid)
        if worker:
            os.kill(_steps(folder / "killed")[-1][-1], signal.SIGKILL)
        killed.kill()
    try:
        took = wait_until(lambda: not any(map(is_alive, everyone)), "all processes are gone")
    finally:
        # All of them stand still first: an agent starts others in the place of the dead.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in filter(is_alive, everyone):
                os.kill(pid, number)
    again = _program("resume", folder / "killed", 0)
    assert again.returncode == 0, again.stderr
    assert again.stdout == whole.stdout
    # It did not begin anew.
    last = max(line[2] for line in _steps(folder / "killed") if line[4] in everyone)
    first = min(line[2] for line in _steps(folder / "killed") if line[4] not in everyone)
    assert 12 <= first <= last + 1, (first, last)
    return {"gone": took}


@dataclass
class _Reaches(Callback):
    """Leaves a mark at a step, and is slow from there on."""

    folder: Path
    step: int

    def after_train_iter(self, runner: Any) -> None:
        if runner.global_step >= self.step > 0:
            (self.folder / "reached").touch()
            time.sleep(0.05)


def _resume(folder: Path, slow: str) -> None:
    with orca.init_orca_context("local", cores=2):
        found = train(
            folder,
            callbacks=[_Reaches(folder, int(slow))],
            model_dir=str(folder / "models"),
            checkpoint_trigger=SeveralIteration(3),
            resume="auto",
        )
    check_once(found)
    print(json.dumps([found.digest, found.stats]))


def f20_another_dies_meanwhile(folder: Path) -> dict[str, float]:
    """A worker while the first death is mended; a worker and the driver together."""
    more = {
        "scheduler_creator": lambda o, _: torch.optim.lr_scheduler.StepLR(o[1], 5, 0.5),
        "scheduler_step_freq": "batch",
    }
    expected = train(folder, more=more)
    found = train(folder, [Event(5, 0, when="after"), Event(-1, 0), Event(14, 1)], more=more)
    check_same(found, expected, 3)
    return f19_the_driver_is_killed(folder, worker=True)


def f21_the_disk_is_full(folder: Path) -> dict[str, float]:
    """Training goes on, it is said once, the old checkpoint is whole, and later ones are written."""
    done = _program("disk", folder, "fill_the_disk", 7, "empty_the_disk", 19)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("a checkpoint was not written") == 1, done.stderr
    assert "No space left on device" in done.stdout + done.stderr
    return {}


def f22_the_disk_fails(folder: Path) -> dict[str, float]:
    """As F21; and what could not be written is written when it can be."""
    done = _program("disk", folder, "close_the_disk", 20, "open_the_disk", 22)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("a checkpoint was not written") == 1, done.stderr
    assert "Read-only file system" in done.stdout + done.stderr
    return {}


@dataclass
class _Looks(Callback):
    """At the checkpoints, before a step."""

    folder: Path
    step: int

    def before_train_iter(self, runner: Any) -> None:
        from orca._native import _core

        if runner.global_step == self.step and orca.rank() == 0:
            (folder,) = (self.folder / "disk/models").iterdir()
            latest = _core.CheckpointStore(str(folder)).latest()
            (self.folder / "latest").write_text(str(latest.progress[0]))


def _disk(folder: Path, bad: str, since: str, good: str, until: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    disk = folder / "disk"
    disk.mkdir()
    new_namespace, private = 0x00020000, ["mount", "--make-rprivate", "/"]
    if libc.unshare(new_namespace) != 0 or subprocess.run(private).returncode != 0:
        sys.exit(NOT_HERE)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    with orca.init_orca_context("local", cores=2):
        expected = train(folder)
        events = [Event(int(since), 0, bad), Event(int(until), 0, good, "after")]
        found = train(
            folder,
            events,
            callbacks=[_Looks(folder, int(until))],
            model_dir=str(disk),
            checkpoint_trigger=SeveralIteration(7 if good == "open_the_disk" else 3),
        )
        check_same(found, expected, 2)
    assert 0 < int((folder / "latest").read_text()) <= int(since)
    (written,) = (disk / "models").iterdir()
    names = sorted(entry.name for entry in written.iterdir())
    last = "model.21" if good == "open_the_disk" else "model.24"
    assert last in names, names
    assert not [name for name in names if not name.startswith("model.")], names


def f24_a_checkpoint_is_damaged(folder: Path) -> dict[str, float]:
    """The one before it is taken."""
    expected = train(folder)
    where = folder / "checkpoints"
    where.mkdir()
    options = {"model_dir": str(where), "checkpoint_trigger": SeveralIteration(3)}
    train(where, max_steps=17, **options)
    (written,) = (where / "models").iterdir()
    # Of those that have to wait for the disk only the last one is written.
    *_, before, last = sorted(int(folder.suffix[1:]) for folder in written.iterdir())
    assert last == 15
    newest = written / "model.15" / "state.safetensors"
    data = bytearray(newest.read_bytes())
    for at in range(len(data) // 2, len(data), 97):
        data[at] ^= 1
    newest.write_bytes(data)
    made = len(_steps(where))
    found = train(where, resume="auto", **options)
    check_same(found, expected, 0)
    first = min(line[2] for line in found.steps[made:])
    assert first == before, (first, before)
    return {}


def f30_a_loss_is_not_finite(folder: Path) -> dict[str, float]:
    """Raised with rank, step and cause, or left out on all ranks, also where somebody dies."""
    data = rows()
    data["x"][1][77, 2] = np.nan
    text = fails(folder, data=data)
    assert "the loss is not finite" in text, text
    assert "its data have" in text, text
    expected = train(folder, data=data, on_nan="skip")
    assert [epoch["skipped_steps"] for epoch in expected.stats] == [1] * EPOCHS
    assert expected.counts.count(0.0) == BATCH or sorted(set(expected.counts)) != [EPOCHS]
    found = train(folder, [Event(4, 1), Event(13, 0, when="after")], data=data, on_nan="skip")
    assert len(found.events) == 2
    assert found.same_as(expected)
    return {}


@dataclass
class _Deadly(Callback):
    """Kills whoever makes a step; -1: whoever begins."""

    folder: Path
    step: int

    def before_run(self, runner: Any) -> None:
        if self.step < 0:
            self._die()

    def before_train_iter(self, runner: Any) -> None:
        if runner.global_step == self.step:
            self._die()

    def _die(self) -> None:
        # More are too many, and are seen as that.
        if orca.rank() == 1 and len(list(self.folder.glob("died.*"))) < 8:
            (self.folder / f"died.{time.monotonic_ns()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def f42_whoever_comes_dies(folder: Path) -> dict[str, float]:
    """The same death three times in the same step is enough; other deaths have a limit, and each waits longer."""
    for step, deaths, text in (
        (5, 3, "rank 1 died three times in a row while it made step 6"),
        (-1, 4, "SIGKILL"),
    ):
        own = folder / f"step.{step}"
        own.mkdir()
        begin = time.monotonic()
        with logged() as lines:
            said = fails(own, callbacks=[_Deadly(own, step)], max_restarts=3)
        assert text in said, said
        assert len(list(own.glob("died.*"))) == deaths
    waits = [line.partition("all ranks begin anew")[2] for line in lines]
    waits = [line for line in waits if line]
    expected = [" (restart 1 of 3)", " in 0.02 s (restart 2 of 3)", " in 0.04 s (restart 3 of 3)"]
    # On a machine that takes 5 s for an attempt it is no storm.
    assert waits == expected or time.monotonic() - begin > 5, waits
    return {}


def f52_the_nursery_dies_with_a_worker(folder: Path) -> dict[str, float]:
    """Its copy, which has imported everything, makes the next one."""
    expected = train(folder)
    took = {}
    for name in ("first", "second"):
        nursery = nursery_of(os.getpid())
        spare = spare_of(nursery)
        took[f"{name}, MB"] = megabytes = proportional_memory(spare) / 1e6
        assert megabytes < 120
        found = train(folder, [Event(9, 1, nursery)])
        check_same(found, expected, 1)
        assert nursery_of(os.getpid()) == spare, "another nursery was started"
        took[name] = found.resumed(0)
    return took


FAULTS: dict[str, Callable[[Path], dict[str, float]]] = {
    name[:3].upper(): check
    for name, check in sorted(globals().items())
    if name[0] == "f" and name[1:3].isdecimal()
}

MUTANTS = {  # and what the check says then
    "redo-finish": ("F01", r"2\.0, 3\.0"),
    "redo-cursor": ("F01", r"2\.0, 3\.0"),
    "undo-put-back": ("F01", r"2\.0, 3\.0"),
    "step-seeds": ("F01", "train_loss"),
    "last-lines": ("F02", r"killed by signal 11 \(SIGSEGV\)"),
    "exit-zero": ("F03", "closed its connection"),
    "leave-after-step": ("F04", "'begin', 6"),
    "silence": ("F05", "has been silent|does not end"),
    "beat": ("F06", "gave no sign of life"),
    "oom": ("F07", r"killed by signal 9 \(SIGKILL\)"),
    "pace": ("F09", "it is named"),
    "driver-gone": ("F19", "all processes are gone"),
    "resume-place": ("F19", r"AssertionError: \[2\.0.*3\.0"),
    "pending-step": ("F20", "train_loss"),
    "writer-once": ("F21", "No space left(.*\n)+.*No space left"),
    "writer-retry": ("F22", r"AssertionError: \['model\."),
    "checkpoint-crc": ("F24", r"2\.0|train_loss"),
    "finite": ("F30", "training went on"),
    "culprit": ("F42", "SIGKILL"),
    "max-restarts": ("F42", "training went on"),
    "back-off": ("F42", r"\[' \(restart 1 of 3\)', ' \(restart 2 of 3\)'"),
    "spare": ("F52", "another nursery was started"),
}
"""Which fault's check must notice that a mechanism is missing; those of F23 are in C++."""


# --- programs of their own

_PROGRAMS = {"memory": _memory, "resume": _resume, "disk": _disk}


def _started(name: str, folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, name, str(folder), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _program(name: str, folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    with _started(name, folder, *arguments) as program:
        try:
            output, errors = program.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            program.kill()
            raise AssertionError(f"{name} has not ended within 90 s") from None
    if program.returncode == NOT_HERE:
        pytest.skip("this user may not mount")
    return subprocess.CompletedProcess(program.args, program.returncode, output, errors)


def _give_up() -> None:
    print("noticed: it does not end", flush=True)
    os._exit(NOTICED)


def main(name: str, folder: str = "", *arguments: str) -> None:
    """A program of a check, or the check of a fault."""
    if name in _PROGRAMS:
        _PROGRAMS[name](Path(folder), *arguments)
        return
    watch = threading.Timer(100 + 10 * silence(), _give_up)
    watch.daemon = True
    watch.start()
    with tempfile.TemporaryDirectory(dir=folder or None) as own:
        try:
            with orca.init_orca_context("local", cores=2):
                took = FAULTS[name](Path(own))
        except pytest.skip.Exception as reason:
            print(reason, flush=True)
            os._exit(NOT_HERE)
        except (AssertionError, orca.OrcaError) as error:
            print(f"noticed: {type(error).__name__}: {error}", flush=True)
            os._exit(NOTICED)
    print(name, {key: round(value, 3) for key, value in took.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])

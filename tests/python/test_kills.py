"""F01, F03, F05, F19, F20, F51, F52: kills from outside, at any moment, of every process, while trainings of all kinds and searches run.

Whatever dies, the same call again in what is left ends with the same bits (O2), every row counted once (O1), every trial
with one end (O4), and no process left (O5). ORCA_SCHEDULES says how many schedules, ORCA_TEST_SEED which. A failure names the
seed that repeats it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import scripts_kills
from processes import SAFETY_SECONDS, SILENCE, command, descendants, is_alive, wait_until

pytestmark = [pytest.mark.slow]

SCRIPT = Path(scripts_kills.__file__)
WAYS = [way for way in scripts_kills.WAYS if way != "nothing"]


@dataclass
class Driver:
    """A program of scripts_kills, started again when it was killed."""

    log: Path
    process: subprocess.Popen[str] | None = None
    ours: set[int] = field(default_factory=set)

    def send(self, *line: str) -> None:
        if self.process is None:
            with self.log.open("a") as log:
                self.process = subprocess.Popen(
                    [sys.executable, str(SCRIPT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                    text=True,
                )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # answer() says that it was killed.
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says, or that it was killed; fails when it says nothing for long."""
        assert self.process is not None
        assert self.process.stdout is not None
        timer = threading.Timer(2 * SAFETY_SECONDS, self.give_up)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return dict(json.loads(line))
        code = self.process.wait(SAFETY_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.stdout.close()
        self.process = None
        if code == -signal.SIGABRT:
            return {"error": f"no answer for {2 * SAFETY_SECONDS:.0f} s"}
        if code != -signal.SIGKILL:
            return {"error": f"the driver ended with {code}"}
        return {"lost": "killed"}

    def give_up(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGABRT)

    def targets(self) -> dict[str, list[int]]:
        """Processes by what they are: those with threads are workers, or will be."""
        found: dict[str, list[int]] = {"driver": [], "agent": [], "nursery": [], "worker": []}
        process = self.process  # The other thread may take it away.
        if process is None:
            return found
        found["driver"].append(process.pid)
        for pid in descendants(process.pid):
            words = command(pid)
            self.ours.add(pid)
            if " agent --fd" in words:
                found["agent"].append(pid)
            elif "orca.worker" in words:
                with contextlib.suppress(OSError):
                    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
                    found["worker" if threads > 1 else "nursery"].append(pid)
        return found

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()  # type: ignore[union-attr]
            self.process.stdout.close()  # type: ignore[union-attr]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(SAFETY_SECONDS)
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Kill:
    """When, in parts of what an undisturbed call takes, counted from the last one; and whom."""

    after: float
    whom: str
    how: signal.Signals = signal.SIGKILL


def drawn(seed: int) -> tuple[str, list[Kill]]:
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    whom = chance.choices(
        ["worker", "nursery", "agent", "driver"], [5, 3, 3, 1], k=chance.randint(1, 3)
    )
    how = signal.SIGKILL
    if chance.random() < 0.05:  # A nursery that is stopped while it imports has minutes.
        whom[0], how = "worker", signal.SIGSTOP
    # The same death twice at one step of a trial, or three times at one of a training, is an error (F42).
    limit = 1 if way == "search" else 2
    while whom.count("worker") > limit:
        whom[whom.index("worker")] = "nursery"
    if whom[0] != "worker":
        how = signal.SIGKILL
    first, *others = (chance.uniform(0, 1.1 / len(whom)) for _ in whom)
    return way, [Kill(first, whom[0], how), *map(Kill, others, whom[1:])]


def disturb(
    driver: Driver, kills: list[Kill], quiet: float, done: threading.Event, chance: random.Random
) -> list[str]:
    """Kills one after the other until the call has ended; returns who was killed."""
    happened = []
    for kill in kills:
        if done.wait(kill.after * quiet):
            break
        # While a context starts there is nobody yet.
        while not (pids := driver.targets()[kill.whom]) and not done.wait(0.01):
            pass
        if not pids or done.is_set():
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(pids), kill.how)
            happened.append(f"{kill.how.name} {kill.whom}")
    return happened


def settle(call: Callable[..., dict[str, Any]], folder: Path, number: int) -> None:
    """Has another context made, if what was killed after the last answer was needed."""
    for attempt in range(2):
        answer = call("nothing", folder / f"settle-{number}-{attempt}")
        if "lost" not in answer:
            break
    assert "digest" in answer, answer


@pytest.mark.timeout(1400)
def test_kills_from_outside_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_SILENCE", SILENCE)
    seed = int(os.environ.get("ORCA_TEST_SEED") or secrets.randbits(32))
    count = int(os.environ.get("ORCA_SCHEDULES") or 20)
    driver = Driver(tmp_path / "driver.log")
    expected: dict[str, tuple[str, float]] = {}
    happened: list[str] = []

    def call(way: str, folder: Path) -> dict[str, Any]:
        driver.send(way, str(folder))
        return driver.answer()

    try:
        for number in range(count):
            way, kills = drawn(seed + number)
            if way not in expected:
                call(way, tmp_path / f"warm-{way}")  # What is done once a process.
                begin = time.monotonic()
                answer = call(way, tmp_path / f"quiet-{way}")
                assert "digest" in answer, answer.get("error", answer)
                expected[way] = answer["digest"], time.monotonic() - begin
            digest, quiet = expected[way]
            repeat = f"schedule {number}, {way}: ORCA_SCHEDULES=1 ORCA_TEST_SEED={seed + number} repeats {kills}"
            done = threading.Event()
            struck: list[str] = []
            driver.send(way, str(tmp_path / f"{number}"))
            killer = threading.Thread(
                target=lambda kills=kills, quiet=quiet, done=done, struck=struck, number=number: (
                    struck.extend(disturb(driver, kills, quiet, done, random.Random(seed + number)))
                )
            )
            killer.start()
            try:
                answer = driver.answer()
                # One more: what was killed after the last answer is missed by the next call.
                for _ in [*kills, None]:
                    if "lost" not in answer:
                        break
                    answer = call(way, tmp_path / f"{number}")
            finally:
                done.set()
                killer.join()
            settle(call, tmp_path, number)
            happened += struck
            assert answer.get("digest") == digest, (
                f"{repeat}\n{struck}\n{answer.get('error', answer)}"
            )
            if (number + 1) % 10 == 0:
                print(f"{number + 1} schedules, {len(happened)} kills", flush=True)
    finally:
        driver.close()
    assert len(happened) > count // 2 or count < 10
    # A number may be another process's by now.
    wait_until(
        lambda: not any(is_alive(pid) and "orca" in command(pid) for pid in driver.ours),
        "all processes are gone",
    )

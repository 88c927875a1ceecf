"""What the system says about processes: descendants, descriptors, memory, sockets that listen."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

SILENCE = "2"
"""Seconds for ORCA_SILENCE: fewer than the usual five, and enough beside ten busy processes."""


def descendants(pid: int) -> set[int]:
    """The processes below ``pid``."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # One that ends meanwhile.
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def agent_of(pid: int) -> int:
    """The agent that a driver has started."""
    return next(p for p in descendants(pid) if " agent --fd" in command(p))


def children(pid: int) -> list[int]:
    """Of its first thread; none when it is gone."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def threads(pid: int) -> int:
    """None when it is gone."""
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def nursery_of(pid: int) -> int:
    """The only nursery below a driver; workers have threads."""
    found = [child for child in children(agent_of(pid)) if "orca.worker" in command(child)]
    return min(child for child in found if threads(child) == 1)


def spare_of(nursery: int) -> int:
    """The process that will take a nursery's place."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [child for child in children(nursery) if threads(child) == 1]
        return len(found) == 1

    wait_until(is_there, "the nursery has a copy")
    return found[0]


def proportional_memory(pid: int) -> int:
    """The bytes of a process, those that n processes share counted as an nth (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def pss(pid: int | str = "self") -> int:
    """Bytes of memory; what processes share is divided among them."""
    return _memory("Pss", pid)


def anonymous(pid: int | str = "self") -> int:
    """Bytes of memory that no file backs: others who map the same libraries, and end, change nothing in it."""
    return _memory("Anonymous", pid)


def huge(pid: int | str = "self") -> int:
    """Bytes of its own memory that are in huge pages."""
    return _memory("AnonHugePages", pid)


def _memory(kind: str, pid: int | str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not tell {kind}")


def listeners(pids: Iterable[int]) -> set[str]:
    """TCP sockets on which these processes listen."""
    held = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                held.add(str(entry.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                found.add(fields[1])
    return found


# No test is about speed: what takes this long on a busy machine will not happen. A mutant is known not to do it.
SAFETY_SECONDS = 60.0 if os.environ.get("ORCA_MUTANT", "none") == "none" else 12.0


def wait_until(condition: Callable[[], object], what: str) -> float:
    """Waits and returns how long it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > SAFETY_SECONDS:
            raise AssertionError(f"not within {SAFETY_SECONDS} s: {what}")
        time.sleep(0.002)
    return time.monotonic() - start


@contextlib.contextmanager
def cgroup(controller: str, file: str, limit: int) -> Iterator[Path]:
    """A cgroup (v1) with this limit below our own; skips the test where none can be made."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if f":{controller}:" in line), None)
    if own is None:
        pytest.skip(f"no {controller} cgroup (v1)")
    folder = Path(f"/sys/fs/cgroup/{controller}{own}/orca-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / file).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no {controller} cgroup can be made: {error}")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the cgroup is empty")
    folder.rmdir()


def memory_cgroup(limit: int) -> contextlib.AbstractContextManager[Path]:
    """A memory cgroup of that many bytes."""
    return cgroup("memory", "memory.limit_in_bytes", limit)

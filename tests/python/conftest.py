from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

import mutants
from launcher import RankPool, open_sockets
from processes import SILENCE, agent_of, descendants, descriptors, is_alive, listeners, wait_until

# A shell that starts tests in the background has them ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The JVMs of tests live for seconds: what they compile thoroughly they hardly use.
for _name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(_name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

mutants.mutate()

_SLOW = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


def children() -> set[int]:
    """The processes that this one started and that are still there."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # A thread that ends meanwhile.
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def is_helper(pid: int) -> bool:
    """Python's own resource tracker, which lives as long as we do."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def has_spark() -> bool:
    """Whether this process talks to a JVM."""
    spark = sys.modules.get("pyspark")
    return spark is not None and spark.SparkContext._active_spark_context is not None


def shared_memory() -> set[str]:
    """What processes like ours may leave; other programs of the machine use the folder too."""
    ours = ("orca", "torch", "gloo", "psm_")
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(ours)}


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Cases of a product of parameters: of two every value is there, of more every pair of values."""
    names = items[0].callspec.params
    columns = [tuple(id(item.callspec.params[name]) for item in items) for name in names]
    # Parameters that another one decides are no axis of their own.
    axes = [
        column
        for k, column in enumerate(columns)
        if not any(
            len(set(zip(other, column, strict=True))) == len(set(other))
            and (j < k or len(set(other)) > len(set(column)))
            for j, other in enumerate(columns)
            if j != k
        )
    ]
    strength = max(1, min(2, len(axes) - 1))
    left = [
        {
            (chosen, tuple(axes[a][k] for a in chosen))
            for chosen in combinations(range(len(axes)), strength)
        }
        for k in range(len(items))
    ]
    todo = set().union(*left)
    found = []
    while todo:
        best = max(range(len(items)), key=lambda k: len(left[k] & todo))
        todo -= left[best]
        found.append(items[best])
    return found


@pytest.hookimpl(tryfirst=True)  # Before -m looks at the marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    products: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("product"):
            products.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in products.values():
        fast = sample(cases) if len(cases) > 1 else cases
        for item in cases:
            if item not in fast:
                item.add_marker("long")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is slow as a whole is not even imported for the quick tests: imports decide what workers load."""
    if config.getoption("markexpr") != "not slow" or collection_path.suffix != ".py":
        return None
    return bool(_SLOW.search(collection_path.read_text())) or None


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are recorded in a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCA_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    processes = RankPool()
    yield processes
    processes.close()


@pytest.fixture(autouse=True)
def no_residue(ranks: RankPool) -> Iterator[None]:
    """Every test leaves no process, nothing in /dev/shm and no socket behind."""
    before = children()
    memory = shared_memory()
    sockets = open_sockets() - ranks.sockets()
    yield
    strangers = {pid for pid in children() - before - ranks.pids() if not is_helper(pid)}
    assert not strangers, f"processes are left: {sorted(strangers)}"
    # What tests of another file, beside this one, have there is gone soon.
    deadline = time.monotonic() + 30
    names = shared_memory() - memory
    while names and time.monotonic() < deadline:
        time.sleep(0.01)
        names &= shared_memory()
    assert not names, f"left in /dev/shm: {sorted(names)}"
    # py4j keeps its connections to the JVM as it likes, and the client of HDFS those to its servers.
    if has_spark() or "hdfs_native" in sys.modules:
        return
    # A group that failed may still be held by the traceback of its error, or by a thread that ends.
    deadline = time.monotonic() + 5
    while (left := open_sockets() - ranks.sockets() - sockets) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not left, f"sockets are left: {sorted(left)}"


@pytest.fixture(autouse=True)
def spark_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file imports pyspark, and so every context of the old roots would start it."""
    monkeypatch.setattr("orca.adapters.spark.is_imported", lambda: False)


@pytest.fixture
def pool(ranks: RankPool) -> RankPool:
    return ranks


@pytest.fixture
def private_env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment for a script of its own: nothing of ours but the search path."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "DDP_"))}
    env.update(OMP_NUM_THREADS="1", ORCA_LOG="warn", ORCA_HOME=os.environ["ORCA_HOME"])
    return env


@pytest.fixture(scope="module")
def context() -> Iterator[None]:
    """A context of two cores for a whole file."""
    import orca

    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


@pytest.fixture(scope="module")
def local_context() -> Iterator[None]:
    """A context for a whole file; its limit of silence is less than the usual one."""
    import orca

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCA_SILENCE", SILENCE)
        orca.init_orca_context("local", cores=2)
    orca.run(orca.barrier, workers=2)
    orca.barrier()  # The group of this process alone stays.
    yield
    agent = agent_of(os.getpid())
    ours = {agent} | descendants(agent)
    orca.stop_orca_context()
    assert not [pid for pid in ours if is_alive(pid)], "processes of the context are left"


@pytest.fixture
def no_growth(local_context: None) -> Iterator[None]:
    """O5: the driver and its agent have no more descriptors than before, and no worker listens."""
    before = descriptors()
    yield
    agent = agent_of(os.getpid())
    gc.collect()  # A traceback that holds an error that holds results.
    wait_until(lambda: descriptors() <= before, "the driver's descriptors are closed")
    wait_until(lambda: not listeners(descendants(agent)), "no worker listens")

    def workers() -> int:
        return len([pid for pid in descendants(agent) if is_alive(pid)]) - 1

    # Four a worker, three a nursery, and a few of its own.
    wait_until(lambda: descriptors(agent) <= 4 * (workers() + 1) + 12, "the agent's, too")

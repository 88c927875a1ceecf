"""Limits of the system that a run meets: processes, threads, open files, memory; and workers per core."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import checks_run as checks
import orca
from orca.errors import ContextLostError, InvalidArgumentError, WorkerFailedError
from processes import (
    SAFETY_SECONDS,
    agent_of,
    cgroup,
    children,
    descriptors,
    is_alive,
    nursery_of,
    spare_of,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_context")]

ANOTHER_USER = 54321  # Of whom no other process is.


@pytest.fixture
def own_context() -> Iterator[None]:
    """Limits of its processes are those of one test. There is one worker: the next one has to be born."""
    with orca.init_orca_context("local", cores=2):
        orca.run(checks.who, workers=1)
        yield


def error_of(workers: int = 2) -> str:
    """Why a call fails that has to fail, and not to wait."""
    error = orca.submit(checks.who, workers=workers).exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError), error
    return str(error)


# --- processes and threads


def test_f29_a_limit_of_processes_of_the_cgroup_is_named() -> None:
    with cgroup("pids", "pids.max", 1) as group:
        spare_of(nursery_of(os.getpid()))  # It is elsewhere.
        (group / "cgroup.procs").write_text(str(nursery_of(os.getpid())))
        text = error_of()
        assert "was not born: cannot fork: no more processes or threads" in text, text
        assert f"pids.max of the cgroup {group} is 1 (1 used)" in text, text
        # The same processes go on as soon as there is room.
        (group / "pids.max").write_text("100")
        assert len(orca.run(checks.who, workers=2)) == 2
        orca.stop_orca_context()  # The group must be empty.


PROGRAM = """
import os, resource, sys
import orca
from orca.errors import WorkerFailedError
sys.path.append(sys.argv[1])
from processes import SAFETY_SECONDS, nursery_of

with orca.init_orca_context("local", cores=2):
    orca.run(lambda: 1, workers=1)
    nursery = nursery_of(os.getpid())
    before = resource.prlimit(nursery, resource.RLIMIT_NPROC, (3, resource.prlimit(nursery, resource.RLIMIT_NPROC)[1]))
    error = orca.submit(lambda: 1, workers=2, on_failure=sys.argv[2]).exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError), error
    print(error)
    resource.prlimit(nursery, resource.RLIMIT_NPROC, before)
    print(orca.run(lambda: orca.rank(), workers=2))
"""


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_f29_a_limit_of_processes_of_the_user_is_named(
    on_failure: str, private_env: dict[str, str]
) -> None:
    """Root has none, so the program runs as somebody else."""
    if os.getuid() != 0:
        pytest.skip("only root can run a program as another user")
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, ANOTHER_USER, ANOTHER_USER)
        env = private_env | {"HOME": home, "ORCA_HOME": home}
        env["PYTHONPATH"] = os.pathsep.join(sys.path)
        where = str(Path(__file__).parent)
        try:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, where, on_failure],
                env=env,
                cwd="/",
                user=ANOTHER_USER,
                group=ANOTHER_USER,
                extra_groups=[],
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
        except PermissionError:
            pytest.skip("another user cannot run this checkout's Python")
    if "No module named 'orca'" in done.stderr:
        pytest.skip("another user cannot read this checkout")
    assert done.returncode == 0, done.stderr
    assert "was not born: cannot fork: no more processes or threads" in done.stdout
    assert "RLIMIT_NPROC is 3 (raise it with 'ulimit -u')" in done.stdout
    assert done.stdout.endswith("[0, 1]\n")


def test_f29_threads_that_are_not_to_be_had_are_named() -> None:
    """A worker is there, but cannot start its second thread."""
    with cgroup("pids", "pids.max", 2) as group:
        spare_of(nursery_of(os.getpid()))  # It is elsewhere.
        (group / "cgroup.procs").write_text(str(nursery_of(os.getpid())))
        text = error_of()
        assert "cannot start a thread: no more processes or threads" in text, text
        assert f"pids.max of the cgroup {group} is 2" in text, text
        orca.stop_orca_context()


def test_f52_a_nursery_that_dies_at_every_fork_ends_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = tmp_path / "deaths"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def die():\n"
        f"    open({str(deaths)!r}, 'a').write('x')\n"
        "    print('no fork today', file=sys.stderr, flush=True)\n"
        "    os._exit(3)\n"
        "if 'ORCA_NURSERY' in os.environ:\n"
        "    os.register_at_fork(before=die)\n"
    )
    orca.stop_orca_context()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with orca.init_orca_context("local", cores=2):
        # Its copy is forked first; after three deaths no other is started before there is a call.
        wait_until(
            lambda: deaths.exists() and len(deaths.read_text()) >= 3, "it has died three times"
        )
        wait_until(lambda: not children(agent_of(os.getpid())), "it is given up")
        text = error_of()
        assert "was not born: the process that starts workers left with exit code 3" in text
        assert "no fork today" in text
        assert "left with exit code 3" in error_of(1)  # Not a call that waits for ever, either.
        assert deaths.read_text() == 9 * "x"


def test_f52_a_nursery_that_dies_after_its_copy_is_replaced() -> None:
    """The agent hears of both deaths at once, of the copy's only by its connection."""
    agent, nursery = agent_of(os.getpid()), nursery_of(os.getpid())
    spare = spare_of(nursery)
    os.kill(agent, signal.SIGSTOP)
    try:
        os.kill(spare, signal.SIGKILL)
        wait_until(lambda: not is_alive(spare), "the nursery has reaped its copy")
        os.kill(nursery, signal.SIGKILL)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert len(orca.submit(checks.who, workers=2).result(SAFETY_SECONDS)) == 2


def test_f52_a_copy_that_is_stopped_does_not_outlive_its_agent() -> None:
    agent, nursery = agent_of(os.getpid()), nursery_of(os.getpid())
    spare = spare_of(nursery)
    os.kill(spare, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not is_alive(nursery) and not is_alive(spare), "both are gone")
    with contextlib.suppress(ContextLostError):
        orca.stop_orca_context()


# --- open files


def test_f29_a_limit_of_open_files_of_the_agent_is_named() -> None:
    agent = agent_of(os.getpid())
    room = descriptors(agent) + 3  # Less than a worker takes.
    before = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (room, before[1]))
    text = error_of()
    assert "was not born: cannot make a" in text, text
    assert f"this process may open {room} files (RLIMIT_NOFILE) and has" in text, text
    resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
    assert len(orca.run(checks.who, workers=2)) == 2


def test_f29_a_nursery_that_cannot_take_descriptors_is_replaced() -> None:
    nursery = nursery_of(os.getpid())
    room = descriptors(nursery) + 1
    resource.prlimit(nursery, resource.RLIMIT_NOFILE, (room, room))
    assert len(orca.run(checks.who, workers=2)) == 2


# --- memory


def test_f29_a_limit_of_address_space_is_an_error_of_the_rank() -> None:
    def takes_much() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        if orca.rank() == 1:
            bytearray(1 << 30)
        orca.barrier()

    error = orca.submit(takes_much, workers=2).exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    assert error.rank == 1
    assert error.remote_type == "MemoryError"


# --- workers per core


def test_more_than_four_workers_per_core_are_refused() -> None:
    for call in (orca.run, orca.submit):
        with pytest.raises(
            InvalidArgumentError,
            match=r"1000 workers are more than 4 per core \(2 cores\); give at most 8, or oversubscribe=True",
        ):
            call(checks.who, workers=1000)  # type: ignore[operator]
    assert len(orca.run(checks.who, workers=8)) == 8


def test_more_workers_per_core_run_when_they_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    assert len(orca.run(checks.who, workers=40, oversubscribe=True)) == 40
    assert len(orca.submit(checks.who, workers=9, oversubscribe=True).result(SAFETY_SECONDS)) == 9
    assert "is started again" not in caplog.text  # Forks have a pace.


def test_a_call_that_waits_for_its_workers_can_be_cancelled() -> None:
    future = orca.submit(checks.who, workers=60, oversubscribe=True)
    assert future.cancel()
    assert len(orca.run(checks.who, workers=2)) == 2

"""How a context begins and ends, whoever dies, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import checks_run as checks
import orca
from orca.context import active_context
from orca.errors import FailedPreconditionError, InvalidArgumentError, WorkerFailedError
from processes import (
    SAFETY_SECONDS,
    SILENCE,
    agent_of,
    anonymous,
    descendants,
    descriptors,
    is_alive,
    listeners,
    memory_cgroup,
    nursery_of,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SCRIPT = Path(__file__).with_name("scripts_run.py")
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@pytest.fixture
def environment(private_env: dict[str, str]) -> dict[str, str]:
    """For programs of our own; silence is noticed after less than usual."""
    return private_env | {"PYTHONPATH": os.pathsep.join(sys.path), "ORCA_SILENCE": SILENCE}


@contextlib.contextmanager
def program(how: str, folder: Path, env: dict[str, str], **more: Any) -> Iterator[Any]:
    """A program of scripts_run that runs its workers; afterwards none of its processes is left."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), how, str(folder)], env=env, **more
    ) as driver:
        try:
            ranks = [folder / f"rank-{rank}" for rank in range(2)]
            wait_until(lambda: all(path.exists() for path in ranks), "both ranks run")
            everyone = descendants(driver.pid)
            assert len(everyone) >= 4  # The agent, a nursery, two workers.
            yield driver
        finally:
            driver.kill()
    took = wait_until(lambda: not any(map(is_alive, everyone)), "all processes are gone")
    print(f"{how}: all gone after {took:.3f} s")


# --- a driver's death


def test_all_goes_with_a_killed_driver(environment: dict[str, str], tmp_path: Path) -> None:
    """F19: within 5 s, the children of its workers, too."""
    with program("busy", tmp_path, environment) as driver:
        driver.kill()


def test_all_goes_with_a_killed_driver_at_the_usual_limits(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """F19"""
    environment.pop("ORCA_SILENCE")
    with program("busy", tmp_path, environment) as driver:
        driver.kill()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_all_goes_with_a_driver_that_is_told_to_end(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """F04, F43"""
    with program("busy", tmp_path, environment) as driver:
        driver.send_signal(getattr(signal, name))
        driver.wait(10)


def test_a_child_of_the_driver_does_not_keep_the_workers(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """F19, F27: such as a loader of data, which holds the driver's descriptors."""
    child = -1
    try:
        with subprocess.Popen(
            [sys.executable, str(SCRIPT), "with_a_forked_child", str(tmp_path)], env=environment
        ) as driver:
            wait_until(lambda: (tmp_path / "rank-1").exists(), "it runs")
            wait_until(lambda: (tmp_path / "forked").exists(), "the child is there")
            child = int((tmp_path / "forked").read_text())
            others = descendants(driver.pid) - {child}
            driver.kill()
        wait_until(lambda: not any(map(is_alive, others)), "all but the child are gone")
        assert is_alive(child)
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_driver_and_a_worker_end_together(
    harm: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    """F20: the worker is dead already, or cannot answer."""
    with program("busy", tmp_path, environment) as driver:
        os.kill(int((tmp_path / "rank-1").read_text()), harm)
        driver.kill()


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_driver_and_its_nursery_end_together(
    harm: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    """F20"""
    with program("busy", tmp_path, environment) as driver:
        os.kill(nursery_of(driver.pid), harm)
        driver.kill()


def test_a_driver_and_its_agent_end_together(environment: dict[str, str], tmp_path: Path) -> None:
    """F20, F51: nobody is left who could tell the workers; children in sessions of their own stay."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "interrupted", str(tmp_path)], env=environment
    ) as driver:
        wait_until(lambda: (tmp_path / "rank-1").exists(), "it runs")
        everyone = descendants(driver.pid)
        os.kill(agent_of(driver.pid), signal.SIGKILL)
        driver.kill()
    wait_until(lambda: not any(map(is_alive, everyone)), "all processes are gone")


def test_a_program_that_forgets_to_stop_ends_well(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with program(
        "leaves_without_stopping", tmp_path, environment, stderr=subprocess.PIPE, text=True
    ) as driver:
        (tmp_path / "go").touch()
        _, errors = driver.communicate(timeout=10)
        assert driver.returncode == 0
        assert errors == ""


def test_a_run_after_everything_was_killed_begins_afresh(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """F26"""
    for name in ["first", "second"]:
        folder = tmp_path / name
        folder.mkdir()
        with program("busy", folder, environment) as driver:
            everyone = [driver.pid, *descendants(driver.pid)]
            for pid in everyone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


# --- Ctrl-C


@contextlib.contextmanager
def at_a_terminal(how: str, folder: Path, env: dict[str, str]) -> Iterator[tuple[int, int]]:
    """The program as the foreground job of a terminal: its process and our end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, str(SCRIPT), how, str(folder)], env)
    everyone: set[int] = set()
    try:
        wait_until(lambda: (folder / "rank-0").exists(), "rank 0 runs")
        wait_until(lambda: (folder / "rank-1").exists(), "rank 1 runs")
        everyone = descendants(pid)
        yield pid, terminal
        wait_until(lambda: not any(map(is_alive, everyone)), "all processes are gone")
    finally:
        for each in everyone | {pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.close(terminal)


def ends(pid: int) -> int:
    status: list[int] = []

    def ended() -> bool:
        found, how = os.waitpid(pid, os.WNOHANG)
        if found:
            status.append(how)
        return bool(found)

    wait_until(ended, "the program ends")
    return status[0]


def said(terminal: int) -> str:
    """All that was printed, until the program has ended."""
    text = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 65536):
            text += piece
    return text.decode(errors="replace")


def test_ctrl_c_stops_the_functions_cleanly(environment: dict[str, str], tmp_path: Path) -> None:
    """F43: once. Finally blocks run, the traceback is of the driver, nothing is left."""
    with at_a_terminal("interrupted", tmp_path, environment) as (pid, terminal):
        os.write(terminal, b"\x03")
        status = ends(pid)
        text = said(terminal)
        assert os.WTERMSIG(status) == signal.SIGINT
        assert text.count("KeyboardInterrupt") == 1, text
        assert "[rank" not in text, text
    assert len(list(tmp_path.glob("tidy-*"))) == 2


def test_ctrl_c_leaves_a_context_that_works(environment: dict[str, str], tmp_path: Path) -> None:
    """F43: as in a notebook; the workers stay the same."""
    with at_a_terminal("goes_on", tmp_path, environment) as (pid, terminal):
        os.write(terminal, b"\x03")
        text = said(terminal)
        assert ends(pid) == 0, text
        assert "interrupted" in text
        assert "True" in text
    assert len(list(tmp_path.glob("tidy-*"))) == 2


def test_ctrl_c_twice_stops_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    """F43: also what does not listen, and at the usual limits."""
    environment.pop("ORCA_SILENCE")
    with at_a_terminal("stubborn", tmp_path, environment) as (pid, terminal):
        os.write(terminal, b"\x03")
        time.sleep(0.3)
        os.write(terminal, b"\x03")
        ends(pid)


def test_a_closed_terminal_ends_all(environment: dict[str, str], tmp_path: Path) -> None:
    """F43"""
    with at_a_terminal("interrupted", tmp_path, environment) as (pid, terminal):
        os.close(terminal)
        ends(pid)


# --- memory


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup (v1) of 150 MB below our own."""
    with memory_cgroup(150 << 20) as folder:
        yield folder


def test_a_worker_killed_for_memory_is_told_apart(
    environment: dict[str, str], small_cgroup: Path
) -> None:
    """F07: the error says so, with the limit."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "out_of_memory", str(small_cgroup)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        # While the memory of a killed worker is not counted as free yet, the kernel may kill another
        # process of the group: once in a hundred times the driver, which then cannot say anything.
        if done.returncode != -signal.SIGKILL:
            break
    assert done.stdout.startswith("1 rank 1 ("), done.stdout + done.stderr
    assert "killed by signal 9 (SIGKILL) by the kernel, because memory ran out" in done.stdout
    assert re.search(r"it had taken \d+\.\d MiB, all shards of this machine take 0", done.stdout)
    assert "cgroup" in done.stdout


# --- contexts of this process


@pytest.fixture
def own_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ORCA_SILENCE", SILENCE)
    orca.init_orca_context("local", cores=2)
    agent = agent_of(os.getpid())
    yield
    ours = {agent} | descendants(agent)
    orca.stop_orca_context()
    wait_until(lambda: not any(map(is_alive, ours)), "all processes are gone")


def test_a_dead_agent_ends_its_runs_and_the_next_context_works(
    own_context: None, tmp_path: Path
) -> None:
    """F51: at once, naming it; its workers go, too."""
    future = orca.submit(checks.hangs, args=(str(tmp_path),), workers=2)
    wait_until(lambda: (tmp_path / "rank-1").exists() or future.done(), "it runs")
    assert not future.done(), future.exception()
    agent = agent_of(os.getpid())
    others = descendants(agent)
    os.kill(agent, signal.SIGKILL)
    error = future.exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    host = os.uname().nodename
    assert f"the agent of node 0 ({host})" in str(error)
    assert "was killed by signal 9 (SIGKILL)" in str(error)
    wait_until(lambda: not any(map(is_alive, others)), "its workers are gone")
    with pytest.raises(WorkerFailedError, match="agent"):
        orca.run(checks.who)
    orca.stop_orca_context()
    orca.init_orca_context("local", cores=2)
    assert len(orca.run(checks.who)) == 2


def test_a_run_is_told_when_its_context_is_stopped(own_context: None, tmp_path: Path) -> None:
    """F44"""
    future = orca.submit(checks.hangs, args=(str(tmp_path),), workers=2)
    wait_until(lambda: (tmp_path / "rank-1").exists() or future.done(), "it runs")
    assert not future.done(), future.exception()
    orca.stop_orca_context()
    error = future.exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    assert "the context was stopped" in str(error)
    assert not future.cancel()


@pytest.mark.parametrize(("on_failure", "world"), [("restart", 3), ("shrink", 2)])
def test_a_call_does_not_take_a_worker_from_another_when_it_begins_anew(
    on_failure: str, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F44: while some of its ranks still stop, those that have stopped are free."""
    monkeypatch.setenv("ORCA_SILENCE", SILENCE)
    with orca.init_orca_context("local", cores=4):
        first = orca.submit(
            checks.dies_once_and_lingers, args=(str(tmp_path),), workers=3, on_failure=on_failure
        )
        wait_until((tmp_path / "lingers").exists, "it is about to begin anew")
        second = orca.submit(checks.meets, args=(str(tmp_path), "runs", "go"), workers=1)
        wait_until((tmp_path / "runs").exists, "the other runs")
        with contextlib.suppress(TimeoutError):
            first.result(1)
        (tmp_path / "go").touch()
        assert first.result(SAFETY_SECONDS) == [(rank, world) for rank in range(world)]
        assert second.result(SAFETY_SECONDS) == [None]


def test_use_after_the_stop_is_refused(own_context: None) -> None:
    """F44"""
    orca.stop_orca_context()
    orca.stop_orca_context()
    for use in (orca.OrcaContext.cores, orca.OrcaContext.memory, lambda: orca.run(os.getpid)):
        with pytest.raises(FailedPreconditionError, match=r"call orca\.init_orca_context"):
            use()


def test_a_with_statement_stops_also_after_an_error() -> None:
    def raises() -> None:
        with orca.init_orca_context("local", cores=1) as context:
            assert context.cores() == 1
            agents.append(agent_of(os.getpid()))
            raise ValueError("mine")

    agents: list[int] = []
    with pytest.raises(ValueError, match="mine"):
        raises()
    assert not is_alive(agents[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"num_nodes": 2, "address": "h:1"},
            'num_nodes and address have no effect with cluster_mode="local"',
        ),
        ({"cluster_mode": "yarn"}, 'cluster_mode="yarn" is not in this release; give "local"'),
        ({"cores": 0}, "cores 0 is not a positive whole number"),
        ({"cores": -2}, "cores -2 is not a positive whole number"),
        ({"cores": "two"}, "cores 'two' is not a positive whole number"),
        ({"cores": True}, "cores True is not a positive whole number"),
        ({"memory": "much"}, "memory 'much' is not an amount of memory"),
        ({"memory": 0}, "memory 0 is not an amount of memory"),
        ({"memory": "-1g"}, "memory '-1g' is not an amount of memory"),
    ],
)
def test_bad_arguments_of_a_context_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        orca.init_orca_context(**arguments)
    with pytest.raises(FailedPreconditionError):
        orca.OrcaContext.cores()


@pytest.mark.parametrize("silence", ["soon", "-1", "0", "nan"])
def test_a_bad_time_limit_is_refused(silence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_SILENCE", silence)
    with pytest.raises(InvalidArgumentError, match=f"ORCA_SILENCE='?{silence}"):
        orca.init_orca_context("local", cores=1)


def test_a_context_says_what_it_uses() -> None:
    with orca.init_orca_context("local", cores="*", memory="1.5g") as context:
        assert context.cores() == len(os.sched_getaffinity(0))
        assert context.memory() == 3 << 29


def test_contexts_one_after_the_other_leave_nothing() -> None:
    """O5: descriptors, processes, sockets and memory."""

    def once() -> None:
        with orca.init_orca_context("local", cores=2):
            orca.run(orca.barrier, workers=2)
        assert not listeners([os.getpid()])

    once()
    before, memory = descriptors(), anonymous()
    for _ in range(5):
        once()
    assert descriptors() <= before
    assert anonymous() - memory < 10 << 20


@pytest.mark.parametrize("learning", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_of_another_version_are_refused_and_both_are_named(
    learning: bool, tmp_path: Path
) -> None:
    """F38; also where that version cannot even load what the program has loaded."""
    for name in ["torch", "orca.learn.pytorch"] if learning else []:
        importlib.import_module(name)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 9, 1)")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    os.environ["ORCA_PYTHON"] = str(program)

    def version_error(workers: int) -> str:
        with pytest.raises(WorkerFailedError) as caught:
            orca.run(lambda: 1, workers=workers)
        return str(caught.value)

    try:
        orca.init_orca_context("local", cores=2)
        text = version_error(2)
        here = "{}.{}".format(*sys.version_info)
        assert f"have Python 3.9, this program has {here}; install the same on both" in text
        assert "have Python 3.9" in version_error(1)
    finally:
        del os.environ["ORCA_PYTHON"]
        orca.stop_orca_context()


@pytest.mark.slow
def test_a_nursery_that_ends_slowly_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status says more than the connections that close before it."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec 3>&-\nsleep 3\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("ORCA_PYTHON", str(program))
    with (
        orca.init_orca_context("local", cores=2),
        pytest.raises(WorkerFailedError, match=r"was not born: .* left with exit code 3"),
    ):
        orca.run(lambda: 1, workers=2)


@pytest.mark.skipif(not FAKETIME.exists(), reason="libfaketime is not installed")
def test_a_clock_that_jumps_changes_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    """F28"""
    offset = tmp_path / "offset"
    offset.write_text("+0")
    faked = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "works_for_a_while", str(tmp_path)],
        env=environment | faked,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        wait_until((tmp_path / "rank-1").exists, "it runs")
        for jump in ("+3600", "-3600", "+0"):
            offset.write_text(jump)
            time.sleep(0.3)
        assert driver.communicate(timeout=60)[0] == "[100, 100]\n"


def test_a_name_that_cannot_be_found_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    """F18"""
    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", "from orca.cli import main; main()", "agent"]
        + ["--join", "nowhere.invalid:7700", "--secret-file", str(secret)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "nowhere.invalid" in done.stderr


def test_a_limit_on_open_files_is_named(environment: dict[str, str]) -> None:
    """F29"""
    program = (
        "import resource, orca; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)); "
        "orca.init_orca_context('local', cores=1); orca.run(lambda: 1, workers=4)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "all 16 descriptors open that RLIMIT_NOFILE allows" in done.stderr, done.stderr


def stacks_of(run: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-c", "from orca.cli import main; main()", "stacks", run]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_stacks_go_only_to_the_process_that_asks(
    environment: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither into the output of the run nor into its log; frames of the interpreter are folded."""
    with orca.init_orca_context("local", cores=2):
        run = active_context().native.plan.split()[1].rstrip(":")  # type: ignore[union-attr]
        assert "runs no function now" in stacks_of(run, environment)
        future = orca.submit(checks.hangs, args=(str(tmp_path),), workers=2)
        wait_until(lambda: len(list(tmp_path.glob("rank-?"))) == 2, "both ranks run")
        told = stacks_of(run, environment)
        future.cancel()
    for rank in range(2):
        assert f"[rank {rank}] native stack of the thread that runs the function:\n" in told
        assert re.search(rf"\[rank {rank}\] .* in hangs\n", told), told
    assert "[rank 0] ... the interpreter ...\n" in told
    assert "_PyEval_EvalFrameDefault" not in told
    printed = capfd.readouterr()
    assert "in hangs" not in printed.out + printed.err
    log = Path(os.environ["ORCA_HOME"], "runs", run, "events.log").read_bytes()
    assert b"context" in log
    assert b"in hangs" not in log

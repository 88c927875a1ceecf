"""What happens to a run when a worker dies, stops or raises."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checks_run as checks
import orca
from orca.errors import WorkerFailedError
from processes import (
    SAFETY_SECONDS,
    agent_of,
    descendants,
    is_alive,
    nursery_of,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.usefixtures("no_growth")]


def fails(*args: Any, **kwargs: Any) -> WorkerFailedError:
    with pytest.raises(WorkerFailedError) as caught:
        orca.run(*args, **kwargs)
    return caught.value


def pid_of(folder: Path, rank: int) -> int:
    path = folder / f"rank-{rank}"
    wait_until(path.exists, f"rank {rank} runs")
    return int(path.read_text())


def error_after(
    harm: Callable[[int], None], function: Any, folder: Path, rank: int = 1
) -> WorkerFailedError:
    """Runs ``function`` on two ranks, harms one, and returns the error."""
    future = orca.submit(function, args=(str(folder),), workers=2)
    pids = [pid_of(folder, each) for each in range(2)]
    harm(pids[rank])
    error = future.exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    assert error.rank == rank
    assert f"rank {rank} ({os.uname().nodename}, process {pids[rank]})" in str(error)
    return error


# --- deaths


@pytest.mark.parametrize("function", [checks.hangs, checks.waits_for_all])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE"])
def test_a_worker_killed_by_a_signal_is_named(name: str, function: Any, tmp_path: Path) -> None:
    """F01, F02, F04: rank, host, process and signal; O6."""
    number = getattr(signal, name)
    error = error_after(lambda pid: os.kill(pid, number), function, tmp_path)
    assert f"was killed by signal {number:d} ({name})" in str(error)
    assert orca.run(checks.who, workers=2)[1][0] == 1


def test_a_crash_in_c_shows_the_python_stack() -> None:
    """F02"""
    error = fails(checks.segfaults, workers=2)
    assert "SIGSEGV" in str(error)
    assert "in segfaults" in str(error)
    assert error.remote_type == ""


@pytest.mark.parametrize("code", [0, 3])
def test_a_worker_that_leaves_early_has_failed(code: int) -> None:
    """F03: also with exit code 0."""
    error = fails(lambda: os._exit(code) if orca.rank() == 1 else time.sleep(30), workers=2)
    assert error.rank == 1
    assert f"left with exit code {code} before its function returned" in str(error)


def test_sys_exit_is_an_error_like_any_other() -> None:
    """F03"""
    before = orca.run(checks.rank_and_pid, workers=2)
    error = fails(lambda: sys.exit(0) if orca.rank() == 1 else orca.barrier(), workers=2)
    assert error.rank == 1
    assert error.remote_type == "SystemExit"
    assert orca.run(checks.rank_and_pid, workers=2) == before


@pytest.mark.parametrize("function", [checks.hangs, checks.waits_for_all])
def test_a_stopped_worker_is_found_by_its_silence(function: Any, tmp_path: Path) -> None:
    """F05: and killed, so that it does not wake up later."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)

    error = error_after(stop, function, tmp_path)
    assert "gave no sign of life for " in str(error)
    assert "(the process was stopped)" in str(error)
    wait_until(lambda: not is_alive(stopped[0]), "it is killed")


def test_a_worker_that_wakes_up_in_time_is_no_failure(tmp_path: Path) -> None:
    """F05"""
    future = orca.submit(lambda: (checks.says_that_it_runs(str(tmp_path)), time.sleep(0.5)))
    pid = pid_of(tmp_path, 1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)
    assert len(future.result(SAFETY_SECONDS)) == 2


def test_the_interpreter_s_lock_held_for_long_is_no_failure() -> None:
    """F06: three times the limit of silence."""
    assert orca.run(checks.holds_the_gil, args=(1500,), workers=2) == [0, 1]


def test_children_of_a_dead_worker_go_with_it(tmp_path: Path) -> None:
    """F01, O5: those in its group, and those in a session of their own."""
    future = orca.submit(checks.starts_children, args=(str(tmp_path),), workers=1)
    pid = pid_of(tmp_path, 0)
    children = descendants(pid)
    assert len(children) == 2
    os.kill(pid, signal.SIGKILL)
    assert isinstance(future.exception(SAFETY_SECONDS), WorkerFailedError)
    wait_until(lambda: not any(map(is_alive, children)), "the children are gone")


def test_deaths_in_a_row_are_all_noticed() -> None:
    """F01, O5: nothing grows."""
    for round in range(20):
        dying = round % 2
        error = fails(
            lambda dying=dying: os.kill(os.getpid(), 9) if orca.rank() == dying else orca.barrier(),
            workers=2,
        )
        assert error.rank == dying


# --- exceptions


def test_an_exception_of_one_rank_is_the_error_and_the_others_stop(tmp_path: Path) -> None:
    """F34: and the processes stay."""
    before = orca.run(checks.rank_and_pid, workers=2)
    error = fails(checks.raises_on, args=(1, str(tmp_path)), workers=2)
    assert error.rank == 1
    assert error.remote_type == "KeyError"
    assert isinstance(error.remote_error(), KeyError)
    assert "raised KeyError: 'on purpose'" in str(error)
    assert 'raise KeyError("on purpose")' in error.remote_traceback
    assert "worker.py" not in error.remote_traceback
    assert not error.cancelled
    assert orca.run(checks.rank_and_pid, workers=2) == before


def test_exceptions_of_all_ranks_are_folded() -> None:
    """F34"""

    def all_raise() -> None:
        orca.barrier()
        raise ValueError(f"of rank {orca.rank()}")

    error = fails(all_raise, workers=2)
    assert len(error.others) == 1
    other = 1 - error.rank
    assert f"of rank {error.rank}" in str(error).splitlines()[0]
    assert f"of rank {other}" in error.others[0]
    assert str(error).count("Traceback") == 1


@pytest.mark.parametrize("on_failure", ["raise", "restart", "shrink"])
def test_an_exception_is_never_retried(on_failure: str, tmp_path: Path) -> None:
    error = fails(checks.raises_on, args=(0, str(tmp_path)), workers=2, on_failure=on_failure)
    assert error.remote_type == "KeyError"
    assert (tmp_path / "begins-0").read_text() == "x"


def test_an_exception_that_cannot_be_sent_is_told_in_words() -> None:
    def raises() -> None:
        raise ValueError(threading.Lock())

    error = fails(raises, workers=1)
    assert error.remote_type == "ValueError"
    assert error.remote_error() is None


@pytest.mark.parametrize("function", [checks.unsayable, checks.mute])
def test_an_exception_without_a_proper_text_is_one_all_the_same(function: Any) -> None:
    before = orca.run(checks.rank_and_pid, workers=1)
    error = fails(function, workers=1)
    assert error.remote_type in ("ValueError", "checks_run.MuteError")
    assert orca.run(checks.rank_and_pid, workers=1) == before


def test_a_very_long_text_is_shortened() -> None:
    def raises() -> None:
        raise ValueError("x" * 10_000_000)

    error = fails(raises, workers=1)
    assert "bytes left out" in str(error)
    assert len(str(error)) < 1_000_000


# --- policies


def test_a_restart_replaces_the_dead_and_keeps_the_others(tmp_path: Path) -> None:
    """F01"""
    found = orca.run(checks.dies_once, args=(str(tmp_path), 1), workers=3, on_failure="restart")
    assert [(rank, world) for rank, world, _ in found] == [(0, 3), (1, 3), (2, 3)]
    survivors = {int(path.read_text()) for path in tmp_path.glob("survivor-*")}
    assert len(survivors) == 2
    assert survivors < {pid for _, _, pid in found}


@pytest.mark.parametrize("dying", [0, 2])
def test_a_group_shrinks_to_those_that_live(dying: int, tmp_path: Path) -> None:
    found = orca.run(checks.dies_once, args=(str(tmp_path), dying), workers=3, on_failure="shrink")
    assert [(rank, world) for rank, world, _ in found] == [(0, 2), (1, 2)]
    survivors = {int(path.read_text()) for path in tmp_path.glob("survivor-*")}
    assert survivors == {pid for _, _, pid in found}


@pytest.mark.parametrize("restarts", [0, 2])
def test_restarts_end(restarts: int, tmp_path: Path) -> None:
    """F42"""
    error = fails(
        checks.dies_always,
        args=(str(tmp_path),),
        workers=1,
        on_failure="restart",
        max_restarts=restarts,
    )
    assert "SIGKILL" in str(error)
    assert (tmp_path / "begins-0").read_text() == "x" * (restarts + 1)


def test_the_last_one_cannot_shrink() -> None:
    error = fails(lambda: os.kill(os.getpid(), 9), workers=2, on_failure="shrink")
    assert "SIGKILL" in str(error)


def test_a_call_that_begins_anew_can_be_cancelled(tmp_path: Path) -> None:
    def dies_for_ever() -> None:
        checks.counts(str(tmp_path))
        os.kill(os.getpid(), 9)

    future = orca.submit(dies_for_ever, workers=1, on_failure="restart", max_restarts=10_000)
    wait_until(lambda: (tmp_path / "begins-0").exists(), "it runs")
    assert future.cancel()
    assert len(orca.run(checks.who, workers=2)) == 2


# --- the nursery


def test_workers_outlive_the_nursery_and_a_new_one_makes_more(tmp_path: Path) -> None:
    """F52"""
    orca.run(checks.who, workers=2)
    future = orca.submit(checks.meets, args=(str(tmp_path), "runs", "go"), workers=1)
    wait_until(lambda: (tmp_path / "runs").exists(), "it runs")
    before = orca.run(checks.rank_and_pid, workers=1)
    nursery = nursery_of(os.getpid())
    os.kill(nursery, signal.SIGKILL)
    wait_until(lambda: not is_alive(nursery), "the nursery is gone")
    assert orca.run(checks.rank_and_pid, workers=1) == before
    (tmp_path / "go").touch()
    assert future.result(SAFETY_SECONDS) == [None]
    found = dict(orca.run(checks.rank_and_pid, workers=6))
    assert len(set(found.values())) == 6
    # Those of the first nursery are still under supervision.
    error = fails(lambda: os.kill(os.getpid(), 9) if orca.rank() == 0 else None, workers=2)
    assert "SIGKILL" in str(error)


def test_a_stopped_nursery_is_replaced() -> None:
    """F05, F52: as soon as it owes a worker for as long as one may be silent."""
    fails(lambda: os.kill(os.getpid(), 9), workers=6)  # None is left.
    stopped = nursery_of(os.getpid())
    os.kill(stopped, signal.SIGSTOP)
    assert len(orca.run(checks.who, workers=2)) == 2
    assert not is_alive(stopped)


def test_the_nursery_dies_while_it_makes_workers() -> None:
    """F52"""
    agent = agent_of(os.getpid())
    for _ in range(5):
        with pytest.raises(WorkerFailedError):  # None is left afterwards.
            orca.run(lambda: os.kill(os.getpid(), 9), workers=6)
        future = orca.submit(checks.who, workers=6)
        os.kill(nursery_of(os.getpid()), signal.SIGKILL)
        assert len(future.result(SAFETY_SECONDS)) == 6
    assert is_alive(agent)


# --- who keeps the others waiting


def test_a_slow_rank_is_named_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    """F09: no failure, but a report that says who the others wait for."""

    def steps() -> None:
        for _ in range(60):
            time.sleep(0.03 if orca.rank() == 1 else 0.001)
            orca.barrier()

    orca.run(steps, workers=2)
    wait_until(lambda: "is slower than the others" in caplog.text, "the report is there")
    assert f"rank 1 ({os.uname().nodename}, process " in caplog.text
    caplog.clear()

    def even() -> None:
        for _ in range(60):
            time.sleep(0.02)
            orca.barrier()

    orca.run(even, workers=2)
    assert "slower" not in caplog.text


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_f33_a_rank_that_has_returned_is_not_waited_for(before: int, is_warm: bool) -> None:
    """Before it has joined the group, and after; nobody waits for a minute, or for half an hour."""

    def alone() -> None:
        for _ in range(before):
            orca.barrier()
        if orca.rank() == 0:
            orca.allreduce(np.ones(1))

    if is_warm:
        orca.run(orca.barrier, workers=2)
    else:  # Other workers have another group.
        fails(lambda: os.kill(os.getpid(), 9), workers=2)
    error = orca.submit(alone, workers=2).exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    assert error.rank == 0
    where = r"in allreduce #\d+ for it" if before or is_warm else "for it in its first collective"
    assert re.search(rf"rank 1.* has returned, while rank 0.* waits {where}", str(error)), error
    assert orca.run(lambda: float(orca.allreduce(np.ones(1))[0]), workers=2) == [2, 2]


@pytest.mark.parametrize("peer", [1, None])
def test_f33_a_message_of_a_rank_that_has_returned_is_not_waited_for(peer: int | None) -> None:
    """What it sent before still arrives."""

    def receives() -> None:
        both = orca.communicator()
        if orca.rank() == 1:
            both.send(np.ones(1), 0)
            return
        time.sleep(0.3)
        got = np.zeros(1)
        both.recv(got, peer)
        assert got[0] == 1
        both.recv(got, peer)

    error = orca.submit(receives, workers=2).exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    assert error.rank == 0
    who = "rank 1" if peer == 1 else "every other rank"
    assert re.search(rf"{who}.* has returned, while rank 0.* waits for a message", str(error)), (
        error
    )


def test_a_rank_may_return_long_before_the_others() -> None:
    def returns_early() -> int:
        orca.barrier()
        if orca.rank() == 0:
            time.sleep(0.3)
        return os.getpid()

    before = orca.run(returns_early, workers=2)
    for _ in range(2):  # The group, which is kept, is whole.
        assert orca.run(returns_early, workers=2) == before


def test_a_rank_that_does_not_come_is_shown_with_its_last_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F15"""
    monkeypatch.setenv("ORCA_CONNECT_TIMEOUT", "1")

    def meet() -> None:
        if orca.rank() == 2:
            print("reading the data of 1999")
            time.sleep(30)
        orca.barrier()

    text = str(fails(meet, workers=3))  # a group that is not there yet
    assert "rank 2" in text
    assert "still runs and printed last:\nreading the data of 1999" in text

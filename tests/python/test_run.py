"""``orca.run`` and ``orca.submit``: what a function gets, what comes back, what it may not do."""

from __future__ import annotations

import concurrent.futures
import io
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checks_run as checks
import orca
from orca import running
from orca.errors import FailedPreconditionError, InvalidArgumentError, WorkerFailedError
from processes import SAFETY_SECONDS, is_alive, pss, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_growth")]

CPUS = len(os.sched_getaffinity(0))


def fails(*args: Any, **kwargs: Any) -> WorkerFailedError:
    with pytest.raises(WorkerFailedError) as caught:
        orca.run(*args, **kwargs)
    return caught.value


# --- what goes in and what comes out


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_results_come_in_the_order_of_ranks(workers: int) -> None:
    expected = [(rank, workers, rank, workers) for rank in range(workers)]
    assert orca.run(checks.who, workers=workers) == expected


def test_fresh_workers_end_with_their_function() -> None:
    warm = orca.run(os.getpid, workers=1)
    with running.fresh_workers():
        first = orca.run(os.getpid, workers=2)
        with pytest.raises(WorkerFailedError):
            orca.run(divmod, (1, 0), workers=1)
        second = orca.run(os.getpid, workers=2)
    assert warm[0] in first  # One that was there may be taken.
    assert not {*first} & {*second}
    wait_until(lambda: not any(map(is_alive, (*first, *second))), "their end")
    assert orca.run(os.getpid, workers=1)[0] not in (*first, *second)


def test_outside_of_a_function_there_is_one_rank() -> None:
    assert checks.who() == (0, 1, 0, 1)
    assert orca.allreduce(np.ones(2)).tolist() == [1, 1]


def test_closures_arguments_and_names_travel() -> None:
    captured = {"a": [1, 2]}
    found = orca.run(lambda x, y=0: (captured, x, y), args=(5,), kwargs={"y": 6}, workers=2)
    assert found == [(captured, 5, 6)] * 2


def test_classes_of_the_program_travel_both_ways() -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    found = orca.run(lambda item: Local(item.value + orca.rank()), args=(Local(3),), workers=2)
    assert [item.value for item in found] == [3, 4]


@pytest.mark.parametrize("size", [0, 1, 1000, 8_000, 60_000, 5_000_000])
def test_arrays_of_all_sizes_go_and_come_back(size: int) -> None:
    array = np.arange(size, dtype=np.uint8)
    for found in orca.run(lambda: array, workers=2):
        assert np.array_equal(found, array)
        found += 1  # What comes back can be changed.


@pytest.mark.parametrize("count", [100, 100_000])
def test_arrays_are_writable_and_private_to_a_worker(count: int) -> None:
    array = np.arange(count, dtype=np.float64)
    assert orca.run(checks.changes_what_it_got, args=(array,), workers=2) == [array.sum()] * 2
    assert array[0] == 0
    assert array[-1] == count - 1


def test_many_buffers_travel() -> None:
    arrays = [np.full(1000, index) for index in range(300)]
    sums = orca.run(lambda: [int(array.sum()) for array in arrays], workers=1)[0]
    assert sums == [1000 * index for index in range(300)]


def test_a_large_array_is_one_copy_for_all_workers() -> None:
    array = np.ones(200_000_000 // 8)
    without = sum(mine for mine, _ in orca.run(checks.memory_with, args=(None,), workers=3))
    found = orca.run(checks.memory_with, args=(array,), workers=3)
    grown = sum(mine for mine, _ in found) - without
    assert [total for _, total in found] == [array.size] * 3
    assert grown < 1.15 * array.nbytes, f"{grown / array.nbytes:.2f} copies"
    after = sum(mine for mine, _ in orca.run(checks.memory_with, args=(None,), workers=3))
    assert after - without < 0.1 * array.nbytes, "the workers keep it"
    before = pss()
    del array
    assert pss() < before - 150_000_000, "the driver keeps it"


def test_a_result_that_cannot_be_sent_is_an_error_of_its_rank() -> None:
    error = fails(threading.Lock, workers=1)
    assert error.rank == 0
    assert "the result (_thread.lock) cannot be sent" in str(error)


# --- collectives


def test_numpy_arrays_meet_in_every_collective() -> None:
    first, second = orca.run(checks.every_collective, workers=2)
    for found in (first, second):
        assert found["allreduce"].tolist() == [3, 3, 3]
        assert found["max"].tolist() == [2, 2, 2]
        assert found["broadcast"].tolist() == [2, 2, 2]
        assert found["allgather"].reshape(2, 3).tolist() == [[1] * 3, [2] * 3]
    assert first["alltoall"].ravel().tolist() == [0, 10]
    assert second["alltoall"].ravel().tolist() == [1, 11]
    assert first["reduce_scatter"].ravel().tolist() == [0]
    assert second["reduce_scatter"].ravel().tolist() == [2]
    assert first["reduce"].tolist() == [3, 3, 3]
    assert [part.tolist() for part in first["gather"]] == [[1] * 3, [2] * 3]
    assert second["gather"] is None


def test_groups_are_right_when_worlds_of_different_sizes_alternate() -> None:
    for workers in [2, 3, 1, 2, 3]:
        found = orca.run(lambda: float(orca.allreduce(np.ones(1))[0]), workers=workers)
        assert found == [workers] * workers


def test_a_rank_that_made_more_calls_does_not_spoil_the_next_run() -> None:
    orca.run(lambda: orca.communicator() and None, workers=2)
    assert orca.run(lambda: float(orca.allreduce(np.ones(1))[0]), workers=2) == [2, 2]


@pytest.mark.slow
def test_torch_tensors_are_reduced_in_place() -> None:
    assert orca.run(checks.torch_in_place, workers=2) == [[3.0] * 4] * 2


@pytest.mark.slow
@pytest.mark.parametrize("leave", [True, False])
def test_torch_distributed_forms_its_group_again_in_every_run(leave: bool) -> None:
    """Also when the function before did not destroy its group."""
    for _ in range(3):
        assert orca.run(checks.torch_distributed, args=(leave,), workers=2) == [[3.0] * 4] * 2


@pytest.mark.slow
def test_torch_distributed_of_two_runs_at_once_do_not_meet() -> None:
    both = [orca.submit(checks.torch_distributed, args=(True,), workers=1) for _ in range(2)]
    assert [future.result(60) for future in both] == [[[1.0] * 4]] * 2


# --- what a worker has of the driver


def test_environment_and_directory_are_the_driver_s_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def see() -> tuple[Any, ...]:
        return os.environ.get("ORCA_TEST_X"), os.environ.get("HOME"), str(Path.cwd())

    home, here = os.environ["HOME"], str(Path.cwd())
    assert orca.run(see, workers=2) == [(None, home, here)] * 2
    monkeypatch.setenv("ORCA_TEST_X", "1")
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    assert orca.run(see, workers=2) == [("1", "/elsewhere", str(tmp_path))] * 2
    monkeypatch.delenv("ORCA_TEST_X")
    monkeypatch.delenv("HOME")
    assert orca.run(see, workers=2) == [(None, None, str(tmp_path))] * 2
    monkeypatch.undo()
    assert orca.run(see, workers=2) == [(None, home, here)] * 2


def test_a_function_does_not_move_the_next_one(tmp_path: Path) -> None:
    def moves() -> None:
        os.chdir(tmp_path)
        sys.path.insert(0, "/nowhere")
        logging.getLogger().setLevel(5)

    def where() -> tuple[str, str, int]:
        return str(Path.cwd()), sys.path[0], logging.getLogger().level

    mine = where()
    orca.run(moves, workers=2)
    assert orca.run(where, workers=2) == [mine] * 2


def test_a_worker_s_environment_has_nothing_of_our_own_making() -> None:
    mine = dict(os.environ)
    theirs = orca.run(lambda: dict(os.environ), workers=1)[0]
    foreign = ("COLUMNS", "LINES", "PYTEST_", "DDP_")  # Of pytest and torch.
    new = {name for name in theirs if theirs[name] != mine.get(name)}
    new = {name for name in new if not name.startswith(foreign)}
    meeting = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    # The last one is torch's own.
    assert new <= meeting | {"OMP_NUM_THREADS", "ORCA_SILENCE", "TORCHINDUCTOR_CACHE_DIR"}


def test_modules_on_the_driver_s_path_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "found_only_here.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import found_only_here

    assert orca.run(lambda: found_only_here.VALUE, workers=2) == [7, 7]


def test_what_is_piped_into_the_driver_stays_its_own(private_env: dict[str, str]) -> None:
    import subprocess

    script = (
        "import sys, orca\n"
        "with orca.init_orca_context('local', cores=1):\n"
        "    print(orca.run(lambda: sys.stdin.read(), workers=1), sys.stdin.read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="words",
        capture_output=True,
        text=True,
        timeout=60,
        env=private_env | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "[''] words\n", done.stderr


@pytest.mark.parametrize(
    ("workers", "threads", "expected"), [(1, None, 2), (2, None, 1), (3, 2, 2)]
)
def test_a_worker_has_its_share_of_threads(
    workers: int, threads: int | None, expected: int
) -> None:
    found = orca.run(lambda: os.environ["OMP_NUM_THREADS"], workers=workers, threads=threads)
    assert found == [str(expected)] * workers


def test_numpy_has_the_threads_of_the_run() -> None:
    pytest.importorskip("threadpoolctl")
    for threads in [1, 2, 1]:
        found = orca.run(checks.blas_threads, workers=1, threads=threads)[0]
        if not found:
            pytest.skip("numpy does not use OpenBLAS")
        assert set(found) == {threads}


@pytest.mark.slow
def test_torch_has_the_threads_of_the_run() -> None:
    for threads in [1, 2, 1]:
        assert orca.run(checks.torch_threads, workers=1, threads=threads) == [threads]


@pytest.mark.skipif(CPUS != 2, reason="the context uses two cores; pinning needs all of them")
def test_workers_are_pinned_only_when_all_cores_are_used() -> None:
    def cpus() -> set[int]:
        return os.sched_getaffinity(0)

    everywhere = cpus()
    one, two = orca.run(cpus, workers=2, threads=1)
    assert len(one) == len(two) == 1
    assert one | two == everywhere
    assert orca.run(cpus, workers=1, threads=2) == [everywhere]
    assert orca.run(cpus, workers=1, threads=1) == [everywhere]
    assert orca.run(cpus, workers=3, threads=1) == [everywhere] * 3


# --- output


def test_output_comes_with_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    orca.run(checks.prints, workers=2)
    out, err = io.StringIO(), io.StringIO()

    def both_are_there() -> bool:
        more = capsys.readouterr()
        out.write(more.out)
        err.write(more.err)
        return out.getvalue().count("\n") >= 4 and err.getvalue().count("\n") >= 2

    wait_until(both_are_there, "all lines")
    for rank in range(2):
        mine = [line for line in out.getvalue().splitlines() if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"[rank {rank}] to output", f"[rank {rank}] without an end"]
    assert sorted(err.getvalue().splitlines()) == ["[rank 0] to errors", "[rank 1] to errors"]


def test_much_output_comes_as_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    expected = [f"[rank 0] {number:05} " + "x" * 60 for number in range(5000)]
    assert "SIGABRT" in str(fails(checks.floods_and_aborts, args=(5000,), workers=1))
    found: list[str] = []

    def all_is_there() -> bool:
        found.extend(capsys.readouterr().out.splitlines())
        return len(found) >= len(expected)

    wait_until(all_is_there, "all lines")
    assert found == expected


def test_log_records_come_with_rank_and_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    orca.run(checks.logs, workers=2)

    def ours() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "some.library"]

    wait_until(lambda: len(ours()) == 6, "three records a rank")
    for rank in range(2):
        mine = [r for r in ours() if r.getMessage().startswith(f"[rank {rank}] ")]
        assert [record.levelno for record in mine] == [30, 40, 40]
        assert mine[0].getMessage() == f"[rank {rank}] beware of rank"
        assert "ValueError: inner" in mine[1].getMessage()
        assert "\\udc80" in mine[2].getMessage()


# --- submit


def test_a_future_has_the_results() -> None:
    future = orca.submit(checks.who, workers=2)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(SAFETY_SECONDS) == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert future.done()
    assert not future.running()
    assert not future.cancelled()
    assert not future.cancel()
    assert future.exception() is None


def test_a_future_has_the_error_and_calls_back() -> None:
    called = threading.Event()
    future = orca.submit(lambda: 1 // 0, workers=2)
    future.add_done_callback(lambda _: called.set())
    error = future.exception(SAFETY_SECONDS)
    assert isinstance(error, WorkerFailedError)
    assert error.remote_type == "ZeroDivisionError"
    assert called.wait(5)


def test_a_cancelled_function_stops_and_its_worker_lives_on(tmp_path: Path) -> None:
    before = dict(orca.run(checks.rank_and_pid, workers=2))
    future = orca.submit(checks.tidies_up, args=(str(tmp_path),), workers=2)
    wait_until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, "it runs on both")
    assert future.running()
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)
    wait_until(lambda: len(list(tmp_path.glob("tidy-*"))) == 2, "finally blocks have run")
    assert dict(orca.run(checks.rank_and_pid, workers=2)) == before


def test_a_call_that_waits_for_its_turn_can_be_cancelled(tmp_path: Path) -> None:
    first = orca.submit(checks.hangs, args=(str(tmp_path),), workers=2)
    second = orca.submit(checks.who, workers=2)
    assert second.cancel()
    third = orca.submit(checks.who, workers=2)
    assert first.cancel()
    assert len(third.result(SAFETY_SECONDS)) == 2
    assert concurrent.futures.wait([first, second], 1).not_done == set()


def test_a_function_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    future = orca.submit(checks.stubborn, args=(str(tmp_path),), workers=1)
    wait_until(lambda: (tmp_path / "rank-0").exists(), "it runs")
    pid = int((tmp_path / "rank-0").read_text())
    assert future.cancel()
    wait_until(lambda: not is_alive(pid), "it is killed")
    assert orca.run(checks.who, workers=2)[1][0] == 1


def test_cancelling_at_any_moment_harms_nobody() -> None:
    before = {pid for _, pid in orca.run(checks.rank_and_pid, workers=2)}
    for delay in np.linspace(0, 0.004, 30):
        future = orca.submit(orca.barrier, workers=2)
        time.sleep(delay)
        future.cancel()
    assert {pid for _, pid in orca.run(checks.rank_and_pid, workers=2)} == before
    assert orca.run(lambda: float(orca.allreduce(np.ones(1))[0]), workers=2) == [2, 2]


# --- F44: what may not be, or may


def test_two_runs_at_once_share_the_cores(tmp_path: Path) -> None:
    """F44: each has one worker of two, so that they can wait for one another."""
    calls = [("a", "b"), ("b", "a")]
    both = [orca.submit(checks.meets, args=(str(tmp_path), *c), workers=1) for c in calls]
    assert [future.result(SAFETY_SECONDS) for future in both] == [[None], [None]]


def test_runs_of_many_threads_do_not_mix() -> None:
    """F44"""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda i: orca.run(lambda: (i, orca.world_size()), workers=2), range(40))
        assert list(found) == [[(index, 2)] * 2 for index in range(40)]


def test_a_run_inside_of_a_run_is_refused() -> None:
    """F44"""
    error = fails(lambda: orca.run(os.getpid), workers=1)
    assert error.remote_type == "FailedPreconditionError"
    assert "a function on a worker has no Orca context" in str(error)


def test_a_second_context_is_refused() -> None:
    """F44"""
    with pytest.raises(FailedPreconditionError, match="there is an Orca context already"):
        orca.init_orca_context("local")


def test_a_forked_child_is_told_that_the_context_is_its_parent_s() -> None:
    """F27"""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            orca.run(os.getpid, workers=1)
        except BaseException as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"forked from one with an Orca context" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    assert len(orca.run(checks.who, workers=2)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": 0}, "workers 0 is not positive"),
        ({"workers": -1}, "workers -1 is not positive"),
        ({"workers": True}, "workers True is not positive"),
        ({"workers": 1.5}, "workers 1.5 is not positive"),
        ({"threads": 0}, "threads 0 is not positive"),
        ({"on_failure": "ignore"}, '"raise", "restart" or "shrink"'),
        ({"on_failure": None}, '"raise", "restart" or "shrink"'),
        ({"max_restarts": -1}, "max_restarts -1"),
        ({"max_restarts": "3"}, "max_restarts '3'"),
        ({"args": 5}, "args 5 is not a list or tuple; give"),
        ({"args": "text"}, "args 'text' is not a list or tuple; give"),
        ({"kwargs": [1]}, "kwargs .1. is not a dict"),
    ],
)
def test_bad_arguments_are_refused_with_value_and_remedy(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        orca.run(os.getpid, **arguments)
    with pytest.raises(ValueError, match=words):
        orca.submit(os.getpid, **arguments)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="fn 5 cannot be called; give a function"):
        orca.run(5)

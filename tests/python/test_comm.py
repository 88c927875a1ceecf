"""orca.comm: collectives on numpy arrays, ranks as threads and as processes."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.comm import Communicator, Store
from orca.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    MismatchError,
    OrcaError,
    WaitTimeoutError,
)


def run_ranks(
    world: int, body: Callable[[Communicator], Any], store: Store | None = None, **settings: Any
) -> list[Any]:
    """Runs ``body`` on every rank, each a thread, and returns what they returned."""
    meeting = store or Store.memory()
    results: list[Any] = [None] * world
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Communicator.connect(rank, world, store=meeting, timeout=20, **settings) as comm:
                results[rank] = body(comm)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return results


@pytest.fixture(params=["auto", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef" * 4)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_collective_gives_its_result(world: int, transport: str) -> None:
    def body(comm: Communicator) -> None:
        rank = comm.rank
        assert comm.world == world
        total = world * (world + 1) // 2
        mine = np.full(100, rank + 1, dtype=np.float32)
        assert comm.allreduce(mine.copy()).tolist() == [float(total)] * 100
        assert comm.allreduce(mine.copy(), op="max")[0] == world
        assert comm.allreduce(mine.copy(), op="average")[0] == pytest.approx(total / world)
        assert comm.allreduce(mine.copy(), op="premulsum", factor=2.0)[0] == 2 * total
        reduced = comm.reduce(mine.copy(), root=world - 1)
        assert reduced[0] == (total if rank == world - 1 else rank + 1)
        assert comm.broadcast(mine.copy(), root=0)[0] == 1.0
        stacked = comm.allgather(mine.reshape(10, 10))
        assert stacked.shape == (world, 10, 10)
        assert stacked[:, 0, 0].tolist() == [r + 1.0 for r in range(world)]
        uneven = [np.zeros(r, dtype=np.int16) for r in range(world)]
        comm.allgather(np.full(rank, rank, dtype=np.int16), uneven)
        assert [list(part) for part in uneven] == [[r] * r for r in range(world)]
        part = comm.reduce_scatter(np.arange(4 * world, dtype=np.int64))
        assert part.tolist() == [world * (4 * rank + i) for i in range(4)]
        exchanged = comm.alltoall(np.repeat(np.arange(world), 2) + 10 * rank)
        assert exchanged.tolist() == [10 * r + rank for r in range(world) for _ in range(2)]
        gathered = comm.gather(mine[:2], root=0)
        if rank == 0:
            assert gathered is not None
            assert [float(one[0]) for one in gathered] == [r + 1.0 for r in range(world)]
        else:
            assert gathered is None
        pieces = [np.full(3, r, dtype=np.int32) for r in range(world)] if rank == 0 else None
        assert comm.scatter(pieces, np.zeros(3, dtype=np.int32)).tolist() == [rank] * 3
        comm.barrier()
        assert comm.sequence >= 12

    run_ranks(world, body, transport=transport)


def test_started_calls_return_works(transport: str) -> None:
    def body(comm: Communicator) -> None:
        rank, world = comm.rank, comm.world
        works = [
            comm.start_allreduce(np.full(50_000, 1.0 + rank)),
            comm.start_broadcast(np.full(7, rank), root=1),
            comm.start_allgather(np.array([rank])),
            comm.start_reduce(np.array([rank]), root=0),
            comm.start_reduce_scatter(np.arange(world * 2)),
            comm.start_alltoall(np.full(world, rank)),
            comm.start_gather(np.array([rank]), root=1),
            comm.start_scatter(
                [np.array([5])] * world if rank == 0 else None, np.zeros(1, dtype=int)
            ),
            comm.start_barrier(),
        ]
        results = [work.wait(timeout=20) for work in works]
        assert all(work.done() for work in works)
        assert results[0][0] == 3.0
        assert results[1].tolist() == [1] * 7
        assert results[2].tolist() == [[0], [1]]
        assert results[5].tolist() == [0, 1]
        assert results[7].tolist() == [5]
        # Nobody keeps these: the communicator does.
        for _ in range(10):
            comm.start_allreduce(np.ones(20_000))
        comm.barrier()

    run_ranks(2, body, transport=transport)


def test_messages_find_their_receiver(transport: str) -> None:
    def body(comm: Communicator) -> None:
        other = 1 - comm.rank
        big = np.full(300_000, float(comm.rank))
        sending = comm.start_send(big, other, tag=3)
        got = np.zeros_like(big)
        receiving = comm.start_recv(got, tag=3)
        assert receiving.wait(timeout=20) is got
        sending.wait(timeout=20)
        assert got[-1] == other
        assert receiving.source == other
        if comm.rank == 0:
            comm.send(np.array([1, 2]), 1)
        else:
            small = np.zeros(2, dtype=int)
            assert comm.recv(small) == 0
            assert small.tolist() == [1, 2]

    run_ranks(2, body, transport=transport)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int8", "int64", "uint8", "bool"]
)
def test_types_of_numpy_are_reduced(dtype: str) -> None:
    def body(comm: Communicator) -> None:
        array = np.ones(33, dtype=dtype)
        assert comm.allreduce(array).astype(float).sum() == (33 if dtype == "bool" else 66)

    run_ranks(2, body)


def test_any_type_is_moved() -> None:
    def body(comm: Communicator) -> None:
        array = np.array([1 + 2j, 3], dtype=np.complex128) * (comm.rank + 1)
        assert comm.broadcast(array)[0] == 1 + 2j
        wide = np.array([comm.rank], dtype=np.uint64)
        assert comm.allgather(wide).tolist() == [[0], [1]]

    run_ranks(2, body)


def test_registered_arrays_are_reduced_in_place() -> None:
    def body(comm: Communicator) -> Any:
        array = comm.empty((100, 50), dtype=np.float32)
        array.fill(comm.rank + 1)
        assert comm.allreduce(array) is array
        assert array.min() == array.max() == 3.0
        assert comm.empty(0).shape == (0,)
        return array

    # The memory lives as long as the array.
    kept = run_ranks(2, body)
    assert all(array.max() == 3.0 for array in kept)


def test_bad_arguments_are_refused_and_nothing_is_lost() -> None:
    def body(comm: Communicator) -> None:
        def refused(word: str, call: Callable[[], Any]) -> None:
            with pytest.raises(InvalidArgumentError, match=word):
                call()

        refused("contiguous", lambda: comm.allreduce(np.ones((4, 4))[:, 1]))
        refused("reduced", lambda: comm.allreduce(np.ones(3, dtype=np.complex64)))
        refused("known: sum", lambda: comm.allreduce(np.ones(3), op="mean"))  # type: ignore[arg-type]
        refused("root 7", lambda: comm.broadcast(np.ones(3), root=7))
        refused("equal parts", lambda: comm.reduce_scatter(np.ones(3)))
        refused("differ in dtype", lambda: comm.allgather(np.ones(2), np.ones(4, dtype=int)))
        with pytest.raises(TypeError):
            comm.allreduce([1.0, 2.0])
        readonly = np.ones(3)
        readonly.flags.writeable = False
        with pytest.raises(TypeError):
            comm.allreduce(readonly)
        assert comm.allgather(readonly)[1].tolist() == [1.0] * 3
        assert comm.allreduce(np.ones(2)).tolist() == [2.0, 2.0]

    run_ranks(2, body)


def test_connect_refuses_what_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="transport"):
        Communicator.connect(0, 1, colour="red")
    with pytest.raises(InvalidArgumentError, match="pigeon"):
        Communicator.connect(0, 1, transport="pigeon")
    with pytest.raises(ValueError, match="rank 5"):
        Communicator.connect(5, 2, store=Store.memory())
    with pytest.raises(InvalidArgumentError, match="store"):
        Communicator.connect(0, 2)
    with pytest.raises(InvalidArgumentError, match="neither"):
        Communicator.connect(0, 2, store="ftp://somewhere")
    with pytest.raises(InvalidArgumentError, match="secret_file"):
        Communicator.connect(0, 2, store="tcp://127.0.0.1:0")
    with pytest.raises(OrcaError, match="missing"):
        Communicator.connect(0, 1, secret_file=tmp_path / "missing")


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(WaitTimeoutError, match="1"):
        Communicator.connect(0, 2, store=Store.memory(), connect_timeout=0.5)


def test_a_mismatch_is_told_to_both() -> None:
    def body(comm: Communicator) -> str:
        with pytest.raises(MismatchError) as caught:
            comm.allreduce(np.ones(3 + comm.rank))
        return str(caught.value)

    for text in run_ranks(2, body):
        assert "rank 0" in text
        assert "rank 1" in text


def test_abort_ends_a_pending_call() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            threading.Timer(0.2, comm.abort, args=("enough",)).start()
        with pytest.raises(AbortedError, match="enough"):
            comm.recv(np.ones(1), 1 - comm.rank)

    run_ranks(2, body)


def test_a_closed_communicator_says_so() -> None:
    comm = Communicator.connect(0, 1)
    comm.close()
    comm.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        comm.barrier()


def test_closing_ends_the_calls_of_other_threads_before_it_lets_go_of_their_arrays() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            with pytest.raises(OrcaError):
                comm.recv(np.ones(1), 0)  # stays until rank 0 has gone
            return
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                comm.allreduce(np.ones(100_000))
            except OrcaError as error:
                errors.append(error)

        started = [comm.start_allreduce(np.ones(100_000)) for _ in range(3)]
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        comm.close()
        assert all(work.done() for work in started)
        thread.join(10)
        assert not thread.is_alive()
        assert len(errors) == 1

    run_ranks(2, body)


def test_a_group_forms_again_with_a_higher_generation() -> None:
    store = Store.memory()
    for generation in range(3):
        results = run_ranks(
            2, lambda comm: comm.allreduce(np.ones(1))[0], store, generation=generation
        )
        assert results == [2.0, 2.0]


def test_ranks_meet_in_a_served_store(secret: Path) -> None:
    server = Store.serve("127.0.0.1:0", secret)
    assert server.address is not None

    def join(rank: int) -> float:
        assert server.address is not None
        store = server if rank == 0 else Store.connect(server.address, secret, timeout=10)
        with Communicator.connect(rank, 2, store=store, secret_file=secret) as comm:
            return float(comm.allreduce(np.ones(1))[0])

    results: dict[int, float] = {}
    threads = [
        threading.Thread(target=lambda rank=rank: results.update({rank: join(rank)}))
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {0: 2.0, 1: 2.0}


def _process(rank: int, folder: str, queue: Any) -> None:
    with Communicator.connect(rank, 2, store=f"file://{folder}") as comm:
        shared = comm.empty(1000)
        shared.fill(rank + 1)
        comm.allreduce(shared)
        queue.put((rank, float(shared[-1]), comm.describe()))


def test_processes_meet_in_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    ranks = [
        context.Process(target=_process, args=(rank, str(tmp_path), queue)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(30)
    assert [process.exitcode for process in ranks] == [0, 0]
    got = sorted(queue.get() for _ in range(2))
    queue.close()
    for process in ranks:
        process.close()
    assert [(rank, value) for rank, value, _ in got] == [(0, 3.0), (1, 3.0)]
    assert "shared memory" in got[0][2]


def test_tensors_of_torch_are_taken_by_dlpack(pool: Any) -> None:
    import checks_comm

    pool.run(checks_comm.takes_torch_tensors, None, 1)

"""What orca does beyond gloo, and how it says no."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import orca.distributed
from launcher import free_port
from orca.adapters.torch.backend import memory_stats


def message_of(call: Callable[[], Any], kind: type[BaseException]) -> str:
    """What ``call`` raises; it must raise ``kind``."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def backend() -> Any:
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


# --- more than gloo


def reduces_more_types() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    short = torch.tensor([rank + 1, -7], dtype=torch.int16)
    dist.all_reduce(short)
    assert short.tolist() == [world * (world + 1) // 2, -7 * world]
    average = torch.tensor([3 * rank, 5], dtype=torch.int32)
    dist.all_reduce(average, ReduceOp.AVG)
    assert average.tolist() == [3 * (world - 1) // 2, 5]
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, ReduceOp.MIN)
    assert flags.tolist() == [False, True, False]
    scaled = torch.full((3,), 2.0)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(float(rank + 1)))
    assert scaled.tolist() == [float(world * (world + 1))] * 3
    half = torch.full((3,), 2.0)
    dist.all_reduce(half, dist._make_nccl_premul_sum(torch.tensor(0.5)))
    assert half.tolist() == [float(world)] * 3
    pairs = torch.complex(torch.ones(2), torch.full((2,), 2.0))
    dist.reduce(pairs, 0)
    if rank == 0:
        assert pairs.tolist() == [complex(world, 2 * world)] * 2


def moves_any_type() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    kinds = [torch.int16, torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.complex128]
    for kind in kinds:
        own = torch.arange(4).add(rank).to(kind)
        first = torch.arange(4).to(kind)
        copy = own.clone()
        dist.broadcast(copy, 0)
        assert copy.view(torch.uint8).equal(first.view(torch.uint8)), kind
        gathered = [torch.zeros(4).to(kind) for _ in range(world)]
        dist.all_gather(gathered, own)
        for other, tensor in enumerate(gathered):
            expected = torch.arange(4).add(other).to(kind)
            assert tensor.view(torch.uint8).equal(expected.view(torch.uint8)), kind
        exchanged = torch.zeros(4 * world).to(kind)
        dist.all_to_all_single(exchanged, torch.cat([own] * world))
        assert exchanged[:4].view(torch.uint8).equal(first.view(torch.uint8)), kind


def takes_uneven_parts() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    gathered = [torch.zeros(part) for part in range(world)]
    dist.all_gather(gathered, torch.full((rank,), float(rank)))
    for part, tensor in enumerate(gathered):
        assert tensor.tolist() == [float(part)] * part
    send = [rank + part for part in range(world)]
    outputs = [torch.zeros(size) for size in send]
    dist.all_to_all(outputs, [torch.full((size,), float(rank)) for size in send])
    for part, tensor in enumerate(outputs):
        assert tensor.tolist() == [float(part)] * (rank + part)
    # Some ranks may name the sizes and others not.
    splits = [2] * world if rank == 0 else None
    output = torch.zeros(2 * world)
    dist.all_to_all_single(output, torch.full((2 * world,), float(rank)), splits, splits)
    assert output.tolist() == [float(part // 2) for part in range(2 * world)]


def reduces_tensors_with_gaps() -> None:
    world = dist.get_world_size()
    base = torch.ones(4, 6)
    for view in [base[:, 2], base[1:3, ::2], base.t()[1]]:
        dist.all_reduce(view)
        assert view.eq(world).all()
        view.fill_(1.0)
    assert base.eq(1.0).all()
    lazily = torch.complex(torch.ones(3), torch.ones(3)).conj()
    dist.distributed_c10d._get_default_group().broadcast(lazily, 0).wait()
    assert lazily.resolve_conj().tolist() == [complex(1, -1)] * 3
    work = dist.all_reduce(base.t()[::2], async_op=True)
    work.wait()
    assert base[:, ::2].eq(world).all()
    assert base[:, 1::2].eq(1.0).all()


def keeps_tensors_of_started_calls() -> None:
    """The caller may drop a tensor and the work while the call is under way."""
    for _ in range(20):
        dist.all_reduce(torch.ones(200_000), async_op=True)
        dist.all_gather_into_tensor(
            torch.empty(100 * dist.get_world_size()), torch.ones(100), async_op=True
        )
    dist.barrier()


def coalesces_everything() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    cpu = torch.device("cpu")
    tensors = [torch.full((3,), float(rank)) for _ in range(3)]
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(tensor.eq(world * (world - 1) / 2).all() for tensor in tensors)
    group = dist.distributed_c10d._get_default_group()
    group._start_coalescing(cpu)
    first, second = torch.full((2,), float(rank)), torch.full((2,), float(rank))
    group.broadcast(first, 0)
    group.broadcast(second, 1)
    work = group._end_coalescing(cpu)
    work.wait()
    assert [first.tolist(), second.tolist()] == [[0.0, 0.0], [1.0, 1.0]]
    assert len(work.get_future().wait()) == 2


def sends_to_itself() -> None:
    rank = dist.get_rank()
    got = torch.zeros(2, 3).t()
    waiting = dist.irecv(got, rank, tag=4)
    assert not waiting.is_completed()
    dist.isend(torch.arange(6.0).reshape(3, 2), rank, tag=4)
    waiting.wait()
    assert got.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    operations = [
        dist.P2POp(dist.isend, torch.ones(5), rank),
        dist.P2POp(dist.irecv, torch.zeros(5), rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert operations[1].tensor.eq(1.0).all()


def splits_groups() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    parent = dist.distributed_c10d._get_default_group()
    pair = parent.split_group([0, 1], group_name="pair", timeout=timedelta(seconds=20))
    if rank < 2:
        assert pair.size() == 2
        assert pair.rank() == rank
        tensor = torch.ones(4)
        pair.allreduce([tensor]).wait()
        assert tensor.eq(2.0).all()
        assert pair._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=20)
        pair.shutdown()
    else:
        assert pair is None
    settings = orca.distributed.Options(transport="tcp").native()
    whole = parent.split_group(list(range(world)), opts=settings, group_name="again")
    tensor = torch.ones(4)
    whole.allreduce([tensor]).wait()
    assert tensor.eq(float(world)).all()
    whole.shutdown()
    dist.barrier()


def counts_and_describes() -> None:
    own = backend()
    assert own.name() == "orca"
    assert own.supports_splitting
    assert own.supports_coalescing
    assert f"{dist.get_world_size()} ranks" in own.describe()
    group = dist.distributed_c10d._get_default_group()
    before = own._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    assert own._get_sequence_number_for_group() == before + 2
    group.set_timeout(timedelta(seconds=17))
    assert own.options._timeout == timedelta(seconds=17)
    group.monitored_barrier(timedelta(seconds=10), wait_all_ranks=True)


def orders_blocking_after_started() -> None:
    tensor = torch.ones(300_000)
    for _ in range(5):
        work = dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(tensor)
        work.wait()
    assert tensor.eq(float(dist.get_world_size()) ** 10).all()


def orca_group_beside_gloo() -> None:
    """The default group is gloo's."""
    group = dist.new_group(backend="orca")
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor)
    assert tensor.eq(float(dist.get_world_size()) ** 2).all()
    dist.destroy_process_group(group)


def gathers_gradients_below_autograd() -> None:
    leaf = torch.ones(3, requires_grad=True)
    view = leaf.detach()
    version = leaf._version
    dist.all_reduce(view)
    assert leaf._version == version
    with torch.inference_mode():
        inside = torch.ones(6).reshape(2, 3).t()
    dist.all_reduce(inside)
    assert inside.eq(dist.get_world_size()).all()


# --- registered memory


def allocates_registered_memory() -> None:
    world = dist.get_world_size()
    tensor = orca.distributed.empty(1000, 3)
    assert orca.distributed.is_registered(tensor)
    assert orca.distributed.is_registered(tensor[2:5])
    assert not orca.distributed.is_registered(torch.empty(3))
    assert tensor.data_ptr() % 64 == 0
    assert orca.distributed.empty((2, 2), dtype=torch.int64).dtype is torch.int64
    assert orca.distributed.empty(0).numel() == 0
    for kind in [torch.float32, torch.bfloat16, torch.int8]:
        for count in [1, 100, 100_001]:
            values = orca.distributed.empty(count, dtype=kind).fill_(1)
            dist.all_reduce(values)
            assert values.eq(world).all()
    live = memory_stats()["live"]
    kept = [orca.distributed.empty(10_000) for _ in range(5)]
    assert memory_stats()["live"] == live + 5
    del kept
    assert memory_stats()["live"] == live
    hooked = backend().allocate_tensor(64, dtype=torch.float32, device=torch.device("cpu"))
    assert orca.distributed.is_registered(hooked)
    assert backend().supports_tensor_alloc(torch.device("cpu"))
    grown = orca.distributed.empty(4)
    grown.resize_(50_000)
    assert orca.distributed.is_registered(grown)


# --- refusals


def refuses_bad_arguments() -> None:
    """Nothing is sent, and the group is as good as before."""
    world = dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    own = backend()

    def refused(call: Callable[[], Any], *words: str) -> None:
        text = message_of(call, ValueError)
        for word in words:
            assert word in text, (word, text)

    ones = torch.ones(3)
    refused(lambda: group.broadcast(ones, world + 5), "root rank", str(world + 5))
    refused(lambda: group.allreduce([ones, ones]), "single-element")
    refused(lambda: dist.all_reduce(torch.ones(3, dtype=torch.uint16)), "UInt16", "float32")
    refused(lambda: dist.all_reduce(ones, ReduceOp.BAND), "bitand", "float32")
    refused(lambda: dist.all_reduce(torch.ones(1) * 1j, ReduceOp.MAX), "complex")
    refused(lambda: group.allgather([[ones]], [ones]), "output", str(world))
    refused(lambda: group._allgather_base(torch.ones(5), ones), "world_size")
    refused(lambda: group._reduce_scatter_base(torch.ones(5), ones), "world size")
    refused(lambda: group.send([ones], 0 if dist.get_rank() else 1, -3), "Tag", "-3")
    refused(lambda: own.allreduce([torch.ones(3, device="meta")]), "cpu:orca,cuda:nccl")
    refused(lambda: own.broadcast([torch.eye(2).to_sparse()]), "dense")
    sparse = torch.eye(2).to_sparse()
    refused(lambda: dist.all_reduce(sparse, ReduceOp.MAX), "summed")
    refused(lambda: group.alltoall([ones], [ones, ones, ones, ones]), "input list")
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.eq(world).all()
    assert str(own.get_error()).endswith("SUCCESS")


def mismatch_is_told_to_both(kind: str) -> str:
    rank = dist.get_rank()
    calls: dict[str, Callable[[], Any]] = {
        "size": lambda: dist.all_reduce(torch.ones(4 + rank)),
        "type": lambda: dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.int32][rank])),
        "operator": lambda: dist.all_reduce(torch.ones(4), [ReduceOp.SUM, ReduceOp.MAX][rank]),
        "operation": lambda: dist.barrier() if rank else dist.broadcast(torch.ones(4), 0),
        "root": lambda: dist.broadcast(torch.ones(4), rank),
        "large": lambda: dist.all_reduce(torch.ones(400_000 + rank)),
        "started": lambda: dist.all_reduce(torch.ones(4 + rank), async_op=True).wait(),
    }
    text = message_of(calls[kind], dist.DistBackendError)
    # The group is spoilt: later calls say so at once.
    message_of(dist.barrier, dist.DistBackendError)
    assert not str(backend().get_error()).endswith("SUCCESS")
    return text


def barrier_names_the_missing(kind: str) -> str | None:
    """Rank 1 does not come to the barrier in time."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["named"])
        return None
    group = dist.distributed_c10d._get_default_group()
    short = timedelta(seconds=1)
    calls: dict[str, Callable[[], Any]] = {
        "blocking": lambda: dist.barrier(timeout=short),
        "monitored": lambda: group.monitored_barrier(short),
        "started": lambda: group.barrier(timeout=short).wait(),
    }
    text = message_of(calls[kind], dist.DistBackendError)
    store.set("named", "")
    return text


def wait_has_a_limit_of_its_own() -> None:
    if dist.get_rank() == 1:
        time.sleep(1.0)
        dist.all_reduce(torch.ones(2))
        return
    work = dist.all_reduce(torch.ones(2), async_op=True)
    text = message_of(lambda: work.wait(timedelta(milliseconds=100)), dist.DistBackendError)
    assert "all_reduce" in text
    assert "100 ms" in text
    work.wait()


def future_carries_the_error() -> None:
    work = dist.all_reduce(torch.ones(4 + dist.get_rank()), async_op=True)
    text = message_of(lambda: work.get_future().wait(), RuntimeError)
    assert "all_reduce" in text
    assert not work.is_success()
    assert work.is_completed()


def other_ranks_death_ends_calls() -> str | None:
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = dist.all_reduce(torch.ones(3), async_op=True)
    text = message_of(started.wait, dist.DistBackendError)
    message_of(lambda: dist.all_reduce(torch.ones(3)), dist.DistBackendError)
    return text


def abort_ends_calls_everywhere() -> str:
    if dist.get_rank() == 0:
        threading.Timer(0.3, dist.distributed_c10d._get_default_group().abort).start()
        return message_of(lambda: dist.recv(torch.ones(1), 1), dist.DistBackendError)
    return message_of(lambda: dist.recv(torch.ones(1), 0), dist.DistBackendError)


def shutdown_refuses_later_calls() -> str:
    group = dist.new_group()
    dist.barrier()
    own = group._get_backend(torch.device("cpu"))
    group.shutdown()
    group.shutdown()
    return message_of(lambda: own.allreduce([torch.ones(1)]), dist.DistBackendError)


def destroy_lets_started_calls_end() -> list[float]:
    """Rank 0 is at the end of the group before rank 1 has begun."""
    group = dist.new_group()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    tensors = [torch.ones(100_000) for _ in range(4)]
    for tensor in tensors:
        dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    return [float(tensor.max()) for tensor in tensors]


# --- forks


def _in_child(work: Callable[[], None]) -> int:
    """Runs ``work`` in a forked child and returns its exit status; 99 when it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 99


def forked_child_cannot_use_the_group() -> None:
    tensor = orca.distributed.empty(1000).fill_(1.0)

    def child() -> None:
        text = message_of(lambda: dist.all_reduce(torch.ones(2)), dist.DistBackendError)
        assert "forked child" in text
        assert "spawn" in text
        message_of(dist.barrier, dist.DistBackendError)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not orca.distributed.is_registered(orca.distributed.empty(10))
        assert any("registered memory" in str(warning.message) for warning in caught)
        own = backend()
        dist.destroy_process_group()
        del own

    assert _in_child(child) == 0
    assert tensor.eq(1.0).all()
    dist.all_reduce(tensor)
    assert tensor.eq(dist.get_world_size()).all()


def forked_child_makes_its_own_group() -> None:
    def child() -> None:
        dist.destroy_process_group()
        dist.init_process_group("orca", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert dist.all_reduce(tensor, async_op=True).get_future().wait()[0].eq(1.0).all()
        dist.destroy_process_group()

    assert _in_child(child) == 0
    dist.barrier()


def data_loader_with_workers() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(32.0))
    loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        total = torch.zeros(1)
        for (batch,) in loader:
            part = batch.sum().reshape(1)
            dist.all_reduce(part)
            total += part
        assert total.item() == dist.get_world_size() * sum(range(32))


# --- forming groups


def joins_by_url(rank: int, world: int, store: str, scheme: str) -> None:
    from pathlib import Path

    if scheme == "file":
        url = f"file://{store}"
    else:
        note = Path(store + ".port")
        if rank == 0:
            note.with_suffix(".new").write_text(str(free_port()))
            note.with_suffix(".new").rename(note)
        deadline = time.monotonic() + 10
        while not note.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        url = f"tcp://127.0.0.1:{note.read_text()}"
    for _ in range(2):
        dist.init_process_group("orca", init_method=url, rank=rank, world_size=world)
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor)
        assert tensor.eq(world * (world - 1) / 2).all()
        dist.barrier()
        dist.destroy_process_group()
        if scheme == "file":
            break  # torch's file store does not serve twice.


def forms_again_on_the_same_store(rank: int, world: int, store: str) -> None:
    shared = dist.FileStore(store, world)
    for _ in range(3):
        dist.init_process_group("orca", store=shared, rank=rank, world_size=world)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.eq(world).all()
        dist.destroy_process_group()


def waits_for_a_rank_that_never_comes(rank: int, world: int, store: str) -> str:
    text = message_of(
        lambda: dist.init_process_group(
            "orca",
            store=dist.FileStore(store, world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=1),
        ),
        dist.DistBackendError,
    )
    if dist.is_initialized():
        dist.destroy_process_group()
    return text


def refuses_options(rank: int, world: int, store: str) -> dict[str, str]:
    def init(options: Any) -> None:
        dist.init_process_group(
            "orca", store=dist.HashStore(), rank=0, world_size=1, pg_options=options
        )

    return {
        "unknown": message_of(lambda: orca.distributed.Options(colour="red"), ValueError),
        "dict": message_of(lambda: init({"colour": "red"}), ValueError),
        "value": message_of(lambda: orca.distributed.Options(transport="pigeon"), ValueError),
        "sign": message_of(lambda: orca.distributed.Options(peer_timeout=-1), ValueError),
        "timeout": message_of(lambda: orca.distributed.Options(timeout=3), ValueError),
        "kind": message_of(lambda: init("tcp"), ValueError),
    }


def works_alone(rank: int, world: int, store: str) -> None:
    dist.init_process_group("orca", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.arange(4.0)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    gathered = [torch.zeros(4)]
    dist.all_gather(gathered, tensor)
    output = torch.zeros(4)
    dist.reduce_scatter_tensor(output, tensor)
    dist.all_to_all_single(output, tensor)
    dist.barrier()
    assert output.equal(gathered[0])
    values: list[Any] = [None]
    dist.all_gather_object(values, {"a": 1})
    assert values == [{"a": 1}]
    dist.destroy_process_group()


def docstrings_run(rank: int, world: int, store: str) -> int:
    import doctest

    import orca.adapters.torch.backend

    failed = 0
    for module in [orca.distributed, orca.adapters.torch.backend]:
        failed += doctest.testmod(module, verbose=False).failed
    return failed

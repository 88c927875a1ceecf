"""Checks that give the same on gloo and on orca. Values are whole numbers: every order of a sum is exact."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
SIZES = [0, 1, 7, 1000, 100_003]


def mine(count: int, dtype: torch.dtype = torch.float32, step: int = 1) -> torch.Tensor:
    """Small whole numbers that depend on the rank."""
    values = (torch.arange(count) * step + 3 * dist.get_rank()) % 5 + 1
    return values.to(dtype)


def digest(tensor: torch.Tensor) -> list[float]:
    """A few numbers that tell long tensors apart."""
    exact = tensor.to(torch.float64).flatten()
    weights = torch.arange(exact.numel(), dtype=torch.float64) % 97
    return [float(exact.numel()), float(exact.sum()), float((exact * weights).sum())]


def all_reduce() -> Any:
    results: dict[str, Any] = {}
    operators = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    for dtype in FLOATS + INTEGERS:
        bitwise = [] if dtype.is_floating_point else [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
        for op in operators + bitwise:
            tensor = mine(20, dtype)
            dist.all_reduce(tensor, op)
            results[f"{dtype} {op}"] = tensor
    tensor = mine(20)
    dist.all_reduce(tensor, ReduceOp.AVG)
    results["average"] = tensor * dist.get_world_size()  # Thirds are not exact.
    return results


def all_reduce_sizes() -> Any:
    results = []
    for count in SIZES:
        tensor = mine(count)
        dist.all_reduce(tensor)
        results.append(digest(tensor))
    return results


def all_reduce_shapes() -> Any:
    """Tensors that are transposed, empty, scalars, of several dimensions."""
    base = mine(24).reshape(4, 6)
    tensors = [
        base.clone().t(),
        mine(1).reshape(()),
        torch.zeros(0, 3),
        base.clone().reshape(2, 3, 4).permute(2, 0, 1),
    ]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


def all_reduce_leaves_neighbours_alone() -> Any:
    whole = mine(10)
    dist.all_reduce(whole[3:6])
    return whole


def all_reduce_complex() -> Any:
    tensor = torch.complex(mine(5), mine(5, step=2))
    dist.all_reduce(tensor)
    return torch.view_as_real(tensor)


def all_reduce_sparse() -> Any:
    rank = dist.get_rank()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vector = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (5,))
        rows = torch.sparse_coo_tensor([[rank] * rank], mine(3 * rank).reshape(rank, 3), (4, 3))
        dist.all_reduce(vector)
        dist.all_reduce(rows)
    return [vector.coalesce(), rows.coalesce()]


def all_reduce_coalesced() -> Any:
    tensors = [mine(3), mine(70_000), mine(5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    waited = [mine(4), mine(6)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in waited:
            dist.all_reduce(tensor)
    manager.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        direct = [mine(2), mine(9)]
        dist.all_reduce_coalesced(direct)
    return [digest(tensor) for tensor in tensors + waited + direct]


def broadcast() -> Any:
    results = []
    for root in range(dist.get_world_size()):
        for dtype in [*FLOATS, *INTEGERS, torch.bool, torch.complex64]:
            tensor = mine(6, torch.float32, root + 1).to(dtype)
            dist.broadcast(tensor, root)
            results.append(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
    for count in SIZES:
        tensor = mine(count)
        dist.broadcast(tensor, 1)
        results.append(torch.tensor(digest(tensor)))
    strided = mine(12).reshape(3, 4).t()
    dist.broadcast(strided, 0)
    return [*results, strided]


def reduce() -> Any:
    results = []
    for root in range(dist.get_world_size()):
        for op in [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.PRODUCT]:
            tensor = mine(1001, torch.float64)
            dist.reduce(tensor, root, op)
            # Elsewhere its content is not defined.
            results.append(digest(tensor) if dist.get_rank() == root else None)
    return results


def all_gather() -> Any:
    world = dist.get_world_size()
    results: list[Any] = []
    for count in SIZES:
        outputs = [torch.zeros(count) for _ in range(world)]
        dist.all_gather(outputs, mine(count))
        results += [digest(output) for output in outputs]
        flat = torch.zeros(count * world)
        dist.all_gather_into_tensor(flat, mine(count))
        results.append(digest(flat))
    rows = torch.zeros(world * 2, 3, dtype=torch.int64)
    dist.all_gather_into_tensor(rows, mine(6, torch.int64).reshape(2, 3))
    results.append(rows)
    strided = [torch.zeros(3, 2).t() for _ in range(world)]
    dist.all_gather(strided, mine(6).reshape(2, 3))
    return [*results, strided]


def all_gather_in_place() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(world * 1000)
    own = whole.narrow(0, rank * 1000, 1000)
    own.copy_(mine(1000))
    dist.all_gather_into_tensor(whole, own)
    return digest(whole)


def all_gather_coalesced() -> Any:
    world = dist.get_world_size()
    outputs = [torch.zeros(world * 2), torch.zeros(world * 3)]
    inputs = [mine(2), mine(3)]
    with dist._coalescing_manager():
        for output, own in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, own)
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(world)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_coalesced(lists, inputs)
    return outputs, lists


def gather() -> Any:
    results = []
    for root in range(dist.get_world_size()):
        outputs = None
        if dist.get_rank() == root:
            outputs = [torch.zeros(4, 2) for _ in range(dist.get_world_size())]
        dist.gather(mine(8).reshape(4, 2), outputs, dst=root)
        results.append(outputs)
    return results


def scatter() -> Any:
    results = []
    for root in range(dist.get_world_size()):
        inputs = None
        if dist.get_rank() == root:
            inputs = [mine(5) * (part + 1) for part in range(dist.get_world_size())]
        output = torch.zeros(5)
        dist.scatter(output, inputs, src=root)
        results.append(output)
    return results


def reduce_scatter() -> Any:
    world = dist.get_world_size()
    results: list[Any] = []
    for op in [ReduceOp.SUM, ReduceOp.MAX]:
        for count in [1, 33, 50_000]:
            output = torch.zeros(count)
            dist.reduce_scatter(output, [mine(count) * (part + 1) for part in range(world)], op)
            results.append(digest(output))
            flat = torch.zeros(count)
            dist.reduce_scatter_tensor(flat, mine(count * world), op)
            results.append(digest(flat))
    outputs = [torch.zeros(2), torch.zeros(3)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, mine(output.numel() * world))
    return results, outputs


def all_to_all() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    results: list[Any] = []
    for rows in [1, 4, 10_000]:
        output = torch.zeros(rows * world, 2)
        dist.all_to_all_single(output, mine(rows * world * 2).reshape(-1, 2))
        results.append(digest(output))
    # Rank r sends r + part + 1 rows to rank `part`.
    send = [rank + part + 1 for part in range(world)]
    output = torch.zeros(sum(send), 3)
    dist.all_to_all_single(output, mine(sum(send) * 3).reshape(-1, 3), send, send)
    results.append(output)
    outputs = [torch.zeros(3) for _ in range(world)]
    dist.all_to_all(outputs, [mine(3) * (part + 1) for part in range(world)])
    return results, outputs


def objects() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    own = {"rank": rank, "list": list(range(rank * 100)), "text": "x" * rank}
    everybody: list[Any] = [None] * world
    dist.all_gather_object(everybody, own)
    shared: list[Any] = [own, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, src=1)
    gathered: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object(own, gathered, dst=0)
    received: list[Any] = [None]
    dist.scatter_object_list(received, [{"for": r} for r in range(world)], src=0)
    return everybody, shared, gathered, received


def messages() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % world, (rank - 1) % world
    results: list[Any] = []
    # In turn.
    token = torch.zeros(3)
    if rank == 0:
        dist.send(mine(3), after)
        dist.recv(token, before)
    else:
        dist.recv(token, before)
        dist.send(mine(3), after)
    results.append(token)
    # Large ones that cross: nobody may wait for the other's receive.
    big = torch.zeros(1_000_000)
    sending = dist.isend(mine(1_000_000), after)
    receiving = dist.irecv(big, before)
    receiving.wait()
    sending.wait()
    results.append(digest(big))
    # Tags choose, not the order.
    first, second = torch.zeros(2), torch.zeros(2)
    works = [
        dist.isend(mine(2) + 10, after, tag=1),
        dist.isend(mine(2) + 20, after, tag=2),
        dist.irecv(second, before, tag=2),
        dist.irecv(first, before, tag=1),
    ]
    for work in works:
        work.wait()
    return [*results, first, second]


def batched_messages() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % world, (rank - 1) % world
    big, small = torch.zeros(500_000), torch.zeros(4)
    operations = [
        dist.P2POp(dist.irecv, big, before),
        dist.P2POp(dist.isend, mine(500_000), after),
        dist.P2POp(dist.isend, mine(4) + 1, after, tag=7),
        dist.P2POp(dist.irecv, small, before, tag=7),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return digest(big), small


def message_from_anyone() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    if rank != 0:
        dist.send(torch.full((3,), float(rank)), 0)
        return None
    got = {}
    for _ in range(world - 1):
        tensor = torch.zeros(3)
        source = dist.recv(tensor)
        got[source] = tensor.tolist()
    return sorted(got.items())


def message_from_anyone_in_a_subgroup() -> Any:
    ranks = list(range(1, dist.get_world_size()))
    group = dist.new_group(ranks)
    if dist.get_rank() == 0:
        return None
    if dist.get_rank() != 1:
        dist.send(torch.ones(2), 1, group=group)
        return None
    tensor = torch.zeros(2)
    return [dist.recv(tensor, group=group) for _ in ranks[1:]]


def handles_and_futures() -> Any:
    """Every operation with async_op: wait, is_completed, and the future's value."""
    world, rank = dist.get_world_size(), dist.get_rank()
    root = rank == 0
    tensors = {name: mine(6) for name in ["all_reduce", "broadcast", "reduce"]}
    many = [torch.zeros(6) for _ in range(world)]
    flat, part = torch.zeros(6 * world), torch.zeros(6)
    collected = [torch.zeros(6) for _ in range(world)] if root else None
    dealt, exchanged = torch.zeros(6), torch.zeros(6 * world)
    parts = [mine(6) for _ in range(world)]
    works = {
        "all_reduce": dist.all_reduce(tensors["all_reduce"], async_op=True),
        "broadcast": dist.broadcast(tensors["broadcast"], 0, async_op=True),
        "reduce": dist.reduce(tensors["reduce"], 0, async_op=True),
        "all_gather": dist.all_gather(many, mine(6), async_op=True),
        "all_gather_into_tensor": dist.all_gather_into_tensor(flat, mine(6), async_op=True),
        "reduce_scatter": dist.reduce_scatter(part, parts, async_op=True),
        "gather": dist.gather(mine(6), collected, dst=0, async_op=True),
        "scatter": dist.scatter(dealt, parts if root else None, src=0, async_op=True),
        "all_to_all": dist.all_to_all_single(exchanged, mine(6 * world), async_op=True),
        "barrier": dist.barrier(async_op=True),
    }
    written: dict[str, list[torch.Tensor]] = {
        **{name: [tensor] for name, tensor in tensors.items()},
        "all_gather": many,
        "all_gather_into_tensor": [flat],
        "reduce_scatter": [part],
        "gather": collected or [],
        "scatter": [dealt],
        "all_to_all": [exchanged],
        "barrier": [],
    }
    for name, work in works.items():
        if dist.get_backend() == "orca":  # gloo has futures for some operations only.
            value = work.get_future().wait()
            assert len(value) == len(written[name]), name
            assert all(a.equal(b) for a, b in zip(value, written[name], strict=True)), name
            assert work.is_completed(), name
            assert work.is_success(), name
        work.wait()
    if not root:
        del written["reduce"]
    return written


def chained_futures() -> Any:
    """What is chained to a future may wait for another collective."""

    def again(future: Any) -> torch.Tensor:
        tensor = future.value()[0] + 1
        inner = dist.all_reduce(tensor, async_op=True).get_future().wait()
        return inner[0]

    tensor = mine(4)
    return dist.all_reduce(tensor, async_op=True).get_future().then(again).wait()


def functional() -> Any:
    import torch.distributed._functional_collectives as functional

    group = list(range(dist.get_world_size()))
    results = [
        functional.all_reduce(mine(5), "sum", group),
        functional.all_gather_tensor(mine(5), 0, group),
        functional.reduce_scatter_tensor(mine(6 * len(group)), "sum", 0, group),
        functional.broadcast(mine(5), 1, group),
    ]
    return [functional.wait_tensor(result) for result in results]


def subgroups() -> Any:
    world, rank = dist.get_world_size(), dist.get_rank()
    pairs = [sorted({member, (member + 1) % world}) for member in range(world)]
    groups = [dist.new_group(pair) for pair in pairs]
    results: list[Any] = []
    for pair, group in zip(pairs, groups, strict=True):
        tensor = mine(4)
        if rank in pair:
            dist.all_reduce(tensor, group=group)
            dist.broadcast(tensor, pair[0], group=group)
            results.append((dist.get_rank(group), dist.get_world_size(group)))
        results.append(tensor)
    dist.barrier()
    dist.destroy_process_group(groups[0])
    return results


def crossing_groups() -> Any:
    """Two groups of the same ranks, started in another order on every rank."""
    first, second = dist.new_group(), dist.new_group()
    one, two = mine(1000), mine(1000) + 1
    order = [(one, first), (two, second)]
    if dist.get_rank() % 2:
        order.reverse()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in order]
    for work in works:
        work.wait()
    return digest(one), digest(two)


def many_calls() -> Any:
    """Blocking and started calls mixed, many of them."""
    total = torch.zeros(16)
    works = []
    tensors = []
    for step in range(200):
        tensor = mine(16) + step % 3
        if step % 3 == 0:
            dist.all_reduce(tensor)
        else:
            works.append(dist.all_reduce(tensor, async_op=True))
        tensors.append(tensor)
    for work in works:
        work.wait()
    for tensor in tensors:
        total += tensor
    dist.barrier()
    return total


def after_a_barrier() -> Any:
    for _ in range(10):
        dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    return dist.get_rank(), dist.get_world_size()


def debug_wrapper() -> Any:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts torch's checks around the backend."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group()
        tensor = mine(8)
        dist.all_reduce(tensor, group=group)
        gathered = [torch.zeros(8) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine(8), group=group)
        dist.destroy_process_group(group)
        return tensor, gathered
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def profiled() -> Any:
    """A profile names the operations, whatever the backend."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(mine(4))
        dist.all_reduce(mine(4), async_op=True).wait()
    names = {event.name.split(":")[-1] for event in profile.events()}
    return "all_reduce" in names

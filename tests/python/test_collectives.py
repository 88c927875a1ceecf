"""The same script on gloo and on orca gives the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import checks_collectives as checks
from launcher import RankError, RankPool

CONTRACT: list[Callable[[], Any]] = [
    checks.all_reduce,
    checks.all_reduce_sizes,
    checks.all_reduce_shapes,
    checks.all_reduce_leaves_neighbours_alone,
    checks.all_reduce_complex,
    checks.all_reduce_sparse,
    checks.all_reduce_coalesced,
    checks.broadcast,
    checks.reduce,
    checks.all_gather,
    checks.all_gather_in_place,
    checks.all_gather_coalesced,
    checks.gather,
    checks.scatter,
    checks.reduce_scatter,
    checks.all_to_all,
    checks.objects,
    checks.messages,
    checks.batched_messages,
    checks.message_from_anyone,
    checks.message_from_anyone_in_a_subgroup,
    checks.handles_and_futures,
    checks.chained_futures,
    checks.functional,
    checks.subgroups,
    checks.crossing_groups,
    checks.many_calls,
    checks.after_a_barrier,
    checks.debug_wrapper,
    checks.profiled,
]


# How many ranks, and where they are: on one host, on one host over TCP, two of them on one host and the third on another.
PLACES: dict[str, tuple[int, list[dict[str, Any]]]] = {
    "2-shared": (2, [{}] * 2),
    "3-shared": (3, [{}] * 3),
    "2-tcp": (2, [{"transport": "tcp"}] * 2),
    "3-hosts": (3, [{"host": "a"}, {"host": "a"}, {"host": "b"}]),
}


@cache
def on_gloo(pool: RankPool, check: Callable[[], Any], world: int) -> dict[int, Any]:
    for _ in range(2):
        try:
            return pool.run(check, "gloo", world)
        except RankError as error:
            # gloo's own ranks sometimes close a connection that another one is just making.
            if "connectFullMesh" not in str(error):
                raise
    return pool.run(check, "gloo", world)


@pytest.mark.product
@pytest.mark.parametrize(
    "place",
    [pytest.param(p, marks=[pytest.mark.slow] if PLACES[p][0] > 2 else []) for p in PLACES],
)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_gives_the_same_as_gloo(pool: RankPool, check: Callable[[], Any], place: str) -> None:
    world, settings = PLACES[place]
    expected = on_gloo(pool, check, world)
    assert pool.run(check, "orca", world, settings=settings) == expected

"""DDP, FSDP2 and ZeroRedundancyOptimizer train to the same weights on gloo and on orca."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import checks_training as checks
from launcher import RankPool

pytestmark = pytest.mark.slow

CONTRACT: list[Callable[[], Any]] = [
    checks.ddp,
    checks.ddp_many_buckets,
    checks.ddp_unused_parameters,
    checks.ddp_static_graph,
    checks.ddp_sparse,
    checks.ddp_mixed_precision,
    checks.ddp_accumulates,
    checks.ddp_join,
    checks.ddp_buffers,
    checks.hook_allreduce,
    checks.hook_fp16,
    checks.hook_builtin,
    checks.hook_power_sgd,
    checks.zero_optimizer,
    checks.fsdp,
    checks.fsdp_in_registered_memory,
    checks.sync_batch_norm_and_metrics,
]


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in numbers(value[key])]
    if isinstance(value, (list, tuple)):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, (int, float)) else []


@pytest.mark.product
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_trains_as_gloo_does(pool: RankPool, check: Callable[[], Any], world: int) -> None:
    expected = pool.run(check, "gloo", world)
    got = pool.run(check, "orca", world)
    # A float16 or bfloat16 sum is rounded once on orca and at every step on gloo.
    coarse = check in (checks.hook_fp16, checks.hook_builtin, checks.ddp_mixed_precision)
    tolerance = 2e-2 if coarse else 1e-5
    for rank, value in expected.items():
        assert numbers(got[rank]) == pytest.approx(numbers(value), rel=tolerance, abs=tolerance)
    assert len(numbers(expected[0])) > 10


def test_ranks_end_with_the_same_bits(pool: RankPool) -> None:
    got = pool.run(checks.ddp, "orca", 3)
    assert got[0] == got[1] == got[2]
    assert pool.run(checks.ddp, "orca", 3) == got

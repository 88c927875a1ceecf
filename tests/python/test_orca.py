"""What orca does beyond gloo, and how it says no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import checks_orca as checks
from launcher import RankPool

MORE: list[Callable[[], Any]] = [
    checks.reduces_more_types,
    checks.moves_any_type,
    checks.takes_uneven_parts,
    checks.reduces_tensors_with_gaps,
    checks.keeps_tensors_of_started_calls,
    checks.coalesces_everything,
    checks.sends_to_itself,
    checks.splits_groups,
    checks.counts_and_describes,
    checks.orders_blocking_after_started,
    checks.gathers_gradients_below_autograd,
    checks.allocates_registered_memory,
    checks.refuses_bad_arguments,
    checks.forked_child_cannot_use_the_group,
    checks.forked_child_makes_its_own_group,
    checks.data_loader_with_workers,
]


@pytest.mark.product
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("check", MORE, ids=lambda check: check.__name__)
def test_it(pool: RankPool, check: Callable[[], Any], world: int) -> None:
    pool.run(check, "orca", world)


def test_an_orca_group_lives_beside_gloo(pool: RankPool) -> None:
    pool.run(checks.orca_group_beside_gloo, "gloo", 2)


@pytest.mark.parametrize(
    "kind", ["size", "type", "operator", "operation", "root", "large", "started"]
)
def test_a_mismatch_is_told_to_both(pool: RankPool, kind: str) -> None:
    told = pool.run(checks.mismatch_is_told_to_both, "orca", 2, kind=kind, options={"timeout": 10})
    for text in told.values():
        assert "rank 0" in text
        assert "rank 1" in text


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", ["blocking", "monitored", "started"])
def test_a_barrier_names_the_missing_rank(pool: RankPool, kind: str) -> None:
    told = pool.run(checks.barrier_names_the_missing, "orca", 2, kind=kind)
    assert "rank 1" in told[0]
    assert "barrier" in told[0]


def test_wait_has_a_limit_of_its_own(pool: RankPool) -> None:
    pool.run(checks.wait_has_a_limit_of_its_own, "orca", 2)


def test_a_future_carries_the_error(pool: RankPool) -> None:
    pool.run(checks.future_carries_the_error, "orca", 2)


def test_the_death_of_a_rank_ends_calls(pool: RankPool) -> None:
    told = pool.run(checks.other_ranks_death_ends_calls, "orca", 2, dies=[1])
    assert "rank 1" in told[0]


def test_abort_ends_calls_everywhere(pool: RankPool) -> None:
    told = pool.run(checks.abort_ends_calls_everywhere, "orca", 2)
    for text in told.values():
        assert "abort" in text


def test_a_group_that_was_shut_down_says_so(pool: RankPool) -> None:
    told = pool.run(checks.shutdown_refuses_later_calls, "orca", 2)
    assert "shut down" in told[0]


def test_destroy_lets_started_calls_end(pool: RankPool) -> None:
    got = pool.run(checks.destroy_lets_started_calls_end, "orca", 2)
    assert got == {0: [2.0] * 4, 1: [2.0] * 4}


@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_joins_by_url(pool: RankPool, scheme: str) -> None:
    pool.run(checks.joins_by_url, None, 2, scheme=scheme)


def test_a_group_forms_again_on_the_same_store(pool: RankPool) -> None:
    pool.run(checks.forms_again_on_the_same_store, None, 2)


def test_a_rank_that_never_comes_is_named(pool: RankPool) -> None:
    told = pool.run(checks.waits_for_a_rank_that_never_comes, None, 2, ranks=[0])
    assert "rank 1" in told[0] or "ranks 1" in told[0]


def test_unknown_options_are_refused(pool: RankPool) -> None:
    told = pool.run(checks.refuses_options, None, 1)[0]
    for kind in ["unknown", "dict"]:
        assert "colour" in told[kind]
        assert "transport" in told[kind]
    assert "pigeon" in told["value"]
    assert "-1" in told["sign"]
    assert "init_process_group" in told["timeout"]
    assert "orca.distributed.Options" in told["kind"]


def test_a_group_of_one_works(pool: RankPool) -> None:
    pool.run(checks.works_alone, None, 1)


def test_the_examples_in_the_docstrings_run(pool: RankPool) -> None:
    assert pool.run(checks.docstrings_run, None, 1)[0] == 0

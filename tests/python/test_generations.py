"""The records of the import roots, and what each raises."""

from __future__ import annotations

import dataclasses
import doctest

import pytest

import orca.generations
from orca import errors
from orca.generations import BIGDL, ORCA, ZOO, Cores, once_raised_as

OUR_ERRORS = [*errors.BY_CODE.values(), errors.OrcaError, errors.WorkerFailedError]


def raise_in(generation: orca.generations.Generation, error: BaseException) -> BaseException:
    with pytest.raises(BaseException) as caught, generation.errors():  # noqa: PT011
        raise error
    return caught.value


def test_the_defaults_are_those_of_each_generation() -> None:
    assert [g.root for g in (ORCA, BIGDL, ZOO)] == ["orca", "bigdl", "zoo"]
    assert [g.torch_backend for g in (ORCA, BIGDL, ZOO)] == ["spark", "spark", "bigdl"]
    assert [g.batch_size_is_per_worker for g in (ORCA, BIGDL, ZOO)] == [False, False, True]
    assert [g.scheduler_step_freq for g in (ORCA, BIGDL, ZOO)] == ["epoch", "epoch", "batch"]
    assert [g.functions_as_metrics for g in (ORCA, BIGDL, ZOO)] == [True, True, False]
    assert [g.trusts_pickles for g in (ORCA, BIGDL, ZOO)] == [False, True, True]
    assert [g.cluster_mode for g in (ORCA, BIGDL, ZOO)] == ["local", None, "local"]
    assert [g.cores for g in (ORCA, BIGDL, ZOO)] == [
        Cores.ALL,
        Cores.ALL_IF_LOCAL_IS_GIVEN,
        Cores.TWO,
    ]


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BIGDL.torch_backend = "ray"  # type: ignore[misc]


@pytest.mark.parametrize("kind", OUR_ERRORS)
def test_orca_raises_our_classes(kind: type[errors.OrcaError]) -> None:
    error = kind("text")
    assert raise_in(ORCA, error) is error


@pytest.mark.parametrize("kind", OUR_ERRORS)
def test_bigdl_raises_exactly_runtime_error(kind: type[errors.OrcaError]) -> None:
    error = kind("text")
    raised = raise_in(BIGDL, error)
    assert type(raised) is RuntimeError
    assert str(raised) == "text"
    assert raised.__cause__ is error


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.FailedPreconditionError, RuntimeError),
        (errors.WaitTimeoutError, TimeoutError),
        (errors.PeerLostError, ConnectionError),
        (errors.ResourceExhaustedError, MemoryError),
        (errors.UnavailableError, OSError),
        (errors.WorkerFailedError, RuntimeError),
        (errors.InternalError, RuntimeError),
    ],
)
def test_zoo_raises_the_builtin(
    kind: type[errors.OrcaError], expected: type[BaseException]
) -> None:
    error = kind("text")
    raised = raise_in(ZOO, error)
    assert type(raised) is expected
    assert raised.__cause__ is error


@pytest.mark.parametrize("kind", [AssertionError, NotImplementedError, Exception, ValueError])
def test_zoo_raises_what_it_raised_then(kind: type[BaseException]) -> None:
    marked = once_raised_as(errors.InvalidArgumentError("text"), kind)
    assert type(raise_in(ZOO, marked)) is kind
    assert type(raise_in(BIGDL, marked)) is RuntimeError
    assert raise_in(ORCA, marked) is marked
    with pytest.raises(kind) as caught, ZOO.errors(zoo=kind):
        raise errors.FailedPreconditionError("text")
    assert type(caught.value) is kind


def test_other_errors_pass() -> None:
    for generation in (ORCA, BIGDL, ZOO):
        for error in (KeyError("k"), KeyboardInterrupt(), RuntimeError("r")):
            assert raise_in(generation, error) is error


def test_a_function_can_be_bound() -> None:
    @BIGDL.errors()
    def fail(text: str) -> None:
        raise errors.MismatchError(text)

    for text in ("one", "two"):  # More than once.
        with pytest.raises(RuntimeError, match=text) as caught:
            fail(text)
        assert type(caught.value) is RuntimeError


def test_nested_blocks_translate_once() -> None:
    with pytest.raises(RuntimeError) as caught, BIGDL.errors(), BIGDL.errors():
        raise errors.AbortedError("text")
    assert isinstance(caught.value.__cause__, errors.AbortedError)


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(orca.generations)
    assert result.attempted > 0
    assert result.failed == 0

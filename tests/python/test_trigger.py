"""Triggers through Python, and through the old roots; the formulas have their tests in C++."""

from __future__ import annotations

import doctest
import importlib
import pickle
from typing import Any

import pytest

import orca.learn.trigger
from orca.errors import InvalidArgumentError
from orca.learn.trigger import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    Trigger,
    TriggerAnd,
    TriggerOr,
)

ORCA_ROOTS = ["orca.learn.trigger", "bigdl.orca.learn.trigger", "zoo.orca.learn.trigger"]
ENGINE_ROOTS = [
    "bigdl.dllib.optim.optimizer",
    "bigdl.optim.optimizer",
    "bigdl.dllib.utils.triggers",
    "zoo.util.triggers",
]


@pytest.mark.parametrize("root", ORCA_ROOTS)
def test_orca_triggers_are_in_every_root(root: str) -> None:
    module = importlib.import_module(root)
    every, several = module.EveryEpoch(), module.SeveralIteration(2)
    assert isinstance(every, module.Trigger)
    asked = every.get_trigger()
    epochs = [1, 1, 2, 2, 3, 5]
    assert [asked.fires(epoch=e, iteration=1) for e in epochs] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]
    asked = several.get_trigger()
    assert [i for i in range(7) if asked.fires(epoch=1, iteration=i)] == [2, 4, 6]


@pytest.mark.parametrize("root", ENGINE_ROOTS)
def test_engine_triggers_follow_their_formulas_in_every_root(root: str) -> None:
    module = importlib.import_module(root)
    for epoch in range(1, 5):
        for iteration in range(1, 9):
            for loss, score in [(0.1, 0.9), (0.5, 0.5), (0.9, 0.1)]:
                now = {"epoch": epoch, "iteration": iteration, "loss": loss, "score": score}
                expected = {
                    module.MaxEpoch(2): epoch > 2,
                    module.MaxIteration(5): iteration > 5,
                    module.SeveralIteration(3): iteration % 3 == 0,
                    module.MaxScore(0.5): score > 0.5,
                    module.MinLoss(0.5): loss < 0.5,
                    module.TriggerAnd(module.MaxEpoch(2), module.MinLoss(0.5)): epoch > 2
                    and loss < 0.5,
                    module.TriggerOr(
                        module.MaxEpoch(3), module.MinLoss(0.5), module.MaxIteration(7)
                    ): epoch > 3 or loss < 0.5 or iteration > 7,
                }
                for trigger, fires in expected.items():
                    assert trigger.get_trigger().fires(**now) is fires, (trigger, now)
    assert module.EveryEpoch().get_trigger().fires(epoch=3, iteration=1) is False


def test_a_star_import_brings_the_names() -> None:
    names: dict[str, Any] = {}
    exec("from bigdl.optim.optimizer import *", names)
    for name in (
        *("MaxEpoch", "MaxIteration", "EveryEpoch", "SeveralIteration", "MaxScore", "MinLoss"),
        *("TriggerAnd", "TriggerOr", "Adam", "SGD", "Poly", "Warmup", "Top1Accuracy", "Loss"),
    ):
        assert name in names


def test_old_signatures_work() -> None:
    assert MaxEpoch(max=3) == MaxEpoch(max_epoch=3) == MaxEpoch(3, "float")
    assert MaxIteration(max=3) == MaxIteration(3, bigdl_type="float")
    assert EveryEpoch("float") == EveryEpoch()


@pytest.mark.parametrize("text", ["everyepoch", "EveryEpoch", "EVERYEPOCH"])
def test_the_name_of_every_epoch_is_a_trigger(text: str) -> None:
    asked = Trigger.convert_trigger(text)
    assert [asked.fires(epoch=e, iteration=1) for e in (1, 2)] == [False, True]


def test_triggers_are_converted() -> None:
    assert Trigger.convert_trigger(None) is None
    native = MaxEpoch(1).get_trigger()
    assert Trigger.convert_trigger(native) is native
    assert Trigger.convert_trigger(SeveralIteration(4)).fires(epoch=1, iteration=4)


@pytest.mark.parametrize("bad", ["everyiteration", 5, object()])
def test_what_is_no_trigger_is_refused(bad: object) -> None:
    with pytest.raises(
        InvalidArgumentError,
        match="Only 'EveryEpoch', orca triggers and bigdl triggers are supported now",
    ):
        Trigger.convert_trigger(bad)


def test_two_trainings_do_not_disturb_each_other() -> None:
    trigger = EveryEpoch()
    first, second = trigger.get_trigger(), trigger.get_trigger()
    first.fires(epoch=1, iteration=1)
    second.fires(epoch=2, iteration=1)
    assert first.fires(epoch=2, iteration=2)
    assert not second.fires(epoch=2, iteration=2)


def test_a_trigger_goes_to_a_worker() -> None:
    trigger = TriggerAnd(MinLoss(0.25), TriggerOr(EveryEpoch(), MaxScore(0.5)))
    copy = pickle.loads(pickle.dumps(trigger))
    assert copy == trigger
    assert repr(copy) == "TriggerAnd(MinLoss(0.25), TriggerOr(EveryEpoch(), MaxScore(0.5)))"


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxEpoch(0),
        lambda: MaxEpoch(),
        lambda: MaxIteration(-1),
        lambda: SeveralIteration(0),
        lambda: SeveralIteration(1.5),  # type: ignore[arg-type]
        lambda: MaxScore(float("nan")),
        lambda: MinLoss("low"),  # type: ignore[arg-type]
        lambda: TriggerAnd(MaxEpoch(1), "EveryEpoch"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(orca.learn.trigger)
    assert result.attempted > 0
    assert result.failed == 0

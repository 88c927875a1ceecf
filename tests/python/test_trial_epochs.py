"""Epochs of trials in one process, against loops in torch."""

from __future__ import annotations

import copy
import gc
import io
import math
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

import orca
from orca.adapters.torch import trial_epochs
from orca.adapters.torch.feeds import ArraySource
from orca.adapters.torch.trial_epochs import Made, Order, State
from orca.adapters.torch.tuning import TorchSpec
from orca.data import ArrayStore
from orca.errors import InvalidArgumentError
from orca.pickles import dumps

ROWS = 48
BATCH = 16


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    trial_epochs.forget()


def table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(3).normal(size=(ROWS, 4)).astype(np.float32)
    return x, (x @ np.array([[1.0], [-2.0], [0.5], [0.0]], np.float32)) + 1


def source() -> ArraySource:
    store = ArrayStore()
    store.put(dict(zip("xy", table(), strict=True)))
    return ArraySource(store, has_target=True)


def net(_config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def spec(optimizer: Any, model: Any = net, loss: Any = "MSELoss") -> TorchSpec:
    return TorchSpec(model, optimizer, loss)


def order(of: TorchSpec, epochs: int = 0, state: State | None = None, **more: Any) -> Order:
    metric = more.pop("metric", None)
    given: dict[str, Any] = {
        "search": cloudpickle.dumps((of, metric)),
        "name": 1,
        "ended": (),
        "epochs": epochs,
        "config": {"lr": 0.05},
        "seed": 7,
        "batch_size": BATCH,
        "source": source(),
        "validation": source(),
        "state": state,
    }
    return Order(**given | more)


def made(found: Made | None) -> Made:
    assert found is not None
    return found


def by_hand(make_optimizer: Any, epochs: int, loss: Any = None) -> tuple[list[float], nn.Module]:
    """A loop in torch over the same rows in the same order, and its losses of validation."""
    loss = loss or nn.MSELoss()
    torch.default_generator.manual_seed(7)
    model = net({})
    optimizer = make_optimizer(model)
    x, y = map(torch.from_numpy, table())
    numbers = ArrayStore()
    numbers.put(np.arange(ROWS))
    found = []
    for epoch in range(epochs):
        for rows in numbers.batches(BATCH, shuffle=True, seed=7, epoch=epoch):

            def closure(rows: Any = rows) -> torch.Tensor:
                optimizer.zero_grad()
                value: torch.Tensor = loss(model(x[rows]), y[rows])
                value.backward()
                return value

            closure()
            optimizer.step(closure if isinstance(optimizer, torch.optim.LBFGS) else None)
        with torch.no_grad():
            found.append(float(loss(model(x), y)))
    return found, model


OPTIMIZERS = {
    "sgd": lambda model, config: torch.optim.SGD(
        model.parameters(), lr=config["lr"], momentum=0.9, nesterov=True
    ),
    "adam": lambda model, config: torch.optim.Adam(
        model.parameters(), lr=config["lr"], weight_decay=0.1
    ),
    "adamw": lambda model, config: torch.optim.AdamW(
        model.parameters(), lr=config["lr"], amsgrad=True
    ),
    "rmsprop": lambda model, config: torch.optim.RMSprop(model.parameters(), lr=config["lr"]),
    "lbfgs": lambda model, config: torch.optim.LBFGS(model.parameters(), lr=config["lr"]),
    "groups": lambda model, config: torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters()}],
        lr=config["lr"],
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_trial_learns_what_a_loop_learns_wherever_it_goes_on(name: str) -> None:
    of = spec(OPTIMIZERS[name])
    expected, model = by_hand(lambda model: OPTIMIZERS[name](model, {"lr": 0.05}), 3)
    here = [made(trial_epochs.make(order(of, epoch))) for epoch in range(3)]
    assert np.allclose([each.value for each in here], expected, rtol=1e-4)
    learned = trial_epochs.loaded(here[-1].state.weights)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(learned[key], value, rtol=1e-3, atol=1e-5)

    # Every epoch on another worker: the same bits.
    state, elsewhere = None, []
    for epoch in range(3):
        trial_epochs.forget()
        if epoch:
            assert trial_epochs.make(order(of, epoch)) is None
        elsewhere.append(made(trial_epochs.make(order(of, epoch, state))))
        state = elsewhere[-1].state
    assert [each.value for each in elsewhere] == [each.value for each in here]
    assert elsewhere[-1].state.weights == here[-1].state.weights


def test_a_step_is_made_in_one_pass_unless_the_user_has_chosen() -> None:
    class Watched(torch.optim.SGD):
        pass

    def check(make: Any, expected: Any) -> None:
        trial_epochs.forget()
        trial_epochs.make(order(spec(lambda model, _config: make(model.parameters()))))
        (optimizer,) = trial_epochs._trials[1]._optimizers
        assert optimizer.param_groups[0]["fused"] is expected

    check(lambda p: torch.optim.Adam(p, lr=0.1), True)
    check(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True), None)
    check(lambda p: torch.optim.Adam(p, lr=0.1, fused=False), False)
    check(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), False)
    check(lambda p: torch.optim.SGD(p, lr=0.1, differentiable=False), True)
    check(lambda p: Watched(p, lr=0.1), None)


class Transposed(nn.Module):
    """Its weights lie in memory column by column, and those of its convolution channel by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 9)
        self.first.weight = nn.Parameter(torch.randn(4, 9).t())
        self.middle = nn.Conv2d(1, 2, 2).to(memory_format=torch.channels_last)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = self.first(x).tanh().reshape(-1, 1, 3, 3)
        out: torch.Tensor = self.last(self.middle(images).tanh().reshape(-1, 8))
        return out


class Late(nn.Module):
    """A part of it is first used in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.always, self.late = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        out: torch.Tensor = self.always(x)
        return out + self.late(x) if self.calls > ROWS // BATCH else out


class Telling(nn.Linear):
    """Keeps something that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 2}


MODELS = {
    "transposed": lambda _config: Transposed(),
    "late": lambda _config: Late(),
    "telling": lambda _config: Telling(4, 1),
    "lazy": lambda _config: nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(1)),
    "frozen": lambda _config: nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 1)),
}


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_odd_models_learn_the_same_wherever_they_go_on(name: str, optimizer: str) -> None:
    of = spec(OPTIMIZERS[optimizer], MODELS[name])
    here = [made(trial_epochs.make(order(of, epoch))) for epoch in range(3)]
    assert np.isfinite([each.value for each in here]).all()
    if name == "late":  # It counts its calls itself: nobody else can go on with it.
        return
    trial_epochs.forget()
    moved = made(trial_epochs.make(order(of, 1, here[0].state)))
    trial_epochs.forget()
    assert made(trial_epochs.make(order(of, 2, moved.state))).value == here[2].value
    begun = made(trial_epochs.make(order(of, 0, State(here[0].state.weights, None), name=2)))
    assert begun.value != here[0].value  # It has not begun with weights of its own.


class Words(nn.Module):
    """Its gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)
        self.out = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.table(x.long()[:, 0].clamp(0, 4)))
        return out


def test_sparse_gradients_are_learned_from() -> None:
    of = spec("SGD", lambda _config: Words())
    before = made(trial_epochs.make(order(of)))
    after = made(trial_epochs.make(order(of, 1)))
    assert after.value < before.value


def classes() -> ArraySource:
    x, _ = table()
    labels = np.arange(ROWS) % 3
    labels[: ROWS // 2] = -100
    store = ArrayStore()
    store.put({"x": x, "y": labels})
    return ArraySource(store, has_target=True)


def test_batches_in_which_nothing_counts_are_left_out() -> None:
    """Each with its own rows: in some all labels are ignored."""
    of = spec("Adam", lambda _config: nn.Linear(4, 3), nn.CrossEntropyLoss())
    given = {"source": classes(), "validation": classes(), "batch_size": 2}
    values = [made(trial_epochs.make(order(of, epoch, **given))).value for epoch in range(3)]
    assert np.isfinite(values).all()
    assert values[2] < values[0]
    whole = made(trial_epochs.make(order(of, 0, name=2, **given | {"batch_size": ROWS})))
    assert np.isfinite(whole.value)
    # Of a loss of training, too.
    alone = made(trial_epochs.make(order(of, 0, name=3, **given | {"validation": None})))
    assert np.isfinite(alone.value)


class Counting:
    """A metric with a state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _truth: Any, _found: Any) -> float:
        self.calls += 1
        return float(self.calls)


def test_a_metric_begins_anew_in_every_epoch() -> None:
    of, metric = spec("SGD"), Counting()
    found = [made(trial_epochs.make(order(of, epoch, metric=metric))) for epoch in range(2)]
    assert [each.value for each in found] == [1.0, 1.0]


def test_a_kept_trial_does_not_keep_its_data() -> None:
    class Noted(ArraySource):
        pass

    given = source()
    noted = Noted(given.store, has_target=True)
    trial_epochs.make(order(spec("SGD"), source=noted, validation=None))
    gone = weakref.ref(noted)
    del noted
    trial_epochs._sources.clear()
    gc.collect()
    assert gone() is None
    assert list(trial_epochs._trials) == [1]


def test_several_optimizers_step_and_go_on() -> None:
    def both(model: Any, config: dict[str, Any]) -> list[Any]:
        return [
            torch.optim.SGD(model[0].parameters(), lr=config["lr"]),
            torch.optim.Adam(model[2].parameters(), lr=config["lr"]),
        ]

    first = made(trial_epochs.make(order(spec(both))))
    second = made(trial_epochs.make(order(spec(both), 1)))
    trial_epochs.forget()
    again = made(trial_epochs.make(order(spec(both), 1, first.state)))
    assert again.value == second.value < first.value


def test_what_creators_return_is_looked_at() -> None:
    with pytest.raises(InvalidArgumentError, match="optimizer creator returned a int"):
        trial_epochs.make(order(spec(lambda _model, _config: 3)))
    with pytest.raises(InvalidArgumentError, match="optimizer creator returned none"):
        trial_epochs.make(order(spec(lambda _model, _config: [])))
    with pytest.raises(InvalidArgumentError, match="loss creator returned a NoneType"):
        trial_epochs.make(order(spec("SGD", loss=lambda _config: None)))


def test_weights_of_another_trial_are_a_beginning() -> None:
    of = spec("SGD")
    source_of_them = made(trial_epochs.make(order(of)))
    mine = made(trial_epochs.make(order(of, 0, State(source_of_them.state.weights, None), name=2)))
    assert mine.value < source_of_them.value  # It has not begun anew.
    wider = spec("SGD", lambda _config: nn.Linear(4, 2))
    with pytest.raises(InvalidArgumentError, match="state of another model"):
        trial_epochs.make(order(wider, 0, State(source_of_them.state.weights, None), name=3))


def test_a_worker_keeps_a_few_trials_and_none_that_have_ended() -> None:
    of = spec("SGD")
    for name in range(7):
        trial_epochs.make(order(of, name=name))
    assert list(trial_epochs._trials) == [3, 4, 5, 6]
    trial_epochs.make(order(of, name=7, ended=(4, 5, 6)))
    assert list(trial_epochs._trials) == [3, 7]


def test_a_trial_that_fails_is_not_gone_on_with() -> None:
    of = spec("SGD")
    first = made(trial_epochs.make(order(of)))

    def fails(_truth: Any, _found: Any) -> float:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        trial_epochs.make(order(of, 0, name=2, metric=fails))
    assert list(trial_epochs._trials) == [1]
    assert first.value == made(trial_epochs.make(order(of, name=2))).value


def test_gradients_that_a_creator_left_are_not_counted() -> None:
    def warmed(config: dict[str, Any]) -> nn.Module:
        model = net(config)
        model(torch.ones(2, 4)).sum().backward()
        return model

    plain = made(trial_epochs.make(order(spec("SGD"))))
    assert made(trial_epochs.make(order(spec("SGD", warmed), name=2))).value == plain.value


def test_a_sum_that_overflows_is_no_fault_of_the_weights() -> None:
    for kind in (torch.float16, torch.float32, torch.complex64):
        large = torch.full((4,), torch.finfo(kind).max, dtype=kind)
        assert trial_epochs._are_finite([large, large])
        for bad in (math.inf, -math.inf, math.nan):
            large[2] = bad
            assert not trial_epochs._are_finite([torch.ones(1), large])


def test_sources_that_all_trials_have_are_unpacked_once() -> None:
    def sources_of(number: int) -> Any:
        common = bytes(dumps(([number], None))[0][0])
        given = order(spec("SGD"), source=None, validation=None, common=common)
        return trial_epochs._sources_of(given)[0]

    first = sources_of(1)
    assert first == [1]
    assert sources_of(1) is first
    assert sources_of(2) == [2]
    own = order(spec("SGD"))
    assert trial_epochs._sources_of(own) == (own.source, own.validation)
    assert sources_of(2) == [2]


def test_what_is_not_finite_is_told() -> None:
    def spoils(config: dict[str, Any]) -> nn.Module:
        model = net(config)
        with torch.no_grad():
            model[0].weight[0, 0] = torch.nan
        return model

    with pytest.raises(
        trial_epochs.NotFiniteError, match=r"step 0: the loss is not finite \(nan\)"
    ):
        trial_epochs.make(order(spec("SGD", spoils)))
    # What no loss has seen: the last step of training, and nothing to measure on.
    found = trial_epochs.make(
        order(
            spec(lambda m, _: torch.optim.SGD(m.parameters(), lr=float("inf"))),
            batch_size=ROWS,
            validation=None,
        )
    )
    assert np.isnan(made(found).value)


def test_files_are_those_of_torch() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].weight.data = torch.arange(6.0).reshape(3, 2).t()  # Its elements lie in another order.
    tied = {"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.float64)}
    tied["c"] = tied["a"]
    for state in (
        model.state_dict(),
        {
            "half": torch.ones(2, dtype=torch.bfloat16),
            "empty": torch.ones(0),
            "one": torch.tensor(3),
        },
        {
            "flag": torch.tensor([True, False]),
            "\u00e4\u20ac": torch.tensor(2.5, dtype=torch.float16),
        },
        {"extra": {"anything": [1, "two"]}, "w": torch.ones(1)},
        tied,
        {},
    ):
        content = trial_epochs.saved(copy.copy(state))
        found = torch.load(io.BytesIO(content), weights_only=True)
        assert list(found) == list(state)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert found[name].dtype is value.dtype
                assert torch.equal(found[name], value)
            else:
                assert found[name] == value
    found = torch.load(io.BytesIO(trial_epochs.saved(tied)), weights_only=True)
    assert found["a"].data_ptr() == found["c"].data_ptr()


def test_a_large_state_lies_in_shared_memory() -> None:
    """And goes on from there, in another process."""
    wide = spec("Adam", lambda _config: nn.Sequential(nn.Linear(4, 20_000), nn.Linear(20_000, 1)))
    orca.init_orca_context("local", cores=2)
    try:
        first = orca.run(trial_epochs.make, (order(wide),), workers=1)[0]
        assert isinstance(first.state.weights, trial_epochs.SharedParts)
        assert isinstance(first.state.rest, trial_epochs.SharedParts)
        on = orca.run(trial_epochs.make, (order(wide, 1),), workers=1)[0]
        orca.run(trial_epochs.forget, workers=2)
        again = orca.run(trial_epochs.make, (order(wide, 1, first.state),), workers=1)[0]
        assert again.value == on.value
    finally:
        orca.stop_orca_context()

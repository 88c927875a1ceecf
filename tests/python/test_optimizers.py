"""Optimizers and schedules against plain numpy formulas of each algorithm."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import orca.adapters.torch.optimizers as torch_optimizers
import orca.learn.optimizers as optimizers
import orca.learn.optimizers.schedule as schedule
from orca.adapters.torch.optimizers import make_optimizer
from orca.errors import InvalidArgumentError
from orca.learn.optimizers import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    ParallelAdam,
    RMSprop,
)
from orca.learn.optimizers.schedule import (
    Default,
    Exponential,
    MultiStep,
    Plateau,
    Poly,
    SequentialSchedule,
    Step,
    Warmup,
)

STEPS = 25
ROOTS = [
    "orca.learn.optimizers",
    "bigdl.orca.learn.optimizers",
    "zoo.orca.learn.optimizers",
    "bigdl.dllib.optim.optimizer",
    "bigdl.optim.optimizer",
]
Update = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def gradients(seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    # Of very different sizes, and some zeros: where epsilons matter.
    scales = 10.0 ** rng.integers(-9, 3, (STEPS, 40))
    return list(rng.normal(size=(STEPS, 40)) * scales * (rng.random((STEPS, 40)) > 0.1))


def train(description: Any, dtype: torch.dtype = torch.float64) -> np.ndarray:
    """The weights after every step. They are two parameters of different shapes."""
    start = torch.tensor(np.random.default_rng(2).normal(size=40), dtype=dtype)
    weights = [start[:10].clone(), start[10:].clone().reshape(5, 6)]
    optimizer, rates = make_optimizer(description, weights)
    seen = []
    for iteration, gradient in enumerate(gradients()):
        whole = torch.tensor(gradient, dtype=dtype)
        weights[0].grad, weights[1].grad = whole[:10].clone(), whole[10:].reshape(5, 6).clone()
        if rates is not None:
            rates.apply(optimizer, iteration)
        optimizer.step()
        seen.append(torch.cat([weight.flatten() for weight in weights]).double().numpy().copy())
    return np.stack(seen)


def expect(description: Any, update: Update) -> None:
    weight = np.random.default_rng(2).normal(size=40)
    expected = []
    for iteration, gradient in enumerate(gradients()):
        weight = update(weight, gradient, iteration)
        expected.append(weight)
    np.testing.assert_allclose(train(description), np.stack(expected), rtol=1e-11, atol=1e-13)
    single = train(description, torch.float32)
    assert np.isfinite(single).all()


@pytest.mark.parametrize(
    ("momentum", "nesterov", "dampening"),
    [
        *((0.0, False, None), (0.9, False, None), (0.9, False, 0.0), (0.9, False, 0.3)),
        *((0.9, True, None), (0.9, True, 0.0)),
    ],
)
@pytest.mark.parametrize("weightdecay", [0.0, 0.01])
@pytest.mark.parametrize("per_weight", [False, True])
def test_sgd(
    momentum: float, nesterov: bool, weightdecay: float, dampening: float | None, per_weight: bool
) -> None:
    options: dict[str, Any] = {} if dampening is None else {"dampening": dampening}
    lost = (0.0 if nesterov else momentum) if dampening is None else dampening
    rates = np.linspace(0.5, 2, 40) if per_weight else np.ones(40)
    decays = np.linspace(0, 0.1, 40) if per_weight and not weightdecay else np.full(40, weightdecay)
    if per_weight:
        options |= {"learningrates": rates, "weightdecays": np.linspace(0, 0.1, 40)}
    kept: list[np.ndarray] = []

    def update(weight: np.ndarray, gradient: np.ndarray, iteration: int) -> np.ndarray:
        gradient = gradient + decays * weight
        if momentum:
            kept.append(momentum * kept[-1] + (1 - lost) * gradient if kept else gradient)
            gradient = gradient + momentum * kept[-1] if nesterov else kept[-1]
        return weight - 0.05 / (1 + 0.2 * iteration) * rates * gradient

    expect(SGD(0.05, 0.2, weightdecay, momentum, nesterov=nesterov, **options), update)


def test_sgd_needs_no_schedule() -> None:
    expect(SGD(), lambda weight, gradient, _: weight - 1e-3 * gradient)
    optimizer, rates = make_optimizer(SGD(), [torch.zeros(1)])
    assert type(optimizer) is torch.optim.SGD
    assert rates is None


def test_adagrad() -> None:
    total = np.zeros(40)

    def update(weight: np.ndarray, gradient: np.ndarray, iteration: int) -> np.ndarray:
        nonlocal total
        gradient = gradient + 0.02 * weight
        total = total + gradient**2
        return weight - 0.1 / (1 + 0.3 * iteration) * gradient / (np.sqrt(total) + 1e-10)

    expect(Adagrad(0.1, 0.3, 0.02), update)


@pytest.mark.parametrize("kind", [Adam, ParallelAdam])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-3])
def test_adam(kind: type[Adam], epsilon: float) -> None:
    first, second = np.zeros(40), np.zeros(40)

    def update(weight: np.ndarray, gradient: np.ndarray, iteration: int) -> np.ndarray:
        nonlocal first, second
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        step = 0.1 / (1 + 0.3 * iteration)
        step *= np.sqrt(1 - 0.95 ** (iteration + 1)) / (1 - 0.8 ** (iteration + 1))
        return weight - step * first / (np.sqrt(second) + epsilon)

    expect(kind(0.1, 0.3, 0.8, 0.95, epsilon), update)


def test_adadelta() -> None:
    squares, steps = np.zeros(40), np.zeros(40)

    def update(weight: np.ndarray, gradient: np.ndarray, _: int) -> np.ndarray:
        nonlocal squares, steps
        squares = 0.8 * squares + 0.2 * gradient**2
        step = np.sqrt(steps + 1e-6) / np.sqrt(squares + 1e-6) * gradient
        steps = 0.8 * steps + 0.2 * step**2
        return weight - step

    expect(Adadelta(0.8, 1e-6), update)


def test_adamax() -> None:
    first, largest = np.zeros(40), np.zeros(40)

    def update(weight: np.ndarray, gradient: np.ndarray, iteration: int) -> np.ndarray:
        nonlocal first, largest
        first = 0.8 * first + 0.2 * gradient
        largest = np.maximum(0.95 * largest, np.abs(gradient) + 1e-38)
        return weight - 0.1 / (1 - 0.8 ** (iteration + 1)) * first / largest

    expect(Adamax(0.1, 0.8, 0.95), update)


def test_rmsprop() -> None:
    squares = np.zeros(40)

    def update(weight: np.ndarray, gradient: np.ndarray, iteration: int) -> np.ndarray:
        nonlocal squares
        squares = 0.9 * squares + 0.1 * gradient**2
        return weight - 0.1 / (1 + 0.3 * iteration) * gradient / (np.sqrt(squares) + 1e-4)

    expect(RMSprop(0.1, 0.3, 0.9, 1e-4), update)


@pytest.mark.parametrize("power", [-0.5, -0.7, 0.0])
@pytest.mark.parametrize("accumulator", [0.1, 0.0])
@pytest.mark.parametrize(("l1", "l2", "shrinkage"), [(0, 0, 0), (0.5, 0, 0), (0.3, 0.2, 0.1)])
def test_ftrl(power: float, accumulator: float, l1: float, l2: float, shrinkage: float) -> None:
    squares, linear = np.full(40, accumulator), np.zeros(40)

    def update(weight: np.ndarray, gradient: np.ndarray, _: int) -> np.ndarray:
        nonlocal squares, linear
        gradient = gradient + 2 * shrinkage * weight
        grown = squares + gradient**2
        linear = linear + gradient - (grown**-power - squares**-power) / 0.1 * weight
        squares = grown
        moved = np.zeros(40)
        far = np.abs(linear) > l1
        divisor = squares**-power / 0.1 + 2 * l2
        moved[far] = (np.sign(linear[far]) * l1 - linear[far]) / divisor[far]
        return moved

    expect(Ftrl(0.1, power, accumulator, l1, l2, shrinkage), update)


def test_lbfgs_finds_the_minimum_of_a_quadratic() -> None:
    matrix = np.diag([1.0, 3.0, 10.0]) + 0.5
    target = np.array([1.0, -2.0, 0.5])
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer, rates = make_optimizer(LBFGS(max_iter=50, tolfun=1e-12, tolx=1e-15), [weight])
    assert rates is None
    assert optimizer.param_groups[0]["max_eval"] == 62  # 1.25 times as many

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = 0.5 * weight @ torch.tensor(matrix) @ weight - torch.tensor(target) @ weight
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    np.testing.assert_allclose(weight.detach().numpy(), np.linalg.solve(matrix, target), atol=1e-6)


@pytest.mark.parametrize("root", ROOTS)
def test_the_classes_and_defaults_are_in_every_root(root: str) -> None:
    module = importlib.import_module(root)
    expected: dict[str, list[Any]] = {
        "SGD": [1e-3, 0.0, 0.0, 0.0, sys.float_info.max, False, None, None, None],
        "Adagrad": [1e-3, 0.0, 0.0],
        "LBFGS": [20, sys.float_info.max, 1e-5, 1e-9, 100, 1.0, False, None, None],
        "Adadelta": [0.9, 1e-10],
        "Adam": [1e-3, 0.0, 0.9, 0.999, 1e-8],
        "ParallelAdam": [1e-3, 0.0, 0.9, 0.999, 1e-8, -1],
        "Ftrl": [1e-3, -0.5, 0.1, 0.0, 0.0, 0.0],
        "Adamax": [0.002, 0.9, 0.999, 1e-38],
        "RMSprop": [1e-2, 0.0, 0.99, 1e-8],
    }
    for name, defaults in expected.items():
        kind = getattr(module, name)
        parameters = inspect.signature(kind).parameters.values()
        positional = [p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == defaults, name
        made = kind(bigdl_type="float")
        assert made.get_optimizer() is made


def test_the_names_of_the_arguments_are_those_of_the_originals() -> None:
    names = [
        p.name
        for p in inspect.signature(SGD).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert names == [
        "learningrate",
        "learningrate_decay",
        "weightdecay",
        "momentum",
        "dampening",
        "nesterov",
        "learningrate_schedule",
        "learningrates",
        "weightdecays",
    ]
    assert SGD(leaningrate_schedule=Default()) == SGD(learningrate_schedule=Default())


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(-1),
        lambda: SGD(float("nan")),
        lambda: SGD("fast"),  # type: ignore[arg-type]
        lambda: SGD(nesterov=True),
        lambda: SGD(momentum=0.9, nesterov=True, dampening=0.1),
        lambda: SGD(learningrate_schedule="step"),  # type: ignore[arg-type]
        lambda: SGD(learningrates=[float("inf")]),
        lambda: Adam(beta1=1.0),
        lambda: Adadelta(decayrate=-0.1),
        lambda: LBFGS(linesearch=print),
        lambda: LBFGS(max_iter=0),
        lambda: Ftrl(learningrate_power=0.5),
        lambda: Ftrl(learningrate=0.0),
        lambda: RMSprop(epsilon=-1.0),
    ],
)
def test_numbers_that_cannot_work_are_refused_at_once(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_what_does_not_fit_the_weights_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="3 numbers for 4 weights"):
        make_optimizer(SGD(learningrates=[1, 2, 3]), [torch.zeros(4)])
    with pytest.raises(InvalidArgumentError, match="known: SGD, Adagrad"):
        make_optimizer("sgd", [torch.zeros(4)])  # type: ignore[arg-type]


def test_a_description_is_a_value() -> None:
    made = SGD(0.1, momentum=0.9, learningrate_schedule=SequentialSchedule(3).add(Warmup(1), 5))
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert copy.dampening == 0.9
    with pytest.raises(AttributeError):
        made.momentum = 0.5  # type: ignore[misc]


# --- schedules

BASE, DECAY = 0.3, 0.01
FORMULAS: list[tuple[schedule.Scheduler, Callable[[int], float]]] = [
    (Default(), lambda i: BASE / (1 + DECAY * i)),
    (Poly(0.5, 20), lambda i: BASE * max(1 - i / 20, 0) ** 0.5),
    (Exponential(10, 0.9), lambda i: BASE * 0.9 ** (i / 10)),
    (Exponential(10, 0.9, stair_case=True), lambda i: BASE * 0.9 ** (i // 10)),
    (Step(4, 0.5), lambda i: BASE * 0.5 ** (i // 4)),
    (MultiStep([3, 9], 0.1), lambda i: BASE * 0.1 ** ((i >= 3) + (i >= 9))),
    (Warmup(0.05), lambda i: BASE + 0.05 * i),
    (
        SequentialSchedule(10).add(Warmup(0.1), 3).add(Exponential(2, 0.5), 100),
        lambda i: BASE + 0.1 * i if i <= 3 else (BASE + 0.3) * 0.5 ** ((i - 3) / 2),
    ),
]


@pytest.mark.parametrize(
    ("made", "formula"), FORMULAS, ids=[repr(made)[:40] for made, _ in FORMULAS]
)
def test_a_schedule_drives_the_rate_of_the_optimizer(
    made: schedule.Scheduler, formula: Callable[[int], float]
) -> None:
    weight = torch.zeros(2, dtype=torch.float64)
    description = SGD(BASE, DECAY, learningrate_schedule=made)
    optimizer, rates = make_optimizer(description, [{"params": [weight]}, {"params": []}])
    assert rates is not None
    total = 0.0
    for iteration in range(30):
        weight.grad = torch.ones(2, dtype=torch.float64)
        rate = rates.apply(optimizer, iteration)
        assert rate == pytest.approx(formula(iteration), rel=1e-12)
        assert [group["lr"] for group in optimizer.param_groups] == [rate, rate]
        optimizer.step()
        total += formula(iteration)
    assert weight[0].item() == pytest.approx(-total, rel=1e-12)


def test_a_plateau_lowers_the_rate_and_survives_a_checkpoint() -> None:
    losses = [5.0, 4.0, 4.0, 4.0, 4.0, 3.0]
    made = Plateau("Loss", factor=0.5, patience=1)

    def run(rates: Any, epochs: range) -> list[float]:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        return [rates.apply(optimizer, e, epoch=e + 1, loss=losses[e - 1]) for e in epochs]

    _, whole = make_optimizer(SGD(1.0, learningrate_schedule=made), [torch.zeros(1)])
    expected = run(whole, range(7))
    # 5: best. 4: best. 4: waits. 4: halved. 4: halved again, as the one before counts. 3: best.
    assert expected == [1.0, 1.0, 1.0, 1.0, 0.5, 0.25, 0.25]
    for stop in range(1, 7):
        _, first = make_optimizer(SGD(1.0, learningrate_schedule=made), [torch.zeros(1)])
        _, second = make_optimizer(SGD(1.0, learningrate_schedule=made), [torch.zeros(1)])
        assert first is not None
        assert second is not None
        head = run(first, range(stop))
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert head + run(second, range(stop, 7)) == expected


@pytest.mark.parametrize("root", ["bigdl.orca.learn.optimizers", "zoo.orca.learn.optimizers"])
def test_schedules_are_in_every_root(root: str) -> None:
    module = importlib.import_module(f"{root}.schedule")
    assert module is schedule
    assert isinstance(module.Poly(0.5, 10), module.Scheduler)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poly(0.5, 0),
        lambda: Step(0, 0.5),
        lambda: Plateau("accuracy"),
        lambda: Plateau("Loss", factor=1.5),
        lambda: Plateau("Loss", mode="auto"),
        lambda: MultiStep([5, 3], 0.1),
        lambda: SequentialSchedule(0),
        lambda: SequentialSchedule(1).add("Poly", 3),  # type: ignore[arg-type]
        lambda: SequentialSchedule(1).add(Default(), 0),
        lambda: SequentialSchedule(1).get_scheduler(),
    ],
)
def test_schedules_that_cannot_work_are_refused(make: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


@pytest.mark.parametrize("module", [optimizers, schedule, torch_optimizers])
def test_the_examples_in_the_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0

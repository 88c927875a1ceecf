"""The engine's optimizer steps against torch.optim's, for every option that changes the arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from orca._native import _core
from orca.errors import InvalidArgumentError

COUNT = 777
STEPS = 50
STATES = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take longer than so few elements."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """All combinations that torch accepts of a plain and another value of each option."""
    for lr, decay, maximize in itertools.product((0.1, 1e-3), (0, 0.05), (False, True)):
        common = {"lr": lr, "weight_decay": decay, "maximize": maximize}
        for momentum, dampening, nesterov in itertools.product((0, 0.9), (0, 0.4), (False, True)):
            if nesterov and (momentum == 0 or dampening != 0):
                continue
            own = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
            yield "sgd", common | own
        for kind, betas, eps, amsgrad in itertools.product(
            ("adam", "adamw"), ((0.9, 0.999), (0.4, 0.7)), (1e-8, 1e-2), (False, True)
        ):
            yield kind, common | {"betas": betas, "eps": eps, "amsgrad": amsgrad}


def rule(kind: str, options: dict[str, Any]) -> Any:
    made = _core.Update(kind)
    for name, value in options.items():
        if name == "betas":
            made.beta1, made.beta2 = value
        else:
            setattr(made, name, value)
    return made


class Ours:
    """Weights and states as the engine keeps them."""

    def __init__(self, kind: str, options: dict[str, Any], weights: torch.Tensor) -> None:
        self.rule = rule(kind, options)
        self.kind = kind
        self.steps = 0
        self.weights = weights.clone()
        names = STATES[kind][: self.rule.state_count]
        self.states = {name: torch.zeros_like(weights) for name in names}

    def step(self, gradient: torch.Tensor) -> None:
        self.steps += 1
        self.rule.step = self.steps
        self.rule.first = self.steps == 1
        self.rule.apply([gradient], [1.0], self.weights, list(self.states.values()))

    def take(self, theirs: Theirs) -> None:
        self.steps = theirs.steps
        self.weights.copy_(theirs.weights.detach())
        for name, state in self.states.items():
            state.copy_(theirs.states[name])


class Theirs:
    """Weights and states as torch keeps them."""

    def __init__(
        self, kind: str, options: dict[str, Any], weights: torch.Tensor, **how: bool
    ) -> None:
        self.kind = kind
        self.steps = 0
        self.weights = weights.clone().requires_grad_()
        self.optimizer = OPTIMIZERS[kind]([self.weights], **options, **how)

    @property
    def states(self) -> dict[str, Any]:
        return self.optimizer.state[self.weights]

    def step(self, gradient: torch.Tensor) -> None:
        self.steps += 1
        self.weights.grad = gradient.clone()
        self.optimizer.step()

    def take(self, ours: Ours) -> None:
        self.steps = ours.steps
        self.weights.detach().copy_(ours.weights)
        state: dict[str, Any] = {name: value.clone() for name, value in ours.states.items()}
        if ours.kind != "sgd":
            state["step"] = torch.tensor(float(ours.steps))
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict(whole | {"state": {0: state}})


def assert_near(ours: Ours, theirs: Theirs) -> None:
    """Relative to the largest element, since a weight may come as near to 0 as it likes."""
    pairs = [(ours.weights, theirs.weights.detach())]
    pairs += [(state, theirs.states[name]) for name, state in ours.states.items()]
    for mine, other in pairs:
        error = (mine - other).abs().max() / other.abs().max()
        assert error <= TOLERANCES[mine.dtype]


def gradients(dtype: torch.dtype, steps: int = STEPS) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(5)
    return [torch.randn(COUNT, dtype=dtype, generator=source) for _ in range(steps)]


def weights(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(COUNT, dtype=dtype, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("how", ["single", "foreach", "fused"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_fifty_steps_are_those_of_torch(kind: str, dtype: torch.dtype, how: str) -> None:
    ways = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    for of, options in settings():
        if of != kind:
            continue
        ours = Ours(kind, options, weights(dtype))
        theirs = Theirs(kind, options, weights(dtype), **ways[how])
        for gradient in gradients(dtype):
            ours.step(gradient)
            theirs.step(gradient)
        assert_near(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_either_goes_on_where_the_other_stopped(kind: str, dtype: torch.dtype) -> None:
    steps = gradients(dtype)
    for of, options in settings():
        if of != kind:
            continue
        whole = Theirs(kind, options, weights(dtype))
        ours = Ours(kind, options, weights(dtype))
        theirs = Theirs(kind, options, weights(dtype))
        for gradient in steps:
            whole.step(gradient)
        for gradient in steps[:25]:
            ours.step(gradient)
            theirs.step(gradient)
        after_ours = Theirs(kind, options, weights(dtype))
        after_ours.take(ours)
        after_theirs = Ours(kind, options, weights(dtype))
        after_theirs.take(theirs)
        for gradient in steps[25:]:
            after_ours.step(gradient)
            after_theirs.step(gradient)
        assert_near(after_theirs, whole)
        assert_near(after_theirs, after_ours)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_joined_gradient_is_clipped_by_value_and_then_scaled(dtype: torch.dtype) -> None:
    first, second = gradients(dtype, 2)
    joined = (0.25 * first + 0.75 * second).clamp(-0.2, 0.4).mul(0.3)
    options = {"lr": 0.1, "maximize": True, "weight_decay": 0.01}
    theirs = Theirs("sgd", options, weights(dtype))
    theirs.step(joined)
    ours = Ours("sgd", options, weights(dtype))
    ours.rule.clips, ours.rule.clip_low, ours.rule.clip_high = True, -0.2, 0.4
    ours.rule.scale = 0.3
    ours.rule.apply([first, second], [0.25, 0.75], ours.weights, [])
    assert_near(ours, theirs)


def test_a_step_to_another_place_leaves_the_first_as_it_is() -> None:
    (gradient,) = gradients(torch.float32, 1)
    ours = Ours("adam", {"lr": 0.1}, weights(torch.float32))
    copy = torch.full_like(ours.weights, float("nan"))
    copies = [torch.full_like(copy, float("nan")) for _ in ours.states]
    ours.rule.apply([gradient], [1.0], ours.weights, list(ours.states.values()), (copy, copies))
    assert torch.equal(ours.weights, weights(torch.float32))
    assert not any(state.any() for state in ours.states.values())
    ours.step(gradient)
    assert torch.equal(copy, ours.weights)
    for mine, there in zip(ours.states.values(), copies, strict=True):
        assert torch.equal(mine, there)


def test_what_does_not_fit_is_named() -> None:
    adam = rule("adam", {"lr": 0.1})
    one, two = torch.zeros(4), torch.zeros(5)
    with pytest.raises(InvalidArgumentError, match="1 states were given; the rule has 2"):
        adam.apply([one], [1.0], one, [one])
    with pytest.raises(InvalidArgumentError, match="5 elements is not one of 4 of float32"):
        adam.apply([one], [1.0], two, [one, one])
    with pytest.raises(InvalidArgumentError, match="of 4 of float32"):
        adam.apply([one], [1.0], one.double(), [one, one])
    with pytest.raises(InvalidArgumentError, match="2 factors for 1 gradients"):
        adam.apply([one], [1.0, 1.0], one, [one, one])
    half = one.half()
    with pytest.raises(InvalidArgumentError, match="float16"):
        adam.apply([half], [1.0], half, [half, half])
    with pytest.raises(InvalidArgumentError, match="sgd, adam or adamw"):
        _core.Update("rprop")

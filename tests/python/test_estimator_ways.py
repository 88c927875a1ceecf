"""The same training in both ways of keeping workers equal: shared weights, and a copy in each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import checks_estimator as checks
import orca
from orca.learn.pytorch.callbacks import MainCallback
from orca.learn.pytorch.training_operator import TrainingOperator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

both_ways = pytest.mark.parametrize("elementwise", [None, False], ids=["shared", "copies"])


def same(found: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-12, atol=1e-14)


def way_of(est: Any, elementwise: bool | None) -> None:
    """The way is the one that this test is about."""

    def way(name: str) -> Any:
        from orca.adapters.torch import loop

        return loop._sessions[name][1].sync.way

    expected = "shared weights" if elementwise is None else "a copy of the weights in each worker"
    assert set(orca.run(way, (est._id,), workers=est.num_workers)) == {expected}


def trainable(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    chosen = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(chosen, lr=0.01, weight_decay=0.1)


def two_optimizers(model: Any, config: Any) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model.first.parameters(), lr=0.05, momentum=0.9),
        torch.optim.Adam(model.second.parameters(), lr=0.01),
    ]


class Together:
    """Several optimizers as one, for the plain loop."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


class Tied(nn.Module):
    """One matrix in two places, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 3, bias=False, dtype=torch.float64)
        self.again = nn.Linear(5, 3, dtype=torch.float64)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + torch.tanh(self.again(2 * x))


class Frozen(checks.Net):
    def __init__(self) -> None:
        torch.manual_seed(4)
        super().__init__()
        self.first.weight.requires_grad_(False)


class Buffered(checks.Net):
    """Buffers of all kinds: a constant, one that counts calls, one that is not saved."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        super().__init__()
        self.register_buffer("shift", torch.full((5,), 0.25, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return super().forward((x + self.shift) * self.scale)


MODELS: dict[str, tuple[Any, Any]] = {
    "tied": (Tied, trainable),
    "frozen": (Frozen, trainable),
    "buffers": (Buffered, trainable),
    "two optimizers": (lambda: checks.net({}), two_optimizers),
}


@pytest.mark.product
@both_ways
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_models_train_as_in_one_process(
    kind: str, workers: int, elementwise: bool | None, tmp_path: Path
) -> None:
    """Also after they were saved and loaded."""
    make, optimizer = MODELS[kind]
    data = checks.rows(24)
    given = {"model": lambda config: make(), "optimizer": optimizer, "elementwise": elementwise}
    est = checks.estimator(workers, **given)
    est.fit(data, epochs=2, batch_size=8)
    way_of(est, elementwise)
    other = checks.estimator(2, **given)
    other.load(est.save(str(tmp_path / "state.pt")))
    est.shutdown()
    other.fit(data, epochs=2, batch_size=8)
    plain = optimizer if kind != "two optimizers" else lambda m, c: Together(two_optimizers(m, c))
    expected = checks.trained_plainly(plain, epochs=4, count=24, model=make())
    same(other.get_model(), expected)
    if kind == "tied":
        found = other.get_model()
        assert found.first.weight is found.again.weight
    other.shutdown()


EVERY = 2


class Accumulating(TrainingOperator):
    """Updates the weights after every second batch."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        loss = F.cross_entropy(self.model(features), target)
        (loss / EVERY).backward()
        if batch_info["global_step"] % EVERY == EVERY - 1:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"train_loss": loss.item(), "num_samples": len(target)}


class AccumulatingCallback(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        (runner.loss / EVERY).backward()
        if runner.global_step % EVERY == EVERY - 1:
            runner.optimizer.step()
            runner.optimizer.zero_grad()


def accumulated(model: nn.Module, batches: list[slice]) -> nn.Module:
    optimizer = checks.OPTIMIZERS["adam"](model, {})
    x, y = (torch.from_numpy(part) for part in checks.rows(40))
    for step, rows in enumerate(batches):
        (F.cross_entropy(model(x[rows]), y[rows]) / EVERY).backward()
        if step % EVERY == EVERY - 1:
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.product
@pytest.mark.parametrize("by", ["operator", "callback"])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "count", [40, 22, 25], ids=["even", "across epochs", "a last batch of one row"]
)
def test_gradients_add_up_over_batches(by: str, workers: int, count: int) -> None:
    x, y = checks.rows(40)
    given: dict[str, Any] = {"optimizer": checks.OPTIMIZERS["adam"]}
    if by == "operator":
        given["training_operator_cls"] = Accumulating
    est = checks.estimator(workers, **given)
    callbacks = [AccumulatingCallback()] if by == "callback" else None
    est.fit((x[:count], y[:count]), epochs=4, batch_size=8, callbacks=callbacks)
    batches = [slice(b, min(b + 8, count)) for _ in range(4) for b in range(0, count, 8)]
    same(est.get_model(), accumulated(checks.net({}), batches))
    est.shutdown()


@both_ways
def test_gradients_add_up_after_steps_of_ours(elementwise: bool | None) -> None:
    data = checks.rows(40)
    est = checks.estimator(2, optimizer=checks.OPTIMIZERS["adam"], elementwise=elementwise)
    est.fit(data, epochs=1, batch_size=8)
    way_of(est, elementwise)
    first = est.get_state_dict()
    est.fit(data, epochs=2, batch_size=10, callbacks=[AccumulatingFrom(5)])
    model = checks.net({})
    model.load_state_dict(first["models"][0])
    optimizer = checks.OPTIMIZERS["adam"](model, {})
    optimizer.load_state_dict(first["optimizers"][0])
    x, y = (torch.from_numpy(part) for part in data)
    for step in range(8):
        rows = slice(step % 4 * 10, step % 4 * 10 + 10)
        (F.cross_entropy(model(x[rows]), y[rows]) / EVERY).backward()
        if step % EVERY == EVERY - 1:
            optimizer.step()
            optimizer.zero_grad()
    same(est.get_model(), model)
    est.shutdown()


class Plain(TrainingOperator):
    """A loop of the user's that does what ours does."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().train_batch(batch, batch_info)


@pytest.mark.parametrize("by", ["operator", "callback"])
def test_schedulers_step_with_the_whole_job(by: str) -> None:
    """Also where a worker has fewer batches than others."""
    x, y = checks.rows(25)
    given: dict[str, Any] = {"training_operator_cls": Plain} if by == "operator" else {}
    est = checks.estimator(
        3,
        scheduler_creator=lambda o, c: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.5),
        scheduler_step_freq="batch",
        **given,
    )
    callbacks = [OwnBackward()] if by == "callback" else None
    est.fit((x, y), epochs=3, batch_size=8, callbacks=callbacks)
    model = checks.net({})
    optimizer = checks.OPTIMIZERS["sgd"](model, {})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    for step in range(12):
        rows = slice(step % 4 * 8, min(step % 4 * 8 + 8, 25))
        optimizer.zero_grad()
        F.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        optimizer.step()
        scheduler.step()
    same(est.get_model(), model)
    assert est.get_state_dict()["global_step"] == 12
    est.shutdown()


class OwnBackward(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()


class AccumulatingFrom(AccumulatingCallback):
    """Counts from a step on."""

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def on_iter_backward(self, runner: Any) -> None:
        (runner.loss / EVERY).backward()
        if (runner.global_step - self.begin) % EVERY == EVERY - 1:
            runner.optimizer.step()
            runner.optimizer.zero_grad()


def plateau(optimizer: Any, config: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)


@both_ways
def test_a_plateau_lowers_the_rate_as_in_one_process(elementwise: bool | None) -> None:
    data = checks.rows(24)
    est = checks.estimator(
        2,
        scheduler_creator=plateau,
        scheduler_step_freq="manual",
        elementwise=elementwise,
    )
    model = checks.net({})
    optimizer = checks.OPTIMIZERS["sgd"](model, {})
    scheduler = plateau(optimizer, {})
    x, y = (torch.from_numpy(part) for part in data)
    for score in (1.0, 0.5, 0.6, 0.7, 0.4, 0.9, 0.9, 0.9, 0.9):
        est.fit(data, epochs=1, batch_size=8)
        est.update_schedulers(score)
        for begin in range(0, 24, 8):
            optimizer.zero_grad()
            F.cross_entropy(model(x[begin : begin + 8]), y[begin : begin + 8]).backward()
            optimizer.step()
        scheduler.step(score)
        state = est.get_state_dict()
        (group,) = state["optimizers"][0]["param_groups"]
        assert group["lr"] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-15)
        assert state["schedulers"][0]["num_bad_epochs"] == scheduler.num_bad_epochs
        same(est.get_model(), model)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 8)
    est.shutdown()

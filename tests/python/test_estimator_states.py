"""State of optimizers that is not of the weights' type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import checks_estimator as checks
from orca.learn.trigger import SeveralIteration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


class Precise(torch.optim.Optimizer):
    """Sums in float64, counts in int32 and int64, for weights of any type; element by element."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["count"] = torch.tensor(1000, dtype=torch.int64)
                    state["sum"] = torch.zeros_like(p, dtype=torch.float64)
                    state["signs"] = torch.full_like(p, 300, dtype=torch.int32)
                    state["last"] = torch.zeros_like(p)
                state["count"] += 1
                state["sum"] += p.grad.double()
                state["signs"] += (p.grad > 0).int()
                state["last"].copy_(p.grad)
                scale = 1000 / state["count"] * 300 / state["signs"]
                p.sub_((group["lr"] * scale * (state["sum"] + state["last"])).to(p.dtype))


class Mixed(nn.Module):
    """Weights of three types; sizes that leave gaps between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(5, 7, dtype=torch.float64)
        self.middle = nn.Linear(7, 9, dtype=torch.bfloat16)
        self.last = nn.Linear(9, 3, dtype=torch.float32)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(torch.tanh(self.first(x)).bfloat16()) * self.scale
        return self.last(hidden.float()).double()


def precise(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    parts = list(model.parameters())
    return Precise([{"params": parts[:3]}, {"params": parts[3:], "lr": 0.005}])


def types(state: dict[str, Any]) -> list[dict[str, torch.dtype]]:
    kept = state["optimizers"][0]["state"]
    return [{key: value.dtype for key, value in sorted(kept[i].items())} for i in sorted(kept)]


def estimator(model: Any, workers: int, elementwise: bool, **changes: Any) -> Any:
    given = {"model": lambda config: model(), "optimizer": precise, "elementwise": elementwise}
    return checks.estimator(workers, **(given | changes))


def trained(model: nn.Module, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    optimizer = precise(model, {})
    x, y = (torch.from_numpy(part) for part in checks.rows(24))
    for step in range(steps):
        rows = slice(step % 3 * 8, step % 3 * 8 + 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_optimizer_state_keeps_its_own_types(
    workers: int, elementwise: bool, tmp_path: Path
) -> None:
    est = estimator(Mixed, workers, elementwise, model_dir=str(tmp_path))
    data = checks.rows(24)
    est.fit(data, epochs=2, batch_size=8, checkpoint_trigger=SeveralIteration(4))
    _, optimizer = trained(Mixed(), 6)
    expected = types({"optimizers": [optimizer.state_dict()]})
    assert expected[0]["sum"] is torch.float64
    assert expected[0]["signs"] is torch.int32
    assert expected[2]["last"] is torch.float64
    assert expected[5]["last"] is torch.float32
    assert types(est.get_state_dict()) == expected
    path = est.save(str(tmp_path / "state.pt"))
    for load, steps in ((path, 6), (tmp_path / "models", 4)):
        other = estimator(Mixed, 2, elementwise)
        other.load(load)
        other.fit(data, epochs=1, batch_size=8)
        state = other.get_state_dict()
        assert types(state) == expected
        counts = [kept["count"].item() for kept in state["optimizers"][0]["state"].values()]
        assert counts == [1000 + steps + 3] * len(expected)
        other.shutdown()
    est.shutdown()


def leaves(tree: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from ((f"{key}/{name}", bits) for name, bits in leaves(value))
    elif isinstance(tree, torch.Tensor):
        yield "", tree.numpy().tobytes()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_checkpoint_has_the_bits_of_its_step_whatever_is_trained_meanwhile(
    workers: int, tmp_path: Path
) -> None:
    data = checks.rows(240)
    est = checks.estimator(workers, model_dir=str(tmp_path))
    # One after the other: some are made while the one before is being written.
    est.fit(data, epochs=1, batch_size=8, checkpoint_trigger=SeveralIteration(1))
    found = sorted(int(path.name.split(".")[1]) for path in tmp_path.glob("models/*/model.*"))
    assert found
    assert found[-1] == 30
    for step in found:
        kept, stopped = checks.estimator(workers), checks.estimator(workers)
        kept.load_orca_checkpoint(str(tmp_path), version=step)
        stopped.fit(data, epochs=1, batch_size=8, max_steps=step)
        bits, expected = (
            {name: bits for name, bits in leaves(e.get_state_dict()) if "progress" not in name}
            for e in (kept, stopped)
        )
        assert expected
        assert bits == expected, step
        for each in (kept, stopped):
            each.shutdown()
    est.shutdown()


@pytest.mark.parametrize("elementwise", [True, False])
def test_precise_state_makes_the_same_steps_as_in_one_process(
    elementwise: bool, tmp_path: Path
) -> None:
    """Also after it was saved and loaded, and after a loop of the user's took over."""
    data = checks.rows(24)
    est = estimator(lambda: checks.net({}), 3, elementwise)
    est.fit(data, epochs=2, batch_size=8)
    other = estimator(lambda: checks.net({}), 2, elementwise)
    other.load(est.save(str(tmp_path / "state.pt")))
    other.fit(data, epochs=2, batch_size=8)
    model, optimizer = trained(checks.net({}), 12)
    for a, b in zip(other.get_model().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    found = other.get_state_dict()["optimizers"][0]["state"]
    for number, kept in optimizer.state_dict()["state"].items():
        for key, value in kept.items():
            torch.testing.assert_close(found[number][key], value, rtol=1e-12, atol=1e-14)
    est.shutdown()
    other.shutdown()


def test_a_state_of_other_weights_takes_their_type(tmp_path: Path) -> None:
    """As torch has it: float64 moments are float32 for a model that is float32 now."""
    adam = checks.OPTIMIZERS["adam"]
    est = checks.estimator(1, optimizer=adam)
    est.fit(checks.rows(8), batch_size=4)
    path = est.save(str(tmp_path / "state.pt"))
    other = checks.estimator(2, optimizer=adam, config={"dtype": "float32"})
    other.load(path)
    x, y = checks.rows(8, dtype="float32")
    other.fit((x, y), batch_size=4)
    state = other.get_state_dict()["optimizers"][0]["state"]
    assert {kept["exp_avg"].dtype for kept in state.values()} == {torch.float32}
    est.shutdown()
    other.shutdown()

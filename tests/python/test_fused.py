"""Steps that the engine makes in an Estimator, against torch's own in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from orca.learn.trigger import SeveralIteration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]
ROWS, BATCH = 96, 8


class Net(nn.Module):
    """Its second way is used from some step on only."""

    def __init__(self, since: int = 0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(6, 9, dtype=torch.float64)
        self.second = nn.Linear(6, 9, dtype=torch.float64)
        self.last = nn.Linear(9, 1, dtype=torch.float64)
        self.since, self.calls = since, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if self.calls >= self.since >= 0 or (self.since < 0 and self.calls < -self.since):
            hidden = hidden + self.second(x)
        self.calls += 1
        return self.last(torch.tanh(hidden))[:, 0]


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(ROWS, 6))
    return x, x.sum(1) ** 2


class Changes(Callback):
    """Changes a setting of the optimizer at a step."""

    def __init__(self, step: int, **settings: Any) -> None:
        self.step, self.settings = step, settings

    def before_train_iter(self, runner: Any) -> None:
        if runner.global_step == self.step:
            for group in runner.optimizer.param_groups:
                group |= self.settings


def plain(
    net: Net, optimizer: torch.optim.Optimizer, clip: Any, changes: dict[int, dict[str, Any]]
) -> Net:
    x, y = (torch.from_numpy(part) for part in data())
    for step in range(ROWS // BATCH):
        for group in optimizer.param_groups:
            group |= changes.get(step, {})
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
        clip(net.parameters())
        optimizer.step()
    return net


MAKERS = {
    "sgd": lambda m, _=None: torch.optim.SGD(m.parameters(), lr=0.05),
    "momentum": lambda m, _=None: torch.optim.SGD(
        m.parameters(), lr=0.02, momentum=0.9, dampening=0.2
    ),
    "adam": lambda m, _=None: torch.optim.Adam(m.parameters(), lr=0.05, weight_decay=0.01),
    "adamw": lambda m, _=None: torch.optim.AdamW(m.parameters(), lr=0.05, amsgrad=True),
}


def check(
    name: str,
    *,
    since: int = 0,
    clip: Any = None,
    changes: dict[int, dict[str, Any]] | None = None,
) -> None:
    estimator = Estimator.from_torch(
        model=Net(since),
        optimizer=MAKERS[name],
        loss=nn.MSELoss(),
        workers_per_node=2,
        config={"shuffle": False},
    )
    if clip == "norm":
        estimator.set_l2_norm_gradient_clipping(0.5)
    if clip == "value":
        estimator.set_constant_gradient_clipping(-0.1, 0.05)
    limits = {
        None: lambda parameters: None,
        "norm": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
        "value": lambda parameters: [p.grad.clamp_(-0.1, 0.05) for p in parameters],
    }
    callbacks = [Changes(step, **settings) for step, settings in (changes or {}).items()]
    estimator.fit(data(), epochs=1, batch_size=BATCH, callbacks=callbacks)
    net = Net(since)
    expected = plain(net, MAKERS[name](net), limits[clip], changes or {})
    for (key, value), found in zip(
        expected.state_dict().items(), estimator.get_model().state_dict().values(), strict=True
    ):
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-13, msg=key)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("clip", [None, "norm", "value"])
def test_gradients_are_clipped_as_torch_does(name, clip):
    check(name, clip=clip)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("since", [4, -4])
def test_parameters_that_gain_or_lose_their_gradient_are_left_alone(name, since):
    check(name, since=since)


def test_settings_may_change_at_any_step():
    check("adam", changes={3: {"lr": 0.2, "betas": (0.5, 0.6)}, 7: {"weight_decay": 0.3}})
    check("momentum", changes={3: {"momentum": 0.5, "lr": 0.01}})
    check("sgd", changes={5: {"momentum": 0.9}})  # What is kept changes.


def test_hooks_of_an_optimizer_are_called():
    def hooked(m: nn.Module, _: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(m.parameters(), lr=0.05)
        optimizer.register_step_post_hook(
            lambda o, *_: [p.data.mul_(0.5) for g in o.param_groups for p in g["params"]]
        )
        return optimizer

    estimator = Estimator.from_torch(
        model=Net(), optimizer=hooked, loss=nn.MSELoss(), workers_per_node=2
    )
    estimator.fit(data(), epochs=4, batch_size=BATCH)
    assert all(float(v.abs().max()) < 0.2 for v in estimator.get_model().state_dict().values())


def test_hooks_that_come_late_are_called():
    class Hooks(Callback):
        def before_train_iter(self, runner: Any) -> None:
            if runner.global_step == 20:
                runner.optimizer.register_step_post_hook(
                    lambda o, *_: [p.data.mul_(0.5) for g in o.param_groups for p in g["params"]]
                )

    estimator = Estimator.from_torch(
        model=Net(), optimizer=MAKERS["adam"], loss=nn.MSELoss(), workers_per_node=2
    )
    estimator.fit(data(), epochs=4, batch_size=BATCH, callbacks=[Hooks()])
    assert all(float(v.abs().max()) < 0.2 for v in estimator.get_model().state_dict().values())


def test_checkpoints_hold_metrics_of_any_kind(tmp_path):
    def odd(output: torch.Tensor, target: torch.Tensor) -> Any:
        return np.float32(3.5)

    def made() -> Any:
        return Estimator.from_torch(
            model=Net(),
            optimizer=MAKERS["adam"],
            loss=nn.MSELoss(),
            metrics=[odd],
            workers_per_node=2,
            model_dir=str(tmp_path),
        )

    options = {"batch_size": BATCH, "checkpoint_trigger": SeveralIteration(5)}
    stats = made().fit(data(), epochs=2, validation_data=data(), **options)
    assert len(stats) == 2
    again = made().fit(data(), epochs=3, validation_data=data(), resume="auto", **options)
    assert [epoch["epoch"] for epoch in again] == [1, 2, 3]
    assert again[0]["train_loss"] == stats[0]["train_loss"]

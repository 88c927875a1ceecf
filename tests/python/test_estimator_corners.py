"""Corners of the Estimator where training could go wrong without a word."""

from __future__ import annotations

import gc
import logging
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

import checks_estimator as checks
import orca
from orca.errors import WorkerFailedError
from orca.learn.optimizers import LBFGS
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.pytorch.callbacks.maxsteps import MaxstepsCallback
from orca.learn.pytorch.training_operator import TrainingOperator
from orca.learn.trigger import SeveralIteration
from processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def estimator(workers: int = 2, **changes: Any) -> Any:
    return checks.estimator(workers, **({"optimizer": checks.OPTIMIZERS["adam"]} | changes))


def plain(
    optimizer: Any = None, epochs: int = 3, batch_size: int = 8, rows: int = 30, model: Any = None
) -> nn.Module:
    chosen = optimizer or checks.OPTIMIZERS["adam"]
    return checks.trained_plainly(chosen, epochs, batch_size, rows, model)


def same(found: nn.Module, expected: nn.Module) -> None:
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


class OwnBackward(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()


def test_our_loop_takes_over_from_one_of_the_users() -> None:
    """Also with a last batch of fewer rows than workers."""
    est = estimator(3)
    data = checks.rows(13)
    est.fit(data, epochs=1, batch_size=4, callbacks=[OwnBackward()])
    est.fit(data, epochs=2, batch_size=4)
    est.fit(data, epochs=1, batch_size=4, callbacks=[OwnBackward()])
    same(est.get_model(), plain(epochs=4, batch_size=4, rows=13))
    est.shutdown()


class ZeroGrad(MainCallback):
    def on_iter_forward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.forward()


def test_zero_grad_in_a_callback_does_not_stop_training() -> None:
    est = estimator(2)
    est.fit(checks.rows(30), epochs=3, batch_size=8, callbacks=[ZeroGrad()])
    same(est.get_model(), plain())
    est.shutdown()


class Unfreeze(Callback):
    def before_train_epoch(self, runner: Any) -> None:
        runner.model.first.requires_grad_(runner.epochs >= 1)


def test_parameters_that_are_unfrozen_later_are_joined() -> None:
    est = estimator(3)
    x, y = checks.rows(30)
    est.fit((x, y), epochs=3, batch_size=8, callbacks=[Unfreeze()])
    model = checks.net({})
    optimizer = checks.OPTIMIZERS["adam"](model, {})
    for epoch in range(3):
        model.first.requires_grad_(epoch >= 1)
        for begin in range(0, 30, 8):
            rows = slice(begin, begin + 8)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
            optimizer.step()
    same(est.get_model(), model)
    est.shutdown()


class Renorm(nn.Module):
    """Writes to its weight where torch does not count it."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.assigns = assigns
        self.last = nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.assigns:
            self.last.weight.data = torch.renorm(self.last.weight.data, 2, 0, 0.3)
        else:
            self.last.weight.data.mul_(0.9)
        return self.last(x)


@pytest.mark.parametrize("assigns", [True, False])
def test_writes_that_torch_does_not_count_are_noticed(assigns: bool) -> None:
    est = estimator(2, model=lambda config: Renorm(assigns))
    est.fit(checks.rows(30), epochs=3, batch_size=8)
    same(est.get_model(), plain(model=Renorm(assigns)))
    est.shutdown()


class Dice(Sampler[int]):
    """Draws from Python's random numbers, which every worker has its own of."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(self.size), self.size))

    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("kind", ["dice", "part", "generator"])
def test_samplers_draw_once_for_all_workers(kind: str) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        numbers = checks.Numbers(12)
        sampler: Any = Dice(12)
        if kind == "part":
            sampler = RandomSampler(numbers, num_samples=7)
        elif kind == "generator":
            sampler = RandomSampler(numbers, generator=torch.Generator().manual_seed(9))
        return DataLoader(numbers, batch_size=batch_size, sampler=sampler)

    est = Estimator.from_torch(
        model=checks.ledger,
        optimizer=checks.ledger_optimizer,
        loss=checks.LedgerLoss(),
        config={"size": 12},
        workers_per_node=3,
    )
    stats = est.fit(creator, epochs=4, batch_size=6)
    count = est.get_model().count.detach().numpy()
    if kind == "part":
        assert [s["num_samples"] for s in stats] == [7] * 4
        assert count.sum() == 28
        assert count[7:].sum() > 0  # Not only the first seven rows.
    else:
        assert count.tolist() == [4] * 12
    est.shutdown()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "kind", ["stateful", "stateful, with a process", "stateful stream", "stateful object"]
)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own use
def test_a_stateful_data_loader_is_a_data_loader(kind: str, workers: int) -> None:
    est = Estimator.from_torch(
        model=checks.ledger,
        optimizer=checks.ledger_optimizer,
        loss=checks.LedgerLoss(),
        config={"size": 20},
        workers_per_node=workers,
    )
    data: Any = checks.LedgerCreator(kind, 20)
    if kind == "stateful object":
        data = checks.ledger_loader("stateful", 20, 6)
    stats = est.fit(data, epochs=2, batch_size=6)
    assert est.get_model().count.tolist() == [2] * 20
    assert [s["num_samples"] for s in stats] == [20, 20]
    assert est.evaluate(data, batch_size=6)["num_samples"] == 20
    est.fit(data, epochs=1, batch_size=6)
    assert est.get_model().count.tolist() == [3] * 20
    est.shutdown()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(5, 3, dtype=torch.float64)
        self.register_buffer("mask", torch.full((3,), -torch.inf))
        self.register_buffer("third", torch.tensor([1 / 3], dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x)


def test_constant_buffers_stay_what_they_are() -> None:
    est = estimator(4, model=lambda config: Masked())
    est.fit(checks.rows(3), epochs=5, batch_size=3)
    assert torch.equal(est.get_model().mask, torch.full((3,), -torch.inf))
    assert torch.equal(est.get_model().third, Masked().third)
    est.shutdown()


class Scaled(nn.Module):
    """Has a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(5, 3, dtype=torch.float64)
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) * self.scale


@pytest.mark.parametrize("name", ["adam", "adagrad", "sgd", "nadam"])
def test_parameters_without_dimensions_are_trained_and_loaded(name: str, tmp_path: Path) -> None:
    optimizer = checks.OPTIMIZERS[name]
    est = estimator(2, model=lambda config: Scaled(), optimizer=optimizer)
    est.fit(checks.rows(30), epochs=2, batch_size=8)
    path = est.save(str(tmp_path / "a.pt"))
    other = estimator(3, model=lambda config: Scaled(), optimizer=optimizer)
    other.load(path)
    other.fit(checks.rows(30), epochs=1, batch_size=8)
    same(other.get_model(), plain(optimizer, model=Scaled()))
    est.shutdown()
    other.shutdown()


class Spike(torch.autograd.Function):
    """Forward the same, backward infinite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf


class Spiky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7, dtype=torch.float64)
        self.second = nn.Linear(7, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.second(Spike.apply(hidden) if float(x[0, 0]) > 100 else hidden)


def test_a_gradient_that_is_not_finite_names_the_parameter_in_any_fit() -> None:
    """F30."""
    x, y = checks.rows(8)
    est = estimator(2, model=lambda config: Spiky())
    est.fit((x, y), batch_size=8)
    x[:, 0] = 1000.0
    with pytest.raises(WorkerFailedError, match=r"step 1: the gradient of 'first.weight' is not"):
        est.fit((x, y), batch_size=8)
    est.shutdown()


class Counting(TrainingOperator):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().train_batch(batch, batch_info)

    def validate(self, val_iterator: Any, info: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        rows = sum(len(batch[1]) for batch in val_iterator)
        return {"num_samples": rows, "val_loss": 1.0, f"only_{orca.rank()}": 2.0}


def test_loops_of_the_users_stop_and_leave_checkpoints(tmp_path: Path) -> None:
    est = estimator(2, training_operator_cls=Counting, model_dir=str(tmp_path))
    data = checks.rows(40)
    est.fit(data, epochs=1, batch_size=8, max_steps=3, checkpoint_trigger=SeveralIteration(2))
    assert est.get_state_dict()["global_step"] == 3
    (folder,) = (tmp_path / "models").iterdir()
    assert [path.name for path in folder.iterdir()] == ["model.2"]
    est.fit(data, epochs=1, batch_size=8, checkpoint_trigger="EveryEpoch")
    names = {path.name for part in (tmp_path / "models").iterdir() for path in part.iterdir()}
    assert "model.8" in names
    # A validation of the oldest signature, whose keys differ between workers.
    scores = est.evaluate(data, batch_size=8)
    assert (scores["only_0"], scores["only_1"], scores["num_samples"]) == (2.0, 2.0, 40)
    est.shutdown()
    est = estimator(2)
    callbacks = [OwnBackward(), MaxstepsCallback(2)]
    est.fit(data, epochs=3, batch_size=8, callbacks=callbacks)
    assert est.get_state_dict()["global_step"] == 2
    est.shutdown()


def test_steps_that_are_asked_for_count_and_not_epochs() -> None:
    est = estimator(2)
    stats = est.fit(checks.rows(16), epochs=1, batch_size=8, max_steps=5)
    assert [s["batch_count"] for s in stats] == [2, 2, 1]
    est.shutdown()


def test_a_share_without_labels_that_count_is_no_nan() -> None:
    x, y = checks.rows(8)
    y[4:] = 2
    est = estimator(2, loss=nn.CrossEntropyLoss(ignore_index=2))
    stats = est.fit((x, y), epochs=1, batch_size=8)
    with torch.no_grad():
        expected = F.cross_entropy(
            checks.net({})(torch.from_numpy(x)), torch.from_numpy(y), ignore_index=2
        )
    assert stats[0]["train_loss"] == pytest.approx(float(expected), rel=1e-12)
    x[0] = np.nan
    stats = est.fit((x, y), epochs=1, batch_size=4, on_nan="skip")
    assert stats[0]["skipped_steps"] == 1
    est.shutdown()


def test_lbfgs_looks_at_a_batch_several_times() -> None:
    x, y = checks.rows(24)
    est = estimator(3, optimizer=lambda m, c: torch.optim.LBFGS(m.parameters(), max_iter=4))
    est.fit((x, y), epochs=2, batch_size=12)
    model = checks.net({})
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for step in range(4):
        rows = slice(step % 2 * 12, step % 2 * 12 + 12)

        def closure(rows: slice = rows) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
            loss.backward()
            return loss

        optimizer.step(closure)
    for a, b in zip(est.get_model().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    est.shutdown()
    est = estimator(2, optimizer=LBFGS(max_iter=3))
    stats = est.fit((x, y), epochs=3, batch_size=24)
    assert stats[-1]["train_loss"] < stats[0]["train_loss"]
    est.shutdown()


def test_a_failed_fit_leaves_an_estimator_that_works() -> None:
    est = estimator(2)
    data = checks.rows(16)
    est.fit(data, epochs=1, batch_size=8)

    class Boom(Callback):
        def after_train_iter(self, runner: Any) -> None:
            if runner.rank == 1:
                raise OSError("boom")

    with pytest.raises(WorkerFailedError, match="boom"):
        est.fit(data, epochs=1, batch_size=8, callbacks=[Boom()])
    state = plain(epochs=1, rows=16).state_dict()
    est.load_state_dict({"models": [state]})
    same(est.get_model(), plain(epochs=1, rows=16))
    assert len(est.fit(data, epochs=1, batch_size=8)) == 1
    est.shutdown()


def sessions() -> int:
    from orca.adapters.torch import loop

    return len(loop._sessions)


def test_estimators_that_are_gone_are_forgotten() -> None:
    est = estimator(2)
    est.evaluate(checks.rows(8))
    before = orca.run(sessions, workers=2)
    del est
    gc.collect()
    other = estimator(2)
    other.evaluate(checks.rows(8))
    assert orca.run(sessions, workers=2) == before
    other.shutdown()


def test_a_generator_of_batches_is_made_anew_for_every_epoch() -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        yield from checks.loader({"rows": 6}, 3)

    est = estimator(1)
    assert [s["num_samples"] for s in est.fit(creator, epochs=3)] == [6, 6, 6]
    est.shutdown()


def test_an_entire_model_can_be_loaded_without_a_creator(tmp_path: Path) -> None:
    est = estimator(1)
    path = est.save(str(tmp_path / "entire.pt"), entire=True)
    other = Estimator.from_torch(loss=nn.CrossEntropyLoss())
    other.load(path, trust=True)
    x, _ = checks.rows(5)
    np.testing.assert_allclose(other.predict(x), est.predict(x), rtol=1e-12)
    est.shutdown()
    other.shutdown()


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        kind = {"dtype": torch.float64}
        self.first = nn.Conv1d(1, 4, 2, **kind)
        self.norm = nn.BatchNorm1d(4, **kind)
        self.hidden = nn.Linear(16, 6, **kind)
        self.flat = nn.BatchNorm1d(6, momentum=None, affine=False, **kind)
        self.last = nn.Linear(6, 3, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x[:, None])))
        return self.last(torch.tanh(self.flat(self.hidden(x.flatten(1)))))


@pytest.mark.product
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("loss", ["mean", "weights", "sum"])
def test_joined_batch_norms_see_all_rows(workers: int, loss: str) -> None:
    """Also where a worker has no row in a step."""
    x, y = checks.rows(22)
    criterion = checks.LOSSES[loss]
    # Not Adam: the biases before a norm have a gradient of rounding errors, which it would enlarge.
    sgd = checks.OPTIMIZERS["sgd"]
    est = estimator(
        workers, model=lambda config: Norms(), optimizer=sgd, loss=criterion, sync_batchnorm=True
    )
    est.fit((x, y), epochs=4, batch_size=6)  # The last batch has 4 rows.
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=criterion,
        optimizer=sgd,
        batch_size=6,
        epochs=4,
        model=Norms(),
    )
    found = est.get_model()
    for (name, a), b in zip(
        found.state_dict().items(), expected.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(
            a, b, rtol=1e-11, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
        )
    est.shutdown()


@pytest.mark.parametrize("source", ["arrays", "loader", "creator"])
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_batch_norms_see_all_rows_where_a_worker_has_one(
    source: str, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = checks.rows(12)
    criterion, sgd = checks.LOSSES[loss], checks.OPTIMIZERS["sgd"]
    rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))

    def creator(config: Any, batch_size: int) -> Any:
        return DataLoader(rows, batch_size=batch_size)

    data = {"arrays": (x, y), "loader": DataLoader(rows, batch_size=2), "creator": creator}[source]
    est = estimator(2, model=lambda config: Norms(), optimizer=sgd, loss=criterion)
    with caplog.at_level(logging.INFO):
        est.fit(data, epochs=3, batch_size=2)
        wait_until(lambda: "as in step 1, batch norms see" in caplog.text, "it is said")
    given = {"loss": criterion, "optimizer": sgd, "batch_size": 2, "epochs": 3}
    expected, _ = checks.train_plainly(x, y, **given, model=Norms())
    for a, b in zip(
        est.get_model().state_dict().values(), expected.state_dict().values(), strict=True
    ):
        # The variance of two rows may be tiny: rounding errors of one process grow as much.
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    est.shutdown()


@pytest.mark.parametrize("workers", [2, 3])
def test_one_row_in_the_last_step_leaves_the_other_steps_as_they_are(workers: int) -> None:
    """And a worker that has none follows."""
    x, y = checks.rows(14)
    both = [estimator(workers, model=lambda config: Norms()) for _ in range(2)]
    for est, count in zip(both, (14, 12), strict=True):
        (stats,) = est.fit((x[:count], y[:count]), epochs=1, batch_size=12, seed=1)
        assert stats["num_samples"] == count
    first, second = (est.get_model().norm for est in both)
    assert int(first.num_batches_tracked) == 2
    assert int(second.num_batches_tracked) == 1
    whole = Norms().norm
    whole(torch.relu(Norms().first(torch.from_numpy(x[:12])[:, None])))
    # The mean of each worker's own variance is not that of all rows.
    assert not torch.allclose(second.running_var, whole.running_var, rtol=1e-6)
    for est in both:
        est.shutdown()


@pytest.mark.parametrize("elementwise", [None, False])
@pytest.mark.parametrize("way", ["whole model", "autocast"])
def test_bfloat16_trains_both_ways(way: str, elementwise: bool | None) -> None:
    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.inner = checks.Net(dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if way == "whole model":
                return self.inner(x.bfloat16()).float()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inner(x).float()

    def model(config: Any = None) -> nn.Module:
        made = Short()
        return made.bfloat16() if way == "whole model" else made

    x, y = checks.rows(48, dtype="float32")
    optimizer = checks.OPTIMIZERS["adamw"]
    est = estimator(2, model=model, optimizer=optimizer, elementwise=elementwise)
    stats = est.fit((x, y), epochs=20, batch_size=12)
    _, means = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        batch_size=12,
        epochs=20,
        model=model(),
    )
    assert est.get_model().inner.first.weight.dtype is (
        torch.bfloat16 if way == "whole model" else torch.float32
    )
    assert stats[-1]["train_loss"] < stats[0]["train_loss"]
    assert stats[-1]["train_loss"] == pytest.approx(means[-1], abs=0.05)
    est.shutdown()


def test_a_scheduler_that_wants_a_score_gets_it() -> None:
    est = estimator(
        2,
        optimizer=checks.OPTIMIZERS["sgd"],
        scheduler_creator=lambda o, c: torch.optim.lr_scheduler.ReduceLROnPlateau(
            o, factor=0.5, patience=0
        ),
        scheduler_step_freq="manual",
    )
    data = checks.rows(16)
    est.fit(data, epochs=1, batch_size=8)
    for score in (1.0, 2.0, 3.0):  # It never gets better.
        est.update_schedulers(score)
    lr = est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"]
    assert lr == pytest.approx(0.05 * 0.25)
    est.fit(data, epochs=1, batch_size=8)
    assert est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"] == lr
    est.shutdown()

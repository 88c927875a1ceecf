"""``Estimator.from_torch``: training that equals one process, whatever the number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import checks_estimator as checks
import orca
from orca.errors import InvalidArgumentError, WorkerFailedError
from orca.learn.pytorch import Estimator

estimator = checks.estimator


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def assert_same_weights(found: nn.Module, expected: nn.Module, tolerance: float) -> None:
    for (name, a), b in zip(found.named_parameters(), expected.parameters(), strict=True):
        error = float((a - b).detach().abs().max() / b.detach().abs().max())
        assert error <= tolerance, f"{name} differs by {error}"


@pytest.mark.product
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("count", "batch"), [(37, 7), (12, 12), (9, 16), (10, 1)])
def test_training_equals_one_process(workers: int, count: int, batch: int) -> None:
    x, y = checks.rows(count)
    epochs = -(-50 // -(-count // batch))
    est = estimator(workers)
    stats = est.fit((x, y), epochs=epochs, batch_size=batch)
    expected, means = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=checks.OPTIMIZERS["sgd"],
        batch_size=batch,
        epochs=epochs,
    )
    assert_same_weights(est.get_model(), expected, 1e-12)
    assert [s["train_loss"] for s in stats] == pytest.approx(means, rel=1e-6)
    assert [s["num_samples"] for s in stats] == [count] * epochs
    est.shutdown()


@pytest.mark.parametrize("name", sorted(checks.OPTIMIZERS))
@pytest.mark.parametrize("workers", [2, 3])
def test_every_optimizer_makes_the_same_steps(name: str, workers: int) -> None:
    x, y = checks.rows(37)
    est = estimator(workers, optimizer=checks.OPTIMIZERS[name])
    est.fit((x, y), epochs=5, batch_size=7)
    est.fit((x, y), epochs=5, batch_size=7)  # The state of the optimizer goes on.
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=checks.OPTIMIZERS[name],
        batch_size=7,
        epochs=10,
    )
    assert_same_weights(est.get_model(), expected, 1e-12)
    est.shutdown()


@pytest.mark.product
@pytest.mark.parametrize("name", sorted(checks.LOSSES))
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_every_loss_is_that_of_the_whole_batch(name: str, workers: int) -> None:
    x, y = checks.rows(37)
    est = estimator(workers, loss=checks.LOSSES[name])
    stats = est.fit((x, y), epochs=8, batch_size=7)
    expected, means = checks.train_plainly(
        x,
        y,
        loss=checks.LOSSES[name],
        optimizer=checks.OPTIMIZERS["sgd"],
        batch_size=7,
        epochs=8,
    )
    assert_same_weights(est.get_model(), expected, 1e-12)
    if name in ("mean", "function"):
        assert stats[-1]["train_loss"] == pytest.approx(means[-1], rel=1e-6)
    est.shutdown()


@pytest.mark.product
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 20])
@pytest.mark.parametrize(
    "data", ["arrays", "shuffle", "in order", "batch sampler", "generator", "stream"]
)
def test_every_row_is_used_once_an_epoch(workers: int, size: int, data: str) -> None:
    """F39, F40: fewer rows than workers, batches that do not divide, uneven and empty parts."""
    if size == 0 and data in ("shuffle", "generator"):
        pytest.skip("torch's RandomSampler refuses 0 rows")
    est = Estimator.from_torch(
        model=checks.ledger,
        optimizer=checks.ledger_optimizer,
        loss=checks.LedgerLoss(),
        config={"size": max(size, 1)},
        workers_per_node=workers,
    )
    source: Any = checks.LedgerCreator(data, size)
    if data == "arrays":
        source = (np.arange(size)[:, None], np.zeros((size, 1)))
    if size == 0:
        with pytest.raises((InvalidArgumentError, WorkerFailedError), match="has no rows"):
            est.fit(source, epochs=2, batch_size=3 * workers)
    else:
        stats = est.fit(source, epochs=2, batch_size=3 * workers)
        count = est.get_model().count.detach().numpy()
        assert count.tolist() == [2] * size
        assert [s["num_samples"] for s in stats] == [size, size]
    est.shutdown()


def test_a_data_loader_has_the_batch_of_the_whole_job() -> None:
    x, y = checks.rows(20)
    loader = checks.loader({"rows": 20}, 5)
    for workers in (1, 3):
        est = estimator(workers)
        stats = est.fit(loader, epochs=4)
        expected, _ = checks.train_plainly(
            x,
            y,
            loss=nn.CrossEntropyLoss(),
            optimizer=checks.OPTIMIZERS["sgd"],
            batch_size=5,
            epochs=4,
        )
        assert stats[-1]["num_samples"] == 20
        assert_same_weights(est.get_model(), expected, 1e-12)
        est.shutdown()


@pytest.mark.parametrize("elementwise", [None, False])
def test_clipping_is_that_of_the_whole_gradient(elementwise: bool | None) -> None:
    x, y = checks.rows(24)

    def clipped(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

        optimizer.register_step_pre_hook(clip)
        return optimizer

    est = estimator(
        3, optimizer=lambda m, c: torch.optim.SGD(m.parameters(), lr=0.5), elementwise=elementwise
    )
    est.set_l2_norm_gradient_clipping(0.05)
    est.fit((x, y), epochs=5, batch_size=8)
    expected, _ = checks.train_plainly(
        x, y, loss=nn.CrossEntropyLoss(), optimizer=clipped, batch_size=8, epochs=5
    )
    assert_same_weights(est.get_model(), expected, 1e-12)
    est.shutdown()


def test_state_goes_to_a_file_and_to_another_number_of_workers(tmp_path: Path) -> None:
    x, y = checks.rows(30)
    est = estimator(2, optimizer=checks.OPTIMIZERS["adam"])
    est.fit((x, y), epochs=3, batch_size=8)
    path = est.save(str(tmp_path / "model.pt"))
    found = torch.load(path, weights_only=True)
    assert sorted(found) == ["epoch", "global_step", "models", "optimizers", "schedulers"]
    other = estimator(3, optimizer=checks.OPTIMIZERS["adam"])
    other.load(path)
    other.fit((x, y), epochs=2, batch_size=8)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=checks.OPTIMIZERS["adam"],
        batch_size=8,
        epochs=5,
    )
    assert_same_weights(other.get_model(), expected, 1e-12)
    est.shutdown()
    other.shutdown()


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 23])
def test_predictions_come_in_the_order_of_the_rows(workers: int, count: int) -> None:
    """Oracle O3."""
    x, _ = checks.rows(count)
    est = estimator(workers)
    found = est.predict(x, batch_size=4)
    assert len(found) == count
    if count:
        with torch.no_grad():
            expected = est.get_model()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    est.shutdown()


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_loss_that_is_not_finite_stops_or_skips_the_step(policy: str) -> None:
    """F30."""
    x, y = checks.rows(12)
    x[10] = np.nan
    est = estimator(2)
    if policy == "raise":
        with pytest.raises(WorkerFailedError, match="rank 1, step 2: the loss is not finite"):
            est.fit((x, y), epochs=1, batch_size=4)
    else:
        est.fit((x, y), epochs=1, batch_size=4, on_nan="skip")
        expected, _ = checks.train_plainly(
            x[:8],
            y[:8],
            loss=nn.CrossEntropyLoss(),
            optimizer=checks.OPTIMIZERS["sgd"],
            batch_size=4,
            epochs=1,
        )
        assert_same_weights(est.get_model(), expected, 1e-12)
    est.shutdown()


class Branches(nn.Module):
    """Uses one of its two branches, as the data says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a = nn.Linear(5, 3, dtype=torch.float64)
        self.b = nn.Linear(5, 3, dtype=torch.float64)
        self.never = nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if float(x[0, 0]) > 0 else self.b(x)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_parameters_without_a_gradient_are_left_alone(name: str) -> None:
    x, y = checks.rows(32)
    x[:, 0] = np.where(np.arange(32) % 8 < 4, 1.0, -1.0)  # one branch a step
    optimizers = {
        "adam": lambda m, c: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
        "sgd": lambda m, c: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    }
    est = estimator(2, model=lambda config: Branches(), optimizer=optimizers[name])
    est.fit((x, y), epochs=3, batch_size=4)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizers[name],
        batch_size=4,
        epochs=3,
        model=Branches(),
    )
    assert_same_weights(est.get_model(), expected, 1e-12)
    est.shutdown()


def test_instances_work_like_creators() -> None:
    x, y = checks.rows(20)
    model = checks.net({})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    est = estimator(2, model=model, optimizer=optimizer)
    est.fit((x, y), epochs=3, batch_size=6)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda m, c: torch.optim.Adam(m.parameters(), lr=0.01),
        batch_size=6,
        epochs=3,
    )
    assert_same_weights(est.get_model(), expected, 1e-12)
    est.shutdown()


def test_schedulers_step_as_they_are_told() -> None:
    x, y = checks.rows(20)
    for freq, steps in (("batch", 8), ("epoch", 2), ("manual", 0)):
        est = estimator(
            2,
            scheduler_creator=lambda o, c: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
            scheduler_step_freq=freq,
        )
        est.fit((x, y), epochs=2, batch_size=5)
        lr = est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"]
        assert lr == pytest.approx(0.05 * 0.5**steps)
        est.update_schedulers()
        lr = est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"]
        assert lr == pytest.approx(0.05 * 0.5 ** (steps + 1))
        est.shutdown()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"epochs": 0}, "epochs should be a positive integer"),
        ({"batch_size": 0}, "batch_size should be a positive integer"),
        ({"on_nan": "stop"}, "on_nan 'stop' is not known"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    est = estimator(1)
    with pytest.raises(InvalidArgumentError, match=text):
        est.fit(checks.rows(4), **arguments)


def test_a_data_creator_that_raises_is_the_error() -> None:
    """F34."""

    def creator(config: dict[str, Any], batch_size: int) -> Any:
        if orca.rank() == 1:
            raise OSError("no such disk")
        return checks.loader(config, batch_size)

    est = estimator(2)
    with pytest.raises(WorkerFailedError, match="no such disk") as caught:
        est.fit(creator)
    assert caught.value.rank == 1
    est.shutdown()


def test_models_that_differ_between_workers_are_refused() -> None:
    """F31."""
    est = estimator(2, model=lambda config: checks.Net(3 + orca.rank()))
    with pytest.raises(WorkerFailedError, match=r"second.weight float64 \(3, 7\).*\(4, 7\)"):
        est.fit(checks.rows(8))
    est.shutdown()

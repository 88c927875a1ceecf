"""Evaluation, callbacks and training loops of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

import checks_estimator as checks
import orca
from orca.adapters.torch import loop
from orca.adapters.torch.records import _unkeyed, to_parts
from orca.adapters.torch.trees import pack, unpack
from orca.errors import InvalidArgumentError, WorkerFailedError
from orca.learn.metrics import Accuracy
from orca.learn.optimizers import SGD
from orca.learn.optimizers.schedule import Plateau
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.pytorch.callbacks.csv import CSVLogger
from orca.learn.pytorch.callbacks.early_stopping import EarlyStopping
from orca.learn.pytorch.callbacks.lr_scheduler import LRSchedulerCallback
from orca.learn.pytorch.callbacks.maxsteps import MaxstepsCallback
from orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from orca.learn.pytorch.callbacks.tensorboard import TensorBoardCallback
from orca.learn.pytorch.training_operator import TrainingOperator
from orca.learn.trigger import SeveralIteration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def estimator(workers: int = 2, **changes: Any) -> Any:
    return checks.estimator(workers, **({"metrics": [Accuracy()]} | changes))


def plain(optimizer: Any = None, epochs: int = 3, batch_size: int = 8, rows: int = 30) -> nn.Module:
    chosen = optimizer or checks.OPTIMIZERS["sgd"]
    return checks.trained_plainly(chosen, epochs, batch_size, rows)


def same(found: nn.Module, expected: nn.Module) -> None:
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("source", ["arrays", "creator"])
def test_metrics_are_those_of_all_rows(workers: int, source: str) -> None:
    x, y = checks.rows(23)
    est = estimator(workers)
    data: Any = {"x": x, "y": y}
    if source == "creator":

        def data(config: dict[str, Any], batch_size: int) -> Any:
            return checks.loader({"rows": 23}, batch_size)

    found = est.evaluate(data, batch_size=4 * workers)
    with torch.no_grad():
        scores = torch.softmax(est.get_model()(torch.from_numpy(x)), 1).numpy()
    assert found["num_samples"] == 23
    assert float(found["Accuracy"]) == pytest.approx(accuracy_score(y, scores.argmax(1)), abs=1e-12)
    assert found["val_loss"] == pytest.approx(log_loss(y, scores, labels=[0, 1, 2]), rel=1e-12)
    est.shutdown()


def test_validation_data_is_evaluated_after_every_epoch() -> None:
    x, y = checks.rows(30)
    est = estimator(2)
    stats = est.fit((x, y), epochs=2, batch_size=8, validation_data=(x[:9], y[:9]))
    found = est.evaluate((x[:9], y[:9]))
    assert stats[-1]["val_loss"] == pytest.approx(found["val_loss"], rel=1e-12)
    assert float(stats[-1]["val_accuracy"]) == float(found["Accuracy"])
    assert stats[-1]["val_num_samples"] == 9
    same(est.get_model(), plain(epochs=2))
    est.shutdown()


class Recorder(Callback):
    """Writes down what it is told, for both families."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _note(self, text: str) -> None:
        with Path(f"{self.path}.{orca.rank()}").open("a") as file:
            file.write(text + "\n")

    def on_train_begin(self) -> None:
        self._note("train_begin")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note(f"epoch_end {epoch} {sorted(logs)}")

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note(f"batch_end {batch}")

    def before_train_iter(self, runner: Any) -> None:
        self._note(f"before_train_iter {runner.batch_idx} {runner.global_step}")

    def after_run(self, runner: Any) -> None:
        self._note(f"after_run {runner.epochs} {runner.global_step}")


def test_both_families_of_hooks_are_called_on_every_worker(tmp_path: Path) -> None:
    est = estimator(2)
    est.fit(checks.rows(10), epochs=1, batch_size=5, callbacks=[Recorder(str(tmp_path / "log"))])
    expected = [
        "train_begin",
        "before_train_iter 0 0",
        "batch_end 0",
        "before_train_iter 1 1",
        "batch_end 1",
        "epoch_end 1 ['batch_count', 'epoch', 'last_train_loss', 'num_samples', 'train_loss']",
        "after_run 1 2",
    ]
    for rank in range(2):
        assert (tmp_path / f"log.{rank}").read_text().splitlines() == expected
    est.shutdown()


def test_training_ends_when_a_callback_says_so() -> None:
    est = estimator(3)
    stats = est.fit(checks.rows(30), epochs=5, batch_size=10, callbacks=[MaxstepsCallback(4)])
    assert sum(s["batch_count"] for s in stats) == 4
    est.shutdown()
    est = estimator(2, optimizer=lambda m, c: torch.optim.SGD(m.parameters(), lr=1e-9))
    stop = EarlyStopping(monitor="train_loss", patience=1, min_delta=0.1)
    assert len(est.fit(checks.rows(20), epochs=9, batch_size=10, callbacks=[stop])) == 3
    with pytest.raises(WorkerFailedError, match="there is no 'val_loss' to monitor"):
        est.fit(checks.rows(20), callbacks=[EarlyStopping()])
    est.shutdown()


def test_callbacks_write_files(tmp_path: Path) -> None:
    est = estimator(2)
    callbacks = [
        ModelCheckpoint(str(tmp_path / "ckpt" / "test-{epoch}")),
        CSVLogger(str(tmp_path / "log.csv")),
        TensorBoardCallback(str(tmp_path / "board"), freq="batch"),
        LRSchedulerCallback(lambda epoch: 0.5**epoch),
    ]
    est.fit(checks.rows(20), epochs=2, batch_size=5, callbacks=callbacks)
    names = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
    assert names == ["last.ckpt", "test-epoch=1.ckpt", "test-epoch=2.ckpt"]
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epoch,")
    from orca._native import _core

    assert [s for s, _, _ in _core.read_scalars(str(tmp_path / "board"), "train_loss")][-1] >= 2
    assert est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"] == 0.025
    other = estimator(1)
    other.load(ModelCheckpoint.get_latest_checkpoint(str(tmp_path / "ckpt")))
    same(other.get_model(), est.get_model())
    with pytest.raises(WorkerFailedError, match="Find non-empty dirname"):
        est.fit(checks.rows(20), callbacks=[callbacks[0]])
    est.shutdown()
    other.shutdown()


class OwnForward(MainCallback):
    def on_iter_forward(self, runner: Any) -> None:
        features, runner.target = runner.batch
        runner.output = runner.model(features)
        runner.loss = 2 * runner.criterion(runner.output, runner.target)


class OwnBackward(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        (2 * runner.loss).backward()
        torch.nn.utils.clip_grad_norm_(runner.model.parameters(), 0.3)
        runner.optimizer.step()


def doubled(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class DoubledAndClipped(torch.optim.SGD):
    """What OwnBackward does, in one process."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad *= 2
        torch.nn.utils.clip_grad_norm_(parameters, 0.3)
        super().step()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_main_callback_takes_the_place_of_the_steps(workers: int) -> None:
    est = estimator(workers)
    est.fit(checks.rows(30), epochs=3, batch_size=8, callbacks=[OwnForward()])
    same(est.get_model(), plain(doubled))
    est.shutdown()
    est = estimator(workers)
    est.fit(checks.rows(30), epochs=3, batch_size=8, callbacks=[OwnBackward()])
    same(
        est.get_model(),
        plain(lambda m, c: DoubledAndClipped(m.parameters(), lr=0.05, momentum=0.9)),
    )
    with pytest.raises(WorkerFailedError, match="at most one MainCallback"):
        est.fit(checks.rows(8), callbacks=[OwnForward(), OwnBackward()])
    est.shutdown()


class Operator(TrainingOperator):
    """A loop of its own that does what the plain one does."""

    def setup(self, config: dict[str, Any]) -> None:
        self.seen = 0

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        loss = F.cross_entropy(self.model(features), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen += len(target)
        assert {"batch_idx", "global_step", "name"} <= batch_info.keys()
        return {"train_loss": loss.item(), "num_samples": len(target), "twice": 2.0}

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return {"val_loss": 3.0, "num_samples": len(batch[1])}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_training_operator_makes_the_steps(workers: int) -> None:
    est = estimator(workers, training_operator_cls=Operator)
    data = checks.rows(30)
    stats = est.fit(data, epochs=3, batch_size=8, info={"name": "x"})
    same(est.get_model(), plain())
    assert stats[-1]["num_samples"] == 30
    assert stats[-1]["twice"] == 2.0
    assert est.evaluate(data)["val_loss"] == 3.0
    assert est.get_state_dict()["operator"]["seen"] > 0
    est.shutdown()


class Adversary(TrainingOperator):
    """Two models, two optimizers, two backward passes a step."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        first, second = self.models
        one, two = self.optimizers
        loss = F.cross_entropy(first(features), target)
        one.zero_grad()
        loss.backward()
        one.step()
        other = F.cross_entropy(second(features) + first(features).detach(), target)
        two.zero_grad()
        other.backward()
        two.step()
        return {"train_loss": loss.item() + other.item(), "num_samples": len(target)}


def two_models(config: dict[str, Any]) -> list[nn.Module]:
    return [checks.net({"seed": 1}), checks.net({"seed": 2})]


def two_optimizers(models: Any, config: dict[str, Any]) -> Any:
    return [torch.optim.SGD(models[0].parameters(), 0.1), torch.optim.Adam(models[1].parameters())]


def test_several_models_and_optimizers_are_kept_equal() -> None:
    given = {"model": two_models, "optimizer": two_optimizers, "training_operator_cls": Adversary}
    models = []
    for workers in (1, 3):
        est = estimator(workers, **given)
        est.fit(checks.rows(30), epochs=3, batch_size=6)
        models.append(est.get_model())
        est.shutdown()
    for a, b in zip(*models, strict=True):
        same(a, b)


class Uneven:
    """A data creator whose first worker has much more than the others."""

    def __call__(self, config: dict[str, Any], batch_size: int) -> Any:
        x, y = checks.rows(12)
        mine = slice(0, 8) if orca.rank() == 0 else slice(8, 12)
        xs, ys = torch.from_numpy(x[mine]), torch.from_numpy(y[mine])
        return [(xs[i : i + 2], ys[i : i + 2]) for i in range(0, len(xs), 2)]


@pytest.mark.parametrize("operator", [None, Operator])
def test_workers_may_have_different_numbers_of_batches(operator: Any) -> None:
    """F33, F40."""
    est = estimator(2, training_operator_cls=operator)
    stats = est.fit(Uneven(), epochs=2, reduce_results=False, info={"name": "x"})
    assert [[s["batch_count"] for s in epoch] for epoch in stats] == [[4, 2], [4, 2]]
    x, y = checks.rows(12)
    model = checks.net({})
    optimizer = checks.OPTIMIZERS["sgd"](model, {})
    for _ in range(2):
        for step in range(4):
            rows = [2 * step, 2 * step + 1] + ([8 + 2 * step, 9 + 2 * step] if step < 2 else [])
            optimizer.zero_grad()
            F.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
            optimizer.step()
    same(est.get_model(), model)
    est.shutdown()


class Breaking(TrainingOperator):
    """Ends its epoch after some batches, before or after the step of the last."""

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        wanted, after_step = self.config["breaks"][self.world_rank]
        for index, (x, y) in enumerate(iterator):
            if index == wanted and not after_step:
                break
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            if index == wanted and after_step:
                break
        return {}


@pytest.mark.parametrize(
    ("breaks", "steps"),
    [
        ([(1, True), (1, True)], 2),
        ([(2, False), (2, False)], 2),
        ([(1, True), (9, True)], 4),
        ([(9, True), (1, True)], 4),
        ([(3, True), (9, True)], 4),
        ([(3, False), (9, True)], 4),
        ([(1, False), (2, True)], 3),
        ([(1, True), (3, False)], 3),
        ([(0, False), (0, False)], 0),
    ],
)
def test_steps_count_when_a_loop_breaks_off(breaks: Any, steps: int, tmp_path: Path) -> None:
    est = estimator(
        2,
        training_operator_cls=Breaking,
        config={**checks.IN_ORDER, "breaks": breaks},
        model_dir=str(tmp_path),
    )
    for epochs in (1, 2):
        est.fit(checks.rows(16), epochs=1, batch_size=4, checkpoint_trigger=SeveralIteration(1))
        state = est.get_state_dict()
        assert (state["global_step"], state["epoch"]) == (steps * epochs, epochs)
        steps_seen = est._run(_steps_and_weights)  # On every worker alike.
        assert steps_seen[0] == steps_seen[1]
    est.shutdown()


def _steps_and_weights(call: Any) -> Any:
    session = loop._session(call)
    assert session is not None
    return session.global_step, [p.tolist() for p in session.model.parameters()]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.norm = nn.BatchNorm1d(5, dtype=torch.float64)
        self.last = nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x))


def test_running_statistics_are_the_mean_over_the_workers() -> None:
    x, y = checks.rows(16)
    est = estimator(2, model=lambda config: Norm(), config=checks.IN_ORDER)
    est.fit((x, y), epochs=1, batch_size=8)
    halves = [Norm().train() for _ in range(2)]
    for rank, half in enumerate(halves):
        for begin in (0, 8):
            rows = slice(begin + 4 * rank, begin + 4 * rank + 4)
            half(torch.from_numpy(x[rows]))
    expected = (halves[0].norm.running_mean + halves[1].norm.running_mean) / 2
    torch.testing.assert_close(est.get_model().norm.running_mean, expected, rtol=1e-12, atol=0)
    assert int(est.get_model().norm.num_batches_tracked) == 2
    est.shutdown()


class Clamp(nn.Module):
    """Writes to its weight in forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.last = nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.last.weight.clamp_(-0.2, 0.2)
        return self.last(x)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(50, 3, sparse=True, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).sum(1)


class UnevenWords(Uneven):
    """Rows of an embedding's numbers, half as many on the second worker."""

    def __call__(self, config: dict[str, Any], batch_size: int) -> Any:
        words = torch.from_numpy(np.random.default_rng(1).integers(0, 50, (12, 4)))
        mine = slice(0, 8) if orca.rank() == 0 else slice(8, 12)
        xs, ys = words[mine], torch.from_numpy(checks.rows(12)[1][mine])
        return [(xs[i : i + 2], ys[i : i + 2]) for i in range(0, len(xs), 2)]


class PlainLoop(TrainingOperator):
    """As the base class, but not known to be."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().train_batch(batch, batch_info)


def test_workers_with_different_numbers_of_batches_may_have_sparse_gradients() -> None:
    est = estimator(
        2,
        model=lambda config: Embedded(),
        optimizer=lambda m, c: torch.optim.SGD(m.parameters(), lr=0.5),
        training_operator_cls=PlainLoop,
    )
    est.fit(UnevenWords(), epochs=2)
    words = torch.from_numpy(np.random.default_rng(1).integers(0, 50, (12, 4)))
    targets = torch.from_numpy(checks.rows(12)[1])
    model = Embedded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for step in range(4):
            rows = [2 * step, 2 * step + 1] + ([8 + 2 * step, 9 + 2 * step] if step < 2 else [])
            optimizer.zero_grad()
            F.cross_entropy(model(words[rows]), targets[rows]).backward()
            optimizer.step()
    same(est.get_model(), model)
    est.shutdown()


@pytest.mark.parametrize("is_coalesced", [False, True])
def test_sparse_tensors_are_packed_with_all_that_they_are(is_coalesced: bool) -> None:
    sparse = torch.sparse_coo_tensor(
        [[3, 1, 3]], torch.ones(3, 2, dtype=torch.bfloat16), (5, 2), check_invariants=True
    )
    given = sparse.coalesce() if is_coalesced else sparse
    (found,) = unpack(pack([given]))
    assert found.is_coalesced() == is_coalesced
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    torch.testing.assert_close(found._indices(), given._indices(), rtol=0, atol=0)
    torch.testing.assert_close(found._values(), given._values(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["clamp", "sparse", "compile", "frozen", "tied"])
def test_unusual_models_train_as_in_one_process(kind: str) -> None:
    x, y = checks.rows(24)
    optimizer: Any = checks.OPTIMIZERS["sgd"]
    make: Any = {
        "clamp": Clamp,
        "sparse": Embedded,
        "compile": lambda: checks.net({}),
        "frozen": lambda: checks.net({}),
        "tied": lambda: checks.net({}),
    }[kind]
    if kind == "sparse":
        x = np.random.default_rng(1).integers(0, 50, (24, 4))
        optimizer = lambda m, c: torch.optim.SparseAdam(m.parameters(), lr=0.05)  # noqa: E731

    def creator(config: dict[str, Any]) -> nn.Module:
        model = make()
        if kind == "frozen":
            model.first.weight.requires_grad_(False)
        if kind == "tied":
            model.extra = nn.Linear(5, 7, dtype=torch.float64)
            model.extra.weight = model.first.weight
        return model

    def trained(m: nn.Module, c: Any) -> torch.optim.Optimizer:
        if kind == "frozen":
            return torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.05, 0.9)
        return optimizer(m, c)

    est = estimator(2, model=creator, optimizer=trained)
    est.fit((x, y), epochs=3, batch_size=6)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=trained,
        batch_size=6,
        epochs=3,
        model=creator({}),
    )
    same(est.get_model(), expected)
    est.shutdown()


def test_plain_functions_are_metrics() -> None:
    def near(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (predictions.argmax(1) - targets).abs().double().mean()

    x, y = checks.rows(23)
    est = estimator(3, metrics=[near])
    found = est.evaluate((x, y), batch_size=6)
    with torch.no_grad():
        expected = near(est.get_model()(torch.from_numpy(x)), torch.from_numpy(y))
    assert float(found["near"]) == pytest.approx(float(expected), rel=1e-12)
    est.shutdown()


def test_a_batch_that_is_a_dict_is_refused_by_name() -> None:
    est = estimator(1)
    with pytest.raises(WorkerFailedError, match=r"keys \['a', 'b'\]"):
        est.fit(lambda config, batch_size: [{"a": torch.ones(2), "b": torch.ones(2)}])
    with pytest.raises(InvalidArgumentError, match="data has no y"):
        est.fit({"x": np.ones(3)})
    est.shutdown()


@pytest.mark.parametrize(
    ("trigger", "names"),
    [("EveryEpoch", ["model.4", "model.8"]), (SeveralIteration(3), ["model.3", "model.6"])],
)
def test_checkpoints_are_written_when_a_trigger_fires(
    tmp_path: Path, trigger: Any, names: list[str]
) -> None:
    est = estimator(2, model_dir=str(tmp_path), optimizer=checks.OPTIMIZERS["adam"])
    est.fit(checks.rows(32), epochs=2, batch_size=8, checkpoint_trigger=trigger)
    (folder,) = (tmp_path / "models").iterdir()
    # One that waits for the disk gives way to a newer one; the last is always there.
    found = sorted(path.name for path in folder.iterdir())
    assert found in (names, names[1:])
    other = estimator(3, optimizer=checks.OPTIMIZERS["adam"])
    version = int(found[0].split(".")[1])
    other.load_orca_checkpoint(str(tmp_path), version=version)
    state = other.get_state_dict()
    assert state["global_step"] == version
    if trigger == "EveryEpoch":
        epochs = version // 4
        assert state["epoch"] == epochs
        other.fit(checks.rows(32), epochs=1, batch_size=8)
        same(other.get_model(), plain(checks.OPTIMIZERS["adam"], epochs=epochs + 1, rows=32))
    with pytest.raises(RuntimeError, match="Cannot find PyTorch checkpoint"):
        other.load_orca_checkpoint(str(tmp_path / "nothing"))
    est.shutdown()
    other.shutdown()


@pytest.mark.parametrize("operator", [None, PlainLoop])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_checkpoint_at_the_last_step_of_an_epoch_ends_the_epoch(
    tmp_path: Path, workers: int, operator: Any
) -> None:
    def made(**more: Any) -> Any:
        return estimator(
            workers,
            training_operator_cls=operator,
            scheduler_creator=lambda o, c: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
            scheduler_step_freq="epoch",
            **more,
        )

    est = made(model_dir=str(tmp_path))
    est.fit(checks.rows(32), epochs=1, batch_size=8, checkpoint_trigger=SeveralIteration(4))
    other = made()
    other.load_orca_checkpoint(str(tmp_path), version=4)
    state = other.get_state_dict()
    assert (state["epoch"], state["global_step"]) == (1, 4)
    for each in (est, other):
        each.fit(checks.rows(32), epochs=1, batch_size=8)
    same(other.get_model(), est.get_model())
    est.shutdown()
    other.shutdown()


def test_numbers_that_are_not_finite_are_in_checkpoints(tmp_path: Path) -> None:
    def made(**more: Any) -> Any:
        return estimator(
            1,
            scheduler_creator=lambda o, c: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
            scheduler_step_freq="manual",
            **more,
        )

    est = made(model_dir=str(tmp_path))
    est.fit(checks.rows(8), batch_size=4, checkpoint_trigger=SeveralIteration(1))
    other = made()
    other.load_orca_checkpoint(str(tmp_path), version=2)
    (state,) = other.get_state_dict()["schedulers"]
    assert state["best"] == float("inf")
    est.shutdown()
    other.shutdown()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1.5])
def test_a_state_is_the_same_after_it_was_text(value: float) -> None:
    parts, fields = to_parts({"a": [value, (value, 1)], value: "key"})
    text = json.dumps(fields, allow_nan=False)
    assert repr(_unkeyed(json.loads(text)["tree"], parts["state"])) == repr(
        {"a": [value, (value, 1)], value: "key"}
    )


@pytest.mark.parametrize("monitor", ["Loss", "score"])
@pytest.mark.parametrize("operator", [None, PlainLoop])
def test_a_plateau_goes_on_from_fit_to_fit(tmp_path: Path, operator: Any, monitor: str) -> None:
    # Nothing improves by 100: the rate falls at the second look, and at each one after it.
    def made() -> Any:
        rule = Plateau(monitor, factor=0.5, patience=1, mode="max", epsilon=100.0)
        optimizer = SGD(learningrate=0.1, leaningrate_schedule=rule)
        return estimator(2, optimizer=optimizer, training_operator_cls=operator)

    def rate(est: Any) -> float:
        return float(est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"])

    data = checks.rows(16)
    whole, parted, loaded = made(), made(), made()
    whole.fit(data, epochs=4, batch_size=8, validation_data=data)
    for _ in range(4):
        parted.fit(data, epochs=1, batch_size=8, validation_data=data)
    loaded.fit(data, epochs=2, batch_size=8, validation_data=data)
    path = loaded.save(str(tmp_path / "half.pt"))
    again = made()
    again.load(path)
    again.fit(data, epochs=2, batch_size=8, validation_data=data)
    assert rate(whole) < 0.1
    for est in (parted, again):
        assert rate(est) == rate(whole)
        same(est.get_model(), whole.get_model())
    for est in (whole, parted, loaded, again):
        est.shutdown()


def test_summaries_are_read_by_tensorboard(tmp_path: Path) -> None:
    est = estimator(2)
    est.set_tensorboard(str(tmp_path), "app")
    assert est.get_train_summary("Loss") is None
    x, y = checks.rows(20)
    stats = est.fit((x, y), epochs=2, batch_size=5, validation_data=(x, y))
    losses = est.get_train_summary("Loss")
    assert [step for step, _, _ in losses] == list(range(1, 9))
    assert np.mean([v for _, v, _ in losses[4:]]) == pytest.approx(stats[1]["train_loss"], rel=1e-6)
    assert [v for _, v, _ in est.get_train_summary("LearningRate")] == pytest.approx([0.05] * 8)
    assert len(est.get_validation_summary("Accuracy")) == 2
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "app" / "train")).Reload()
    assert [event.value for event in board.Scalars("Loss")] == pytest.approx(
        [v for _, v, _ in losses]
    )
    est.shutdown()


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    est = estimator(1)
    path = est.save(str(tmp_path / "a.pt"))
    other = estimator(1, config={"classes": 4})
    with pytest.raises(
        InvalidArgumentError, match=r"'second.weight' is \(3, 7\) there and \(4, 7\)"
    ):
        other.load(path)
    est.load(path)
    est.shutdown()


def test_orcas_own_optimizers_have_their_arithmetic() -> None:
    x, y = checks.rows(24)
    est = estimator(2, optimizer=SGD(learningrate=0.1, learningrate_decay=0.5))
    est.fit((x, y), epochs=2, batch_size=8)
    model = checks.net({})
    for step in range(6):
        rows = slice(step % 3 * 8, step % 3 * 8 + 8)
        model.zero_grad()
        F.cross_entropy(model(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 / (1 + 0.5 * step) * parameter.grad
    same(est.get_model(), model)
    est.shutdown()


def test_pickled_models_must_be_trusted(tmp_path: Path) -> None:
    est = estimator(1)
    path = est.save(str(tmp_path / "whole.pt"), entire=True)
    with pytest.raises(InvalidArgumentError, match="trust=True"):
        est.load(path)
    est.load(path, trust=True)
    from bigdl.orca.learn.pytorch import Estimator as OfBigdl

    old = OfBigdl.from_torch(model=checks.net, backend="spark")
    with pytest.warns(UserWarning, match="is a pickle of this user's"):
        old.load(path)
    with pytest.raises(RuntimeError, match="check your model path"):
        old.load(str(tmp_path / "nothing.pt"))
    est.shutdown()


def test_the_spark_backend_leaves_its_state_in_model_dir(tmp_path: Path) -> None:
    est = estimator(2, model_dir=str(tmp_path), backend="spark")
    est.fit(checks.rows(8), batch_size=4)
    state = torch.load(tmp_path / "state.pkl", weights_only=True)
    assert state["epoch"] == 1
    est.shutdown()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(2, 1, dtype=torch.float64)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([a, b], dim=1))[:, 0]


def test_columns_of_a_frame_are_features_and_labels() -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({name: random.normal(size=12) for name in ("a", "b", "y")})
    est = estimator(2, model=lambda config: TwoInputs(), loss=nn.MSELoss(), metrics=None)
    est.fit(frame, batch_size=4, feature_cols=["a", "b"], label_cols="y")
    found = est.predict(frame, feature_cols=["a", "b"])
    a, b = (torch.from_numpy(frame[name].to_numpy().copy()) for name in ("a", "b"))
    with torch.no_grad():
        np.testing.assert_allclose(found, est.get_model()(a, b).numpy(), rtol=1e-12)
    with pytest.raises(InvalidArgumentError, match=r"no column 'c'; there is \['a', 'b', 'y'\]"):
        est.fit(frame, feature_cols=["c"], label_cols="y")
    with pytest.raises(InvalidArgumentError, match="label_cols must be provided"):
        est.fit(frame, feature_cols=["a"])
    est.shutdown()

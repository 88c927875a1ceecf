"""F44: several calls at once, calls at the wrong time, and calls in any order."""

from __future__ import annotations

import concurrent.futures
import copy
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import checks_estimator as checks
import orca
from orca.errors import FailedPreconditionError, InvalidArgumentError, WorkerFailedError
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from orca.learn.pytorch.training_operator import TrainingOperator
from processes import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


def same(found: nn.Module, expected: nn.Module) -> None:
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


ADAM = checks.OPTIMIZERS["adam"]


def test_calls_of_two_threads_follow_one_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orca")
    est = checks.estimator(2, optimizer=ADAM)
    data = checks.rows(30)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        fits = [pool.submit(est.fit, data, epochs=1, batch_size=8) for _ in range(3)]
        rows = pool.submit(est.predict, data[0])
        assert sorted(fit.result()[0]["epoch"] for fit in fits) == [1, 2, 3]
        assert len(rows.result()) == 30
    same(est.get_model(), checks.trained_plainly(ADAM))
    assert any("waits: another thread uses this Estimator" in r.message for r in caplog.records)
    est.shutdown()


def test_two_estimators_train_at_once() -> None:
    data = checks.rows(30)
    estimators = [checks.estimator(workers, optimizer=ADAM) for workers in (1, 2, 1, 3)]

    def train(est: Any) -> Any:
        for _ in range(3):
            est.fit(data, epochs=1, batch_size=8)
            est.evaluate(data, batch_size=8)
        return est.get_model()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for model in pool.map(train, estimators):
            same(model, checks.trained_plainly(ADAM))
    for est in estimators:
        est.shutdown()


class Captures(Callback):
    def __init__(self, est: Any) -> None:
        self.est = est


class FitsInside(TrainingOperator):
    """Makes an Estimator where there is no context."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        Estimator.from_torch(model=checks.net, optimizer=ADAM, loss=nn.CrossEntropyLoss()).fit(
            checks.rows(4)
        )
        return {"train_loss": 0.0, "num_samples": 1}


def test_a_fit_inside_of_a_fit_is_refused() -> None:
    est = checks.estimator(2, optimizer=ADAM)
    data = checks.rows(8)
    est.fit(data, batch_size=8)
    text = r"callbacks\[0\]\.est .*cannot be sent.*an Estimator lives in the driver"
    with pytest.raises(InvalidArgumentError, match=text):
        est.fit(data, callbacks=[Captures(est)])
    inner = checks.estimator(1, training_operator_cls=FitsInside)
    with pytest.raises(WorkerFailedError, match="a function on a worker has no Orca context"):
        inner.fit(data)
    est.fit(data, epochs=2, batch_size=8)
    same(est.get_model(), checks.trained_plainly(ADAM, 3, 8, 8))
    est.shutdown()
    inner.shutdown()


def test_a_signal_handler_cannot_train_what_is_training(tmp_path: Path) -> None:
    est = checks.estimator(2, optimizer=ADAM)
    data = checks.rows(8)
    started, released = tmp_path / "started", tmp_path / "released"

    class Waits(Callback):
        def before_train_epoch(self, runner: Any) -> None:
            started.touch()
            wait_until(released.exists, "the handler has returned")

    found: list[Exception] = []

    def handler(*_: Any) -> None:
        try:
            est.fit(data)
        except FailedPreconditionError as error:
            found.append(error)
        released.touch()

    def send() -> None:
        wait_until(started.exists, "training has begun")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        est.fit(data, batch_size=8, callbacks=[Waits()])
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert "fit was called while this Estimator is at work in the same thread" in str(found[0])
    same(est.get_model(), checks.trained_plainly(ADAM, 1, 8, 8))
    est.shutdown()


def test_an_estimator_waits_for_the_next_context() -> None:
    est = checks.estimator(2, optimizer=ADAM)
    data = checks.rows(30)
    est.fit(data, batch_size=8)
    orca.stop_orca_context()
    same(est.get_model(), checks.trained_plainly(ADAM, 1))
    assert est.get_state_dict()["epoch"] == 1
    for call in (est.fit, est.evaluate):
        with pytest.raises(FailedPreconditionError, match=r"call orca.init_orca_context\(\) first"):
            call(data)
    with pytest.raises(FailedPreconditionError, match=r"call orca.init_orca_context\(\) first"):
        est.predict(data[0])
    est.shutdown()
    orca.init_orca_context("local", cores=2)
    est.fit(data, batch_size=8)
    est.shutdown()
    est.shutdown()
    est.fit(data, batch_size=8)
    same(est.get_model(), checks.trained_plainly(ADAM))
    est.shutdown()


def test_a_context_that_ends_during_a_fit_is_an_error(tmp_path: Path) -> None:
    est = checks.estimator(2, optimizer=ADAM)
    data = checks.rows(30)
    est.fit(data, batch_size=8)
    started = tmp_path / "started"

    class Endless(Callback):
        def after_train_iter(self, runner: Any) -> None:
            started.touch()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        fit = pool.submit(est.fit, data, epochs=10**9, batch_size=8, callbacks=[Endless()])
        wait_until(started.exists, "training has begun")
        orca.stop_orca_context()
        with pytest.raises(RuntimeError):
            fit.result(timeout=60)
    orca.init_orca_context("local", cores=2)
    est.load_state_dict({"models": [checks.trained_plainly(ADAM, 1).state_dict()]})
    same(est.get_model(), checks.trained_plainly(ADAM, 1))
    assert len(est.fit(data, batch_size=8)) == 1
    est.shutdown()


class Machine:
    """An Estimator, and beside it the model that plain torch would have by now."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = np.random.default_rng(seed)
        self.folder = folder
        self.data = checks.rows(30)
        self.est: Any = checks.estimator(2, optimizer=ADAM, model_dir=str(folder / "models"))
        self.model = checks.net({})
        self.optimizer = ADAM(self.model, {})
        self.saved: Any = None
        self.has_context = True

    def fit(self) -> None:
        epochs = int(self.random.integers(1, 3))
        if not self.has_context:
            with pytest.raises(FailedPreconditionError):
                self.est.fit(self.data, epochs=epochs)
            return
        self.est.fit(self.data, epochs=epochs, batch_size=8)
        checks.train_plainly(
            *self.data,
            loss=nn.CrossEntropyLoss(),
            optimizer=lambda model, config: self.optimizer,
            batch_size=8,
            epochs=epochs,
            model=self.model,
        )

    def fail(self) -> None:
        """A fit that ends before its first step changes nothing."""

        def creator(config: Any, batch_size: int) -> Any:
            raise OSError("no data today")

        wrong: Any = [
            lambda: self.est.fit(creator),
            lambda: self.est.fit(self.data, batch_size=0),
            lambda: self.est.fit(self.data[0]),
            lambda: self.est.load(str(self.folder / "nothing.pt")),
            lambda: self.est.load_state_dict({"models": [{}]}),
            lambda: self.est.fit(self.data, callbacks=[threading.Lock()]),
        ]
        with pytest.raises(RuntimeError):
            wrong[self.random.integers(len(wrong))]()

    def evaluate(self) -> None:
        if self.has_context:
            assert self.est.evaluate(self.data, batch_size=8)["num_samples"] == 30

    def predict(self) -> None:
        if self.has_context:
            with torch.no_grad():
                expected = self.model(torch.from_numpy(self.data[0])).numpy()
            np.testing.assert_allclose(self.est.predict(self.data[0]), expected, 1e-9, 1e-12)

    def save(self) -> None:
        self.est.save(str(self.folder / "a.pt"))
        self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self) -> None:
        if self.saved is not None:
            self.est.load(str(self.folder / "a.pt"))
            weights, state = copy.deepcopy(self.saved)
            self.model.load_state_dict(weights)
            self.optimizer = ADAM(self.model, {})
            self.optimizer.load_state_dict(state)

    def shutdown(self) -> None:
        self.est.shutdown()

    def stop(self) -> None:
        orca.stop_orca_context()
        self.has_context = False

    def start(self) -> None:
        if not self.has_context:
            orca.init_orca_context("local", cores=2)
            self.has_context = True

    def check(self) -> None:
        same(self.est.get_model(), self.model)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]
)
def test_calls_in_any_order_leave_the_model_that_they_should(seed: int, tmp_path: Path) -> None:
    machine = Machine(seed, tmp_path)
    steps = ["fit"] * 4 + ["fail", "evaluate", "predict", "save", "load", "shutdown", "stop"]
    steps += ["start"] * 3
    done: list[str] = []
    for _ in range(30):
        done.append(str(machine.random.choice(steps)))
        try:
            getattr(machine, done[-1])()
            machine.check()
        except BaseException as error:
            error.args = (f"after {done}: {error}",)
            raise
    machine.start()
    machine.est.shutdown()

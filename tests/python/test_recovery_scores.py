"""Workers that die while they evaluate or predict: another takes their place, and the results are the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orca
import orca.data
from orca.errors import WorkerFailedError
from orca.learn.metrics import MAE
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
from test_recovery import BATCH, data, two_workers

pytestmark = pytest.mark.usefixtures("context")


class Dies(Callback):
    """Kills its worker at a batch, as often as it is told; notes who has been there."""

    def __init__(
        self, folder: Path, when: list[tuple[int, int]], times: int = 1, how: int = signal.SIGKILL
    ) -> None:
        self.folder, self.when, self.times, self.how = folder, when, times, how

    def _at(self, batch: int) -> None:
        here = (orca.rank(), batch)
        if here not in self.when:
            return
        before = len(list(self.folder.glob(f"{here}.*")))
        (self.folder / f"{here}.{time.monotonic_ns()}").touch()
        if before < self.times:
            os.kill(os.getpid(), self.how)

    def after_val_iter(self, runner: Any) -> None:
        self._at(runner.batch_idx)

    def after_pred_iter(self, runner: Any) -> None:
        self._at(runner.batch_idx)


@pytest.fixture(scope="module", params=[None, False], ids=["shared", "copies"])
def estimator(request: pytest.FixtureRequest) -> Any:
    made = two_workers(elementwise=request.param, metrics=[MAE()])
    made.fit(data(), epochs=1, batch_size=BATCH, seed=11)
    return made


WHEN = {
    "first": [(0, 0)],
    "last": [(1, 3)],
    "several": [(0, 0), (0, 2), (1, 1)],
}


@pytest.mark.parametrize("name", WHEN)
def test_evaluate_finds_the_same(tmp_path, estimator, name):
    expected = estimator.evaluate(data(), batch_size=BATCH)
    callbacks = [Dies(tmp_path, WHEN[name])]
    assert estimator.evaluate(data(), batch_size=BATCH, callbacks=callbacks) == expected
    assert list(tmp_path.iterdir())
    assert estimator.evaluate(data(), batch_size=BATCH) == expected


@pytest.mark.parametrize("name", WHEN)
def test_predict_finds_the_same(tmp_path, estimator, name):
    x, _ = data()
    expected = estimator.predict(x, batch_size=BATCH)
    found = estimator.predict(x, batch_size=BATCH, callbacks=[Dies(tmp_path, WHEN[name])])
    np.testing.assert_array_equal(found, expected)
    assert list(tmp_path.iterdir())


def test_shards_are_predicted_alike(tmp_path, estimator):
    x, y = data()
    shards = orca.data.XShards.partition({"x": x, "y": y}, num_shards=3)
    expected = estimator.predict(shards, batch_size=BATCH).collect()
    found = estimator.predict(shards, batch_size=BATCH, callbacks=[Dies(tmp_path, [(1, 2)])])
    for mine, wanted in zip(found.collect(), expected, strict=True):
        np.testing.assert_array_equal(mine["prediction"], wanted["prediction"])
    scored = estimator.evaluate(shards, batch_size=BATCH)
    callbacks = [Dies(tmp_path, [(0, 3)])]
    assert estimator.evaluate(shards, batch_size=BATCH, callbacks=callbacks) == scored


def test_a_model_that_nobody_has_trained_predicts(tmp_path):
    x, _ = data()
    made = two_workers()
    found = made.predict(x, batch_size=BATCH, callbacks=[Dies(tmp_path, [(1, 1)])])
    np.testing.assert_array_equal(found, two_workers().predict(x, batch_size=BATCH))


def test_training_goes_on_after_a_death_in_evaluate(tmp_path):
    fits = {"epochs": 1, "batch_size": BATCH, "seed": 5}
    states = []
    for when in ([], [(0, 1), (1, 2)]):
        made = two_workers()
        made.fit(data(), **fits)
        made.evaluate(data(), batch_size=BATCH, callbacks=[Dies(tmp_path, when)])
        made.fit(data(), **fits)
        states.append(made.get_state_dict()["models"][0])
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_a_batch_that_kills_whoever_has_it_is_an_error(tmp_path, estimator):
    callbacks = [Dies(tmp_path, [(1, 2)], times=99, how=signal.SIGSEGV)]
    match = "rank 1 died three times in a row while it was at batch 3"
    with pytest.raises(WorkerFailedError, match=match):
        estimator.evaluate(data(), batch_size=BATCH, callbacks=callbacks, max_restarts=50)
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(WorkerFailedError, match=match):
        estimator.predict(data()[0], batch_size=BATCH, callbacks=callbacks, max_restarts=50)
    assert len(list(tmp_path.iterdir())) == 6


def test_too_many_deaths_are_an_error(tmp_path, estimator):
    deaths, x = [(0, 1), (0, 3), (0, 5)], data()[0]
    for most in (0, 2):
        for call, given in ((estimator.evaluate, data()), (estimator.predict, x)):
            folder = tmp_path / f"{call.__name__}.{most}"
            folder.mkdir()
            more = {"callbacks": [Dies(folder, deaths)], "max_restarts": most}
            with pytest.raises(WorkerFailedError, match="SIGKILL"):
                call(given, batch_size=BATCH, **more)
            died = {file.name.rpartition(".")[0] for file in folder.iterdir()}
            assert len(died) == most + 1


def test_what_the_users_code_raises_is_raised_at_once(tmp_path, estimator):
    class Raises(Callback):
        def after_val_iter(self, runner: Any) -> None:
            (tmp_path / f"{time.monotonic_ns()}").touch()
            raise ZeroDivisionError("mine")

        after_pred_iter = after_val_iter

    for call, given in ((estimator.evaluate, data()), (estimator.predict, data()[0])):
        with pytest.raises(WorkerFailedError, match="mine"):
            call(given, batch_size=BATCH, callbacks=[Raises()])
    assert len(list(tmp_path.iterdir())) <= 4  # Nobody began anew.


def test_a_worker_that_is_alone_is_replaced(tmp_path):
    x, _ = data()
    made = Estimator.from_torch(model=two_workers().get_model(), loss=torch.nn.MSELoss())
    expected = made.predict(x, batch_size=BATCH)
    found = made.predict(x, batch_size=BATCH, callbacks=[Dies(tmp_path, [(0, 7)])])
    np.testing.assert_array_equal(found, expected)

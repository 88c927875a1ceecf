"""A quick look at Estimators; test_estimator*.py have the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import checks_estimator as checks

pytestmark = pytest.mark.usefixtures("context")


@pytest.mark.parametrize("optimizer", ["adam", "whole-norm"])
def test_two_workers_train_evaluate_and_predict_as_one_process(optimizer: str) -> None:
    from bigdl.orca.learn.metrics import Accuracy
    from bigdl.orca.learn.pytorch import Estimator

    x, y = checks.rows(23)
    est = Estimator.from_torch(
        model=checks.net,
        optimizer=checks.OPTIMIZERS[optimizer],
        loss=nn.CrossEntropyLoss(),
        metrics=[Accuracy()],
        config={"shuffle": False},
        workers_per_node=2,
    )
    est.fit((x, y), epochs=3, batch_size=5)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=checks.OPTIMIZERS[optimizer],
        batch_size=5,
        epochs=3,
    )
    with torch.no_grad():
        outputs = expected(torch.from_numpy(x))
    torch.testing.assert_close(torch.from_numpy(est.predict(x)), outputs, rtol=1e-10, atol=1e-12)
    right = (outputs.argmax(1) == torch.from_numpy(y)).double().mean()
    assert float(est.evaluate((x, y))["Accuracy"]) == pytest.approx(float(right), abs=1e-12)
    est.shutdown()

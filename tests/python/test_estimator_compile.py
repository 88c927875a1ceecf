"""Estimators of models under ``torch.compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import checks_estimator as checks
from orca.learn.metrics import Accuracy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


class Inside(nn.Module):
    """A compiled part of a model that is not."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        plain = checks.net({})
        self.first = torch.compile(plain.first, backend=backend)
        self.second = plain.second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def compiled(kind: str, backend: str) -> Any:
    """A model, or a creator of one."""
    if kind == "model":
        return torch.compile(checks.net({}), backend=backend)
    if kind == "creator":
        return lambda config: torch.compile(checks.net({}), backend=backend)
    if kind == "inside":
        return lambda config: Inside(backend)

    def in_place(config: Any) -> nn.Module:
        model = checks.net({})
        model.compile(backend=backend)
        return model

    return in_place


@pytest.mark.product
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *(("eager", kind) for kind in ("model", "creator", "inside", "in place")),
        ("inductor", "model"),
        ("inductor", "creator"),
    ],
)
@pytest.mark.parametrize("elementwise", [None, False])
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own use
def test_a_compiled_model_trains_as_a_plain_one(
    backend: str, kind: str, elementwise: bool | None, tmp_path: Path
) -> None:
    x, y = checks.rows(24)
    adam = checks.OPTIMIZERS["adam"]
    given = {"optimizer": adam, "elementwise": elementwise, "metrics": [Accuracy()]}
    est = checks.estimator(2, model=compiled(kind, backend), **given)
    est.fit((x, y), epochs=2, batch_size=8)
    path = est.save(str(tmp_path / "model.pt"))
    plain = checks.trained_plainly(adam, epochs=2, count=24)
    state = torch.load(path, weights_only=True)["models"][0]
    assert list(state) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        outputs = plain(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(est.predict(x), outputs, rtol=1e-9, atol=1e-11)
    assert float(est.evaluate((x, y))["Accuracy"]) == pytest.approx(
        (outputs.argmax(1) == y).mean(), abs=1e-12
    )
    # A plain one goes on from its file, and a compiled one from a plain one's.
    for model in (checks.net, compiled(kind, backend)):
        other = checks.estimator(1, model=model, **given)
        other.load(path)
        other.fit((x, y), epochs=1, batch_size=8)
        expected = checks.trained_plainly(adam, epochs=3, count=24)
        found = other.get_state_dict()["models"][0]
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-12)
        path = other.save(str(tmp_path / "next.pt")) if model is not checks.net else path
        other.shutdown()
    est.shutdown()

"""The Estimator of C++ and ours read each other's files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import orca
from checks_estimator import Net, rows
from orca.learn.pytorch import Estimator
from orca.learn.trigger import EveryEpoch

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[2] / "build/release/tests/cpp/nn_tests"
OPTIONS = {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01}


def estimator(folder: Path | None = None) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: Net(),
        optimizer=lambda model, config: torch.optim.Adam(model.parameters(), **OPTIONS),
        loss=torch.nn.CrossEntropyLoss(),
        workers_per_node=2,
        model_dir=folder and str(folder),
    )


def go_on_in_cpp(folder: Path) -> None:
    done = subprocess.run(
        [str(PROGRAM), "interop", str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-11, atol=1e-12, msg=name)


@pytest.fixture
def data(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = rows(43)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    return x, y


def test_training_goes_from_python_to_cpp_and_back(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray]
) -> None:
    with orca.init_orca_context("local", cores=2):
        whole = estimator()
        whole.fit(data, epochs=6, batch_size=8, seed=5)
        expected = whole.get_model().state_dict()

        first = estimator(tmp_path / "python")
        first.fit(data, epochs=2, batch_size=8, seed=5, checkpoint_trigger=EveryEpoch())
        go_on_in_cpp(tmp_path)
        last = estimator()
        last.load_orca_checkpoint(str(tmp_path / "cpp"))
        last.fit(data, epochs=2, batch_size=8, seed=5)
        assert_same(last.get_model().state_dict(), expected)

        # Weights alone are what torch.load reads without trust.
        weights = torch.load(tmp_path / "net.pt", weights_only=True)
        middle = estimator()
        middle.load_orca_checkpoint(str(tmp_path / "cpp"))
        assert_same(dict(weights), dict(middle.get_model().state_dict()))
        middle.load(tmp_path / "net.pt")
        assert_same(dict(weights), dict(middle.get_model().state_dict()))


@pytest.mark.parametrize("what", ["an Estimator's file", "a state dict"])
def test_cpp_reads_what_torch_saved(
    what: str, tmp_path: Path, data: tuple[np.ndarray, np.ndarray]
) -> None:
    with orca.init_orca_context("local", cores=2):
        made = estimator()
        made.fit(data, epochs=2, batch_size=8, seed=5)
        if what == "a state dict":
            torch.save(made.get_model().state_dict(), tmp_path / "python")
        else:
            made.save(tmp_path / "python")
        go_on_in_cpp(tmp_path)
        weights = dict(torch.load(tmp_path / "net.pt", weights_only=True))
        if what == "a state dict":  # The optimizer begins anew, and the epochs, too.
            again = estimator()
            again.load(tmp_path / "python")
            again.fit(data, epochs=2, batch_size=8, seed=5)
            assert_same(weights, dict(again.get_model().state_dict()))
        else:
            made.fit(data, epochs=2, batch_size=8, seed=5)
            assert_same(weights, dict(made.get_model().state_dict()))

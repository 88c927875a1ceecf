"""An Estimator whose workers are on two machines; run as the driver, with an address and a secret file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import checks_estimator as checks
import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.learn.metrics import Accuracy
from orca.learn.pytorch.callbacks import Callback


def place() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def close(found: Any, expected: torch.nn.Module) -> None:
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-12, atol=1e-14)


def creator(config: dict[str, Any], batch_size: int) -> Any:
    return checks.loader({"rows": 30}, batch_size)


def trained_plainly(name: str) -> torch.nn.Module:
    model = checks.net({})
    optimizer = checks.OPTIMIZERS[name](model, {})
    for epochs, batch_size in ((2, 7), (1, 8)):
        checks.trained_plainly(lambda m, c: optimizer, epochs, batch_size, model=model)
    return model


def ask_for_a_cut(folder: str) -> None:
    """Says on which machine this worker is."""
    mark = Path(folder, "cut.new")
    mark.write_text(place())
    mark.rename(mark.with_name("cut"))  # Whole when it is there.


class AsksForACut(Callback):
    """In the fourth step of the first attempt: rank 0 asks for a cut, and every rank takes its time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def before_train_iter(self, runner: Any) -> None:
        if runner.global_step >= 4 and not runner.is_resumed:
            if orca.rank() == 0 and runner.global_step == 4:
                ask_for_a_cut(self._folder)
            time.sleep(0.1)


def train_through_a_cut(folder: str) -> None:
    """Weights and the number of epochs are those of one process."""
    est = checks.estimator(2, optimizer=checks.OPTIMIZERS["adam"], model_dir=f"{folder}/model")
    stats = est.fit(
        checks.rows(300), epochs=1, batch_size=4, callbacks=[AsksForACut(folder)], max_restarts=1
    )
    assert len(stats) == 1
    assert Path(folder, "cut").exists()
    model = checks.net({})
    optimizer = checks.OPTIMIZERS["adam"](model, {})
    checks.trained_plainly(lambda m, c: optimizer, 1, 4, 300, model)
    close(est.get_model(), model)
    orca.stop_orca_context()
    print("end of cut")


class WaitsForACut(torch.nn.Linear):
    """Asks for a cut in the first step, unless that has been done, and computes nothing until it comes."""

    def __init__(self, folder: str) -> None:
        super().__init__(4, 1)
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.folder and not Path(self.folder, "cut").exists():
            ask_for_a_cut(self.folder)
            time.sleep(600)
        return super().forward(x)


def search(folder: str, logs_dir: str) -> list[Any]:
    """What eight trials reported; the third one asks for a cut, if there is a folder for it."""
    est = AutoEstimator.from_torch(
        model_creator=lambda config: WaitsForACut(folder if config["number"] == 2 else ""),
        optimizer="SGD",
        loss=torch.nn.MSELoss(),
        logs_dir=logs_dir,
        name="search",
    )
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    data = (x, x.sum(1, keepdims=True))
    space = {"number": hp.grid_search(list(range(8))), "lr": 0.05, "batch_size": 16}
    est.fit(data, epochs=3, validation_data=data, metric="mse", search_space=space, seed=1)
    return [
        (trial.config["number"], trial.state, trial.reports, trial.retries) for trial in est.trials
    ]


def search_through_a_cut(folder: str) -> None:
    """Every trial reports what it does in an undisturbed search, and none has failed."""
    whole = search("", f"{folder}/whole")
    assert [state for _, state, _, _ in whole] == ["finished"] * 8, whole
    assert search(folder, f"{folder}/disturbed") == whole
    assert Path(folder, "cut").exists()
    assert not list(Path(folder).glob("disturbed/search/*/error.txt"))
    orca.stop_orca_context()
    print("end of search")


def main() -> None:
    address, secret, folder, what = sys.argv[1:]
    orca.init_orca_context("join", num_nodes=2, address=address, secret_file=secret)
    if what == "cut":
        train_through_a_cut(folder)
        return
    if what == "search":
        search_through_a_cut(folder)
        return
    x, y = checks.rows(30)
    for name in ("adam", "whole-norm"):
        est = checks.estimator(
            2,
            optimizer=checks.OPTIMIZERS[name],
            metrics=[Accuracy()],
            model_dir=f"{folder}/{name}",
        )
        assert est.num_workers == 4
        assert len(set(orca.run(place, workers=4))) == 2
        est.fit((x, y), epochs=2, batch_size=7, checkpoint_trigger="EveryEpoch")
        est.fit(creator, epochs=1, batch_size=8)
        close(est.get_model(), trained_plainly(name))
        scores = est.evaluate((x, y), batch_size=8)
        with torch.no_grad():
            outputs = est.get_model()(torch.from_numpy(x)).numpy()
        assert scores["num_samples"] == 30
        assert abs(float(scores["Accuracy"]) - (outputs.argmax(1) == y).mean()) < 1e-12
        np.testing.assert_allclose(est.predict(x, batch_size=4), outputs, rtol=1e-12)
        other = checks.estimator(1, optimizer=checks.OPTIMIZERS[name])
        other.load(est.save(Path(folder) / f"{name}.pt"))
        close(other.get_model(), est.get_model())
        other.load_orca_checkpoint(f"{folder}/{name}")
        assert other.get_state_dict()["epoch"] == 2
        est.shutdown()
    orca.stop_orca_context()
    print("end of join")


if __name__ == "__main__":
    main()

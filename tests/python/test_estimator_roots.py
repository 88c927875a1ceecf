"""The PyTorch Estimator through the import roots of BigDL and Analytics Zoo, and the seeds' scripts."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import checks_estimator as checks
from orca.errors import InvalidArgumentError
from orca.learn.pytorch.callbacks.tqdm import TqdmCallback
from processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ["bigdl", "torch_distributed", "ray", "spark", "horovod", "Spark"]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def estimator_of(root: str) -> Any:
    if root == "orca":
        from orca.learn.pytorch import Estimator
    elif root == "bigdl":
        from bigdl.orca.learn.pytorch import Estimator
    else:
        from zoo.orca.learn.pytorch import Estimator
    return Estimator


def make(root: str, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "model": checks.net,
        "optimizer": checks.OPTIMIZERS["sgd"],
        "loss": nn.CrossEntropyLoss(),
        "config": {"shuffle": False},
    }
    return estimator_of(root).from_torch(**(given | changes))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("root", ["orca", "bigdl", "zoo"])
def test_every_backend_trains(root: str, backend: str) -> None:
    est = make(root, backend=backend, workers_per_node=2)
    found = est.fit(checks.rows(24), epochs=2, batch_size=8)
    if backend == "bigdl":
        assert found is est
        # The number of epochs is absolute.
        before = est.get_model().second.weight.clone()
        est.fit(checks.rows(24), epochs=2, batch_size=8)
        assert torch.equal(est.get_model().second.weight, before)
    else:
        assert [stats["epoch"] for stats in found] == [1, 2]
        assert found[0]["batch_count"] == (2 if root == "zoo" else 3)  # A worker's, or the job's.
        assert est.num_workers == 2
    est.shutdown()


@pytest.mark.parametrize(
    ("root", "kind"), [("orca", InvalidArgumentError), ("bigdl", RuntimeError), ("zoo", ValueError)]
)
def test_errors_are_of_the_roots_time(root: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="got backend: mpi") as caught:
        make(root, backend="mpi")
    assert caught.type is kind
    with pytest.raises(kind, match="do not specify batch_size in config") as caught:
        make(root, config={"batch_size": 4})
    assert caught.type is kind
    est = make(root)
    with pytest.raises(kind, match="batch_size should be a positive integer") as caught:
        est.fit(checks.rows(4), batch_size=-1)
    assert caught.type is kind


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"Only orca metrics and customized functions .* get str"
    ):
        make("bigdl", metrics="accuracy")
    with pytest.raises(ValueError, match="Only orca metrics are supported, but get function"):
        make("zoo", metrics=[lambda preds, targets: preds.mean()])


@pytest.mark.parametrize(
    ("root", "backend", "frequency"), [("bigdl", "spark", "epoch"), ("zoo", "bigdl", "batch")]
)
def test_defaults_are_of_the_roots_time(root: str, backend: str, frequency: str) -> None:
    est = make(root)
    assert est.backend == backend
    assert est._spec.step_freq == frequency


def test_the_bigdl_backend_has_the_names_of_its_engine() -> None:
    """Seed 000: validation methods in fit and evaluate."""
    from bigdl.optim.optimizer import Loss, Top1Accuracy
    from orca.learn.metrics import Accuracy

    data = checks.rows(24)
    est = make("zoo", metrics=[Accuracy()])
    found = est.evaluate(data, batch_size=8)
    assert list(found) == ["Top1Accuracy"]
    methods = [Top1Accuracy(), Loss()]
    again = est.evaluate(data, validation_methods=methods, batch_size=8)
    assert list(again) == ["Top1Accuracy", "Loss"]
    assert again["Top1Accuracy"] == found["Top1Accuracy"]
    with pytest.raises(ValueError, match="metrics shouldn't be None"):
        make("zoo").evaluate(data)
    est.shutdown()


def test_the_roots_share_their_values() -> None:
    import bigdl.orca.learn.metrics as of_bigdl
    import zoo.orca.learn.metrics as of_zoo

    assert of_bigdl.Accuracy is of_zoo.Accuracy


@pytest.mark.parametrize("backend", ["bigdl", "spark"])
@pytest.mark.parametrize("root", ["orca", "bigdl", "zoo"])
def test_a_checkpoint_trigger_without_a_model_dir_is_said(
    root: str, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    est = make(root, backend=backend)
    refused = pytest.raises(InvalidArgumentError) if root == "orca" else contextlib.nullcontext()
    with caplog.at_level(logging.WARNING, "orca"), refused as caught:
        est.fit(checks.rows(8), epochs=1, batch_size=4, checkpoint_trigger="EveryEpoch")
    said = caplog.text if caught is None else str(caught.value)
    assert "checkpoint_trigger has no effect without model_dir: no checkpoint is written" in said
    assert "give from_torch(model_dir=)" in said
    est.shutdown()


@pytest.mark.parametrize("root", ["orca", "bigdl", "zoo"])
def test_what_has_no_effect_on_data_is_said(root: str, caplog: pytest.LogCaptureFixture) -> None:
    est = make(root, backend="spark")

    def creator(config: Any, batch_size: int) -> Any:
        return checks.loader({"rows": 8}, batch_size)

    rows = checks.rows(8)
    calls: list[tuple[str, Any]] = [
        (
            "feature_cols and label_cols have no effect on a",
            lambda: est.fit(creator, epochs=1, batch_size=4, feature_cols=["a"]),
        ),
        (
            "validation_methods has no effect without validation_data",
            lambda: est.fit(creator, epochs=1, batch_size=4, validation_methods=[]),
        ),
        (
            "validation_metrics has no effect; give validation_methods",
            lambda: est.evaluate(rows, validation_metrics=[]),
        ),
        ("profile has no effect: predictions", lambda: est.predict(rows[0], profile=True)),
        ("output_cols has no effect on what is", lambda: est.predict(rows[0], output_cols=["a"])),
    ]
    for text, call in calls:
        raises = pytest.raises(InvalidArgumentError, match=text)
        refused = raises if root == "orca" else contextlib.nullcontext()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "orca"), refused:
            call()
        assert root == "orca" or text in caplog.text
    est.shutdown()


def speaks(config: dict[str, Any]) -> nn.Module:
    import logging

    print(config["line"], "printed")
    print(config["line"], "complained", file=sys.stderr)
    logging.getLogger("of.user").warning("%s logged", config["line"])
    logging.getLogger("of.user").info("%s whispered", config["line"])
    return checks.net(config)


class Shown:
    """What the driver has shown so far."""

    def __init__(self, capsys: Any, caplog: Any) -> None:
        self._capsys, self._caplog, self._text = capsys, caplog, ""

    def text(self) -> str:
        self._text += "".join(self._capsys.readouterr())
        return self._text + self._caplog.text


def lines_of(line: str) -> list[str]:
    return [f"{line} printed", f"{line} complained", f"{line} logged"]


def test_what_workers_say_is_not_shown_without_log_to_driver(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    shown = Shown(capsys, caplog)
    for line, shows in (("quiet", False), ("loud", True)):
        est = make("orca", model=speaks, config={"line": line}, log_to_driver=shows)
        est.fit(checks.rows(8), epochs=1, batch_size=4)
        est.shutdown()
    # What was written before it, by the same worker, was shown before it.
    wait_until(lambda: all(line in shown.text() for line in lines_of("loud")), "it is shown")
    assert "quiet" not in shown.text()
    runs = Path(os.environ["ORCA_HOME"]).rglob("*")
    kept = "".join(path.read_text(errors="replace") for path in runs if path.is_file())
    assert all(line in kept for line in lines_of("quiet"))


def test_workers_log_from_log_level_on(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    shown = Shown(capsys, caplog)
    with caplog.at_level(logging.INFO):
        for line, level in (("strict", "ERROR"), ("open", logging.INFO), ("usual", None)):
            est = make("orca", model=speaks, config={"line": line}, log_level=level)
            est.fit(checks.rows(8), epochs=1, batch_size=4)
            est.shutdown()
        wait_until(lambda: "usual whispered" in shown.text(), "it is shown")
    assert "strict printed" in shown.text()
    assert "strict logged" not in shown.text()
    assert "open whispered" in shown.text()
    with pytest.raises(InvalidArgumentError, match="log_level must be a level of logging such as"):
        make("orca", log_level="loud")


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def run_example(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_of_the_fashion_mnist_tutorial_runs(tmp_path: Path) -> None:
    """Seed 003, on a few made images."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, count in (("train", 320), ("t10k", 80)):
        write_idx(raw / f"{part}-images-idx3-ubyte", random.integers(0, 255, (count, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", random.integers(0, 10, count))
    said = run_example("bigdl_fashion_mnist.py", "--data_dir", str(tmp_path), "--epochs", "1")
    assert "'num_samples': 320" in said
    assert "'num_samples': 80" in said
    assert "Stopping orca context" in said


def test_the_scripts_of_analytics_zoo_run() -> None:
    """Seeds 000 and 001: all three backends of that time learn."""
    said = run_example("zoo_torch_estimator.py", "--rows", "600")
    for backend in ("torch_distributed", "horovod"):
        line = next(line for line in said.splitlines() if line.startswith(f"{backend}: loss"))
        first, last = (float(word.rstrip(",")) for word in line.split()[2::2])
        assert last < first


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["tqdm"], "'tqdm' is not a callback; give a list of callbacks"),
        ("x", "callbacks must be a list, got 'x'; give a list"),
        (TqdmCallback(), "callbacks must be a list, got <.*TqdmCallback"),
        ([TqdmCallback], "<class .*TqdmCallback'> is not a callback"),
        ([None], "None is not a callback"),
        (3, "callbacks must be a list, got 3"),
    ],
    ids=["texts", "a text", "one", "a class", "nothing", "a number"],
)
def test_what_is_no_callback_is_refused(given: Any, text: str, call: str) -> None:
    est, rows = make("orca"), checks.rows(8)
    with pytest.raises(InvalidArgumentError, match=text):
        getattr(est, call)(rows[0] if call == "predict" else rows, callbacks=given)


class Counts:
    """A callback by its hook alone."""

    def after_train_iter(self, runner: Any) -> None:
        runner.stop = True


def test_an_object_with_a_hook_is_a_callback() -> None:
    est = make("orca")
    assert est.fit(checks.rows(8), batch_size=4, callbacks=(Counts(),))[0]["num_samples"] == 4
    est.shutdown()


def test_the_batch_size_of_a_loader_is_said(caplog: pytest.LogCaptureFixture) -> None:
    est, loader = make("orca"), checks.loader({"rows": 8}, 4)
    for call in (est.fit, est.evaluate):
        caplog.clear()
        call(loader, batch_size=8)
        assert "batch_size=8 has no effect on a DataLoader, which gives batches of 4" in caplog.text
        caplog.clear()
        call(loader, batch_size=4)
        call(loader)
        assert "batch_size" not in caplog.text
    est.fit(loader, batch_size=4, validation_data=checks.loader({"rows": 8}, 2))
    assert "batch_size=4 has no effect on a DataLoader, which gives batches of 2" in caplog.text
    est.shutdown()

"""Files that BigDL 2.4.0 (torch 1.13) and Analytics Zoo 0.11.2 (torch 1.5) wrote, with their own functions."""

from __future__ import annotations

import io
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import checks_estimator as checks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

GOLDEN = Path(__file__).parents[1] / "golden"
OF_BIGDL, OF_ZOO = GOLDEN / "bigdl-2.4.0", GOLDEN / "zoo-0.11.2"
# est.save() of the spark and ray backends, ModelCheckpoint, and est.save() of Analytics Zoo.
STATES = [OF_BIGDL / "spark.pt", OF_BIGDL / "ckpt" / "last.ckpt", OF_ZOO / "ray.pt"]
PICKLES = [OF_BIGDL / "state.pkl", OF_BIGDL / "entire.pt"]
KINDS = {"orca": ValueError, "bigdl": RuntimeError, "zoo": ValueError}


@pytest.fixture(params=sorted(KINDS))
def root(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def adam(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def scheduler_of(path: Path) -> Any:
    if OF_ZOO in path.parents:
        return lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return lambda optimizer, config: torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [1, 5], gamma=0.5
    )


def estimator(root: str, **changes: Any) -> Any:
    given = {
        "optimizer": adam,
        "backend": "ray",
        "scheduler_step_freq": "epoch",
        "estimator_class": checks.estimator_class(root),
    }
    return checks.estimator(2, **(given | changes))


def read(path: Path) -> Any:
    """The file without Orca."""
    if path.suffix == ".pkl":
        return pickle.loads(path.read_bytes())
    return torch.load(path, weights_only=False)


def goes_on_as(path: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One more epoch in plain torch."""
    state = read(path)
    model = checks.Net()
    optimizer = adam(model, {})
    scheduler = scheduler_of(path)(optimizer, {})
    model.load_state_dict(state["models"][0])
    optimizer.load_state_dict(state["optimizers"][0])
    scheduler.load_state_dict(state["schedulers"][0])
    x, y = (torch.from_numpy(part) for part in checks.rows(16))
    for begin in (0, 8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[begin : begin + 8]), y[begin : begin + 8]).backward()
        optimizer.step()
    scheduler.step()
    return model, optimizer


def assert_goes_on(est: Any, path: Path, batch_size: int) -> None:
    state = est.get_state_dict()
    assert state["epoch"] == read(path)["epoch"] == 2
    stats = est.fit(checks.rows(16), epochs=1, batch_size=batch_size)
    assert stats[0]["epoch"] == 3
    model, optimizer = goes_on_as(path)
    for a, b in zip(est.get_model().parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    found = est.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"]
    assert found == pytest.approx(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.name)
def test_training_goes_on_from_a_state_of_the_originals(root: str, path: Path) -> None:
    est = estimator(root, scheduler_creator=scheduler_of(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # These are tensors alone.
        est.load(path)
    assert_goes_on(est, path, 4 if root == "zoo" else 8)
    est.shutdown()


def test_training_goes_on_from_the_state_of_the_spark_backend(root: str, tmp_path: Path) -> None:
    """A plain pickle, not a file of torch."""
    path = OF_BIGDL / "state.pkl"
    est = estimator(root, scheduler_creator=scheduler_of(path))
    if root == "orca":
        with pytest.raises(ValueError, match="trust=True"):
            est.load(path)
        est.load_checkpoint(path, trust=True)
    else:
        with pytest.warns(UserWarning, match=r"state.pkl is a pickle of this user's") as caught:
            est.load_checkpoint(path)
        assert len(caught) == 1
    assert_goes_on(est, path, 4 if root == "zoo" else 8)
    # A folder with nothing else in it is a checkpoint.
    shutil.copy(path, tmp_path)
    other = estimator(root)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_orca_checkpoint(str(tmp_path), trust=root == "orca")
    assert len(caught) == (root != "orca")
    assert other.get_state_dict()["epoch"] == 2
    est.shutdown()


def test_an_entire_model_of_the_originals_loads(root: str) -> None:
    path = OF_BIGDL / "entire.pt"
    est = estimator(root, model=None, optimizer=None, backend="spark")
    if root == "orca":
        with pytest.raises(ValueError, match="trust=True"):
            est.load(path)
        est.load(path, trust=True)
    else:
        with pytest.warns(UserWarning, match=r"entire.pt is a pickle of this user's") as caught:
            est.load(path)
        assert len(caught) == 1
    for name, value in read(path).state_dict().items():
        assert torch.equal(est.get_model().state_dict()[name], value)


@pytest.mark.parametrize("by", ["file", "folder", "load_orca_checkpoint", "weights", "interrupted"])
def test_checkpoints_of_the_callback_load(root: str, by: str, tmp_path: Path) -> None:
    est = estimator(root)
    folder = OF_BIGDL / "ckpt"
    expected, epoch = folder / "last.ckpt", 2
    if by == "file":
        est.load_checkpoint(est.latest_checkpoint(str(folder)))
    elif by == "folder":
        est.load(folder)
    elif by == "load_orca_checkpoint":
        est.load_orca_checkpoint(str(folder))
    elif by == "weights":
        expected = OF_BIGDL / "weights" / "last.ckpt"
        est.load(expected)
    else:  # A run that ended before it could write the last one.
        expected, epoch = folder / "test-epoch=1.ckpt", 1
        shutil.copy(expected, tmp_path)
        est.load(tmp_path)
    state = est.get_state_dict()
    assert state["epoch"] == epoch
    for name, value in read(expected)["models"][0].items():
        assert torch.equal(state["models"][0][name], value)


def test_the_weights_of_the_bigdl_backend_load(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = shutil.copy(OF_ZOO / "bigdl.pt", tmp_path / "net.pt")
    (tmp_path / "net_optim.pt").write_bytes(JAVA)
    est = estimator(root, backend="bigdl")
    est.load(path)
    assert "net_optim.pt is not read: it is an optimizer of BigDL's engine" in caplog.text
    for name, value in read(OF_ZOO / "bigdl.pt").items():
        assert torch.equal(est.get_model().state_dict()[name], value)


JAVA = b"\xac\xed\x00\x05sr\x00\x2ecom.intel.analytics.bigdl.optim.OptimMethod"


def test_what_the_jvm_wrote_is_told_with_a_remedy(root: str, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "2021-05-01_10-00-00"
    folder.mkdir(parents=True)
    for name in ("model.4", "optimMethod-TorchModelf53bddcc.4"):
        (folder / name).write_bytes(JAVA)
    est = estimator(root, backend="bigdl")
    text = r"BigDL's engine on the JVM.*torch\.save\(estimator\.get_model\(\)\.state_dict\(\)"
    for load in (
        lambda: est.load_orca_checkpoint(str(tmp_path)),
        lambda: est.load_orca_checkpoint(
            str(folder), version=4, prefix="optimMethod-TorchModelf53bddcc"
        ),
        lambda: est.load(tmp_path),
        lambda: est.load(folder / "model.4"),
    ):
        with pytest.raises(RuntimeError, match=text):
            load()


def test_states_may_come_from_wrapped_models(tmp_path: Path) -> None:
    """DistributedDataParallel and torch.compile put a word before the names."""
    plain = checks.net({}).state_dict()
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        path = tmp_path / "wrapped.pt"
        torch.save({f"{prefix}{name}": value for name, value in plain.items()}, path)
        est = estimator("orca", config={"seed": 5})
        est.load(path)
        assert torch.equal(est.get_model().first.weight, plain["first.weight"])


def test_several_models_may_be_one_file(tmp_path: Path) -> None:
    models = [checks.net({"seed": 1}), checks.net({"seed": 2})]
    path = tmp_path / "models.pt"
    torch.save(models, path)
    est = checks.estimator(1, model=None, optimizer=None)
    est.load(path, trust=True)
    found = est.get_model()
    for a, b in zip(found, models, strict=True):
        assert torch.equal(a.first.weight, b.first.weight)


def test_a_pickle_of_another_device_is_read_on_this_one(tmp_path: Path) -> None:
    """Torch puts tensors in a plain pickle as files of their own, with the device in them."""
    from orca.adapters.torch.records import _unpickle

    data = io.BytesIO()
    torch.save(torch.arange(3.0), data)
    moved = data.getvalue().replace(b"cpu", b"xpu")
    assert moved != data.getvalue()

    class Moved:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (moved,)

    path = tmp_path / "state.pkl"
    path.write_bytes(pickle.dumps(Moved()))
    assert _unpickle(path).tolist() == [0.0, 1.0, 2.0]


def test_resume_runs_no_code_of_a_file_under_any_root(root: str, tmp_path: Path) -> None:
    shutil.copy(OF_BIGDL / "state.pkl", tmp_path / "state.pkl")
    est = estimator(root, model_dir=str(tmp_path))
    with pytest.raises(KINDS[root], match=r"state.pkl .*load\(..., trust=True\)"):
        est.fit(checks.rows(8), epochs=1, batch_size=4, resume="auto")


@pytest.mark.parametrize("root", ["bigdl", "zoo"])
def test_a_pickle_that_another_user_may_have_written_needs_trust(root: str, tmp_path: Path) -> None:
    path = tmp_path / "state.pkl"
    shutil.copy(OF_BIGDL / "state.pkl", path)
    est = estimator(root)
    path.chmod(0o646)
    with pytest.raises(KINDS[root], match=r"state.pkl .*load\(..., trust=True\)"):
        est.load(path)
    path.chmod(0o644)
    tmp_path.chmod(0o777)  # Whoever may write there may put another file in its place.
    with pytest.raises(KINDS[root], match=r"state.pkl .*load\(..., trust=True\)"):
        est.load(path)
    tmp_path.chmod(0o700)
    with pytest.warns(UserWarning, match=r"state.pkl is a pickle of this user's"):
        est.load(path)

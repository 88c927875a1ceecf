"""Files of tensors, checkpoints and event files against the packages that others read them with."""

from __future__ import annotations

import gzip
import json
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

NUMPY_TYPES = [
    *["float64", "float32", "float16", "int8", "int16", "int32", "int64"],
    *["uint8", "uint16", "uint32", "uint64", "bool", "complex64"],
]
TORCH_TYPES = [
    *[torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.complex64],
    *[torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32],
    *[torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn],
]
GOLDEN = Path(__file__).parents[1] / "golden"


def as_array(triple: tuple[str, tuple[int, ...], Any]) -> np.ndarray:
    name, shape, data = triple
    return data.view(name).reshape(shape)


def as_tensor(triple: tuple[str, tuple[int, ...], Any]) -> torch.Tensor:
    name, shape, data = triple
    return from_bytes(data, getattr(torch, name), shape)


def from_bytes(data: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if data.size == 0:  # torch gives such a view no strides
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def as_triple(tensor: torch.Tensor) -> tuple[str, list[int], np.ndarray]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), as_view(tensor).numpy()


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool))
    data = rng.integers(0, 256, count * dtype.itemsize).astype(np.uint8)
    return from_bytes(data, dtype, shape)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(as_view(a), as_view(b))


def as_view(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# --- safetensors


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_the_safetensors_package_reads_arrays_that_we_wrote(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        f"shape {shape}": rng.integers(0, 2, shape).astype(dtype)
        for shape in [(), (1,), (3, 4), (2, 0, 5), (2, 3, 4)]
    }
    path = tmp_path / "a.safetensors"
    _core.save_safetensors(path, arrays, {"who": "o\u0308rca", "n": "1"})
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"who": "o\u0308rca", "n": "1"}
        assert set(file.keys()) == set(arrays)
        if dtype == "complex64":  # The package's numpy side has no complex numbers.
            return
        for name, array in arrays.items():
            got = file.get_tensor(name)
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
def test_tensors_of_torch_go_both_ways(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        f"t{i}": random_tensor(dtype, shape, i)
        for i, shape in enumerate([(1,), (3, 4), (2, 0, 5), (7, 1, 3)])
    }
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    _core.save_safetensors(ours, {name: as_triple(tensor) for name, tensor in tensors.items()}, {})
    safetensors.torch.save_file(tensors, theirs, {"format": "pt"})
    read_by_them = safetensors.torch.load_file(ours)
    read_by_us, metadata = _core.load_safetensors(theirs)
    assert metadata == {"format": "pt"}
    assert set(read_by_them) == set(read_by_us) == set(tensors)
    for name, tensor in tensors.items():
        assert same_bytes(read_by_them[name], tensor)
        assert same_bytes(as_tensor(read_by_us[name]), tensor)


def test_mixed_types_and_many_names_go_both_ways(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for round_ in range(20):
        arrays = {}
        for i in range(int(rng.integers(0, 40))):
            shape = tuple(int(n) for n in rng.integers(0, 5, int(rng.integers(0, 4))))
            dtype = NUMPY_TYPES[int(rng.integers(0, len(NUMPY_TYPES) - 1))]
            arrays[f"läyer.{i}\n\"'"] = rng.integers(0, 2, shape).astype(dtype)
        path = tmp_path / f"{round_}.safetensors"
        _core.save_safetensors(path, arrays)
        for read in (
            safetensors.numpy.load_file(path),
            {name: as_array(triple) for name, triple in _core.load_safetensors(path)[0].items()},
        ):
            assert set(read) == set(arrays)
            for name, array in arrays.items():
                assert read[name].dtype == array.dtype
                np.testing.assert_array_equal(read[name], array)


def test_views_are_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    _core.save_safetensors(path, {"a": np.arange(5, dtype=np.int32)})
    tensors, _ = _core.load_safetensors(path)
    view = as_array(tensors["a"])
    del tensors
    view[:] = 7  # stays in this process
    again = as_array(_core.load_safetensors(path)[0]["a"])
    np.testing.assert_array_equal(again, np.arange(5))
    np.testing.assert_array_equal(view, np.full(5, 7))


def test_what_the_package_refuses_is_refused(tmp_path: Path) -> None:
    """The same verdict for every byte of a small file that is changed, and every length."""
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(
        {"a": np.arange(3, dtype=np.int16), "b": np.ones((1, 2), np.uint8)}, path, {"k": "v"}
    )
    whole = path.read_bytes()
    changed = [whole[:n] for n in range(len(whole))]
    changed += [
        whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in (1, 4, 16, 128)
    ]
    accepted = 0
    for data in changed:
        path.write_bytes(data)
        try:
            theirs = safetensors.numpy.load(data)
        except (
            Exception
        ):  # The package has one class of its own, and lets KeyError and others through.
            theirs = None
        try:
            ours = {n: as_array(t) for n, t in _core.load_safetensors(path)[0].items()}
        except UnavailableError:
            ours = None
        # We may be stricter (a type that is unknown there raises, too), never laxer.
        if ours is None:
            continue
        assert theirs is not None, data
        accepted += 1
        assert set(ours) == set(theirs)
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert accepted > 8 * 4  # changes of the data at least


def test_arrays_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        _core.save_safetensors(path, {"a": np.zeros((4, 4))[:, ::2]})
    with pytest.raises(InvalidArgumentError, match="'a' has a dtype"):
        _core.save_safetensors(path, {"a": np.zeros(3, np.complex128)})
    with pytest.raises(InvalidArgumentError, match="'quarter' is no type"):
        _core.save_safetensors(path, {"a": ("quarter", [1], np.zeros(1, np.uint8))})
    with pytest.raises(InvalidArgumentError, match="makes 12 bytes, but comes with 8"):
        _core.save_safetensors(path, {"a": ("float32", [3], np.zeros(8, np.uint8))})
    assert not list(tmp_path.iterdir())


# --- checkpoints


def a_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).to(torch.bfloat16)


def test_a_checkpoint_holds_a_model_and_its_fields(tmp_path: Path) -> None:
    state = a_model().state_dict()
    rng = np.random.default_rng(5).bit_generator.state  # numbers of 128 bits
    store = _core.CheckpointStore(tmp_path / "run")
    assert store.latest() is None
    tensors = {name: as_triple(tensor) for name, tensor in state.items()}
    store.save((120, 3, 77), {"model": tensors}, json.dumps({"rng": rng, "lr": 0.1}))
    found = store.latest()
    assert found.progress == (120, 3, 77)
    assert json.loads(found.fields) == {"rng": rng, "lr": 0.1}
    assert found.folder == tmp_path / "run/model.120"
    model = a_model()
    model.load_state_dict({n: as_tensor(t) for n, t in found.tensors("model").items()})
    for name, tensor in model.state_dict().items():
        assert same_bytes(tensor, state[name])
    found.check_matches("model", tensors)
    wrong = {**tensors, "0.weight": as_triple(torch.zeros(8, 5, dtype=torch.bfloat16))}
    with pytest.raises(InvalidArgumentError, match=r"'0.weight' is bfloat16 \(8, 4\)"):
        found.check_matches("model", wrong)


def test_other_programs_can_read_a_checkpoint(tmp_path: Path) -> None:
    weight = torch.randn(3, 4).to(torch.bfloat16)
    _core.CheckpointStore(tmp_path).save(
        (7, 1, 0), {"model": {"w": as_triple(weight)}, "optimizer": {"step": np.array(7)}}, "{}"
    )
    folder = tmp_path / "model.7"
    assert torch.equal(safetensors.torch.load_file(folder / "model.safetensors")["w"], weight)
    assert safetensors.numpy.load_file(folder / "optimizer.safetensors")["step"] == 7
    manifest = json.loads((folder / "manifest.json").read_text())["checkpoint"]
    assert (manifest["format"], manifest["version"]) == ("orca-checkpoint", 1)
    assert (manifest["iteration"], manifest["epoch"], manifest["cursor"]) == (7, 1, 0)
    (model,) = (file for file in manifest["files"] if file["part"] == "model")
    (entry,) = model["tensors"]
    assert (entry["name"], entry["dtype"], entry["shape"]) == ("w", "bfloat16", [3, 4])
    data = (folder / "model.safetensors").read_bytes()
    assert data[entry["offset"] :] == weight.view(torch.uint8).numpy().tobytes()
    assert int(entry["crc32c"], 16) == crc32c(data[entry["offset"] :])
    assert int(model["crc32c"], 16) == crc32c(data)


def crc32c(data: bytes) -> int:
    """Bit by bit, from the definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_newest_whole_checkpoint_is_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = _core.CheckpointStore(tmp_path, keep_last=3)
    for i in range(1, 6):
        store.save((i, 0, 0), {"model": {"w": np.full(1000, i, np.float32)}})
    assert store.list() == [3, 4, 5]
    file = tmp_path / "model.5/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = store.latest()
    assert found.progress[0] == 4
    assert (as_array(found.tensors("model")["w"]) == 4).all()
    warning = capfd.readouterr().err
    assert f"{file} is damaged: tensor 'w' at offset {len(data) - 4000}" in warning
    with pytest.raises(UnavailableError, match="tensor 'w' at offset"):
        store.open(5)
    with pytest.raises(UnavailableError, match="No such file"):
        store.open(99)


def test_a_writer_of_its_own_thread_lets_go_of_the_arrays(tmp_path: Path) -> None:
    class Watched(np.ndarray):
        gone = threading.Event()

        def __del__(self) -> None:
            self.gone.set()

    writer = _core.AsyncWriter(tmp_path, keep_last=2)
    array = np.arange(1000, dtype=np.float32).view(Watched)
    writer.submit((1, 0, 0), {"model": {"w": array}})
    del array
    writer.flush(60)
    assert Watched.gone.wait(10)
    for i in range(2, 6):
        writer.submit((i, 0, 0), {"model": {"w": np.full(10, i)}})
    del writer  # finishes the last one
    assert _core.CheckpointStore(tmp_path).latest().progress[0] == 5


def test_f50_checkpoints_of_every_older_version_open() -> None:
    found = _core.Checkpoint.open(GOLDEN / "checkpoint-1/model.42")
    assert found.progress == (42, 2, 1344)
    assert json.loads(found.fields) == {"note": "golden", "rng": 2**127 + 1}
    assert found.parts == ["model", "optimizer"]
    model = found.tensors("model")
    np.testing.assert_array_equal(
        as_array(model["weight"]), np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    )
    assert as_tensor(model["half"]).tolist() == [1.0, -0.5]
    assert as_tensor(model["half"]).dtype == torch.bfloat16
    np.testing.assert_array_equal(as_array(found.tensors("optimizer")["step"]), 42)


def test_f50_a_newer_format_is_refused(tmp_path: Path) -> None:
    body = '{"format":"orca-checkpoint","version":99}'
    (tmp_path / "model.1").mkdir()
    (tmp_path / "model.1/manifest.json").write_text(
        f'{{"crc32c":"{crc32c(body.encode()):08x}","checkpoint":{body}}}\n'
    )
    with pytest.raises(FailedPreconditionError, match="format 99; this build reads up to 1"):
        _core.CheckpointStore(tmp_path).latest()


# --- event files


def test_tensorboard_reads_our_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = _core.EventWriter(tmp_path / "app/train")
    values = [(step, 1 / (step + 1), 1.7e9 + step) for step in range(200)]
    for step, value, wall_time in values:
        writer.add_scalar("Loss", value, step, wall_time)
        writer.add_scalar("Throughput", 1000.0 + step, step)
    writer.sync()
    accumulator = EventAccumulator(str(tmp_path / "app/train"))
    accumulator.Reload()
    assert set(accumulator.Tags()["scalars"]) == {"Loss", "Throughput"}
    read = [(e.step, e.value, e.wall_time) for e in accumulator.Scalars("Loss")]
    assert read == [(step, float(np.float32(value)), time) for step, value, time in values]
    assert _core.read_scalars(tmp_path / "app/train", "Loss") == read


def test_tensorboard_has_our_hyper_parameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    sessions = {
        "a": ({"lr": 0.1, "deep": True, "kind": "hist"}, 0.5, False),
        "b": ({"lr": 0.2, "deep": False, "kind": "exact"}, 0.25, True),
    }
    for name, (hparams, value, has_failed) in sessions.items():
        writer = _core.EventWriter(tmp_path / name)
        writer.add_hparams(hparams, has_failed=has_failed, began=1e9)
        writer.add_scalar("loss", 9.0, 1)
        writer.add_scalar("loss", value, 2)
        writer.sync()
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
    context = backend_context.Context(TBContext(data_provider=provider))
    request_context = RequestContext()
    experiment = context.experiment_from_metadata(
        request_context, "e", True, context.hparams_metadata(request_context, "e"), []
    )
    assert {(info.name, info.type) for info in experiment.hparam_infos} == {
        ("lr", api_pb2.DATA_TYPE_FLOAT64),
        ("deep", api_pb2.DATA_TYPE_BOOL),
        ("kind", api_pb2.DATA_TYPE_STRING),
    }
    assert [info.name.tag for info in experiment.metric_infos] == ["loss"]
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=9,
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE],
        include_metrics=True,
        col_params=[
            {"metric": {"tag": "loss"}, "include_in_result": True},
            *({"hparam": name, "include_in_result": True} for name in ("lr", "deep", "kind")),
        ],
    )
    found = list_session_groups.Handler(request_context, context, "e", request).run()
    read = {
        group.sessions[0].name: (
            {k: getattr(v, v.WhichOneof("kind")) for k, v in group.hparams.items()},
            group.sessions[0].metric_values[0].value,
            group.sessions[0].status == api_pb2.STATUS_FAILURE,
        )
        for group in found.session_groups
    }
    assert read == sessions
    assert all(g.sessions[0].start_time_secs == 1e9 for g in found.session_groups)
    assert _core.read_scalars(tmp_path / "b", "loss")[-1][:2] == (2, 0.25)


@pytest.mark.parametrize("new_style", [False, True])
def test_we_read_the_events_of_torch(tmp_path: Path, new_style: bool) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(50):
            writer.add_scalar("loss", step / 7, step, walltime=1e9 + step, new_style=new_style)
            writer.add_scalar("other", 1.0, step)
        writer.add_histogram("h", np.arange(100), 1)
        writer.add_text("text", "words", 1)
    expected = [(step, float(np.float32(step / 7)), 1e9 + step) for step in range(50)]
    assert _core.read_scalars(tmp_path, "loss") == expected
    assert _core.read_scalars(tmp_path, "h") == []
    assert _core.read_scalars(tmp_path / "missing", "loss") == []


# --- IDX and NPY


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0,), (2, 0, 3)])
def test_npy_goes_both_ways(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    np.save(tmp_path / "theirs.npy", array)
    _core.save_npy(tmp_path / "ours.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    np.testing.assert_array_equal(np.load(tmp_path / "ours.npy"), array)
    got = as_array(_core.load_npy(tmp_path / "theirs.npy"))
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_npy_of_the_other_byte_order(tmp_path: Path) -> None:
    for dtype in (">f4", ">i8", ">c8", ">u2"):
        array = np.arange(6).astype(dtype)
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(as_array(_core.load_npy(tmp_path / "a.npy")), array)
    np.save(tmp_path / "f.npy", np.asfortranarray(np.zeros((2, 3))))
    with pytest.raises(InvalidArgumentError, match="ascontiguousarray"):
        _core.load_npy(tmp_path / "f.npy")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_goes_both_ways(tmp_path: Path, dtype: str, packed: bool) -> None:
    codes = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    array = np.random.default_rng(1).integers(-100, 100, (7, 3, 2)).astype(dtype)
    data = struct.pack(">BBBBIII", 0, 0, codes[dtype], 3, 7, 3, 2)
    data += array.astype(array.dtype.newbyteorder(">")).tobytes()
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(data) if packed else data)
    got = as_array(_core.load_idx(path))
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)
    _core.save_idx(tmp_path / "ours", array)
    assert (tmp_path / "ours").read_bytes() == data


def test_fashion_mnist_comes_as_it_is() -> None:
    path = Path("/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz")
    if not path.exists():
        pytest.skip("the package dataset-fashion-mnist is not installed")
    images = as_array(_core.load_idx(path))
    assert images.shape == (10_000, 28, 28)
    with gzip.open(path) as file:
        plain = np.frombuffer(file.read(), np.uint8, offset=16)
    np.testing.assert_array_equal(images.reshape(-1), plain)

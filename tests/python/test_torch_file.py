"""Files of torch.save that the engine reads and writes, against torch itself."""

from __future__ import annotations

import collections
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

PROGRAM = Path(__file__).parents[2] / "build/release/tests/cpp/io_tests"
DTYPES = [
    *[torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.complex64],
    *[torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32],
    *[torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu],
]


def run_program(*arguments: str | Path) -> None:
    assert PROGRAM.exists(), f"{PROGRAM} is missing; run tools/build.sh release io_tests"
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def rewrite(source: Path) -> Path:
    """What the engine makes of a file: it reads it and writes a new one."""
    target = source.with_suffix(".rewritten")
    run_program("rewrite", source, target)
    return target


def through_engine(value: Any, path: Path, **options: Any) -> Any:
    torch.save(value, path, **options)
    target = rewrite(path)
    mapped = torch.load(target, weights_only=True, mmap=True)
    found = torch.load(target, weights_only=True)
    assert_same(found, mapped)
    return found


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.is_contiguous()
        same = (
            found.flatten().view(torch.uint8),
            wanted.detach().cpu().contiguous().flatten().view(torch.uint8),
        )
        assert torch.equal(*same)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert type(found) is (list if isinstance(wanted, list) else tuple)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert type(found) is type(wanted)
        assert found == wanted


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.Adam(net.parameters(), amsgrad=True)
    net(torch.randn(5, 1, 8, 8)).square().sum().backward()
    optimizer.step()
    return net, optimizer


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_state_dicts_come_back(tmp_path, protocol):
    net, optimizer = trained()
    wanted = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    found = through_engine(wanted, tmp_path / "state.pt", pickle_protocol=protocol)
    assert_same(found, wanted)
    fresh = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    fresh.load_state_dict(found["model"])
    again = torch.optim.Adam(fresh.parameters(), amsgrad=True)
    again.load_state_dict(found["optimizer"])
    assert_same(again.state_dict(), optimizer.state_dict())


def test_all_types_and_shapes_come_back(tmp_path):
    torch.manual_seed(2)
    wanted = {}
    for dtype in DTYPES:
        for shape in [(), (0,), (3, 0, 2), (7,), (2, 1, 5)]:
            count = torch.Size(shape).numel() * dtype.itemsize
            data = torch.randint(0, 2 if dtype == torch.bool else 256, (count,)).to(torch.uint8)
            wanted[f"{dtype} {shape}"] = data.view(dtype).reshape(shape)
    assert_same(through_engine(wanted, tmp_path / "types.pt"), wanted)


def test_plain_values_come_back(tmp_path):
    wanted = {
        "größe €": [1, -1, 255, 256, 65536, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)],
        "numbers": (0.1, float("inf"), -0.0, True, False, None),
        7: {"nested": [(), [], {}, ("a", ("b",))], (1, "x"): "tuple"},
        "": "empty key",
    }
    assert_same(through_engine(wanted, tmp_path / "plain.pt"), wanted)
    size = through_engine([torch.Size([3, 4])], tmp_path / "size.pt")
    assert size == [(3, 4)]
    ordered = collections.OrderedDict(b=1, a=2)
    assert_same(through_engine(ordered, tmp_path / "ordered.pt"), dict(ordered))


def test_tied_weights_and_views_are_read_as_what_they_show(tmp_path):
    torch.manual_seed(3)
    whole = torch.randn(6, 8)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    wanted = {
        "tied": net.state_dict(),
        "whole": whole,
        "row": whole[2],
        "column": whole[:, 3],
        "transposed": whole.t(),
        "strided": whole[1::2, ::3],
        "expanded": whole[:1].expand(5, 8),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": nn.Parameter(whole[0]),
        "again": whole,
    }
    assert_same(through_engine(wanted, tmp_path / "views.pt"), wanted)


def test_files_without_checksums_are_read(tmp_path):
    wanted = {"a": torch.arange(5.0)}
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        found = through_engine(wanted, tmp_path / "unchecked.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert_same(found, wanted)


class Net(nn.Linear):
    pass


@pytest.mark.parametrize("protocol", [2, 5])
def test_a_whole_module_is_refused_by_the_name_of_its_class(tmp_path, protocol):
    torch.save({"net": Net(2, 2)}, tmp_path / "net.pt", pickle_protocol=protocol)
    with pytest.raises(
        RuntimeError,
        match=r"invalid argument: .*net.pt holds a .*Net.* at 'net'; save a state dict",
    ):
        rewrite(tmp_path / "net.pt")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"when": {1, 2}}, "set"),
        ({"a": torch.float32}, "torch.float32"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, "torch.ComplexDoubleStorage"),
        ({"a": torch.ones(2, dtype=torch.complex64).conj()}, "resolve_conj"),
        ({"a": torch.eye(2).to_sparse()}, "_rebuild_sparse_tensor"),
        ({"a": 2**64}, "beyond 64 bits"),
        ({"a": b"bytes"}, "_codecs.encode"),
    ],
)
def test_what_is_not_plain_is_refused_by_name(tmp_path, value, name):
    torch.save(value, tmp_path / "file.pt")
    with pytest.raises(RuntimeError, match=f"invalid argument: .*{name}"):
        rewrite(tmp_path / "file.pt")


def test_the_old_format_is_refused_with_the_remedy(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match=r"invalid argument: .* before 1\.6, .*save it again"):
        rewrite(tmp_path / "old.pt")


def test_damage_of_a_file_of_torch_is_found(tmp_path):
    path = tmp_path / "file.pt"
    torch.save({"a": torch.arange(64.0)}, path)
    whole = path.read_bytes()
    at = whole.index(torch.arange(64.0).numpy().tobytes()) + 17
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(RuntimeError, match=r"unavailable: .*damaged.*'file/data/0'.*checksum"):
        rewrite(path)
    path.write_bytes(whole[:-30])
    with pytest.raises(RuntimeError, match=r"unavailable: .*damaged"):
        rewrite(path)


@pytest.mark.long
@pytest.mark.slow
def test_f41_torch_loads_a_tensor_of_more_than_four_gigabytes(tmp_path):
    path = tmp_path / "huge.pt"
    run_program("write-huge", path)
    found = torch.load(path, weights_only=True, mmap=True)
    assert found["big"].nbytes == 2**32 + 4096
    assert found["big"][-1] == 0
    assert found["last"].tolist() == [1, 2, 3]
    path.unlink()

"""Files whose bytes are not those that were written: refused by name, never loaded as something else."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import checks_estimator as checks
from orca.adapters.torch.records import read_file
from orca.adapters.torch.wrappers import TorchModel
from orca.automl.trial_search import _checked, _read_checked
from orca.errors import InvalidArgumentError, UnavailableError
from orca.files import check_archive, read_sealed, sealed

pytestmark = pytest.mark.usefixtures("context")


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def refused_flips(
    path: Path, load: Callable[[], Any], expected: Any, seed: int, flips: int = 100
) -> int:
    """How many of so many files with one other bit are refused; the others are the same."""
    whole = path.read_bytes()
    source = random.Random(seed)
    refusals = []
    for _ in range(flips):
        at, bit = source.randrange(len(whole)), 1 << source.randrange(8)
        damaged = bytearray(whole)
        damaged[at] ^= bit
        path.write_bytes(damaged)
        try:
            assert same(load(), expected), f"byte {at} of {len(whole)}, bit {bit}"
        except (RuntimeError, OSError) as error:  # An UnavailableError of orca is both.
            refusals.append(str(error))
    path.write_bytes(whole)
    for text in refusals:
        assert str(path) in text
        assert "another copy" in text
        assert "trust" not in text
    return len(refusals)


@pytest.mark.parametrize(("root", "flips"), [("orca", 200), ("bigdl", 20), ("zoo", 20)])
def test_a_file_of_save_that_is_damaged_is_refused(root: str, flips: int, tmp_path: Path) -> None:
    est = checks.estimator(1, estimator_class=checks.estimator_class(root))
    path = Path(est.save(str(tmp_path / "state.pt")))

    def load() -> Any:
        est.load(str(path))
        return est.get_state_dict()

    assert refused_flips(path, load, load(), seed=24, flips=flips) > flips / 2
    est.shutdown()


def test_every_byte_that_says_where_things_are_is_checked(tmp_path: Path) -> None:
    """The directory at the end, which has no checksum: torch skips a record that it marks as a folder."""
    path = tmp_path / "state.pt"
    value = {"weight": torch.arange(200.0), "step": 3}
    torch.save(value, path)
    whole = path.read_bytes()
    refusals = []
    for at in range(whole.index(b"PK\x01\x02"), len(whole)):
        for bit in (1 << at % 8, 0x10):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            try:
                assert same(read_file(path), value), f"byte {at}, bit {bit}"
            except UnavailableError as error:
                refusals.append(str(error))
    assert all(str(path) in text for text in refusals)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("root", ["orca", "bigdl"])
@pytest.mark.filterwarnings("ignore:.*is a pickle of this user")
def test_garbage_is_not_to_be_trusted(root: str, trust: bool, tmp_path: Path) -> None:
    est = checks.estimator(1, estimator_class=checks.estimator_class(root))
    path = Path(est.save(str(tmp_path / "state.pt")))
    old = tmp_path / "old.pt"
    torch.save(est.get_state_dict(), old, _use_new_zipfile_serialization=False)
    noise = random.Random(5).randbytes(3000)
    contents = [
        b"",
        b"no weights",
        noise,
        b"\x80" + noise,
        b"PK\x03\x04" + noise,
        path.read_bytes()[:-40],
        pickle.dumps({"models": [1]})[:-3],
        old.read_bytes()[:300],
    ]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(RuntimeError, match="another copy") as caught:
            est.load(str(path), trust=trust)
        assert str(path) in str(caught.value)
        assert "trust=" not in str(caught.value)
    weights = est.get_state_dict()["models"]
    est.load(str(old))
    assert same(est.get_state_dict()["models"], weights)
    est.shutdown()


def test_the_weights_of_trials_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "best.ckpt"
    value = {"weight": torch.arange(50.0)}
    torch.save(value, path)
    assert refused_flips(path, lambda: read_file(path), value, seed=1) > 20
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(InvalidArgumentError, match=r"best\.ckpt is not tensors alone"):
        read_file(path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


def test_the_record_of_a_trials_best_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    known = {"value": 0.25, "config": {"lr": 0.1, "name": "\u00e4", "n": math.inf}, "study": {}}
    whole = _checked(json.dumps(known)).encode()
    path.write_bytes(whole)
    assert _read_checked(path) == known
    for at in range(whole.index(b"crc32")):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with contextlib.suppress(UnavailableError):
            assert _read_checked(path) == known  # Only a space has changed.
    path.write_bytes(whole.replace(b"0.25", b"0.24"))
    with pytest.raises(UnavailableError, match=r"best\.json is damaged: its checksum is"):
        _read_checked(path)
    path.write_text(json.dumps(known))  # As it was before there was a checksum.
    assert _read_checked(path) == known


def test_a_saved_torch_model_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "model"
    model = TorchModel(torch.nn.Linear(20, 2))
    model.saveModel(path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(model.to_pytorch().weight.detach().numpy().tobytes()) + 9] ^= 4
    path.write_bytes(whole)
    with pytest.raises(UnavailableError, match="checksum"):
        TorchModel.loadModel(path)


def test_a_saved_torch_model_that_another_user_may_have_written_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "model"
    TorchModel(torch.nn.Linear(20, 2)).saveModel(path)
    path.chmod(0o646)
    with pytest.raises(InvalidArgumentError, match=r"model is a pickle .*trust=True"):
        TorchModel.loadModel(path)
    assert TorchModel.loadModel(path, trust=True).to_pytorch().in_features == 20


def test_archives_of_numpy_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    arrays = {"0": np.arange(50.0), "1": np.arange(7)}
    np.savez(path, **arrays)
    expected = [array.tolist() for array in arrays.values()]

    def load() -> list[Any]:
        check_archive(path)
        with np.load(path) as file:
            return [file[name].tolist() for name in arrays]

    assert refused_flips(path, load, expected, seed=2) > 20


def test_content_without_checksums_is_sealed(tmp_path: Path) -> None:
    path = tmp_path / "trees"
    content = bytes(range(256)) * 3
    path.write_bytes(sealed(content))
    assert read_sealed(path) == content
    for at in range(len(content)):
        damaged = bytearray(sealed(content))
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(UnavailableError, match="checksum"):
            read_sealed(path)
    path.write_bytes(content)
    assert read_sealed(path) == content

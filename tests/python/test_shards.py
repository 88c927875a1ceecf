"""Shards against numpy and pyarrow."""

from __future__ import annotations

import gc
import os
import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from orca.data import ArrayStore, Shard, Texts
from orca.errors import InvalidArgumentError

TYPES = ["float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]
WORDS = ["", "a", "Grüße", "日本語", "🐋 orca", "zero\0inside", "x" * 1000]


def random_column(rng: random.Random, rows: int) -> tuple[Any, list[Any]]:
    """A column as a user gives it, and its rows as plain Python."""
    kind = rng.choice(["fixed", "masked", "text", "bytes", "objects"])
    if kind in ("fixed", "masked"):
        # A row without elements cannot be masked.
        shape = rng.choice([(), (3,), (2, 2), (0,) if kind == "fixed" else ()])
        generator = np.random.default_rng(rng.randrange(2**32))
        array = generator.integers(0, 2, (rows, *shape)).astype(rng.choice(TYPES))
        if kind == "fixed":
            return array, array.tolist()
        missing = generator.integers(0, 2, rows).astype(bool)
        spread = np.broadcast_to(missing.reshape(rows, *([1] * len(shape))), array.shape)
        plain = [None if gone else row for row, gone in zip(array.tolist(), missing, strict=True)]
        return np.ma.MaskedArray(array, spread), plain
    texts: list[Any] = [rng.choice(WORDS) for _ in range(rows)]
    if kind == "bytes":
        texts = [text.encode() for text in texts]
    texts = [None if rng.random() < 0.2 else text for text in texts]
    if not any(text is not None for text in texts):
        texts[0] = b"x" if kind == "bytes" else "x"
    return (np.array(texts, object) if kind == "objects" else texts), texts


def rows_of(view: Any) -> list[Any]:
    if isinstance(view, np.ma.MaskedArray):
        missing = view.mask.reshape(len(view), -1)[:, :1].any(axis=1)
        return [
            None if gone else row for row, gone in zip(view.data.tolist(), missing, strict=True)
        ]
    return list(view) if isinstance(view, Texts) else view.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_rows_come_back_as_they_were(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.randrange(1, 40)
    given = [random_column(rng, rows) for _ in range(rng.randrange(1, 5))]
    shard = Shard({f"c{i}": column for i, (column, _) in enumerate(given)})
    assert len(shard) == rows
    for i, (_, plain) in enumerate(given):
        assert rows_of(shard.view()[f"c{i}"]) == plain
    batch = next(shard_store(shard).batches(rows, shuffle=False))
    for i, (_, plain) in enumerate(given):
        assert rows_of(batch[f"c{i}"]) == plain
    again = pickle.loads(pickle.dumps(shard))
    for i, (_, plain) in enumerate(given):
        assert rows_of(again.view()[f"c{i}"]) == plain


def test_no_rows_are_a_shard_too() -> None:
    data = {"x": np.zeros((0, 3)), "m": np.ma.MaskedArray([], []), "t": np.array([], object)}
    shard = Shard(data)
    assert len(shard) == 0
    assert shard.view()["x"].shape == (0, 3)
    assert list(shard.view()["t"]) == []
    assert pa.record_batch(shard).num_rows == 0
    assert list(shard_store(shard).batches(3)) == []
    mixed = shard_store(Shard(np.zeros((0, 2))), Shard(np.ones((4, 2))), Shard(np.zeros((0, 2))))
    assert [len(batch) for batch in mixed.batches(3)] == [3, 1]


def shard_store(*shards: Shard) -> ArrayStore:
    store = ArrayStore()
    for shard in shards:
        store.put(shard)
    return store


@pytest.mark.parametrize("seed", range(40))
def test_arrow_reads_the_same_memory(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.randrange(1, 40)
    given = {f"c{i}": random_column(rng, rows) for i in range(rng.randrange(1, 5))}
    shard = Shard({name: column for name, (column, _) in given.items()})
    batch = pa.record_batch(shard)
    batch.validate(full=True)
    assert batch.num_rows == rows
    for name, (column, plain) in given.items():
        arrow = batch.column(name)
        if isinstance(arrow, pa.FixedShapeTensorArray):
            values = [None if row is None else np.ravel(row).tolist() for row in plain]
            assert arrow.storage.to_pylist() == values
        else:
            assert arrow.to_pylist() == plain
        if isinstance(column, np.ndarray) and column.dtype.kind in "iuf" and column.size:
            view = np.asarray(shard.view()[name])
            values = arrow.storage.values if column.ndim > 1 else arrow
            assert values.buffers()[1].address == view.ctypes.data
    # And back; a slice begins anywhere.
    first = rng.randrange(rows)
    back = Shard(batch.slice(first))
    for name, (_, plain) in given.items():
        assert rows_of(back.view()[name]) == plain[first:]


def test_arrow_outlives_the_shard() -> None:
    batch = pa.record_batch(Shard({"x": np.arange(1000), "t": ["ä"] * 1000}))
    gc.collect()
    for _ in range(20):
        Shard({"x": np.zeros(1000, np.int64), "t": ["b"] * 1000})
    assert batch.column("x").to_pylist() == list(range(1000))
    assert batch.column("t").to_pylist() == ["ä"] * 1000


def test_tables_frames_and_every_type_of_arrow_that_fits() -> None:
    table = pa.table(
        {
            "short": pa.array(["a", None, "ccc"], pa.string()),
            "long": pa.array(["a", "b", None], pa.large_string()),
            "raw": pa.array([b"\x00", None, b""], pa.binary()),
            "flag": pa.array([True, None, False]),
            "list": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int16(), 2)),
        }
    )
    shard = Shard(pa.concat_tables([table, table]))
    assert len(shard) == 6
    for name in table.column_names:
        assert rows_of(shard.view()[name]) == table.column(name).to_pylist() * 2
    empty = Shard(table.slice(0, 0))
    assert len(empty) == 0
    assert rows_of(empty.view()["short"]) == []
    for wrong, text in [
        (pa.array([1, 2], pa.uint32()), "'x' has the Arrow type"),
        (pa.array(["a", "b"]).dictionary_encode(), "dictionary_decode"),
        (pa.array([[1], [2, 3]]), "'x' has the Arrow type"),
        (pa.array([[1, None], [2, 3]], pa.list_(pa.int32(), 2)), "inside of its rows"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            Shard(pa.table({"x": wrong}))


def test_torch_reads_the_same_memory_and_keeps_its_changes() -> None:
    shard = Shard({"x": np.arange(12.0).reshape(4, 3), "name": ["a", "b", "c", "d"]})
    tensor = shard.view("torch")["x"]
    assert tensor.data_ptr() == shard.view()["x"].ctypes.data
    assert isinstance(shard.view("torch")["name"], Texts)
    torch.testing.assert_close(tensor.sum(), torch.tensor(66.0, dtype=torch.float64))
    with pytest.raises(ValueError, match="read-only"):
        shard.view()["x"][0] = 1
    with pytest.raises(InvalidArgumentError, match="'0' has missing values"):
        Shard(np.ma.MaskedArray([1, 2], [True, False])).view("torch")
    with pytest.raises(InvalidArgumentError, match="missing values"):
        shard_store(Shard(np.ma.MaskedArray([1, 2], [True, False]))).batches(1, framework="torch")


def test_bfloat16_is_torchs() -> None:
    numbers = torch.arange(6, dtype=torch.bfloat16)
    shard = Shard(numbers)
    torch.testing.assert_close(shard.view("torch"), numbers)
    assert pa.record_batch(shard).column(0).type == pa.binary(2)


def test_texts_are_a_sequence() -> None:
    texts = Shard(["b", None, "a"]).view()
    assert list(texts) == ["b", None, "a"]
    assert texts[-1] == "a"
    assert texts[1:] == [None, "a"]
    assert np.asarray(texts).tolist() == ["b", None, "a"]
    assert repr(texts) == "Texts(['b', None, 'a'])"
    assert "a" in texts
    with pytest.raises(IndexError, match="row 3"):
        texts[3]
    assert Shard(texts).view()[0] == "b"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (["a", b"b"], "'0' mixes texts with bytes"),
        (np.array(["a", 1], object), "'0' mixes texts with int"),
        ({"x": np.zeros(2), "y": ["a"]}, "'y' has 1 rows, 'x' has 2"),
        ("abc", "single text"),
        ({}, "no array"),
        ([], "no array"),
        (np.zeros(3, np.complex64), "dtype that cannot be stored"),
        (np.ma.MaskedArray(np.zeros((2, 2)), [[True, False], [False, False]]), "parts of rows"),
        (np.float32(1), "single value"),
    ],
)
def test_what_cannot_be_stored_is_named(data: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        Shard(data)


def test_a_forked_child_has_memory_of_its_own() -> None:
    """F27"""
    mine = Shard(np.arange(5000))
    pid = os.fork()
    if pid == 0:
        other = Shard(np.zeros(5000, np.int64))
        right = mine.view().sum() == 4999 * 2500 and not other.view().any()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert mine.view().sum() == 4999 * 2500


def test_what_a_forked_child_reads_is_not_used_again() -> None:
    """F27: the parent lets go of the shard, and puts another one of the same size."""
    shard = Shard(np.arange(500_000))
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ready, 1)
        os._exit(0 if shard.view().sum() == 499_999 * 250_000 else 1)
    del shard
    gc.collect()
    others = [Shard(np.zeros(500_000, np.int64)) for _ in range(3)]
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not others[0].view().any()
    os.close(ready)
    os.close(go)


def test_a_row_has_no_more_dimensions_than_numpy_has() -> None:
    kind = pa.fixed_shape_tensor(pa.int8(), [1] * 70)
    rows = pa.ExtensionArray.from_storage(kind, pa.array([[1]], pa.list_(pa.int8(), 1)))
    with pytest.raises(InvalidArgumentError, match="70 dimensions; give 63 or fewer"):
        Shard(pa.table({"x": rows}))


@pytest.mark.long
@pytest.mark.slow
def test_more_than_two_gigabytes_of_text_lose_no_row() -> None:
    text = "x" * (1 << 20)
    chunk = pa.array([text] * 700, pa.string())
    shard = Shard(pa.table({"t": pa.chunked_array([chunk] * 3)}))
    assert len(shard) == 2100
    assert shard.view()["t"][2099] == text


@pytest.mark.slow
def test_more_than_four_gigabytes() -> None:
    rows = (4 << 30) + 5
    array = np.zeros(rows, np.uint8)  # pages that are not taken until they are written
    array[-1] = 9
    shard = Shard(array)
    del array
    view = shard.view()
    assert (len(shard), view[-1], view[-2]) == (rows, 9, 0)
    batches = shard_store(shard).batches(2, shuffle=False, start=rows - 2)
    assert next(batches).tolist() == [0, 9]

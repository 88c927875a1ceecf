"""ArrayStore against numpy."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from orca.data import ArrayStore, Float32, Shard
from orca.errors import FailedPreconditionError, InvalidArgumentError

TYPES = ["float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]


class Pair(NamedTuple):
    x: Any
    y: Any


def filled(rows: int = 100, shards: int = 3) -> ArrayStore:
    store = ArrayStore()
    for part in np.array_split(np.arange(rows), shards):
        store.put({"x": np.stack([part, part + 1], axis=1).astype(np.uint8), "y": part})
    return store


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0,)])
def test_rows_come_back_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 2, (17, *shape)).astype(dtype)
    store = ArrayStore()
    store.put(array)
    assert len(store) == 17
    np.testing.assert_array_equal(store.view(), array)
    got = np.concatenate(list(store.batches(5, shuffle=False)))
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_every_row_comes_once_a_rank_and_epoch() -> None:
    store = filled()
    for epoch in range(3):
        seen: list[int] = []
        for rank in range(3):
            for batch in store.batches(7, seed=1, epoch=epoch, rank=rank, world_size=3):
                np.testing.assert_array_equal(batch["x"][:, 0], batch["y"].astype(np.uint8))
                seen += batch["y"].tolist()
        assert sorted(seen) == list(range(100))
        assert seen != sorted(seen)


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_epoch_goes_on_at_any_cursor(ahead: int, threads: int) -> None:
    store = filled()
    batches = store.batches(8, seed=2, ahead=0)
    assert (batches.steps, batches.cursor) == (13, 0)
    whole, cursors = [], [0]
    for batch in batches:
        whole.append(batch["y"].tolist())
        cursors.append(batches.cursor)
    assert cursors == [*range(0, 100, 8), 100]
    for step, start in enumerate(cursors):
        rest = store.batches(8, seed=2, start=start, ahead=ahead, threads=threads)
        assert rest.steps == len(whole) - step
        assert [batch["y"].tolist() for batch in rest] == whole[step:]
        assert rest.cursor == 100


def test_an_epoch_goes_on_with_other_ranks() -> None:
    store = filled()
    first = store.batches(10, seed=3, epoch=5)
    seen = [y for _ in range(3) for y in next(first)["y"].tolist()]
    for rank in range(4):
        rest = store.batches(7, seed=3, epoch=5, rank=rank, world_size=4, start=first.cursor)
        seen += [y for batch in rest for y in batch["y"].tolist()]
    assert sorted(seen) == list(range(100))


def test_a_step_is_shared_out_as_evenly_as_it_goes() -> None:
    shares = [
        [len(batch["y"]) for batch in filled(13).batches(8, rank=rank, world_size=3)]
        for rank in range(3)
    ]
    assert shares == [[3, 2], [3, 2], [2, 1]]


def test_blocks_keep_rows_together() -> None:
    store = filled(96)
    rows = [batch["y"].tolist() for batch in store.batches(16, block_rows=8, window_blocks=2)]
    assert sorted(y for batch in rows for y in batch) == list(range(96))
    for batch in rows:
        assert len({y // 8 for y in batch}) == 2
        assert batch != sorted(batch)


def test_threads_may_share_an_iterator() -> None:
    batches = filled(5000).batches(3, seed=1)
    with ThreadPoolExecutor(4) as pool:
        taken = pool.map(lambda _: [b["y"].tolist() for b in batches], range(4), timeout=60)
        seen = [y for part in taken for batch in part for y in batch]
    assert sorted(seen) == list(range(5000))


def test_structures_are_kept() -> None:
    data = {"a": [np.arange(4), (np.ones(4), np.zeros((4, 2)))], "b": np.arange(4) * 2}
    store = ArrayStore()
    store.put(data)
    batch = next(store.batches(4, shuffle=False))
    assert isinstance(batch["a"][1], tuple)
    np.testing.assert_array_equal(batch["a"][1][1], np.zeros((4, 2)))
    np.testing.assert_array_equal(store.view()["b"], data["b"])
    converted = next(store.batches(4, convert={"a.1.0": Float32(scale=2.0)}))
    assert converted["a"][1][0].dtype == np.float32
    assert converted["a"][1][0].tolist() == [2.0] * 4


def test_keys_may_come_in_any_order_and_named_tuples_stay() -> None:
    store = ArrayStore()
    store.put({"a": np.zeros(2), "b": np.ones(2)})
    store.put({"b": np.ones(3), "a": np.zeros(3)})
    for batch in store.batches(2):
        assert not batch["a"].any()
        assert batch["b"].all()
    named = ArrayStore()
    named.put(Pair(np.zeros(3), np.ones(3)))
    assert next(named.batches(3)).y.tolist() == [1, 1, 1]
    with pytest.raises(InvalidArgumentError, match=r"two arrays have the path 'a\.b'"):
        ArrayStore().put({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}})


def test_bytes_become_floats() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(16, 16)
    store = ArrayStore()
    store.put((images, images.astype(np.float64) / 3))
    convert = {"0": Float32(scale=1 / 255, shift=-0.5), "1": Float32()}
    batch = next(store.batches(16, shuffle=False, convert=convert))
    expected = images.astype(np.float32) * np.float32(1 / 255) + np.float32(-0.5)
    np.testing.assert_array_equal(batch[0], expected)
    np.testing.assert_array_equal(batch[1], (images / 3).astype(np.float32))


def test_batches_are_tensors_of_torch() -> None:
    store = filled()
    batch = next(store.batches(10, framework="torch", convert={"x": Float32()}))
    assert isinstance(batch["x"], torch.Tensor)
    assert batch["x"].dtype == torch.float32
    assert batch["x"].sum() == (2 * batch["y"] + 1).sum()


def test_a_batch_stays_while_one_of_its_arrays_lives() -> None:
    batches = filled().batches(10, seed=3)
    first = next(batches)["y"]
    copy = first.copy()
    for batch in batches:
        assert not np.shares_memory(batch["y"], first)
    del batches, batch
    gc.collect()
    np.testing.assert_array_equal(first, copy)


def test_views_cannot_be_written_and_outlive_the_store() -> None:
    store = filled(10, 1)
    view = store.view()["y"]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    del store
    gc.collect()
    assert view.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s: s.put({"x": np.zeros((2, 2), np.uint8)}), "first put"),
        (
            lambda s: s.put({"x": np.zeros((2, 3), np.uint8), "y": np.arange(2)}),
            r"another dtype or shape than in the first put: uint8 \(3\), not uint8 \(2\)",
        ),
        (lambda s: s.put({"x": np.zeros((2, 2)), "y": np.arange(2)}), "another dtype"),
        (lambda s: s.put({"x": np.zeros((2, 2), np.uint8), "y": np.arange(3)}), "same number"),
        (lambda s: s.batches(0), "batch size of 0"),
        (lambda s: s.batches(-1), "batch_size is -1"),
        (lambda s: s.batches(1, rank=2, world_size=2), "rank 2"),
        (lambda s: s.batches(1, ahead=-1), "ahead is -1"),
        (lambda s: s.batches(1, ahead=5000), "ahead is 5000; give 0 to 4096"),
        (lambda s: s.batches(1, threads=0), "threads is 0; give 1 to 256"),
        (lambda s: s.batches(1, start=11), "start 11 is behind the last of 10 rows"),
        (lambda s: s.batches(1, start=2**70), "start is"),
        (lambda s: s.batches(1, block_rows=2, window_blocks=0), "window of 0 blocks"),
        (lambda s: s.batches(1, convert={"z": Float32()}), "'z'"),
        (lambda s: s.batches(1, convert={"y": Float32()}), "int64"),
        (lambda s: s.batches(1, framework="keras"), "keras"),
        (lambda s: s.view(7), "shard is 7; give 0 to 1"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_lost(call: Any, text: str) -> None:
    store = filled(10, 2)
    with pytest.raises(InvalidArgumentError, match=text):
        call(store)
    assert sorted(y for batch in store.batches(3) for y in batch["y"]) == list(range(10))


def test_an_empty_store_says_so() -> None:
    assert len(ArrayStore()) == 0
    with pytest.raises(FailedPreconditionError, match="put"):
        ArrayStore().batches(1)
    for array in (np.zeros(3, np.complex64), np.float32(1)):
        with pytest.raises((InvalidArgumentError, TypeError)):
            ArrayStore().put(array)


def test_a_missing_framework_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install torch"):
        filled().batches(1, framework="torch")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_what_a_loop_lets_go_of_is_used_again(framework: Any, ahead: int) -> None:
    places = set()
    for batch in filled(4000).batches(4, framework=framework, ahead=ahead):
        data = batch["y"]
        places.add(data.data_ptr() if framework == "torch" else data.ctypes.data)
    assert len(places) <= ahead + 4


def objects(*rows: Any) -> np.ndarray[Any, Any]:
    made = np.empty(len(rows), object)
    made[:] = rows
    return made


@pytest.mark.parametrize(
    ("given", "dtype", "shape"),
    [
        ([1, 2, 3], "int64", (3,)),
        ([1, 2.5, True], "float64", (3,)),
        ([True, False, True], "bool", (3,)),
        ([[1, 2], [3, 4], [5, 6]], "int64", (3, 2)),
        ([(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)], "float64", (3, 2)),
        ([[[1], [2]], [[3], [4]], [[5], [6]]], "int64", (3, 2, 1)),
        (objects(1, 2, 3), "int64", (3,)),
        (objects(1, float("nan"), 3), "float64", (3,)),
        (objects(np.zeros(2), np.ones(2), np.ones(2)), "float64", (3, 2)),
        (objects([1, 2], [3, 4], [5, 6]), "int64", (3, 2)),
        (np.array([[1, 2]] * 3, object), "int64", (3, 2)),
        (range(3), "int64", (3,)),
        (memoryview(np.arange(3.0)), "float64", (3,)),
        (np.arange(3, dtype=">i4"), "int32", (3,)),
    ],
)
def test_rows_of_plain_numbers_are_arrays(given: Any, dtype: str, shape: tuple[int, ...]) -> None:
    found = Shard({"x": given, "y": [1, 2, 3]}).view()
    assert (found["x"].dtype.name, found["x"].shape) == (dtype, shape)
    assert found["y"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(found["x"], np.array(np.asarray(given).tolist()))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([[1, 2], [3]], r"'x': row 1 has the shape \(1,\), and row 0 has \(2,\); pad, cut"),
        ([[1, 2], [3, "a"]], r"'x': row 1 is \[3, 'a'\]; give numbers alone, and as many in"),
        ([1, None], "'x': row 1 is None; give numbers alone"),
        ([None, 1], "'x': row 0 is None; give numbers alone"),
        (objects(np.zeros(2), np.zeros(3)), r"'x': row 1 has the shape \(3,\), and row 0 has"),
        (objects(1, Decimal(2)), r"'x': row 1 is Decimal\('2'\); give numbers"),
        (objects({1: 2}, {3: 4}), r"'x': row 0 is \{1: 2\}; give numbers"),
        ({1, 2}, "'x' is a set; give an array, or a list with one item a row"),
        ((i for i in range(2)), "'x' is a generator; give an array"),
        (3, "'x' is a single value; its first dimension must be the rows"),
        (np.zeros(2, "datetime64[s]"), r"'x' has the dtype datetime64\[s\], which cannot be"),
        (np.zeros(2, np.longdouble), "'x' has the dtype float128, which cannot be stored"),
        (np.zeros(2, [("a", "f4")]), "'x' has the dtype .*, which cannot be stored"),
    ],
)
def test_what_is_no_array_is_named(given: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        Shard({"x": given})


def test_lists_of_texts_and_of_arrays_stay_what_they_are() -> None:
    assert list(Shard([None, None]).view()) == [None, None]
    assert list(Shard(objects("a", float("nan"), None)).view()) == ["a", None, None]
    assert [part.shape for part in Shard([np.zeros(2), np.ones((2, 3))]).view()] == [(2,), (2, 3)]
    assert [list(part) for part in Shard([["a", "b"], ["c", "d"]]).view()] == [
        ["a", "b"],
        ["c", "d"],
    ]
    first, second = Shard(([1, 2], [[3], [4]])).view()
    assert (first.shape, second.shape) == ((2,), (2, 1))

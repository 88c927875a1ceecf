"""XShards in memory, through every root."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import stat
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import orca
from orca.data import Shard, SharedValue, SparkXShards, XShards
from orca.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    WorkerFailedError,
)

ROOTS = ["orca", "bigdl.orca", "zoo.orca"]


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


@pytest.fixture(params=ROOTS)
def root(request: Any) -> Any:
    return importlib.import_module(f"{request.param}.data")


def frames(count: int = 3) -> SparkXShards:
    made = [pd.DataFrame({"a": np.arange(4) + 10 * i, "b": list("wxyz")}) for i in range(count)]
    return SparkXShards([[frame] for frame in made])


@pytest.mark.parametrize("rows", [1, 2, 7, 20])
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_partitions_are_those_of_array_split(root: Any, rows: int, shards: int) -> None:
    x, y = np.random.default_rng(0).normal(size=(rows, 3)), np.arange(rows)
    if rows < shards:
        kinds = {"orca": InvalidArgumentError, "zoo": ValueError}
        kind = kinds.get(root.__name__.split(".")[0], RuntimeError)
        with pytest.raises(kind, match=f"The length of data {rows} is smaller") as caught:
            root.XShards.partition({"x": x, "y": y}, num_shards=shards)
        assert root.__name__.startswith("orca") or type(caught.value) is kind
        return
    made = root.XShards.partition({"x": x, "y": (y, [y * 2])}, num_shards=shards)
    assert isinstance(made, root.SparkXShards)
    assert isinstance(made, root.XShards)
    assert made.num_partitions() == shards
    for shard, a, b in zip(
        made.collect(), np.array_split(x, shards), np.array_split(y, shards), strict=True
    ):
        np.testing.assert_array_equal(shard["x"], a)
        np.testing.assert_array_equal(shard["y"][0], b)
        np.testing.assert_array_equal(shard["y"][1][0], b * 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text", "The types supported in .*XShards.partition are"),
        ({"x": [1, 2]}, "The types supported in"),
        ({"x": np.ones(3), "y": np.ones(4)}, "must all have the same size in first dimension"),
    ],
)
def test_what_cannot_be_partitioned_is_named(data: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        XShards.partition(data)


def test_arrays_of_any_order_in_memory_are_shards() -> None:
    x = np.arange(24.0).reshape(6, 4)
    for strided in (np.asfortranarray(x), x[:, 1:3], x[::-1], x.T):
        made = XShards.partition({"x": strided, "n": strided[:, 0]}, num_shards=2)
        again = made.transform_shard(lambda shard: {"x": shard["x"][:, :1], "n": shard["n"]})
        np.testing.assert_array_equal(np.concatenate([s["x"] for s in made.collect()]), strided)
        np.testing.assert_array_equal(
            np.concatenate([s["x"] for s in again.collect()]), strided[:, :1]
        )
    made = SparkXShards([[{"x": x[:, 1:3], "n": "text"}]])
    np.testing.assert_array_equal(made.first()["x"], x[:, 1:3])


def test_one_shard_a_core_unless_said() -> None:
    assert XShards.partition(np.arange(10)).num_partitions() == 2


def test_functions_may_write_to_their_shard_and_change_nothing_else() -> None:
    made = XShards.partition({"x": np.arange(6.0)}, num_shards=2)

    def halve(shard: dict[str, Any], divisor: float) -> dict[str, Any]:
        shard["x"] /= divisor
        return shard

    halves = made.transform_shard(halve, 2.0)
    assert [shard["x"].tolist() for shard in halves.collect()] == [[0, 0.5, 1], [1.5, 2, 2.5]]
    assert [shard["x"].tolist() for shard in made.collect()] == [[0, 1, 2], [3, 4, 5]]
    made.collect()[0]["x"][:] = 7
    assert made.first()["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        {"a": 1, 2: [None, 3.5]},
        np.array(["a", "bc"]),
        np.array([{"k": 1}, None], dtype=object),
        np.arange(3, dtype=np.uint64),
        np.ones(3, np.longdouble),
        {"": np.arange(3), "0": np.arange(3)},
        np.float32(3),
        np.zeros((0, 4)),
        [np.ones(3), np.ones(2)],
        pd.DataFrame({"t": pd.date_range("2020", periods=3), "c": pd.Categorical(["a", "b", "a"])}),
        pd.Series([1.5, None], name="s", index=["i", "j"]),
        lambda x: x + 1,
    ],
)
def test_anything_can_be_a_shard(value: Any) -> None:
    made = SparkXShards([[value, value], []]).transform_shard(lambda shard: shard)
    assert made.num_partitions() == 2
    for found in made.collect():
        if callable(value):
            assert found(1) == 2
        elif isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(found, value)
        elif isinstance(value, pd.Series):
            pd.testing.assert_series_equal(found, value)
        else:
            assert type(found) is type(value)
            np.testing.assert_equal(found, value)


def test_an_error_of_a_function_names_its_cause() -> None:
    with pytest.raises(orca.errors.WorkerFailedError, match="ZeroDivisionError"):
        XShards.partition(np.arange(4)).transform_shard(lambda shard: 1 // 0)


def test_each_shard_gives_a_value_or_its_error() -> None:
    found = SparkXShards([[1, 0], [2]])._for_each(lambda shard, top: top // shard, 4)
    assert found[0] == 4
    assert isinstance(found[1], ZeroDivisionError)
    assert found[2] == 2


def test_zip_and_split_undo_each_other() -> None:
    a = XShards.partition(np.arange(6), num_shards=3)
    b = XShards.partition({"k": np.arange(6.0)}, num_shards=3)
    pairs = a.zip(b)
    assert pairs._get_class_name() == "builtins.tuple"
    first, second = pairs.split()
    assert [x.tolist() for x in first.collect()] == [x.tolist() for x in a.collect()]
    assert [x["k"].tolist() for x in second.collect()] == [[0, 1], [2, 3], [4, 5]]
    assert a.split() == [a]
    with pytest.raises(InvalidArgumentError, match="other should be a SparkXShards"):
        a.zip([1])
    with pytest.raises(InvalidArgumentError, match="same number of partitions"):
        a.zip(XShards.partition(np.arange(6), num_shards=2))
    with pytest.raises(InvalidArgumentError, match="same number of elements in each partition"):
        a.zip(SparkXShards([[1], [2, 3], [4]]))
    with pytest.raises(InvalidArgumentError, match="different split length"):
        SparkXShards([[(1, 2)], [(1, 2, 3)]]).split()


def test_a_key_selects_from_every_shard() -> None:
    made = frames()["a"]
    assert [series.tolist() for series in made.collect()] == [
        [0, 1, 2, 3],
        [10, 11, 12, 13],
        [20, 21, 22, 23],
    ]
    with pytest.raises(orca.errors.WorkerFailedError, match="Invalid key for this XShards"):
        frames()["zz"].collect()
    with pytest.raises(orca.errors.WorkerFailedError, match="No selection operation available"):
        SparkXShards([[1]])["a"].collect()


def test_the_length_is_that_of_all_shards() -> None:
    assert len(XShards.partition(np.arange(7), num_shards=3)) == 7
    assert len(SparkXShards([[{"x": np.ones(5), "y": np.ones(5)}, 3], []])) == 3
    assert len(frames()) == 12


@pytest.mark.parametrize("wanted", [1, 2, 4, 7])
def test_repartition_keeps_the_rows(wanted: int) -> None:
    array = XShards.partition(np.arange(10), num_shards=3).repartition(wanted)
    assert array.num_partitions() == wanted
    assert np.concatenate(array.collect()).tolist() == list(range(10))
    dicts = XShards.partition({"x": np.arange(5), "y": np.ones(5)}, num_shards=2)
    moved = dicts.repartition(wanted)
    assert moved.num_partitions() == wanted
    assert sorted(x for s in moved.collect() for x in s["x"].tolist()) == list(range(5))
    lists = SparkXShards([[[1, 2, 3]], [[4]]]).repartition(wanted)
    assert [x for shard in lists.collect() for x in shard] == [1, 2, 3, 4]
    table = pd.concat(frames().repartition(wanted).collect())
    pd.testing.assert_frame_equal(table, pd.concat(frames().collect()))
    objects = SparkXShards([["a"], ["b"], ["c"]]).repartition(wanted)
    assert (objects.num_partitions(), objects.collect()) == (wanted, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([{"a": np.arange(4), "b": np.arange(9)}], r"'a': 4, 'b': 9\} rows"),
        ([{"a": np.arange(4)}, {"b": np.arange(4)}], r"the keys \['a'\] and \['b'\]"),
        ([{"a": np.ones((4, 1))}, {"a": np.ones((4, 2))}], r"rows of 'a' have the shapes \[\(1,\)"),
        ([np.ones((4, 1)), np.ones((4, 2))], "rows of the shards have the shapes"),
    ],
)
def test_what_cannot_be_divided_by_rows_is_named(shards: list[Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        SparkXShards([[shard] for shard in shards]).repartition(2)


def test_what_is_made_of_a_lazy_one_is_lazy() -> None:
    made = SparkXShards.lazy([[np.arange(2)], [np.arange(2)]])
    for other in (made.repartition(3), made.zip(made), made.transform_shard(lambda s: s)):
        assert not other.transform_shard(lambda shard: 1 // 0).is_cached()


OPERATIONS = {
    "transform_shard": lambda shards: [shards.transform_shard(lambda shard: shard)],
    "repartition": lambda shards: [shards.repartition(2)],
    "partition_by": lambda shards: [shards.partition_by("a")],
    "zip": lambda shards: [shards.zip(SparkXShards([[1], [2], [3]]))],
    "select": lambda shards: [shards.select("a")],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_something_was_made_of_is_not_cached_any_more(root: Any, name: str) -> None:
    shards = root.SparkXShards([[pd.DataFrame({"a": [1, 2], "b": [3, 4]})] for _ in range(3)])
    assert shards.is_cached()
    made = OPERATIONS[name](shards)
    assert all(each.is_cached() for each in made)
    assert not shards.is_cached()
    assert len(shards.collect()) == 3  # It is still there.
    shards.cache()
    OPERATIONS[name](shards)
    assert shards.is_cached()  # The user wants it.
    assert not shards.uncache().is_cached()


def test_split_and_zip_leave_no_source_cached(root: Any) -> None:
    pairs = root.SparkXShards([[(1, "a")], [(2, "b")]])
    first, second = pairs.split()
    assert first.is_cached()
    assert second.is_cached()
    assert not pairs.is_cached()
    first.cache()
    zipped = first.zip(second)
    assert [first.is_cached(), second.is_cached(), zipped.is_cached()] == [True, False, True]
    assert zipped.collect() == [(1, "a"), (2, "b")]


def test_zip_and_split_of_lazy_shards_wait(root: Any) -> None:
    given = [[(1, 2)], [(3, 0)]]
    for lazy in (
        root.SparkXShards(given, transient=True),
        root.SparkXShards(given).to_lazy(),
        root.SparkXShards([[{"x": pair} for pair in part] for part in given])["x"],
    ):
        first, second = lazy.split()
        zipped = second.zip(first)
        late = zipped.transform_shard(lambda pair: pair[1] // pair[0])
        assert not any(each.is_cached() for each in (first, second, zipped, late))
        assert first.collect() == [1, 3]
        assert zipped.collect() == [(2, 1), (0, 3)]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            late.collect()


def test_to_lazy_keeps_what_is_cached(root: Any) -> None:
    shards = root.SparkXShards([[1], [2]])
    assert shards.to_lazy() is shards
    doubled = shards.transform_shard(lambda shard: 2 * shard)
    assert shards.is_cached()
    assert not doubled.is_cached()
    assert doubled.cache().is_cached()


def test_results_of_for_each_answer_as_an_rdd(root: Any) -> None:
    found = root.SparkXShards([[1, 0], [2]])._for_each(lambda shard: 4 // shard)
    assert found.first() == 4
    assert isinstance(found.collect()[1], ZeroDivisionError)
    assert found.take(1) == [4]
    assert (found.count(), found.count(4)) == (3, 1)


@pytest.mark.parametrize("kind", [OrderedDict, partial(defaultdict, list)])
def test_kinds_of_dicts_stay_what_they_are(kind: Any) -> None:
    given = kind({"x": np.arange(4)})
    for made in (SparkXShards([[given]]), XShards.partition(given, 2)):
        found = made.transform_shard(lambda shard: shard).first()
        assert type(found) is type(given)
        assert found["x"][0] == 0


@pytest.mark.parametrize("name", ["bigdl.orca", "zoo.orca"])
def test_errors_of_lazy_operations_are_those_of_the_root(name: str) -> None:
    made = importlib.import_module(f"{name}.data").XShards.partition({"x": np.arange(4)}, 2)
    bad = made.to_lazy().transform_shard(lambda shard: 1 // 0)
    for wrong in (made["none"].collect, bad.collect, bad.cache, lambda: len(bad)):
        with pytest.raises(RuntimeError) as caught:
            wrong()
        assert type(caught.value) is RuntimeError


def test_lazy_operations_wait() -> None:
    made = SparkXShards.lazy([[1], [0]])
    bad = made.transform_shard(lambda shard: 1 // shard)
    assert not bad.is_cached()
    assert bad.num_partitions() == 2
    with pytest.raises(orca.errors.WorkerFailedError, match="ZeroDivisionError"):
        bad.collect()
    good = made.transform_shard(lambda shard: shard + 1).cache()
    assert good.is_cached()
    assert good.uncache().compute().collect() == [2, 1]


def test_pickles_are_written_whole_and_read_again(tmp_path: Path) -> None:
    made = SparkXShards([[np.arange(3), "a"], [], [{"k": pd.DataFrame({"a": [1]})}]])
    folder = f"file://{tmp_path}/saved"
    assert made.save_pickle(folder) is made
    read = XShards.load_pickle(folder, trust=True)
    assert read.num_partitions() == 3
    np.testing.assert_array_equal(read.first(), np.arange(3))
    assert read.collect()[2]["k"].equals(pd.DataFrame({"a": [1]}))
    assert XShards.load_pickle(folder, minPartitions=5, trust=True).num_partitions() == 5
    with pytest.raises(orca.errors.FailedPreconditionError, match="exists already"):
        made.save_pickle(folder)
    with pytest.raises(orca.errors.FailedPreconditionError, match="no files of save_pickle"):
        XShards.load_pickle(str(tmp_path / "other"), trust=True)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_every_flipped_bit_of_saved_pickles_is_noticed(tmp_path: Path) -> None:
    folder = f"{tmp_path}/saved"
    SparkXShards([[{"x": np.arange(20.0)}, "a"], ["b"]]).save_pickle(folder)
    assert XShards.load_pickle(folder, trust=True).collect()[1:] == ["a", "b"]
    part = Path(folder, "part-00000")
    whole = part.read_bytes()
    for at in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        part.write_bytes(changed)
        with pytest.raises(UnavailableError, match=r"part-00000 is damaged: its checksum is"):
            XShards.load_pickle(folder, trust=True)
    part.write_bytes(whole)
    sums = Path(folder, "_SUCCESS")
    listed = sums.read_bytes()
    for at in range(len(listed)):
        sums.write_bytes(listed[:at] + bytes([listed[at] ^ 2]) + listed[at + 1 :])
        with pytest.raises(UnavailableError, match=r"is damaged|is incomplete"):
            XShards.load_pickle(folder, trust=True)
    sums.write_bytes(listed)
    part.unlink()
    with pytest.raises(UnavailableError, match="incomplete: part-00000 is missing"):
        XShards.load_pickle(folder, trust=True)


def test_damaged_pickles_without_checksums_are_named(tmp_path: Path) -> None:
    """As the originals wrote them."""
    folder = tmp_path / "saved"
    SparkXShards([[{"x": "\u00e4" * 20}]]).save_pickle(str(folder))
    (folder / "_SUCCESS").write_text("")
    part = folder / "part-00000"
    whole = part.read_bytes()
    assert XShards.load_pickle(str(folder), trust=True).num_partitions() == 1
    for at in range(len(whole)):
        part.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        # A length that cannot be, or the name of another class, is what it is.
        with contextlib.suppress(UnavailableError, MemoryError, AttributeError, ImportError):
            XShards.load_pickle(str(folder), trust=True)
    part.write_bytes(whole[:-3])
    with pytest.raises(UnavailableError, match="part-00000: shard 0 is damaged"):
        XShards.load_pickle(str(folder), trust=True)


def test_threads_that_save_to_one_folder_leave_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "saved"

    def save(number: int) -> bool:
        try:
            SparkXShards([[number] * 50]).save_pickle(str(folder))
        except FailedPreconditionError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(save, range(8))) == 1
    assert len(set(XShards.load_pickle(str(folder), trust=True).collect())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_pickles_are_written_to_any_file_system(tmp_path: Path) -> None:
    made = SparkXShards([[np.arange(3)], ["a"]])
    folder = (
        f"local://{tmp_path}/saved"  # By fsspec, as object stores are: nothing can be moved there.
    )
    made.save_pickle(folder)
    assert XShards.load_pickle(folder, trust=True).collect()[1] == "a"
    (tmp_path / "saved/part-00001").write_bytes(b"\x80\x05cut")
    with pytest.raises(
        orca.errors.UnavailableError, match="part-00001 is damaged: its checksum is"
    ):
        XShards.load_pickle(folder, trust=True)
    (tmp_path / "saved/_SUCCESS").unlink()
    with pytest.raises(orca.errors.FailedPreconditionError, match="not written to its end"):
        XShards.load_pickle(folder, trust=True)
    with pytest.raises(InvalidArgumentError, match=r"nowhere:// of .* is not known"):
        made.save_pickle("nowhere://a/b")


@pytest.mark.parametrize("times", [1, 9])
def test_a_worker_that_dies_in_a_transformation_is_replaced(times: int, tmp_path: Path) -> None:
    """As a task of Spark: some deaths are survived, and one after the other ends the call."""

    def doubled(value: int) -> int:
        if value == 3 and len(list(tmp_path.iterdir())) < times:
            (tmp_path / f"{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * value

    shards = SparkXShards([[1], [2], [3], [4]])
    if times == 1:
        assert shards.transform_shard(doubled).collect() == [2, 4, 6, 8]
        return
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        shards.transform_shard(doubled).collect()
    assert 2 <= len(list(tmp_path.iterdir())) <= 4


class Marks:
    """Leaves a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("root", ["orca", "bigdl", "zoo"])
def test_pickles_of_another_user_run_no_code_unless_they_are_trusted(
    root: str, tmp_path: Path
) -> None:
    shards = importlib.import_module("orca.data" if root == "orca" else f"{root}.orca.data").XShards
    mark, part = tmp_path / "ran", tmp_path / "saved/part-00000"
    SparkXShards([[1]]).save_pickle(str(tmp_path / "saved"))
    part.write_bytes(pickle.dumps(Marks(mark)))
    (tmp_path / "saved/_SUCCESS").write_text("")  # Without checksums, as the originals.
    kinds = (RuntimeError, ValueError, AssertionError)
    own = stat.S_IMODE(part.stat().st_mode)
    if root != "orca":  # What is this user's own loads as it did.
        shards.load_pickle(str(tmp_path / "saved"))
        assert mark.exists()
        mark.unlink()
        part.chmod(0o666)  # Another user may have changed it.
    with pytest.raises(kinds, match=r"part-00000 is a pickle.*give load_pickle\(.*trust=True\)"):
        shards.load_pickle(str(tmp_path / "saved"))
    part.chmod(own)
    if os.geteuid() == 0:
        for path in (part, part.parent):
            os.chown(path, 65534, 65534)
            with pytest.raises(kinds, match=r"part-00000 is a pickle.*trust=True"):
                shards.load_pickle(str(tmp_path / "saved"))
            os.chown(path, 0, 0)
    assert not mark.exists()
    shards.load_pickle(str(tmp_path / "saved"), trust=True)
    assert mark.exists()


def test_pickles_whose_writer_is_not_known_load_with_a_warning_under_the_old_roots(
    tmp_path: Path,
) -> None:
    from bigdl.orca.data import XShards as OldXShards

    folder = f"local://{tmp_path}/saved"
    SparkXShards([[1]]).save_pickle(folder)
    assert OldXShards.load_pickle(folder).collect() == [1]
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in sorted((tmp_path / "saved").iterdir()):
        memory.pipe(f"/orca-test/{path.name}", path.read_bytes())
    try:
        with pytest.warns(UserWarning, match="memory://orca-test has pickles, and which user"):
            assert OldXShards.load_pickle("memory://orca-test").collect() == [1]
    finally:
        memory.rm("/orca-test", recursive=True)


def test_pickles_of_no_partitions_are_read_again(tmp_path: Path) -> None:
    SparkXShards([]).save_pickle(str(tmp_path / "none"))
    assert XShards.load_pickle(str(tmp_path / "none"), trust=True).num_partitions() == 0


def test_a_shared_value_is_there_on_every_worker() -> None:
    shared = SharedValue({"weights": np.arange(3)})
    found = XShards.partition(np.arange(4)).transform_shard(
        lambda shard: shard + shared.value["weights"].sum()
    )
    assert np.concatenate(found.collect()).tolist() == [3, 4, 5, 6]
    shared.unpersist()
    with pytest.raises(orca.errors.FailedPreconditionError, match="given up"):
        _ = shared.value


def test_classes_have_the_names_of_their_time() -> None:
    bigdl = importlib.import_module("bigdl.orca.data")
    zoo = importlib.import_module("zoo.orca.data")
    assert bigdl.SparkXShards([[[1]]])._get_class_name() == "builtins.list"
    assert zoo.SparkXShards([[[1]]])._get_class_name() == "list"
    assert frames()._get_class_name() == "pandas.core.frame.DataFrame"
    assert list(frames().get_schema()["columns"]) == ["a", "b"]
    assert SparkXShards([[1]]).get_schema() is None


def test_what_was_put_into_shards_is_let_go_at_once() -> None:
    """Not when the garbage collector next comes: it may be most of the memory."""
    seen: list[weakref.ref[Any]] = []

    def shards() -> Iterator[list[Any]]:
        for _ in range(3):
            assert all(ref() is None for ref in seen[:-1])  # The last is in its partition.
            array = np.ones(5)
            seen.append(weakref.ref(array))
            yield [{"x": array}]
            del array

    gc.disable()
    try:
        assert len(SparkXShards(shards())) == 3
    finally:
        gc.enable()
    assert len(seen) == 3


def test_an_object_shard_may_hold_a_shard_of_its_own() -> None:
    made = SparkXShards([[{"inner": Shard({"x": np.arange(3)}), "name": "a"}]])
    gc.collect()
    for _ in range(3):  # Would take the memory, were it free.
        Shard({"x": np.full(3, 7)})
    assert made.collect()[0]["inner"].view()["x"].tolist() == [0, 1, 2]
    sums = made.transform_shard(lambda shard: int(shard["inner"].view()["x"].sum()))
    assert sums.collect() == [3]

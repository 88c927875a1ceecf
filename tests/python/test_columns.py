"""Arrow columns as arrays, against plain Python values."""

import datetime
import decimal

import numpy as np
import pyarrow
import pytest

from orca.data import columns
from orca.errors import InvalidArgumentError

_VECTOR = pyarrow.struct(
    [
        pyarrow.field("type", pyarrow.int8()),
        pyarrow.field("size", pyarrow.int32()),
        pyarrow.field("indices", pyarrow.list_(pyarrow.int32())),
        pyarrow.field("values", pyarrow.list_(pyarrow.float64())),
    ]
)


def dense(*values):
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size, **items):
    places = {int(key[1:]): value for key, value in items.items()}
    return {"type": 0, "size": size, "indices": list(places), "values": list(places.values())}


@pytest.mark.parametrize(
    ("kind", "values", "dtype"),
    [
        (pyarrow.float32(), [1.5, 2.5], "float32"),
        (pyarrow.float64(), [1.5, float("nan")], "float64"),
        (pyarrow.int8(), [1, -2], "int8"),
        (pyarrow.int32(), [1, -2], "int32"),
        (pyarrow.int64(), [1, 2**60], "int64"),
        (pyarrow.bool_(), [True, False, True], "bool"),
        (pyarrow.decimal128(10, 2), [decimal.Decimal("1.25"), decimal.Decimal("-3.5")], "float64"),
    ],
)
def test_numbers_keep_their_type(kind, values, dtype):
    found = columns.to_array("x", pyarrow.array(values, kind))
    assert str(found.dtype) == dtype
    np.testing.assert_array_equal(found, np.array([float(value) for value in values]).astype(dtype))


def test_times_are_nanoseconds():
    when = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone.utc)
    column = pyarrow.array([when], pyarrow.timestamp("us", "UTC"))
    assert columns.to_array("t", column).tolist() == [int(when.timestamp()) * 10**9]


@pytest.mark.parametrize("begin", [0, 1, 3])
def test_lists_are_dimensions_also_of_a_slice(begin):
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    column = pyarrow.array(values.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.float32())))
    found = columns.to_array("x", column[begin:])
    np.testing.assert_array_equal(found, values[begin:])
    assert found.dtype == np.float32


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_vectors_dense_and_sparse_are_float32(begin):
    rows = [dense(1, 2, 3), sparse(3, i1=5.0), sparse(3), dense(0, 0, 9), sparse(3, i0=1.0, i2=2.0)]
    expected = np.array([[1, 2, 3], [0, 5, 0], [0, 0, 0], [0, 0, 9], [1, 0, 2]], np.float32)
    found = columns.to_array("v", pyarrow.array(rows, _VECTOR)[begin:])
    np.testing.assert_array_equal(found, expected[begin:])
    assert found.dtype == np.float32


def test_maps_are_dicts_whatever_the_order_of_their_keys():
    kind = pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.float32()))
    column = pyarrow.array([[("a", [1, 2]), ("b", [3])], [("b", [7]), ("a", [5, 6])]], kind)
    found = columns.to_array("m", column)
    assert {key: value.tolist() for key, value in found.items()} == {
        "a": [[1, 2], [5, 6]],
        "b": [[3], [7]],
    }


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pyarrow.array([1, None, 3]), "column 'x' has no value in row 1"),
        (
            pyarrow.array([[1], [2, 3]]),
            r"row 1 has 2 elements and row 0 has 1. Elements in the same column",
        ),
        (pyarrow.array([dense(1), dense(1, 2)], _VECTOR), "row 1 has 2 elements and row 0 has 1"),
        (pyarrow.array([dense(1), sparse(3)], _VECTOR), "row 1 has 3 elements and row 0 has 1"),
        (pyarrow.array(["a"]), "unsupported field 'x' of the type string"),
        (
            pyarrow.array(
                [[("a", 1)], [("b", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int32())
            ),
            r"row 1 has the keys \['b'\] and row 0 has \['a'\]",
        ),
    ],
)
def test_what_has_no_array_is_refused_with_its_row(column, message):
    with pytest.raises(InvalidArgumentError, match=message):
        columns.to_array("x", column)


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 3), (1, 2, 3, 2), (0,), (0, 4), (0, 2, 3)])
def test_predictions_come_back_as_lists(shape):
    array = np.random.default_rng(1).random(shape).astype(np.float32)
    made = columns.from_array(array)
    assert len(made) == shape[0]
    plain = [row["values"] if len(shape) == 2 else row for row in made.to_pylist()]
    assert plain == array.astype(np.float64).tolist()


def test_several_outputs_are_lists_and_dicts_are_maps():
    a, b = np.arange(3.0), np.arange(3.0) * 10
    assert columns.from_array((a, b)).to_pylist() == [[0, 0], [1, 10], [2, 20]]
    assert [dict(row) for row in columns.from_array({"a": a, "b": b}).to_pylist()] == [
        {"a": 0, "b": 0},
        {"a": 1, "b": 10},
        {"a": 2, "b": 20},
    ]
    with pytest.raises(InvalidArgumentError, match="give output_cols="):
        columns.from_array((a, np.zeros((3, 2))))


def test_zero_rows_have_a_type():
    assert columns.to_array("x", pyarrow.chunked_array([], pyarrow.float32())).shape == (0,)
    assert columns.kind_of([np.zeros(1), np.zeros((1, 2)), np.zeros((1, 2, 3))]) == [
        "number",
        "vector",
        ("array", 2),
    ]

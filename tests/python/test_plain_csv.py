"""The engine's reader of CSV gives what pyarrow's gives, or leaves the text to it."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orca._native import _core
from orca.data import readers, scratch
from orca.data.plain_csv import read_plain
from orca.data.records import MISSING, CsvText, Piece

many = settings(
    deadline=None,
    max_examples=400,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
NONE: frozenset[str] = frozenset()


def text_of(names: list[str], sep: str = ",", quote: str = '"', header: bool = True) -> CsvText:
    columns = tuple(names)
    return CsvText(sep, quote, None, None, header, columns if header else (), columns, columns)


def by_arrow(piece: Piece, text: CsvText, data: bytes, types: dict[str, Any]) -> Any:
    try:
        return readers._to_frame(text.table(piece, data, types), types, NONE)
    except Exception as error:
        return error


def same(found: Any, expected: Any) -> None:
    frame, kinds = found
    assert not isinstance(expected, Exception), expected
    assert kinds == expected[1]
    assert list(kinds) == list(expected[1])
    pd.testing.assert_frame_equal(frame, expected[0], check_exact=True)
    for name in frame:
        if frame[name].dtype == np.float64:  # Zeros have signs.
            there = frame[name].notna()
            ours, theirs = frame[name][there].to_numpy(), expected[0][name][there].to_numpy()
            assert ours.view(np.int64).tolist() == theirs.view(np.int64).tolist()


def compare(data: bytes, text: CsvText, begin: int = 0, **types: Any) -> bool:
    """Whether the text is plain; if it is, both readers agree."""
    piece = Piece("there.csv", begin, begin + len(data))
    found = read_plain(piece, text, data, types, NONE)
    if found is not None:
        same(found, by_arrow(piece, text, data, types))
        assert not text.is_open(data, in_quotes=False)
    return found is not None


# --- texts of values, by what they are taken for

BIG = [
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**63 + 1,
    2**64,
    10**18,
    10**19,
    99_999_999,
    10**8,
    10**16,
]
WHOLE = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.integers(-(2**64), 2**64).map(str),
    st.sampled_from([str(sign * n) for n in BIG for sign in (1, -1)]),
    st.sampled_from(["0", "-0", "007", "-00", "0" * 30 + "12", "-" + "0" * 17 + "5"]),
)
DECIMAL = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1000, 1000).map(lambda x: f"{x:.4f}"),
    st.tuples(st.integers(0, 12), st.floats(-1e6, 1e6)).map(lambda x: f"{x[1]:.{x[0]}f}"),
    st.floats(1e-300, 1e300).map(lambda x: f"{x:.17e}"),
    st.from_regex(r"\A-?[0-9]{0,20}\.?[0-9]{0,20}\Z"),
    st.from_regex(r"\A-?[0-9]{1,3}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,3})?\Z"),
    st.sampled_from(["-0.0", "0.", ".5", "-.5", "1e22", "1e23", "9007199254740993.0", "5e-324"]),
    st.sampled_from(["1e400", "1e-400", ".", "-", "+1.5", "inf", "-inf", "1e", "1.2.3", "--1"]),
)
GAP = st.sampled_from([*MISSING, "", "", "-nan"])
WORDS = st.text(alphabet='aeinftTFN Ä愛😀,;"\n\t0.-:(', max_size=20)
CELLS: dict[str, st.SearchStrategy[str]] = {
    "whole": WHOLE,
    "whole with gaps": st.one_of(WHOLE, GAP),
    "small with gaps": st.one_of(st.integers(0, 9).map(str), GAP),
    "unsigned": st.integers(0, 2**64 - 1).map(str),
    "unsigned or more": st.one_of(st.integers(2**63, 2**64 + 9).map(str), DECIMAL),
    "decimal": DECIMAL,
    "number": st.one_of(WHOLE, DECIMAL, GAP),
    "plain number": st.floats(-1000, 1000).map(lambda x: f"{x:.3f}"),
    "words": WORDS,
    "words with gaps": st.one_of(WORDS, GAP),
    "letters": st.sampled_from("abcdefABCDEF"),
    "yes": st.sampled_from(["true", "false", "True", "FALSE"]),
    "yes with gaps": st.one_of(st.sampled_from(["true", "false"]), GAP),
    "dates": st.sampled_from(["2020-01-01", "2020-01-01 12:00:00", "12:30", "1/2/2020", "NaN"]),
    "hex": st.sampled_from(["0x1F", "0X10", "12", "-0x1"]),
    "missing": GAP,
    "anything": st.one_of(WHOLE, DECIMAL, WORDS, GAP, st.sampled_from(["true", " 1", "1 ", " "])),
}


@st.composite
def tables(draw: Any) -> tuple[bytes, str, list[str]]:
    """Bytes, the separator, and the names of columns."""
    sep = draw(st.sampled_from([",", ",", ";", "\t", "|", " "]))
    families = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*(CELLS[f] for f in families)), min_size=1, max_size=20))
    always = draw(st.booleans())
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    wild = draw(st.integers(0, 9)) == 0
    names = [f"c{i}" for i in range(len(families))]
    lines = [sep.join(names)]
    for row in rows:
        cells = list(row)
        if wild and draw(st.integers(0, 9)) == 0:
            cells = cells[1:] or ["x", "y"]
        needs = [always or any(c in cell for c in (sep, '"', "\n", "\r")) for cell in cells]
        if len(cells) == 1 and not cells[0]:
            needs = [True]
        if wild and draw(st.integers(0, 9)) == 0:
            needs = [not need for need in needs]
        lines.append(
            sep.join(
                '"' + cell.replace('"', '""') + '"' if need else cell
                for cell, need in zip(cells, needs, strict=True)
            )
        )
        if draw(st.integers(0, 19)) == 0:
            lines.append("")
    end = draw(st.sampled_from([newline, newline, "", newline * 2]))
    return (newline.join(lines) + end).encode(), sep, names


@pytest.mark.slow
@many
@given(table=tables(), types=st.data())
def test_both_readers_agree_on_any_table(
    table: tuple[bytes, str, list[str]], types: st.DataObject
) -> None:
    data, sep, names = table
    compare(data, text_of(names, sep))
    _, _, body = data.partition(b"\n")
    if body:
        compare(body, text_of(names, sep), begin=7)
    kinds = [None, None, pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.int32()]
    chosen = {name: types.draw(st.sampled_from(kinds)) for name in names}
    compare(data, text_of(names, sep), **{n: kind for n, kind in chosen.items() if kind})


@pytest.mark.slow
@many
@example(data='1,"a\n"b,2\n', columns=2, quote='"')
@example(data='"1""2",3\n', columns=2, quote='"')
@example(data="1,2\r3,4\n", columns=2, quote='"')
@example(data="1,2\r", columns=2, quote='"')
@given(
    data=st.text(alphabet='a1-.e,,""\n\n\r Ä', max_size=200),
    columns=st.integers(1, 3),
    quote=st.sampled_from(['"', "", "'"]),
)
def test_both_readers_agree_on_any_text(data: str, columns: int, quote: str) -> None:
    names = [f"c{i}" for i in range(columns)]
    compare(data.encode(), text_of(names, quote=quote), begin=7)
    compare(data.encode(), text_of(names, quote=quote, header=False))
    compare(("x" * 60 + ",1" * (columns - 1) + "\n").encode() + data.encode(), text_of(names), 7)


@pytest.mark.slow
@settings(many, max_examples=60)
@given(
    lines=st.lists(
        st.sampled_from(
            ['1,2.5,"a"', '-22,-0.125,"b,\n"', '3,1e5,"say ""so"""', "4,,c", '5,"7.25",', ""]
        ),
        max_size=40,
    ),
    times=st.integers(1, 2000),
)
def test_both_readers_agree_beyond_a_block(lines: list[str], times: int) -> None:
    compare(("\n".join(lines) + "\n").encode() * times, text_of(["a", "b", "c"]), begin=7)


# --- what is plain


@pytest.mark.parametrize(
    "data",
    [
        "a,b\n1,2\n3,4\n",
        "a,b\n1,x\n,y",
        "a,b\r\n1.5,x\r\n\r\n-2,y\r\n",
        'a,b\n"1","x, ""y""\nz"\n2,\n',
        "a,b\n1,c\n2.5,d\n",
        "a,b\ntrue,-0\nfalse,0.5\n",
        "a,b\n,x\n,true\n",
        "a,b\n1,2\n1,two\n",
        "a,b\n123456789012345678,0.1234567890123456789\n",
        f"a,b\n{2**63 - 1},{2**63}\n{-(2**63)},1\n",
        f"a,b\n{2**64 - 1},{2**63}\n12,0.5\n",
        f"a,b\n1,1.5\n{2**63},{2**64}\n",
        f"a,b\n1,{2**63}\n{2**63},x\n",
    ],
)
def test_what_is_common_is_plain(data: str) -> None:
    assert compare(data.encode(), text_of(["a", "b"]))


def test_many_rows_and_a_late_change_of_type_are_plain() -> None:
    rows = [f"{i},{i / 7:.5f},name {i % 5},{i % 3}" for i in range(20_000)]
    rows[15_000] = "1.5,,,text"
    assert compare(("\n".join(rows)).encode(), text_of(["a", "b", "c", "d"]), begin=7)


def test_only_columns_that_are_wanted_are_read() -> None:
    text = CsvText(",", '"', None, None, False, (), ("a", "b", "c"), ("a", "c"))
    found = read_plain(Piece("there.csv", 7, 9), text, b"1,2020-01-01,x\n2,\xff,y\n", {}, NONE)
    assert found is not None
    assert found[0].to_dict("list") == {"a": [1, 2], "c": ["x", "y"]}


@pytest.mark.parametrize(
    "data",
    [
        b"1,2\n3\n",
        b"1,2\n3,4,5\n",
        b'1,"2\n',
        b'1,2"x\n',
        b'1,"2"x\n',
        b"1,2\r3,4\n",
        b"1,\xff\n1,x\n",
        b"1,\xed\xa0\x80\n1,x\n",
        b"1,2020-01-01\n",
        b"1,12:30\n",
        b"1,0x1F\n",
        b"1,inf\n",
        b"1,1e400\n",
        b"1, 2\n",
        b"1,true\n2,\n",
        b"1,true\n2,0\n",
        b"1,9007199254740993\n2,\n",
        b"1,9223372036854775808\n2,\n",
        b"1,9223372036854775808\n2,-1\n",
        b"1,18446744073709551616\n",
        b"1,18446744073709551616\n2,0.5\n",
        b"1,-9223372036854775809\n",
        b"\xef\xbb\xbf1,2\n",
        b"\n\r\n",
        b"",
    ],
)
def test_what_is_not_plain_is_left_to_pyarrow(data: bytes) -> None:
    assert not compare(data, text_of(["a", "b"]), begin=7)


@pytest.mark.parametrize("name", ["int64", "float64", "bool_"])
def test_a_value_that_does_not_fit_its_type_is_left_to_pyarrow(name: str) -> None:
    assert not compare(b"x,1\n", text_of(["a", "b"]), begin=7, a=getattr(pa, name)())


def test_words_that_are_numbers_are_refused() -> None:
    dialect = {"separator": ",", "quote": "", "missing": ["-999"], "yes": [], "no": []}
    with pytest.raises(ValueError, match=r"'-999' is a number"):
        _core.parse_csv(
            np.frombuffer(b"1\n", np.uint8),
            0,
            dialect,
            [("a", _core.CsvKind.INFERRED)],
            _core.CsvMemory(),
        )


def test_memory_is_used_again_within_a_call_and_not_kept_behind_it() -> None:
    assert doctest.testmod(scratch).failed == 0
    made: list[object] = []
    with scratch.kept():
        for _ in range(2):
            made.append(scratch.once("a", object))
        scratch.room("b", 5)[:] = b"there"
        with scratch.kept():
            assert scratch.room("b", 5).tobytes() == b"there"
    assert made[0] is made[1]
    assert scratch.once("a", object) is not made[0]
    assert scratch.room("b", 5).tobytes() == bytes(5)


def test_floats_are_the_nearest_ones() -> None:
    random = np.random.default_rng(7)
    values = random.integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    values = np.concatenate([values[np.isfinite(values)], random.normal(size=20_000)])
    texts = [f"{x:.{i % 19}e}" if i % 2 else f"{x:.{i % 12}f}" for i, x in enumerate(values)]
    texts = [t for t in texts if 1e-300 < abs(float(t)) < 1e300]
    found = read_plain(
        Piece("there.csv", 7, 9),
        text_of(["a"]),
        "\n".join(texts).encode(),
        {"a": pa.float64()},
        NONE,
    )
    assert found is not None
    expected = np.array([float(t) for t in texts])
    assert (found[0]["a"].to_numpy().view(np.int64) == expected.view(np.int64)).all()

"""Frames of plain CSV, by the engine's own reader; what is not plain is left to pyarrow's."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca._native import _core
from orca.data import scratch
from orca.data.records import MARK, MISSING, CsvText, Piece, Text, arrow

__all__ = ["read_plain"]

_HEADER = 1 << 20  # A longer one is not plain.
_KINDS = {
    "int64": _core.CsvKind.INT64,
    "double": _core.CsvKind.FLOAT64,
    "bool": _core.CsvKind.BOOL,
    "string": _core.CsvKind.STRING,
    "uint64": _core.CsvKind.UINT64,
}
_NAMES = {
    _core.CsvKind.MISSING: "null",
    _core.CsvKind.INT64: "int64",
    _core.CsvKind.FLOAT64: "float64",
    _core.CsvKind.BOOL: "bool_",
    _core.CsvKind.STRING: "string",
    _core.CsvKind.UINT64: "uint64",
}


def read_plain(
    piece: Piece,
    text: Text,
    data: bytes | memoryview,
    types: dict[str, Any],
    loose: frozenset[str],
) -> tuple[Any, dict[str, tuple[Any, bool]]] | None:
    """The frame of all records, and what is known of its columns; None of what is not plain.

    Both are what pyarrow's reader makes of it. In a piece that is plain no quotes are open at its end.

    Args:
        piece: Where the bytes are from.
        text: How they are written.
        data: Whole lines.
        types: What columns are to have; the others get the one that fits.
        loose: Columns of bool in which values are missing elsewhere.
    """
    if not isinstance(text, CsvText) or not _is_plain(text) or loose:
        return None
    if piece.in_quotes or piece.goes_on or not data or data[: len(MARK)] == MARK:
        return None
    begin = (
        _after_header(text, bytes(data[:_HEADER])) if text.has_header and piece.begin == 0 else 0
    )
    columns = _columns(text, types)
    if begin is None or columns is None:
        return None
    dialect = {
        "separator": text.sep,
        "quote": text.quote,
        "missing": list(MISSING),
        "yes": ["True", "TRUE", "true"],
        "no": ["False", "FALSE", "false"],
    }
    memory = scratch.once("csv", _core.CsvMemory)
    found: Any = _core.parse_csv(np.frombuffer(data, np.uint8), begin, dialect, columns, memory)
    if found is None:
        return None
    pyarrow = arrow()
    table = pyarrow.Table.from_batches([pyarrow.record_batch(found)])
    for i, kind in enumerate(found.kinds):
        if kind == _core.CsvKind.UINT64:
            (bits,) = table.column(i).chunks
            table = table.set_column(i, table.field(i).name, bits.view(pyarrow.uint64()))
    kinds = {
        name: (types.get(name) or getattr(pyarrow, _NAMES[kind])(), missing > 0)
        for name, kind, missing in zip(table.column_names, found.kinds, found.missing, strict=True)
    }
    names = list(types) if types and set(types) >= set(kinds) else list(text.wanted)
    kinds = {name: kinds[name] for name in names if name in kinds}
    return table.select(list(kinds)).to_pandas(split_blocks=True), kinds


def _is_plain(text: CsvText) -> bool:
    has_breaks = text.sep in ("\r", "\n", "\0", text.quote) or text.quote in ("\r", "\n", "\0")
    return not text.escape and text.comment is None and not has_breaks


def _after_header(text: CsvText, data: bytes) -> int | None:
    """Where the first record begins behind names that are those of the first file, on a line of their own."""
    end = text.record_end(data, in_quotes=False)
    line = data[:end].removesuffix(b"\n").removesuffix(b"\r")
    if end is None or not line or b"\n" in line or b"\r" in line:
        return None
    return end if text.names(line) == text.header else None


def _columns(text: CsvText, types: dict[str, Any]) -> list[tuple[str, Any]] | None:
    wanted = set(text.wanted)
    made = []
    for name in text.columns:
        kind: Any = _core.CsvKind.INFERRED if name in wanted else _core.CsvKind.SKIPPED
        if name in wanted and name in types:
            kind = _KINDS.get(str(types[name]))
        if kind is None:
            return None
        made.append((name, kind))
    return made

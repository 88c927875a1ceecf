"""Parts of text files as Arrow tables: which bytes are whole records, their types, and what is wrong with one."""

from __future__ import annotations

import collections
import contextlib
import csv
import functools
import importlib
import io
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orca.data import scratch
from orca.data.file import where
from orca.errors import InvalidArgumentError, UnavailableError

__all__ = [
    "MARK",
    "MISSING",
    "CsvText",
    "JsonText",
    "Piece",
    "Text",
    "arrow",
    "common",
    "large_whole",
    "open_file",
]

MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What pandas takes for missing."""

MARK = b"\xef\xbb\xbf"  # Some editors begin UTF-8 with it.
_BLOCK = 1 << 20
_MOST = (1 << 31) - 2  # Bytes that Arrow's readers take at once.
_WHOLE = re.compile("-?[0-9]+")
_DIGITS = 4300  # Of the longest number that Python reads.
_STRAY = 64  # Quotes in the middle of fields, above which fields are looked at one by one.


def arrow(module: str = "") -> Any:
    """pyarrow, or a module of it."""
    try:
        return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ModuleNotFoundError as error:
        raise ImportError("reading files needs pyarrow; run 'pip install pyarrow'") from error


def large_whole() -> Any:
    """The type of whole numbers that no type of 64 bits has: texts, which no other column has, and objects in a frame."""
    return arrow().large_string()


def open_file(path: str) -> Any:
    """A file to read, wherever it is."""
    if "://" not in path:
        return Path(path).open("rb")
    filesystem, inside = where(path)
    return filesystem.open_input_file(inside)


@dataclass(frozen=True)
class Piece:
    """Bytes of a file, whose records are those that begin in it.

    Attributes:
        path: Of the file.
        begin: The first byte.
        end: The byte after the last one.
        in_quotes: Whether its first line belongs to a record of the piece before it.
        goes_on: Whether its last record ends in another piece.
    """

    path: str
    begin: int
    end: int
    in_quotes: bool = False
    goes_on: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed; such a file is one piece."""
        return self.path.endswith((".gz", ".bz2", ".xz", ".zst"))

    def unpacked(self) -> Any:
        """The file, to read from its begin."""
        if not self.is_packed:
            return open_file(self.path)
        if self.path.endswith(".xz"):  # The one that Arrow does not know.
            with open_file(self.path) as file:
                return io.BytesIO(importlib.import_module("lzma").decompress(file.read()))
        names = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
        packed = arrow("lib").PythonFile(open_file(self.path), mode="r")
        stream = arrow("lib").CompressedInputStream(packed, names[Path(self.path).suffix])
        return io.BufferedReader(stream)

    def lines(self) -> tuple[bytes, int]:
        """The lines that begin in it, and the byte of the file where they do."""
        if self.is_packed:
            with self.unpacked() as file:
                return file.read(), 0
        with open_file(self.path) as file:
            begin, end = self._ends(file)
            file.seek(begin)
            return file.read(end - begin), begin

    def view(self) -> tuple[bytes | memoryview, int]:
        """As ``lines``, in memory that the next piece of the call uses again."""
        if self.is_packed:
            return self.lines()
        with open_file(self.path) as file:
            begin, end = self._ends(file)
            file.seek(begin)
            memory, size = scratch.room("lines", end - begin), 0
            while size < len(memory) and (more := file.readinto(memory[size:])):
                size += more
            return memory[:size], begin

    def _ends(self, file: Any) -> tuple[int, int]:
        begin = _line_start(file, self.begin)
        return begin, max(begin, _line_start(file, self.end)) if begin < self.end else begin

    def following(self, text: CsvText, at: int) -> bytes:
        """What belongs to its last record of the bytes from ``at`` on."""
        size = _BLOCK
        with open_file(self.path) as file:
            while True:
                file.seek(at)
                data = file.read(size)
                end = text.record_end(data)
                if end is not None or len(data) < size:
                    return data[:end]
                size *= 2

    def line(self, at: int) -> int:
        """The number of the line that begins at a byte, from 1 on."""
        if self.is_packed:
            return 1
        with open_file(self.path) as file:
            return 1 + sum(block.count(b"\n") for block in _blocks(file, at))


def _line_start(file: Any, at: int) -> int:
    """Where the first line begins that does not begin before ``at``."""
    if at == 0:
        return 0
    file.seek(at - 1)
    while block := file.read(4096):
        if (found := block.find(b"\n")) >= 0:
            return int(file.tell()) - len(block) + found + 1
    return int(file.tell())


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (block := file.read(min(size, 8 << 20))):
        size -= len(block)
        yield block


class Text:
    """How the bytes of a piece become a table."""

    def table(self, piece: Piece, data: bytes, types: dict[str, Any]) -> Any:
        """The table; columns that ``types`` does not name get the type that fits."""
        raise NotImplementedError

    def row_line(self, piece: Piece, data: bytes, row: int) -> int:
        """The line of ``data`` where a row begins, from 0 on; rows count from 0 as well."""
        raise NotImplementedError

    def is_open(self, data: bytes, in_quotes: bool) -> bool:
        """Whether the end is inside of quotes, if the begin is, or is not."""
        return in_quotes

    def check_quotes(self, piece: Piece, data: bytes, at: int) -> None:
        """Whether all quotes end."""

    def refusal(self, piece: Piece, data: bytes, at: int, error: Exception) -> UnavailableError:
        """What Arrow could not read: file, line and column."""
        raise NotImplementedError


@dataclass(frozen=True)
class CsvText(Text):
    """Fields between separators, as pandas reads them.

    Attributes:
        sep: Between fields.
        quote: Around fields that have separators, newlines or quotes in them; "" for none.
        escape: Before characters that mean themselves.
        comment: Lines that begin with it are left out.
        has_header: Whether each file begins with names.
        header: Those names, as they are written.
        columns: The names of the columns, which all differ.
        wanted: Those to read.
    """

    sep: str
    quote: str
    escape: str | None
    comment: str | None
    has_header: bool
    header: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()

    def looked_at(self, pieces: list[Piece]) -> CsvText:
        """With the columns of the first file that has any."""
        for piece in pieces:
            if piece.begin:
                continue
            with piece.unpacked() as file:
                first = self._first_record(file)
            if first:
                names = _told_apart(first) if self.has_header else _numbered(first)
                return replace(self, header=tuple(first), columns=tuple(names), wanted=tuple(names))
        return self

    def _first_record(self, file: Any) -> list[str]:
        data = b""
        while True:
            more = file.read(max(_BLOCK, len(data)))
            data += more
            # A line that goes on in what was not read may yet be a comment.
            whole = self._plain(data[: data.rfind(b"\n") + 1] if more else data)
            end = self.record_end(whole, in_quotes=False)
            if end is not None or not more:
                return self._first(whole[:end])

    def names(self, data: bytes) -> tuple[str, ...]:
        """The fields of the first record."""
        return tuple(self._first(data))

    def _first(self, data: bytes) -> list[str]:
        return next(self._records(data), (0, []))[1]

    def table(self, piece: Piece, data: bytes, types: dict[str, Any]) -> Any:
        """A table of all records."""
        _check_size(piece, data)
        pyarrow, reader = arrow(), arrow("csv")
        data = self._plain(data) if piece.begin == 0 or self.comment is not None else data
        skips = int(self.has_header and piece.begin == 0)
        rest = self._after_header(piece, data) if skips else data
        if re.fullmatch(rb"[\r\n]*", rest):
            kinds = [(name, types.get(name, pyarrow.null())) for name in self.wanted]
            return pyarrow.schema(kinds).empty_table()
        has_quotes = bool(self.quote) and self.quote.encode() in data
        read = functools.partial(
            _read_table,
            reader,
            data,
            reader.ParseOptions(
                delimiter=self.sep,
                quote_char=self.quote if has_quotes else False,
                escape_char=self.escape or False,
                newlines_in_values=has_quotes,
            ),
            {"column_names": list(self.columns), "skip_rows_after_names": skips},
        )
        convert = functools.partial(
            reader.ConvertOptions,
            include_columns=list(self.wanted),
            null_values=list(MISSING),
            true_values=["True", "TRUE", "true"],
            false_values=["False", "FALSE", "false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        )
        table = read(convert(column_types=types))
        again = dict.fromkeys(self._not_numbers(data, table, types, read), pyarrow.string())
        again |= self._large_numbers(table, types, read, convert)
        return read(convert(column_types={**types, **again})) if again else table

    @staticmethod
    def _not_numbers(data: bytes, table: Any, types: dict[str, Any], read: Any) -> list[str]:
        """Columns that Arrow took for more than texts, and pandas does not: hexadecimal numbers, times of day."""
        kinds = arrow("types")
        found = [field.name for field in table.schema if kinds.is_time(field.type)]
        if any(x in data and b"0" + x in data for x in (b"x", b"X")):  # One byte is found faster.
            whole = [f.name for f in table.schema if kinds.is_integer(f.type)]
            whole = [name for name in whole if name not in types]
            texts = read(
                arrow("csv").ConvertOptions(
                    include_columns=whole, column_types=dict.fromkeys(whole, arrow().string())
                )
            )
            is_hex = arrow("compute").match_substring_regex
            found += [n for n in whole if arrow("compute").any(is_hex(texts[n], "0[xX]")).as_py()]
        return [name for name in found if name not in types]

    @staticmethod
    def _large_numbers(
        table: Any, types: dict[str, Any], read: Any, convert: Any
    ) -> dict[str, Any]:
        """The types of columns whose numbers are all whole; Arrow takes those beyond an int64 for floats."""
        floats = [
            field.name
            for field, column in zip(table.schema, table.columns, strict=True)
            if field.name not in types
            and arrow("types").is_float64(field.type)
            and (arrow("compute").max(arrow("compute").abs(column)).as_py() or 0) >= 2**63
        ]
        if not floats:
            return {}
        kinds = dict.fromkeys(floats, arrow().string())
        texts = read(convert(include_columns=floats, column_types=kinds))
        found = {name: _whole_type(texts[name].to_pylist()) for name in floats}
        return {name: kind for name, kind in found.items() if kind is not None}

    def _after_header(self, piece: Piece, data: bytes) -> bytes:
        """Some of the bytes that follow the names, which must be those of the first file."""
        end = self.record_end(data, in_quotes=False)
        found = self._first(data[:end])
        if found and tuple(found) != self.header:
            raise InvalidArgumentError(
                f"{piece.path} has the columns {found}, and the first file has {list(self.header)}; "
                "read files with other columns by themselves"
            )
        return b"" if end is None and b"\r" not in data else data[end : (end or 0) + _BLOCK]

    def _plain(self, data: bytes) -> bytes:
        """Without what is no record."""
        data = data.removeprefix(MARK)
        if self.comment is not None:
            mark = self.comment.encode()
            data = b"".join(x for x in data.splitlines(True) if not x.startswith(mark))
        return data.lstrip(b"\r\n")

    # --- quotes

    @functools.cached_property
    def _tail(self) -> re.Pattern[bytes]:
        """What follows an opening quote; its last group is empty when no quote closes it."""
        quote = re.escape(self.quote.encode())
        parts = rb"[^Q]*(?:QQ[^Q]*)*(Q?)"
        if self.escape:
            escape = re.escape(self.escape.encode())
            parts = rb"(?:[^Q%b]|%b.|QQ)*(Q?)" % (escape, escape)
        return re.compile(parts.replace(b"Q", quote), re.DOTALL)

    @functools.cached_property
    def _field(self) -> re.Pattern[bytes]:
        """A field in quotes: they are at its begin, or mean themselves."""
        return re.compile(self._opening.pattern + self._tail.pattern, re.DOTALL)

    def open_quote(self, data: bytes, at: int = 0) -> int | None:
        """Where a field in quotes begins that does not end."""
        if not self.quote or self.quote.encode() not in data:
            return None
        if self.escape:
            return self._open_field(data, at)
        text = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(text[at:] == ord(self.quote)) + at
        before = text[quotes - 1]
        begins = np.isin(before, np.frombuffer(f"{self.sep}\r\n".encode(), np.uint8)) | (
            quotes == 0
        )
        # Every second quote begins a field, or is the second one of a pair that means a quote.
        fits = begins | (before == ord(self.quote))
        first = 0
        for _ in range(_STRAY):
            wrong = np.flatnonzero(~fits[first::2])
            if first < len(begins) and not begins[first]:
                wrong = np.array([0])
            if len(wrong) == 0:
                is_open = (len(quotes) - first) % 2 == 1
                return int(quotes[np.flatnonzero(begins)[-1]]) if is_open else None
            first += 2 * int(wrong[0]) + 1  # One in the middle of a field means itself.
        return self._open_field(data, int(quotes[first])) if first < len(quotes) else None

    def _open_field(self, data: bytes, at: int) -> int | None:
        last = collections.deque(self._field.finditer(data, at), maxlen=1)
        return last[0].start() if last and not last[0].group(1) else None

    def check_quotes(self, piece: Piece, data: bytes, at: int) -> None:
        """Whether all quotes end."""
        if (found := self._open_field(data, 0) if self.quote else None) is not None:
            line = piece.line(at) + data.count(b"\n", 0, found)
            raise UnavailableError(
                f"{piece.path}: line {line}: a quote ({self.quote}) begins here and does not end; mend it, "
                "or give another quotechar"
            )

    def is_open(self, data: bytes, in_quotes: bool) -> bool:
        """Whether the end is inside of quotes, if the begin is, or is not."""
        if not self.quote or self.quote.encode() not in data:
            return in_quotes
        if not in_quotes:
            return self.open_quote(data) is not None
        closed = self._tail.match(data)
        if closed is None or not closed.group(1):
            return True
        return self.open_quote(data, closed.end()) is not None

    def record_end(self, data: bytes, in_quotes: bool = True) -> int | None:
        """Where the record ends that ``data`` begins in; None when it does not."""
        at = 0
        if in_quotes:
            closed = self._tail.match(data)
            if closed is None or not closed.group(1):
                return None
            at = closed.end()
        while True:
            newline = data.find(b"\n", at)
            end = newline if newline >= 0 else len(data)
            field = self._opening.search(data, at, end) if self.quote else None
            if field is None:
                return newline + 1 if newline >= 0 else None
            closed = self._tail.match(data, field.end())
            if closed is None or not closed.group(1):
                return None
            at = closed.end()

    @functools.cached_property
    def _opening(self) -> re.Pattern[bytes]:
        sep, quote = re.escape(self.sep.encode()), re.escape(self.quote.encode())
        return re.compile(rb"(?<![^%b\r\n])%b" % (sep, quote))

    # --- records one by one, for messages

    def _records(self, data: bytes) -> Iterator[tuple[int, list[str]]]:
        """The lines where records begin, and their fields."""
        csv.field_size_limit(max(csv.field_size_limit(), len(data) + 1))
        reader = csv.reader(
            io.StringIO(data.decode(errors="replace"), newline=""),
            delimiter=self.sep,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar=self.escape,
        )
        line = 0
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num

    def _rows(self, piece: Piece, data: bytes) -> Iterator[tuple[int, list[str]]]:
        """Records with their lines in ``data``, without the header."""
        blank = data.removeprefix(MARK)
        before = blank[: len(blank) - len(blank.lstrip(b"\r\n"))].count(b"\n")
        text = b"\n" * before + self._plain(data) if piece.begin == 0 else data
        if self.comment is not None:  # Lines that are left out count.
            mark = self.comment.encode()
            lines = data.removeprefix(MARK).splitlines(True)
            text = b"".join(b"\n" if x.startswith(mark) else x for x in lines)
        records = self._records(text)
        if self.has_header and piece.begin == 0:
            next(records, None)
        return records

    def row_line(self, piece: Piece, data: bytes, row: int) -> int:
        """The line where a row begins."""
        found = next(itertools.islice(self._rows(piece, data), row, None), (0, []))
        return found[0]

    def refusal(self, piece: Piece, data: bytes, at: int, error: Exception) -> UnavailableError:
        """File, line and column of what Arrow could not read."""
        text = str(error)
        first = piece.line(at)
        if "Expected" in text and "columns" in text:
            count = len(self.columns)
            for line, fields in self._rows(piece, data):
                if len(fields) != count:
                    return UnavailableError(
                        f"{piece.path}: line {line + first}: Expected {count} columns, got {len(fields)}: "
                        f"{_short(self.sep.join(fields))}"
                    )
        column = re.search(r"In CSV column #(\d+)", text)
        row = re.search(r"Row #(\d+)", text)
        if column is not None and row is not None:
            name = self.columns[int(column[1])]
            skipped = int(self.has_header and piece.begin == 0)
            line = self.row_line(piece, data, int(row[1]) - 1 - skipped) + first
            what = text.partition("CSV conversion error to ")[2]
            kind, _, value = what.partition(": invalid value ")
            return UnavailableError(
                f"{piece.path}: line {line}, column {name!r}: {value or what} is no {kind}; mend it, or "
                "give another dtype"
            )
        return UnavailableError(f"{piece.path}: {text}")


def _check_size(piece: Piece, data: bytes) -> None:
    if len(data) > _MOST:
        remedy = (
            "unpack the file" if piece.is_packed else "look for a line or quotes that do not end"
        )
        raise UnavailableError(
            f"{piece.path}: {len(data)} bytes are to be read at once, and {_MOST} can be; {remedy}"
        )


def _whole_type(texts: list[str | None]) -> Any:
    """The type that whole numbers have, as pandas has it; None if they are not all whole."""
    numbers = [text.strip() for text in texts if text is not None]
    if not all(map(_WHOLE.fullmatch, numbers)):
        return None
    if max(map(len, numbers)) > _DIGITS:
        return arrow().string()
    values = [int(text) for text in numbers]
    if min(values) < -(2**63) or max(values) >= 2**64:
        return large_whole()
    is_plain = len(numbers) == len(texts) and not any(text.startswith("-") for text in numbers)
    return arrow().uint64() if is_plain else arrow().string()


def _read_table(reader: Any, data: bytes, parse: Any, options: Any, convert: Any) -> Any:
    """Reads all at once: columns in one piece become columns of a frame without a copy."""
    return reader.read_csv(
        arrow().BufferReader(arrow().py_buffer(data)),
        reader.ReadOptions(use_threads=False, block_size=len(data) + 1, **options),
        parse,
        convert,
        memory_pool=arrow().system_memory_pool(),  # Arrow's own gives pages back too soon.
    )


def _told_apart(names: list[str]) -> list[str]:
    """Names that all differ, as pandas changes them."""
    given = [name or f"Unnamed: {i}" for i, name in enumerate(names)]
    counts: dict[str, int] = {}
    made: list[str] = []
    for name in given:
        new, count = name, counts.get(name, 0)
        while new in made or (count and new in given):
            new, count = f"{name}.{count or 1}", (count or 1) + 1
        counts[name] = max(count, 1)
        made.append(new)
    return made


def _numbered(fields: list[str]) -> list[str]:
    return [str(i) for i in range(len(fields))]


def _short(text: str, size: int = 80) -> str:
    return text if len(text) <= size else f"{text[:size]}..."


@dataclass(frozen=True)
class JsonText(Text):
    """An object a line."""

    def table(self, piece: Piece, data: bytes, types: dict[str, Any]) -> Any:
        """A table of all objects."""
        _check_size(piece, data)
        pyarrow, reader = arrow(), arrow("json")
        data = data.removeprefix(MARK) if piece.begin == 0 else data
        if not data or data.isspace():
            return pyarrow.schema(list(types.items())).empty_table()
        table = self._read(reader, data, types)
        kinds = arrow("types")
        dates = [f.name for f in table.schema if kinds.is_timestamp(f.type) and f.name not in types]
        texts = dict.fromkeys(dates, pyarrow.string())
        return self._read(reader, data, {**types, **texts}) if texts else table

    @staticmethod
    def _read(reader: Any, data: bytes, types: dict[str, Any]) -> Any:
        schema = arrow().schema(list(types.items())) if types else None
        return reader.read_json(
            arrow().BufferReader(arrow().py_buffer(data)),
            reader.ReadOptions(use_threads=False, block_size=max(_BLOCK, len(data) + 1)),
            reader.ParseOptions(explicit_schema=schema),
        )

    @staticmethod
    def _lines(data: bytes) -> list[tuple[int, bytes]]:
        return [(i, x) for i, x in enumerate(data.removeprefix(MARK).split(b"\n")) if x.strip()]

    def row_line(self, piece: Piece, data: bytes, row: int) -> int:
        """The line of an object."""
        lines = self._lines(data)
        return lines[row][0] if row < len(lines) else 0

    def refusal(self, piece: Piece, data: bytes, at: int, error: Exception) -> UnavailableError:
        """File, line and column of what Arrow could not read."""
        text, first = str(error), piece.line(at)
        for line, object_ in self._lines(data):
            with contextlib.suppress(ValueError):
                if not isinstance(json.loads(object_), dict):
                    return UnavailableError(
                        f"{piece.path}: line {line + first}: {_short(object_.decode(errors='replace'))} is no "
                        'object; give one a line, or set OrcaContext.pandas_read_backend = "pandas"'
                    )
                continue
            try:
                json.loads(object_)
            except ValueError as why:
                column = getattr(why, "colno", 1)
                return UnavailableError(
                    f"{piece.path}: line {line + first}, column {column}: {why}"
                )
        row = re.search(r"in row (\d+)", text)
        place = f"line {self.row_line(piece, data, int(row[1])) + first}: " if row else ""
        return UnavailableError(f"{piece.path}: {place}{text}")


def common(kinds: list[Any]) -> Any:
    """The type that all values of a column fit into."""
    pyarrow, types = arrow(), arrow("types")
    known = list(dict.fromkeys(kind for kind in kinds if not types.is_null(kind)))
    if len(known) <= 1:
        return known[0] if known else pyarrow.null()
    if set(known) == {pyarrow.int64(), pyarrow.uint64()}:
        return pyarrow.uint64()
    if large_whole() in known and all(types.is_integer(k) or k == large_whole() for k in known):
        return large_whole()
    if all(types.is_integer(k) or types.is_floating(k) or k == large_whole() for k in known):
        return pyarrow.float64()
    if all(types.is_date(k) or types.is_timestamp(k) for k in known):
        is_fine = any(types.is_timestamp(k) and k.unit == "ns" for k in known)
        zones = {getattr(k, "tz", None) for k in known}
        unit = "ns" if is_fine else "us"
        return pyarrow.timestamp(unit, zones.pop()) if len(zones) == 1 else pyarrow.string()
    if all(types.is_list(k) for k in known):
        return pyarrow.list_(common([k.value_type for k in known]))
    if all(types.is_struct(k) for k in known):
        fields = list(itertools.chain.from_iterable(known))
        names = dict.fromkeys(field.name for field in fields)
        return pyarrow.struct([(n, common([f.type for f in fields if f.name == n])) for n in names])
    return pyarrow.string()

"""CSV, JSON and Parquet files as XShards of frames, read by the workers: many files at once, and parts of large ones.

Example:
    >>> import orca
    >>> from orca.data.pandas import read_csv
    >>> with orca.init_orca_context("local", cores=1):  # doctest: +SKIP
    ...     shards = read_csv("data/*.csv")
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import itertools
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from orca.context import current_context
from orca.data.cells import Cell
from orca.data.file import where
from orca.data.plain_csv import read_plain
from orca.data.records import CsvText, JsonText, Piece, Text, arrow, common, large_whole, open_file
from orca.data.xshards import SparkXShards, bind_root, on_workers
from orca.errors import InvalidArgumentError, UnavailableError
from orca.generations import ORCA, Generation

__all__ = ["bind"]

_CHUNK = 4 << 20  # Bytes of a file that are worth a task of their own.
# What is made of so many bytes fits into memory that malloc keeps; more of it would be fresh pages every time.
_LARGE_CHUNK = 16 << 20
_ARROW_READS = ("header", "sep", "delimiter", "quotechar", "escapechar", "comment", "names")


def bind(generation: Generation, settings: Any = None) -> tuple[Any, Any, Any]:
    """``read_csv``, ``read_json`` and ``read_parquet`` of an import root."""

    def backend() -> str:
        return str(getattr(settings, "pandas_read_backend", "spark"))

    def read_csv(file_path: Any, **kwargs: Any) -> SparkXShards:
        """CSV files as XShards of frames.

        Args:
            file_path: A file, a folder, a pattern, or a list of them; also ``hdfs://`` and ``s3://``.
            **kwargs: With ``OrcaContext.pandas_read_backend = "pandas"`` those of pandas. Else
                ``header`` ("infer", 0 or None), ``names``, ``usecols``, ``dtype``, ``squeeze``, ``index_col``,
                ``sep``, ``quotechar``, ``escapechar`` and ``comment``.
        """
        with generation.errors():
            made = bind_root(generation)[1]
            if backend() == "pandas":
                return _read_by_pandas(made, file_path, "read_csv", kwargs)
            return _read_csv(made, file_path, dict(kwargs))

    def read_json(file_path: Any, **kwargs: Any) -> SparkXShards:
        """JSON files as XShards of frames: an object a line, or with the pandas backend what pandas reads."""
        with generation.errors():
            made = bind_root(generation)[1]
            if backend() == "pandas":
                return _read_by_pandas(made, file_path, "read_json", kwargs)
            return _read_json(made, file_path, dict(kwargs))

    def read_parquet(
        file_path: Any, columns: Any = None, schema: Any = None, **options: Any
    ) -> SparkXShards:
        """Parquet files as XShards of frames, one a group of rows.

        Args:
            file_path: A file, a folder, a pattern, or a list of them. Folders ``key=value`` below a folder
                make columns, after the others: whole numbers where all values are, else texts.
            columns: To read; all unless given.
            schema: Types that the columns get: ``"a INT, b DOUBLE"``, or a StructType of Spark.
            **options: Of Spark's reader; none has an effect here, which is said.
        """
        with generation.errors():
            if options:
                generation.has_no_effect(
                    f"{', '.join(options)}: options of Spark's Parquet reader have no effect; leave them out"
                )
            made = bind_root(generation)[1]
            columns = [columns] if isinstance(columns, str) else columns
            groups = _row_groups(_parquet_files(file_path), columns)
            types = _schema(schema)
            read = functools.partial(_parse_parquet, columns=columns, types=types)
            return made._of(on_workers([[g] for g in groups], read, keep=True))

    return read_csv, read_json, read_parquet


# --- files


def _files(paths: Any) -> list[tuple[str, int]]:
    """All files with their sizes, in the order of their names."""
    listed = paths if isinstance(paths, list | tuple) else [paths]
    found = list(itertools.chain.from_iterable(_expanded(os.fspath(path)) for path in listed))
    if not found:
        raise InvalidArgumentError("The file path is invalid or empty, please check your data")
    return found


def _expanded(path: str) -> list[tuple[str, int]]:
    path = path.removeprefix("file://")
    if "://" in path:
        fs = arrow("fs")
        filesystem, inside = where(path)
        root = path[: len(path) - len(inside)] if path.endswith(inside) else ""
        info = filesystem.get_file_info(inside)
        if info.type == fs.FileType.File:
            return [(path, info.size)]
        listed = filesystem.get_file_info(fs.FileSelector(inside))
        return [(root + i.path, i.size) for i in listed if i.is_file and _is_data(i.base_name)]
    names = sorted(glob.glob(path)) if glob.has_magic(path) else [path]  # noqa: PTH207
    found: list[Path] = []
    for name in map(Path, names):
        if name.is_dir():
            found += sorted(f for f in name.iterdir() if f.is_file() and _is_data(f.name))
        elif name.exists():
            found.append(name)
        else:
            raise FileNotFoundError(f"No such file or directory: {name}")
    return [(str(name), name.stat().st_size) for name in found]


def _is_data(name: str) -> bool:
    return not name.startswith(("_", "."))


def _pieces(files: list[tuple[str, int]]) -> list[Piece]:
    """Parts of about equal size, so that all workers end at the same time."""
    cores = int(current_context().native.cores)
    total = sum(size for _, size in files)
    wanted = min(max(_CHUNK, total // (cores * 4) + 1), max(_LARGE_CHUNK, total // 256))
    pieces = []
    for path, size in files:
        count = -(-size // wanted) if size > wanted else 1
        if count > 1 and len(files) == 1:
            count = -(-count // cores) * cores
        if Piece(path, 0, size).is_packed:
            count = 1
        bounds = [size * i // count for i in range(count + 1)]
        pieces += [Piece(path, a, b) for a, b in itertools.pairwise(bounds)]
    return pieces


# --- pandas' own readers: one task a file


def _read_by_pandas(made: Any, path: Any, reader: str, options: dict[str, Any]) -> SparkXShards:
    files = _files(path)
    count = min(len(files), int(current_context().native.cores))
    bounds = [len(files) * i // count for i in range(count + 1)]
    parts = [files[a:b] for a, b in itertools.pairwise(bounds)]
    read = functools.partial(_pandas_frames, reader=reader, options=options)
    return made._of(on_workers(parts, read, keep=True))


def _pandas_frames(files: list[tuple[str, int]], reader: str, options: dict[str, Any]) -> list[Any]:
    pandas = importlib.import_module("pandas")
    frames = []
    for path, _ in files:
        try:
            frames.append(getattr(pandas, reader)(path, **options))
        except ValueError as error:  # Of its parser and of codecs, too: these words stay.
            raise UnavailableError(f"{path}: pandas.{reader} says: {error}") from error
    return [pandas.concat(frames) if len(frames) > 1 else frames[0]]


# --- parts of files, by pyarrow


def _read_csv(made: Any, path: Any, options: dict[str, Any]) -> SparkXShards:
    if not options.pop("mangle_dupe_cols", True):
        raise InvalidArgumentError("mangle_dupe_cols can only be True")
    if options.pop("parse_dates", False):
        raise InvalidArgumentError("parse_dates can only be False")
    names = options.get("names")
    rest = {k: options.pop(k, None) for k in ("usecols", "dtype", "index_col")} | {"names": names}
    squeeze = options.pop("squeeze", False)
    header = options.get("header", "infer")
    if header == "infer":
        header = 0 if names is None else None
    if header not in (0, None) or isinstance(header, bool):
        raise InvalidArgumentError(f"Unknown header argument {header}")
    _check_characters(options)
    _refuse({k: v for k, v in options.items() if k not in _ARROW_READS}, "read_csv")
    given: dict[str, Any] = {}
    if isinstance(names, str):
        given = _schema(names) or {}
        rest["names"] = list(given)
    pieces = _pieces(_files(path))
    text = CsvText(
        sep=options.get("sep", options.get("delimiter")) or ",",
        quote=options.get("quotechar", '"') or "",
        escape=options.get("escapechar"),
        comment=options.get("comment"),
        has_header=header == 0,
    ).looked_at(pieces)
    if not text.columns:
        raise InvalidArgumentError(
            f"The file path is invalid or empty, please check your data: {path} has no columns"
        )
    finish = _finisher(list(text.columns), rest, squeeze)
    types = dict(zip(text.columns, given.values(), strict=False))
    if finish is not None:
        text = replace(text, wanted=tuple(finish.chosen))
        types |= finish.arrow_types()
    return made._of([[cell] for cell in _consistent(pieces, text, types, finish)])


def _check_characters(options: dict[str, Any]) -> None:
    comment = options.get("comment")
    if comment is not None and (not isinstance(comment, str) or len(comment) != 1):
        raise InvalidArgumentError("Only length-1 comment characters supported")
    for name in ("sep", "delimiter", "quotechar", "escapechar"):
        value = options.get(name)
        if value and (not isinstance(value, str) or len(value.encode()) != 1):
            raise InvalidArgumentError(
                f"{name} is {value!r}; give one character of ASCII, or set "
                'OrcaContext.pandas_read_backend = "pandas"'
            )


def _read_json(made: Any, path: Any, options: dict[str, Any]) -> SparkXShards:
    rest = {k: options.pop(k, None) for k in ("names", "usecols", "dtype", "index_col")}
    squeeze = options.pop("squeeze", False)
    _refuse(options, "read_json")
    pieces = _pieces(_files(path))
    text = JsonText()
    frames = made._of([[cell] for cell in _consistent(pieces, text, {}, None)])
    finish = _finisher(list(frames.first().columns), rest, squeeze)
    if finish is None:
        return frames  # type: ignore[no-any-return]
    parts = [[*part, piece] for part, piece in zip(frames._partitions(), pieces, strict=True)]
    work = functools.partial(_finished, text=text, finish=finish)
    return made._of(on_workers(parts, work, keep=True))  # type: ignore[no-any-return]


def _finished(values: list[Any], text: Text, finish: _Finish) -> list[Any]:
    frame, piece = values
    try:
        return [finish(frame)]
    except _WrongValueError as error:
        raise _refused(error, text, piece, *piece.lines()) from error


@dataclass(frozen=True)
class _Part:
    """What a worker found in a piece.

    Attributes:
        frame: The rows, in shared memory.
        rows: How many they are.
        kinds: Types of the columns, and whether values are missing.
        is_open: Whether quotes are open at the end, if they are not where it begins.
        error: Why there are no rows, if the piece begins where a record does.
    """

    frame: Cell | None
    rows: int
    kinds: dict[str, tuple[Any, bool]]
    is_open: bool
    error: Exception | None = None


def _consistent(
    pieces: list[Piece], text: Text, given: dict[str, Any], finish: _Finish | None
) -> list[Cell]:
    """Frames of all pieces, whose columns have the types that fit them all.

    Every piece is read as if no quotes were open where it begins, and with the types of its own values. Those
    that this was wrong for are read again.
    """
    read = functools.partial(_parsed, text=text, finish=finish)
    work = functools.partial(read, types=given, loose=frozenset())
    found: list[_Part] = on_workers([[piece] for piece in pieces], work, keep=False)
    cut = pieces
    if any(part.is_open for part in found):
        inside = on_workers(
            [[p] for p in pieces], functools.partial(_stays_open, text=text), keep=False
        )
        cut = _with_states(pieces, [(p.is_open, i) for p, i in zip(found, inside, strict=True)])
    wrong = [i for i, piece in enumerate(cut) if piece != pieces[i]]
    _read_again(found, cut, wrong, work)
    for part in found:
        if part.error is not None:
            raise part.error
    types, loose = _common_types(found, given)
    types |= _texts_of_signs(found, cut, text, types, given)
    names = list(types)
    different = [
        i
        for i, part in enumerate(found)
        if list(part.kinds) != names
        or any(_differs(*kind, types[name]) for name, kind in part.kinds.items())
        or any(not part.kinds[name][1] for name in loose)
    ]
    _read_again(found, cut, different, functools.partial(read, types=types, loose=loose))
    frames = []
    for part in found:
        if part.error is not None:
            raise part.error
        assert part.frame is not None
        frames.append(part.frame)
    return frames


def _differs(found: Any, misses: bool, wanted: Any) -> bool:
    """Whether a frame has another dtype; where values are missing, whole numbers or all, it has float64."""
    types = arrow("types")
    is_float = misses and (types.is_null(found) or types.is_integer(found))
    return bool(found != wanted and not (is_float and types.is_float64(wanted)))


def _read_again(found: list[_Part], pieces: list[Piece], which: list[int], work: Any) -> None:
    made = on_workers([[pieces[i]] for i in which], work, keep=False)
    for i, part in zip(which, made, strict=True):
        found[i] = part


def _with_states(pieces: list[Piece], states: list[tuple[bool, bool]]) -> list[Piece]:
    """The pieces, which know now whether quotes are open where they begin and end."""
    made = []
    inside = False
    for i, piece in enumerate(pieces):
        inside = inside and piece.begin > 0
        after = states[i][inside]
        is_last = i + 1 == len(pieces) or pieces[i + 1].begin == 0
        made.append(replace(piece, in_quotes=inside, goes_on=after and not is_last))
        inside = after
    return made


def _stays_open(pieces: list[Piece], text: Text) -> bool:
    """Whether quotes are open where a piece ends, if they are where it begins."""
    return text.is_open(pieces[0].lines()[0], in_quotes=True)


def _common_types(
    found: list[_Part], given: dict[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of all columns, and the columns of bool in which values are missing."""
    pyarrow, kinds = arrow(), arrow("types")
    types: dict[str, Any] = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(part.kinds for part in found)):
        seen = [part.kinds[name] for part in found if name in part.kinds]
        misses = any(part.rows and part.kinds.get(name, (None, True))[1] for part in found)
        types[name] = given.get(name) or common([kind for kind, _ in seen])
        is_narrow = kinds.is_integer(types[name]) or kinds.is_null(types[name])
        if name not in given and misses and is_narrow:
            # As pandas has it, which keeps all digits of the largest ones.
            is_large = kinds.is_uint64(types[name])
            types[name] = pyarrow.string() if is_large else pyarrow.float64()
    loose = {
        name
        for name, kind in types.items()
        if kinds.is_boolean(kind) and any(p.rows and p.kinds.get(name, (0, True))[1] for p in found)
    }
    return types, frozenset(loose)


def _texts_of_signs(
    found: list[_Part], pieces: list[Piece], text: Text, types: dict[str, Any], given: Any
) -> dict[str, Any]:
    """Columns that have numbers beyond an int64 in one piece, and in another one some below 0: texts, as in pandas."""
    if not isinstance(text, CsvText):  # The others have no such numbers.
        return {}
    pyarrow = arrow()
    large = [n for n, kind in types.items() if n not in given and kind == pyarrow.uint64()]
    parts = [
        [piece, name]
        for part, piece in zip(found, pieces, strict=True)
        for name in large
        if name in part.kinds and part.kinds[name][0] == pyarrow.int64()
    ]
    signs = on_workers(parts, functools.partial(_has_signs, text=text), keep=False)
    names = [name for (_, name), has_signs in zip(parts, signs, strict=True) if has_signs]
    return dict.fromkeys(names, pyarrow.string())


def _has_signs(values: list[Any], text: CsvText) -> bool:
    """Whether a column of whole numbers has some below 0."""
    piece, name = values
    data, _ = _whole_records(piece, text, *piece.lines())
    types = {name: arrow().int64()}
    (column,) = replace(text, wanted=(name,)).table(piece, data, types).columns
    least = arrow("compute").min(column).as_py()
    return least is not None and least < 0


def _parsed(
    pieces: list[Piece], text: Text, types: dict[str, Any], loose: frozenset[str], finish: Any
) -> _Part:
    """A frame in shared memory, and the types of its columns."""
    (piece,) = pieces
    view, at = piece.view() if isinstance(text, CsvText) else piece.lines()
    plain = read_plain(piece, text, view, types, loose)
    data = b"" if plain else bytes(view)
    is_open = plain is None and text.is_open(data, in_quotes=False)
    data, at = _whole_records(piece, text, data, at)
    try:
        if is_open or piece.in_quotes or piece.goes_on:
            text.check_quotes(piece, data, at)
        frame, kinds = plain or _to_frame(text.table(piece, data, types), types, loose)
        made = Cell(frame if finish is None else finish(frame))
        return _Part(made, len(frame), kinds, is_open)
    except _WrongValueError as error:
        return _Part(None, 0, {}, is_open, _refused(error, text, piece, data or bytes(view), at))
    except (InvalidArgumentError, UnavailableError) as error:
        return _Part(None, 0, {}, is_open, error)
    except (ValueError, KeyError) as error:  # Arrow's errors are ValueErrors.
        return _Part(None, 0, {}, is_open, text.refusal(piece, data, at, error))


def _whole_records(piece: Piece, text: Text, data: bytes, at: int) -> tuple[bytes, int]:
    if not isinstance(text, CsvText):
        return data, at
    end = at + len(data)
    if piece.in_quotes:
        first = text.record_end(data)
        if first is None:
            return b"", end
        data, at = data[first:], at + first
    return (data + piece.following(text, end), at) if piece.goes_on else (data, at)


def _to_frame(table: Any, given: dict[str, Any], loose: frozenset[str]) -> tuple[Any, Any]:
    """A frame with the dtypes of pandas, and what is known of its columns."""
    pyarrow, types = arrow(), arrow("types")
    if given and set(given) >= set(table.column_names):
        table = table.select([name for name in given if name in table.column_names])
    kinds, fields, objects = {}, [], []
    wholes = [field.name for field in table.schema if field.type == large_whole()]
    for i, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        kind, misses = field.type, column.null_count > 0
        if types.is_binary(kind):
            row = next(i for i, value in enumerate(column) if not _is_text(value.as_py()))
            raise _WrongValueError(row, field.name, column[row].as_py(), "UTF-8")
        if field.name not in given and types.is_date(kind):
            kind = pyarrow.timestamp("us")
        elif field.name not in given and types.is_timestamp(kind) and kind.unit in ("s", "ms"):
            kind = pyarrow.timestamp("us", kind.tz)
        elif field.name not in given and misses and (types.is_integer(kind) or types.is_null(kind)):
            kind = pyarrow.float64()  # A frame has no other type for missing numbers.
            table = table.set_column(i, field.with_type(kind), column.cast(kind, safe=False))
        if types.is_boolean(kind) and (misses or field.name in loose):
            objects.append(field.name)
        # A column without any value may yet become one of any type, and whole numbers may meet larger ones.
        may_grow = types.is_null(field.type) or types.is_integer(field.type)
        kinds[field.name] = (field.type if may_grow else kind, misses)
        fields.append(field.with_type(kind))
    frame = table.cast(pyarrow.schema(fields)).to_pandas(split_blocks=True)
    for name in objects:
        column = frame[name].astype(object)
        frame[name] = column.where(column.notna(), float("nan"))
    for name in wholes:
        values = table[name].to_pylist()
        numbers = [float("nan") if value is None else int(value) for value in values]
        frame[name] = np.array(numbers, object)
    return frame, kinds


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


class _WrongValueError(Exception):
    """A value that does not fit the type of its column."""

    def __init__(self, row: int, column: Any, value: Any, kind: Any) -> None:
        is_missing = value is None or value != value
        super().__init__(f"{'a missing value' if is_missing else repr(value)} is no {kind}")
        self.row, self.column = row, column


def _refused(
    error: _WrongValueError, text: Text, piece: Piece, data: bytes, at: int
) -> UnavailableError:
    line = text.row_line(piece, data, error.row) + piece.line(at)
    return UnavailableError(
        f"{piece.path}: line {line}, column {error.column!r}: {error}; mend it, or give another dtype"
    )


# --- names, columns and types, as pandas has them


def _finisher(columns: list[str], rest: dict[str, Any], squeeze: bool) -> _Finish | None:
    """What is left to do with each frame."""
    names, usecols, dtype = rest["names"], rest["usecols"], rest["dtype"]
    chosen = columns if usecols is None else _chosen(columns, usecols, names)
    renamed = dict(zip(columns, columns, strict=True))
    if names is not None:
        names = list(names)
        if len(set(names)) != len(names):
            raise InvalidArgumentError("Found duplicate names, please check your names input")
        if len(names) == len(columns):
            renamed = dict(zip(columns, names, strict=True))
        elif usecols is None:
            raise InvalidArgumentError(
                f"The number of names [{len(names)}] does not match the number of columns "
                f"[{len(columns)}]. Try names by a Spark SQL DDL-formatted string."
            )
        elif len(names) != len(chosen):
            raise InvalidArgumentError("Passed names did not match usecols")
        else:
            renamed = dict(zip(chosen, names, strict=True))
    final = [renamed.get(name, name) for name in chosen]
    kinds = _kinds(dtype, final, [renamed.get(name, name) for name in columns])
    if final == columns and not kinds and not squeeze and rest["index_col"] is None:
        return None
    return _Finish(chosen, final, kinds, squeeze, rest["index_col"])


@dataclass(frozen=True)
class _Finish:
    """Columns, names and types that the user asked for.

    Attributes:
        chosen: The columns, as the file calls them.
        final: As the frame calls them.
        kinds: Types by final name.
        squeeze: Whether one column becomes a Series.
        index: The column that is the index.
    """

    chosen: list[str]
    final: list[str]
    kinds: dict[str, Any]
    squeeze: bool
    index: Any

    def arrow_types(self) -> dict[str, Any]:
        """Of columns whose text decides: "007" is no number when a text is wanted."""
        made = {}
        for name, final in zip(self.chosen, self.final, strict=True):
            kind = _arrow_kind(self.kinds.get(final))
            if kind is not None:
                made[name] = kind
        return made

    def __call__(self, frame: Any) -> Any:
        frame = frame[self.chosen].set_axis(self.final, axis=1)
        for name, kind in self.kinds.items():
            try:
                frame[name] = frame[name].astype(kind)
            except (ValueError, TypeError, OverflowError) as error:
                row = _first_wrong(frame[name], kind)
                value = frame[name].iloc[row]
                raise _WrongValueError(row, name, value, _dtype(kind)) from error
        if self.index is not None:
            frame = frame.set_index(
                self.final[self.index] if isinstance(self.index, int) else self.index
            )
        return frame.iloc[:, 0] if self.squeeze and frame.shape[1] == 1 else frame


def _arrow_kind(dtype: Any) -> Any:
    """What to parse texts as for a dtype; None where the values decide."""
    if dtype is None:
        return None
    kind = _dtype(dtype)
    if kind.kind in "iu" and isinstance(kind, np.dtype):
        return getattr(arrow(), kind.name)()
    if kind.kind == "f" and isinstance(kind, np.dtype):
        return arrow().float64()
    return (
        arrow().string() if kind.kind == "O" and str(kind) in ("str", "object", "string") else None
    )


def _dtype(dtype: Any) -> Any:
    try:
        return importlib.import_module("pandas").api.types.pandas_dtype(dtype)
    except TypeError as error:
        raise InvalidArgumentError(f"dtype {dtype!r} is not known: {error}") from error


def _first_wrong(column: Any, kind: Any) -> int:
    for row in range(len(column)):
        try:
            column.iloc[row : row + 1].astype(kind)
        except (ValueError, TypeError, OverflowError):
            return row
    return 0


def _chosen(columns: list[str], usecols: Any, names: Any) -> list[str]:
    if callable(usecols):
        return [name for name in columns if usecols(name)]
    wanted = list(usecols)
    if all(isinstance(name, int) for name in wanted):
        missing = [i for i in wanted if not 0 <= i < len(columns)]
        found = [name for i, name in enumerate(columns) if i in wanted]
    elif all(isinstance(name, str) for name in wanted):
        known = list(names) if names is not None and len(names) == len(columns) else columns
        missing = [name for name in wanted if name not in known]
        found = [c for c, name in zip(columns, known, strict=True) if name in wanted]
    else:
        raise InvalidArgumentError(
            "usecols must only be list-like of all strings, all unicode, all integers or a callable."
        )
    if missing:
        raise InvalidArgumentError(
            f"usecols do not match columns, columns expected but not found: {missing}"
        )
    return found


def _kinds(dtype: Any, final: list[str], every: list[str]) -> dict[str, Any]:
    if dtype is None:
        return {}
    if not isinstance(dtype, dict):
        return dict.fromkeys(final, dtype)
    kinds = {}
    for key, kind in dtype.items():
        if isinstance(key, int) and not isinstance(key, bool):
            if not 0 <= key < len(every) or every[key] not in final:
                raise InvalidArgumentError(
                    "column index to be set type is not in current dataframe"
                )
            kinds[every[key]] = kind
        elif key in final:
            kinds[key] = kind
        else:
            raise InvalidArgumentError("column to be set type is not in current dataframe")
    return kinds


def _refuse(options: dict[str, Any], what: str) -> None:
    if options:
        raise InvalidArgumentError(
            f"{what} does not know {', '.join(sorted(options))} with the spark backend; set "
            'OrcaContext.pandas_read_backend = "pandas" for all options of pandas'
        )


# --- Parquet


_Keys = dict[str, Any]
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _Group:
    """Rows of a Parquet file; of one without groups of rows, none."""

    path: str
    number: int | None
    first: int
    rows: int
    keys: _Keys


def _parquet_files(paths: Any) -> list[tuple[str, _Keys]]:
    """All files, each with the values of its folders as columns of one row."""
    listed = [os.fspath(p) for p in (paths if isinstance(paths, list | tuple) else [paths])]
    found: list[tuple[str, dict[str, str | None]]] = []
    for path in listed:
        found += [(name, {}) for name, _ in _expanded(path)]
        found += _keyed(path)
    if not found:
        raise InvalidArgumentError("The file path is invalid or empty, please check your data")
    names = list(found[-1][1])
    for path, keys in found:
        if list(keys) != names:
            raise InvalidArgumentError(
                f"{path} has the folders {list(keys)} above it, and {found[-1][0]} has {names}; give "
                "folders of one kind at a time"
            )
    typed = {name: _typed_keys([keys[name] for _, keys in found]) for name in names}
    return [(path, {n: typed[n][i : i + 1] for n in names}) for i, (path, _) in enumerate(found)]


def _keyed(path: str) -> list[tuple[str, dict[str, str | None]]]:
    """The files in folders ``key=value`` below a folder, in the order of their names."""
    path = path.removeprefix("file://")
    if "://" in path:
        fs = arrow("fs")
        filesystem, inside = where(path)
        if filesystem.get_file_info(inside).type != fs.FileType.Directory:
            return []
        listed = filesystem.get_file_info(fs.FileSelector(inside, recursive=True))
        names = sorted(info.path[len(inside) :].lstrip("/") for info in listed if info.is_file)
        below = [(f"{path.rstrip('/')}/{name}", name) for name in names]
    else:
        roots = sorted(glob.glob(path)) if glob.has_magic(path) else [path]  # noqa: PTH207
        below = [
            (str(file), str(file.relative_to(root)))
            for root in roots
            for file in sorted(Path(root).glob("*=*/**/*"))
            if file.is_file()
        ]
    found = []
    for whole, name in below:
        *folders, last = name.split("/")
        pairs = [folder.partition("=") for folder in folders]
        if pairs and _is_data(last) and all(key and sign for key, sign, _ in pairs):
            found.append((whole, {unquote(k): unquote(v) for k, _, v in pairs}))
    return [(f, {k: None if v == _NO_VALUE else v for k, v in keys.items()}) for f, keys in found]


def _typed_keys(values: list[str | None]) -> Any:
    """A column as Spark types it: whole numbers where all values are, else texts."""
    pyarrow = arrow()
    texts = pyarrow.array(values, pyarrow.string())
    if all(v is None or re.fullmatch(r"[+-]?[0-9]+", v) for v in values):
        for kind in (pyarrow.int32(), pyarrow.int64()):
            with contextlib.suppress(ValueError):
                numbers = pyarrow.array([None if v is None else int(v) for v in values]).cast(kind)
                # A frame has one dtype, whichever files have no value.
                return (
                    numbers.cast(pyarrow.float64(), safe=False) if numbers.null_count else numbers
                )
    return texts


def _row_groups(files: list[tuple[str, _Keys]], columns: Any) -> list[_Group]:
    groups = []
    for path, keys in files:
        with open_file(path) as file:
            try:
                found = arrow("parquet").ParquetFile(file)
            except (ValueError, OSError) as error:
                raise UnavailableError(
                    f"{path}: {error}; its footer is damaged, or it is no Parquet file"
                ) from error
            _check_known(path, columns, [*found.schema_arrow.names, *keys])
            sizes = [found.metadata.row_group(i).num_rows for i in range(found.num_row_groups)]
        starts = itertools.accumulate(sizes, initial=0)
        groups += [_Group(path, i, at, n, keys) for i, (at, n) in enumerate(zip(starts, sizes))]  # noqa: B905
        if not sizes:
            groups.append(_Group(path, None, 0, 0, keys))
    return groups


def _check_known(path: str, columns: Any, known: list[str]) -> None:
    for name in columns or ():
        if name not in known:
            raise InvalidArgumentError(f"{path} has no column {name!r}; it has {known}")


def _parse_parquet(groups: list[_Group], columns: Any, types: Any) -> list[Any]:
    (group,) = groups
    inside = None if columns is None else [name for name in columns if name not in group.keys]
    with open_file(group.path) as file:
        parquet = arrow("parquet").ParquetFile(file, page_checksum_verification=True)
        if group.number is None:
            table = parquet.read(columns=inside)
        else:
            table = _read_group(parquet, group, inside)
    if group.keys:
        table = _with_keys(table, group, columns)
    if types:
        fields = [field.with_type(types.get(field.name, field.type)) for field in table.schema]
        try:
            table = table.cast(arrow().schema(fields))
        except ValueError as error:
            raise UnavailableError(f"{group.path}: {error}; give another schema") from error
    return [table.to_pandas()]


def _with_keys(table: Any, group: _Group, columns: Any) -> Any:
    rows = np.zeros(group.rows, np.int64)
    table = table.drop_columns([name for name in group.keys if name in table.column_names])
    for name, value in group.keys.items():
        table = table.append_column(name, value.take(rows))
    return table if columns is None else table.select(columns)


def _read_group(parquet: Any, group: _Group, columns: Any) -> Any:
    try:
        return parquet.read_row_group(group.number, columns=columns, use_threads=False)
    except (ValueError, OSError) as error:
        for name in columns or parquet.schema_arrow.names:
            try:
                parquet.read_row_group(group.number, columns=[name], use_threads=False)
            except (ValueError, OSError) as why:
                raise UnavailableError(
                    f"{group.path}: rows {group.first} to {group.first + group.rows - 1}, column {name!r}: "
                    f"{why}; the file is damaged"
                ) from error
        raise


_DDL = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "boolean": "bool_",
}


def _schema(schema: Any) -> dict[str, Any] | None:
    """Types by name, of a DDL text or a StructType of Spark."""
    if schema is None:
        return None
    text = (
        schema
        if isinstance(schema, str)
        else ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    )
    pyarrow = importlib.import_module("pyarrow")
    found = {}
    for part in text.split(","):
        name, _, kind = part.strip().partition(" ")
        if kind.strip().lower() not in _DDL:
            raise InvalidArgumentError(
                f"type {kind.strip()!r} of column {name!r} is not known; there are {', '.join(_DDL)}"
            )
        found[name] = getattr(pyarrow, _DDL[kind.strip().lower()])()
    return found


read_csv, read_json, read_parquet = bind(ORCA)

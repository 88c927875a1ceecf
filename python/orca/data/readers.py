"""CSV, JSON and Parquet files as XShards of frames, read by the workers: many files at once, and parts of large ones.

Example:
    >>> import orca
    >>> from orca.data.pandas import read_csv
    >>> with orca.init_orca_context("local", cores=1):  # doctest: +SKIP
    ...     shards = read_csv("data/*.csv")
"""

from __future__ import annotations

import functools
import glob
import importlib
import io
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca.context import current_context
from orca.data.file import where
from orca.data.xshards import Cell, SparkXShards, bind_root, on_workers
from orca.errors import InvalidArgumentError, UnavailableError
from orca.generations import ORCA, Generation

__all__ = ["bind"]

_CHUNK = 8 << 20  # Bytes of a file that are worth a task of their own.
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
                ``sep``, ``quotechar``, ``escapechar`` and ``comment``; a line is a record.
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
            rest = {k: kwargs.pop(k, None) for k in ("names", "usecols", "dtype", "index_col")}
            squeeze = kwargs.pop("squeeze", False)
            _refuse(kwargs, "read_json")
            chunks = _chunks(_files(file_path))
            tables = _consistent(chunks, _parse_json, {})
            return _finished(made, tables, rest, squeeze, header=0)

    def read_parquet(
        file_path: Any, columns: Any = None, schema: Any = None, **options: Any
    ) -> SparkXShards:
        """Parquet files as XShards of frames, one a group of rows.

        Args:
            file_path: A file, a folder, a pattern, or a list of them.
            columns: To read; all unless given.
            schema: Types that the columns get: ``"a INT, b DOUBLE"``, or a StructType of Spark.
            **options: Accepted; there are none to set.
        """
        with generation.errors():
            made = bind_root(generation)[1]
            groups = _row_groups(_files(file_path))
            types = _schema(schema)
            read = functools.partial(_parse_parquet, columns=columns, types=types)
            return made._of(on_workers([[g] for g in groups], read, keep=True))

    return read_csv, read_json, read_parquet


# --- files


@dataclass(frozen=True)
class Piece:
    """Bytes of a file."""

    path: str
    begin: int
    end: int
    size: int

    def open(self) -> Any:
        """The file."""
        if "://" not in self.path:
            return Path(self.path).open("rb")
        filesystem, path = where(self.path)
        return filesystem.open_input_file(path)

    def lines(self) -> bytes:
        """The lines that begin in it."""
        with self.open() as file:
            begin = self.begin
            if begin:
                file.seek(begin - 1)
                begin += len(file.readline()) - 1
            if begin >= self.end:
                return b""
            file.seek(begin)
            data: bytes = file.read(self.end - begin)
            if not data.endswith(b"\n"):
                data += file.readline()
            return data


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ModuleNotFoundError as error:
        raise ImportError("reading files needs pyarrow; run 'pip install pyarrow'") from error


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
        fs = _arrow("fs")
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


def _chunks(files: list[tuple[str, int]]) -> list[Piece]:
    cores = int(current_context().native.cores)
    total = sum(size for _, size in files)
    wanted = max(_CHUNK, total // (cores * 4) + 1)
    pieces = []
    for path, size in files:
        count = 1 if _is_packed(path) else max(1, size // wanted)
        bounds = [size * i // count for i in range(count + 1)]
        pieces += [Piece(path, a, b, size) for a, b in itertools.pairwise(bounds)]
    return pieces


def _is_packed(path: str) -> bool:
    return path.endswith((".gz", ".bz2", ".xz", ".zst"))


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
    frames = [getattr(pandas, reader)(path, **options) for path, _ in files]
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
    comment = options.get("comment")
    if comment is not None and (not isinstance(comment, str) or len(comment) != 1):
        raise InvalidArgumentError("Only length-1 comment characters supported")
    _refuse({k: v for k, v in options.items() if k not in _ARROW_READS}, "read_csv")
    types: dict[str, Any] = {}
    if isinstance(names, str):
        types = _schema(names) or {}
        rest["names"] = list(types)
    chunks = _chunks(_files(path))
    how = _Csv(
        sep=options.get("sep", options.get("delimiter", ",")),
        quote=options.get("quotechar", '"'),
        escape=options.get("escapechar"),
        comment=comment,
        has_header=header == 0,
        columns=(),
    )
    how = _with_columns(how, chunks)
    given = {str(i): kind for i, kind in enumerate(types.values())} if header is None else types
    return _finished(made, _consistent(chunks, how, given), rest, squeeze, header)


@dataclass(frozen=True)
class _Csv:
    """How lines become columns."""

    sep: str
    quote: str
    escape: str | None
    comment: str | None
    has_header: bool
    columns: tuple[str, ...]

    def __call__(self, piece: Piece, data: bytes, types: dict[str, Any]) -> Any:
        csv = _arrow("csv")
        if self.comment is not None:
            mark = self.comment.encode()
            data = b"".join(x for x in data.splitlines(True) if not x.startswith(mark))
        if self.has_header and piece.begin == 0:
            data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
        if not data.strip():
            kinds = [(name, types.get(name, _arrow_type("null"))) for name in self.columns]
            return importlib.import_module("pyarrow").schema(kinds).empty_table()
        return csv.read_csv(
            io.BytesIO(data),
            csv.ReadOptions(column_names=list(self.columns), use_threads=False),
            csv.ParseOptions(
                delimiter=self.sep, quote_char=self.quote, escape_char=self.escape or False
            ),
            csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )


def _with_columns(how: _Csv, chunks: list[Piece]) -> _Csv:
    """Looks at the first line of the first file that has one."""
    csv = _arrow("csv")
    for piece in chunks:
        if piece.begin or not piece.size:
            continue
        with _unpacked(piece) as file:
            line = file.readline()
            while how.comment is not None and line.startswith(how.comment.encode()):
                line = file.readline()
        parse = csv.ParseOptions(
            delimiter=how.sep, quote_char=how.quote, escape_char=how.escape or False
        )
        row = csv.read_csv(
            io.BytesIO(line or b"\n"),
            csv.ReadOptions(autogenerate_column_names=True),
            parse,
            csv.ConvertOptions(strings_can_be_null=False, null_values=[]),
        )
        texts = [str(column[0].as_py()) for column in row.columns] if row.num_rows else []
        if how.has_header:  # Read again as texts: "1.0" is a name as it is written.
            kinds = {name: _arrow_type("string") for name in row.column_names}
            row = csv.read_csv(
                io.BytesIO(line),
                csv.ReadOptions(autogenerate_column_names=True),
                parse,
                csv.ConvertOptions(column_types=kinds, strings_can_be_null=False),
            )
            texts = [column[0].as_py() for column in row.columns]
        names = texts if how.has_header else [str(i) for i in range(len(row.column_names))]
        return _Csv(how.sep, how.quote, how.escape, how.comment, how.has_header, tuple(names))
    return how


def _unpacked(piece: Piece) -> Any:
    if not _is_packed(piece.path):
        return piece.open()
    return io.BufferedReader(_arrow("lib").input_stream(piece.path))


def _parse_json(piece: Piece, data: bytes, types: dict[str, Any]) -> Any:
    pyarrow, json = importlib.import_module("pyarrow"), _arrow("json")
    if not data.strip():
        return pyarrow.table({})
    schema = pyarrow.schema(list(types.items())) if types else None
    return json.read_json(
        io.BytesIO(data),
        json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(data) + 1)),
        json.ParseOptions(explicit_schema=schema),
    )


def _consistent(chunks: list[Piece], parse: Any, given: dict[str, Any]) -> list[Any]:
    """Frames of all chunks, whose columns have the types that fit them all."""
    work = functools.partial(_parsed, parse=parse, types=given)
    found = on_workers([[piece] for piece in chunks], work, keep=False)
    types = dict(given)
    for name in dict.fromkeys(itertools.chain.from_iterable(kinds for _, kinds in found)):
        if name not in given:
            types[name] = _common([kinds[name] for _, kinds in found if name in kinds])
    again = [
        i
        for i, (_, kinds) in enumerate(found)
        if any(kinds.get(name) != kind for name, kind in types.items() if name in kinds)
    ]
    work = functools.partial(_parsed, parse=parse, types=types)
    frames = [frame for frame, _ in found]
    for i, (frame, _) in zip(
        again, on_workers([[chunks[i]] for i in again], work, keep=False), strict=True
    ):
        frames[i] = frame
    return frames


def _parsed(pieces: list[Piece], parse: Any, types: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A frame in shared memory, and the types of its columns."""
    (piece,) = pieces
    if _is_packed(piece.path):
        with _unpacked(piece) as file:
            data = file.read()
    else:
        data = piece.lines()
    try:
        table = parse(piece, data, types)
    except (ValueError, KeyError) as error:  # Arrow's errors are ValueErrors.
        has_header = bool(getattr(parse, "has_header", False))
        raise UnavailableError(_explain(piece, error, has_header)) from error
    kinds = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        # A whole number that is missing somewhere has no type in a frame but float64.
        is_whole = importlib.import_module("pyarrow").types.is_integer(kind)
        kinds[name] = _arrow_type("double") if is_whole and column.null_count else kind
    return Cell(_to_frame(table)), kinds


def _explain(piece: Piece, error: Exception, has_header: bool) -> str:
    """Which line of the file it was."""
    text = str(error)
    number = text.partition("Row #")[2].partition(":")[0]
    if number.isdigit():
        before = int(has_header)
        if piece.begin:
            with piece.open() as file:
                before = file.read(piece.begin - 1).count(b"\n") + 1
        text = text.replace(f"Row #{number}", f"line {int(number) + before}")
    return f"{piece.path}: {text}"


def _to_frame(table: Any) -> Any:
    pyarrow = importlib.import_module("pyarrow")
    fields = []
    for field in table.schema:
        kind = field.type
        if pyarrow.types.is_date(kind) or pyarrow.types.is_timestamp(kind):
            kind = pyarrow.timestamp("ns")
        fields.append(field.with_type(kind))
    return table.cast(pyarrow.schema(fields)).to_pandas()


def _arrow_type(name: str) -> Any:
    return getattr(importlib.import_module("pyarrow"), {"double": "float64"}.get(name, name))()


def _common(kinds: list[Any]) -> Any:
    """The type that all values of a column fit into."""
    pyarrow = importlib.import_module("pyarrow")
    known = list(dict.fromkeys(kind for kind in kinds if not pyarrow.types.is_null(kind)))
    if len(known) <= 1:
        return known[0] if known else pyarrow.null()
    is_number = [pyarrow.types.is_integer(k) or pyarrow.types.is_floating(k) for k in known]
    if all(is_number):
        return pyarrow.float64()
    if all(pyarrow.types.is_date(k) or pyarrow.types.is_timestamp(k) for k in known):
        return pyarrow.timestamp("ns")
    return pyarrow.string()


# --- names, columns and types, as pandas has them


def _finished(
    made: Any, frames: list[Any], rest: dict[str, Any], squeeze: bool, header: Any
) -> SparkXShards:
    partitions = made._of([[cell] for cell in frames])
    work = _finisher(list(partitions.first().columns), rest, squeeze, header)
    done: SparkXShards = partitions if work is None else partitions.transform_shard(work)
    return done


def _finisher(
    columns: list[str], rest: dict[str, Any], squeeze: bool, header: Any
) -> Callable[[Any], Any] | None:
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
    return functools.partial(
        _finish, chosen=chosen, final=final, kinds=kinds, squeeze=squeeze, index=rest["index_col"]
    )


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


def _finish(
    frame: Any,
    chosen: list[str],
    final: list[str],
    kinds: dict[str, Any],
    squeeze: bool,
    index: Any,
) -> Any:
    frame = frame[chosen].set_axis(final, axis=1).astype(kinds)
    if index is not None:
        frame = frame.set_index(final[index] if isinstance(index, int) else index)
    return frame.iloc[:, 0] if squeeze and frame.shape[1] == 1 else frame


def _refuse(options: dict[str, Any], what: str) -> None:
    if options:
        raise InvalidArgumentError(
            f"{what} does not know {', '.join(sorted(options))} with the spark backend; set "
            'OrcaContext.pandas_read_backend = "pandas" for all options of pandas'
        )


# --- Parquet


def _row_groups(files: list[tuple[str, int]]) -> list[tuple[str, int]]:
    parquet = _arrow("parquet")
    groups = []
    for path, size in files:
        with Piece(path, 0, size, size).open() as file:
            try:
                count = parquet.ParquetFile(file).num_row_groups
            except ValueError as error:
                raise UnavailableError(f"{path}: {error}") from error
        groups += [(path, i) for i in range(count)]
    return groups


def _parse_parquet(groups: list[tuple[str, int]], columns: Any, types: Any) -> list[Any]:
    ((path, number),) = groups
    with Piece(path, 0, 0, 0).open() as file:
        table = _arrow("parquet").ParquetFile(file).read_row_group(number, columns=columns)
    if types:
        pyarrow = importlib.import_module("pyarrow")
        fields = [field.with_type(types.get(field.name, field.type)) for field in table.schema]
        table = table.cast(pyarrow.schema(fields))
    return [table.to_pandas()]


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

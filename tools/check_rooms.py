#!/usr/bin/env python3
"""Compares every include and import with the list of rooms in cmake/rooms.cmake.

The rules: a room includes its own headers and the public headers (include/orca/<room>/) of the
rooms it may use; only the rooms of ORCA_TORCH_ROOMS see torch. Bindings, examples and the command see public headers only, a plugin sees the C table only. A
framework is imported below python/orca/adapters/<framework> and nowhere else. The old import roots, python/bigdl and
python/zoo, use python/orca and nothing uses them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Top-level Python module -> the adapter whose framework it belongs to.
FRAMEWORKS = {
    "torch": "torch",
    "torchvision": "torch",
    "torchaudio": "torch",
    "tensorflow": "keras",
    "keras": "keras",
    "mxnet": "mxnet",
    "openvino": "openvino",
    "pyspark": "spark",
    "xgboost": "xgboost",
    "ray": "ray",
    "jax": "jax",
    "horovod": "horovod",
}
# Facades of python/orca: each imports itself and orca.
OLD_ROOTS = {"bigdl", "zoo"}
NOT_IN_PACKAGE = {"tests", "bench", "tools", "examples", "conftest", "pytest"}
# Headers that the engine must not see: it knows no framework and no Python.
FOREIGN = re.compile(r"^(torch|ATen|c10|caffe2|nanobind|pybind11|tensorflow)/|^Python\.h$")
TORCH = re.compile(r"^(torch|ATen|c10)/")


@dataclass(frozen=True)
class Problem:
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def read_rooms(text: str) -> tuple[dict[str, set[str]], set[str]]:
    """Returns the rooms each room may use, and those that see torch, from the text of rooms.cmake."""
    values = {
        name: words.split()
        for name, words in re.findall(r"^set\((\w+)([^)]*)\)", text, re.MULTILINE)
    }
    uses = {room: set(values.get(f"ORCA_ROOM_{room}_USES", [])) for room in values["ORCA_ROOMS"]}
    return uses, set(values.get("ORCA_TORCH_ROOMS", []))


def check_room_list(rooms: dict[str, set[str]], path: Path) -> Iterator[Problem]:
    """The list itself: known names, lower rooms first, so that there is no cycle."""
    seen: set[str] = set()
    for room, uses in rooms.items():
        for used in sorted(uses - seen):
            why = "is not a room" if used not in rooms else "does not come before it in ORCA_ROOMS"
            yield Problem(path, 1, f"room {room} uses {used}, which {why}")
        seen.add(room)


def includes(file: Path) -> Iterator[tuple[int, str, bool]]:
    """Yields line, header and whether it is quoted."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[2], match[1] == '"'


def sources(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.suffix in {".cc", ".h", ".inc"})


def room_problem(
    header: str, quoted: bool, room: str, rooms: dict[str, set[str]], public: bool
) -> str:
    """Says what is wrong with an include in a room; empty when nothing is."""
    allowed = rooms[room] | {room}
    may_use = (
        f"{room} may use {', '.join(sorted(rooms[room])) or 'no other room'} (cmake/rooms.cmake)"
    )
    parts = header.split("/")
    if FOREIGN.match(header):
        return f"<{header}> in room {room}: the engine knows no framework and no Python"
    if parts[0] == "orca":
        if len(parts) == 2:
            return (
                f'a room\'s public header includes "{header}", which stands above all rooms'
                if public
                else ""
            )
        if parts[1] not in rooms:
            return f'"{header}" belongs to no room; known: {", ".join(rooms)}'
        return "" if parts[1] in allowed else f'"{header}" is not for room {room}: {may_use}'
    if not quoted:
        return ""
    if public:
        return f'a public header includes the private "{header}"'
    if len(parts) > 1 and parts[0] != room:
        if parts[0] not in rooms:
            return f'"{header}" belongs to no room; known: {", ".join(rooms)}'
        return f'"{header}" is private to room {parts[0]}: only include/orca/{parts[0]}/ crosses its border'
    return ""


def check_rooms(root: Path, rooms: dict[str, set[str]], torch_rooms: set[str]) -> Iterator[Problem]:
    for base, public in ((root / "include/orca", True), (root / "src", False)):
        for folder in sorted(f for f in base.glob("*") if f.is_dir()):
            if folder.name not in rooms:
                yield Problem(folder.relative_to(root), 1, "not a room of cmake/rooms.cmake")
                continue
            for file in sources(folder):
                for line, header, quoted in includes(file):
                    if folder.name in torch_rooms and TORCH.match(header):
                        continue
                    if message := room_problem(header, quoted, folder.name, rooms, public):
                        yield Problem(file.relative_to(root), line, message)


def check_users(root: Path) -> Iterator[Problem]:
    """Bindings and examples use public headers, plugins the C table."""
    for name in ("bindings", "cli", "examples", "plugins"):
        for file in sources(root / name):
            for line, header, quoted in includes(file):
                where = file.relative_to(root)
                is_orca = header.startswith("orca/")
                if quoted and not is_orca and not (file.parent / header).exists():
                    yield Problem(
                        where,
                        line,
                        f'"{header}": {name} may include <orca/...> and files beside them',
                    )
                if name == "plugins" and is_orca and header != "orca/plugin_api.h":
                    yield Problem(
                        where, line, f'"{header}": a plugin may include orca/plugin_api.h only'
                    )


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and top-level name of every import that runs, however deep."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module:
                yield node.lineno, node.module.split(".")[0]
        else:
            yield from imports(node)


def check_python(root: Path) -> Iterator[Problem]:
    package = root / "python"
    for file in sorted(package.rglob("*.py")):
        where = file.relative_to(root)
        if "_native" in where.parts:
            continue
        parts = file.relative_to(package).with_suffix("").parts
        adapter = parts[2] if len(parts) > 2 and parts[1] == "adapters" else None
        for line, name in imports(ast.parse(file.read_text(encoding="utf-8"), str(where))):
            if name in NOT_IN_PACKAGE:
                yield Problem(where, line, f"the package imports {name}, which users do not have")
            elif name in OLD_ROOTS - {parts[0]}:
                yield Problem(
                    where, line, f"{name} is an old import root; import orca in its place"
                )
            elif FRAMEWORKS.get(name, adapter) != adapter:
                home = f"python/orca/adapters/{FRAMEWORKS[name]}"
                yield Problem(where, line, f"{name} is imported outside {home}")


def check(root: Path) -> list[Problem]:
    """Returns all that breaks the rules below `root`."""
    list_file = root / "cmake/rooms.cmake"
    rooms, torch_rooms = read_rooms(list_file.read_text(encoding="utf-8"))
    return [
        *check_room_list(rooms, list_file.relative_to(root)),
        *check_rooms(root, rooms, torch_rooms),
        *check_users(root),
        *check_python(root),
    ]


def main() -> int:
    problems = check(Path(__file__).resolve().parents[1])
    for problem in problems:
        print(problem)
    print(f"rooms: {len(problems) or 'no'} problem{'s' if len(problems) != 1 else ''}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks the documents: every relative link leads to a file, every `make` target exists."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"(?:`|^\s*(?:\$ )?)make ([a-z0-9-]+)")


def documents(root: Path) -> list[Path]:
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def check(root: Path) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for document in documents(root):
        for number, line in enumerate(document.read_text().splitlines(), 1):
            where = f"{document.relative_to(root)}:{number}"
            for link in LINK.findall(line):
                outside = "://" in link or link.startswith("mailto:")
                if not outside and not (document.parent / link).exists():
                    yield f"{where}: {link} does not exist"
            for target in COMMAND.findall(line):
                if target not in targets:
                    yield f"{where}: there is no 'make {target}'"


def main() -> int:
    problems = list(check(ROOT))
    print(
        "\n".join([*problems, f"docs: {len(documents(ROOT))} documents, {len(problems)} problems"])
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

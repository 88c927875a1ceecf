#!/usr/bin/env python3
"""Runs the linters: rooms, documents, clang-format, ruff, mypy, clang-tidy on what changed.

    tools/lint.py            everything
    tools/lint.py --quick    without mypy and clang-tidy (what `make check` runs)
    tools/lint.py --fix      rewrites what clang-format and ruff can

LINT_ALL=1 gives all files to clang-tidy; LINT_BASE=<commit> compares with another commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv/bin"
DATABASE = ROOT / "build/lint/compile_commands.json"
# A file that includes torch takes clang-tidy minutes.
NO_TIDY = ("plugins/", "src/nn/", "tests/cpp/nn/", "examples/cpp/fashion_mnist.cc")


def run(*command: str | Path) -> tuple[bool, str]:
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def git(*arguments: str) -> list[str]:
    ok, text = run("git", *arguments)
    return text.splitlines() if ok else []


def clang_tool(name: str) -> str:
    for version in range(16, 21):
        if tool := shutil.which(f"{name}-{version}"):
            return tool
    sys.exit(f"lint: no {name}-16 or newer on PATH; run 'make setup'")


def tracked(*patterns: str) -> list[str]:
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns)
    return sorted({name for name in names if (ROOT / name).is_file()})


def base_commit() -> str | None:
    """What the work is compared with: main, or the commit before when this is main itself."""
    if base := os.environ.get("LINT_BASE"):
        return base
    head = git("rev-parse", "HEAD")
    merge_base = git("merge-base", "HEAD", "origin/main")
    if merge_base and merge_base != head:
        return merge_base[0]
    return next(iter(git("rev-parse", "--verify", "-q", "HEAD~1")), None)


def changed() -> set[str]:
    base = None if os.environ.get("LINT_ALL") else base_commit()
    if base is None:
        return set(tracked("*.cc", "*.h"))
    untracked = git("ls-files", "--others", "--exclude-standard")
    return {*git("diff", "--name-only", base), *untracked}


def tidy_files(database: dict[str, dict]) -> list[str]:
    """The changed files of the build, and for a changed header one file that includes it."""
    changes = changed()
    files = {name for name in changes if name in database}
    texts = {name: (ROOT / name).read_text() for name in database}
    for header in (name for name in changes if name.endswith(".h") and (ROOT / name).is_file()):
        spelled = header.removeprefix("include/").removeprefix("src/").removeprefix("tests/cpp/")
        users = [name for name, text in texts.items() if f'"{spelled}"' in text]
        same_stem = [name for name in users if Path(name).stem == Path(header).stem]
        files.update((same_stem or users)[:1])
    return sorted(name for name in files if not name.startswith(NO_TIDY))


def check_tidy() -> tuple[bool, str]:
    if not DATABASE.exists():
        return False, "build/lint/compile_commands.json is missing; run 'make lint'"
    database = {}
    for entry in json.loads(DATABASE.read_text()):
        file = Path(entry["file"])
        if file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "build"):
            database[str(file.relative_to(ROOT))] = entry
    tool = clang_tool("clang-tidy")
    # A file is checked again when it, a header, its command or the rules changed.
    common = hashlib.sha256(tool.encode())
    for name in [".clang-tidy", *tracked("*.h", "*.inc")]:
        common.update((ROOT / name).read_bytes())
    stamps = ROOT / "build/tidy"
    stamps.mkdir(parents=True, exist_ok=True)

    def check(name: str) -> str:
        key = common.copy()
        key.update((ROOT / name).read_bytes() + database[name]["command"].encode())
        stamp = stamps / key.hexdigest()[:32]
        if stamp.exists():
            return ""
        # Flags and pragmas that only g++ knows are no business of clang-tidy.
        extra = [f"--extra-arg=-Wno-unknown-{what}" for what in ("warning-option", "pragmas")]
        ok, text = run(tool, "-quiet", "-p", DATABASE.parent, *extra, name)
        if ok:
            stamp.touch()
        return "" if ok else text

    files = tidy_files(database)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        texts = [text for text in pool.map(check, files) if text]
    return not texts, "\n".join(texts) or f"{len(files)} of {len(database)} files"


def check_format(fix: bool) -> tuple[bool, str]:
    files = tracked("*.cc", "*.h")
    if not files:
        return True, "no files"
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    ok, text = run(clang_tool("clang-format"), *mode, *files)
    places = Counter(line.split(":")[0] for line in text.splitlines() if " error: " in line)
    return ok, "\n".join(f"{file}: {count} places" for file, count in places.items()) or text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fix", action="store_true")
    arguments = parser.parse_args()
    fix = arguments.fix
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "rooms": lambda: run(sys.executable, "tools/check_rooms.py"),
        "docs": lambda: run(sys.executable, "tools/check_docs.py"),
        "clang-format": lambda: check_format(fix),
        "ruff": lambda: run(BIN / "ruff", "check", "-q", *(["--fix"] if fix else [])),
        "ruff format": lambda: run(BIN / "ruff", "format", *([] if fix else ["--check"])),
    }
    if not arguments.quick and not fix:
        checks["mypy"] = lambda: run(BIN / "mypy")
        checks["clang-tidy"] = check_tidy
    failed = []
    for name, check in checks.items():
        start = time.monotonic()
        ok, text = check()
        print(
            f"lint: {name}: {'ok' if ok else 'FAILED'} in {time.monotonic() - start:.1f} s",
            flush=True,
        )
        if not ok:
            failed.append(name)
            print(text, flush=True)
    if failed:
        print(
            f"\nlint: {', '.join(failed)} failed. 'make format' mends what clang-format and ruff can."
        )
        return 1
    print(f"lint: {len(checks)} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

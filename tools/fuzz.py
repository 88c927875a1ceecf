#!/usr/bin/env python3
"""Fuzzes every target of the fuzz build for FUZZ_SECONDS (60), from tests/fuzz/corpus/<target>.

New inputs are kept in build/fuzz/corpus/<target>; what crashes is kept in build/fuzz/crashes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from run_tests import SANITIZER_ENVIRONMENT, without_random_addresses

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/fuzz"


def main() -> int:
    seconds = int(os.environ.get("FUZZ_SECONDS", "60"))
    targets = sorted(
        f for f in (BUILD / "tests/fuzz").glob("*fuzz*") if f.is_file() and os.access(f, os.X_OK)
    )
    if not targets:
        print("fuzz: no targets in build/fuzz/tests/fuzz; run 'tools/build.sh fuzz'")
        return 1
    environment = {**os.environ, **SANITIZER_ENVIRONMENT}
    for version in range(16, 21):
        if tool := shutil.which(f"llvm-symbolizer-{version}"):
            environment.setdefault("ASAN_SYMBOLIZER_PATH", tool)
    crashes = BUILD / "crashes"
    crashes.mkdir(exist_ok=True)
    failed = []
    for target in targets:
        grown = BUILD / "corpus" / target.name
        grown.mkdir(parents=True, exist_ok=True)
        short = target.name.removesuffix("_fuzz").removesuffix("_fuzzer").removeprefix("fuzz_")
        seeds = [
            str(folder)
            for folder in (ROOT / "tests/fuzz/corpus" / name for name in {target.name, short})
            if folder.is_dir()
        ]
        print(
            f"fuzz: {target.name} for {seconds} s, seeds: {', '.join(seeds) or 'none'}", flush=True
        )
        command = [*without_random_addresses(), str(target), str(grown), *seeds]
        options = [
            f"-max_total_time={seconds}",
            f"-artifact_prefix={crashes}/{target.name}-",
            "-print_final_stats=1",
        ]
        if subprocess.run([*command, *options], env=environment, check=False).returncode != 0:
            failed.append(target.name)
    if failed:
        print(
            f"fuzz: FAILED: {', '.join(failed)}. The inputs are in build/fuzz/crashes; run the target on one,"
        )
        print("mend the bug, and add the input to tests/fuzz/corpus.")
    else:
        print(f"fuzz: {len(targets)} targets, nothing found in {seconds} s each")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

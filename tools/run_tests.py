#!/usr/bin/env python3
"""Runs the stages of `make test` (all, full), `make check`, `make lint`, `make asan` and `make tsan`.

Stops at the first stage that fails (KEEP_GOING=1: goes on) and always ends with the runners'
closing lines, what was skipped and why, and the minutes of each stage.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build/logs"
PYTHON = str(ROOT / ".venv/bin/python")
PYTEST_CLOSING = re.compile(r"^(=+ )?(\d+ \w+|no tests ran)(, \d+ \w+)* in \d+.*s")
CTEST_CLOSING = re.compile(r"^\d+% tests passed, .*out of \d+$")
PYTEST_SKIP = re.compile(r"^SKIPPED \[(\d+)\] .*")
LONG_TESTS = re.compile(r"^long tests: \d+ of \d+ passed")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# As in lib.sh: what the release build has compiled need not be compiled again for the packages.
CACHE_ENVIRONMENT = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
# The names that CMake finds by itself: under another one, which builders of wheels take from Python, the cache is of no use.
COMPILERS = {"CC": "cc", "CXX": "c++"}
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:check_initialization_order=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    # Tests fork ranks while the parent has threads; the child starts threads of its own.
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:atexit_sleep_ms=0",
}


@dataclass
class Stage:
    """A command with a name, a remedy, and what it left to say."""

    name: str
    command: list[str]
    remedy: str
    environment: dict[str, str] = field(default_factory=dict)
    preset: str = ""  # of a ctest run
    beside: list[str] = field(default_factory=list)  # ends with the command
    minutes: float | None = None
    failed: bool = False
    closing: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skip_count: int = 0


START = float(os.environ.setdefault("ORCA_START", str(int(time.time()))))


def elapsed() -> float:
    return time.time() - START


def without_random_addresses() -> list[str]:
    """A sanitizer cannot place its shadow where the kernel randomises more than 28 bits."""
    setting = Path("/proc/sys/vm/mmap_rnd_bits")
    try:
        wide = int(setting.read_text()) > 28
    except (OSError, ValueError):
        wide = False
    return ["setarch", "-R"] if wide else []


def build(preset: str) -> Stage:
    return Stage(
        f"build {preset}",
        ["tools/build.sh", preset],
        f"mend the error; 'tools/build.sh {preset}' builds",
    )


def ctest(preset: str, *options: str) -> Stage:
    sanitized = preset != "release"
    jobs = os.environ.get("CTEST_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    environment = dict(SANITIZER_ENVIRONMENT) if sanitized else {}
    suppressions = ROOT / f"tests/cpp/{preset}.supp"
    if suppressions.exists():
        environment[f"{preset.upper()}_OPTIONS"] += f":suppressions={suppressions}"
    return Stage(
        f"C++ {preset}",
        [
            *(without_random_addresses() if sanitized else []),
            *("ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "--no-tests=error"),
            *("-j", jobs, *options),
        ],
        f"'ctest --test-dir build/{preset} --rerun-failed --output-on-failure' runs what failed again",
        environment,
        preset,
    )


def files_at_a_time() -> tuple[str, ...]:
    """Options of pytest: most of their time tests wait."""
    workers = 2 * len(os.sched_getaffinity(0))
    return ("-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", "--durations=25")


def pytest(name: str, *arguments: str) -> Stage:
    return Stage(
        name,
        [PYTHON, "-m", "pytest", "-rs", "--color=no", *arguments],
        f"'.venv/bin/python -m pytest --lf -x {shlex.join(arguments)}' runs what failed again",
    )


def lint(*arguments: str) -> Stage:
    return Stage(
        "lint",
        [PYTHON, "tools/lint.py", *arguments],
        "'make format' mends layout; the rest is named above",
    )


def configure() -> Stage:
    return Stage(
        "configure", ["tools/build.sh", "lint", "--configure-only"], "read the message of cmake"
    )


def stages(mode: str) -> list[Stage]:
    if mode == "lint":
        return [configure(), lint()]
    if mode in ("asan", "tsan"):
        return [build(mode), ctest(mode)]
    if mode == "check":
        return [
            build("release"),
            lint("--quick"),
            ctest("release", "-LE", "slow|long"),
            pytest("Python", "-m", "not slow and not long", "-q", "tests/python", "tests/tools"),
        ]
    python = pytest(
        "Python", *files_at_a_time(), "-m", "not alone and not long", "tests/python", "tests/tools"
    )
    # These wait, too, but must not be kept waiting.
    alone = pytest("Python alone", "-m", "alone and not long", "tests/python")
    package = replace(pytest("package", "-m", "not long", "tests/package"), environment=COMPILERS)
    fast = [
        configure(),
        lint(),
        replace(build("release"), beside=["tools/environments.sh"]),
        ctest("release", "-LE", "long"),
        python,
        alone,
        package,
    ]
    if mode == "all":
        return fast
    # The sanitizers' builds get what tests leave of the cores.
    for stage in (fast[3], python, alone, package):
        stage.beside = [
            "chrt",
            "--idle",
            "0",
            "bash",
            "-c",
            "tools/build.sh asan && tools/build.sh tsan",
        ]
    share = Stage(
        "long tests",
        [PYTHON, "tools/test_long.py", "--share", "5"],
        "run the command it names again",
    )
    return [*fast, build("asan"), ctest("asan"), build("tsan"), ctest("tsan"), share]


def read_cases(stage: Stage) -> None:
    """Adds the cases within the test programs to ctest's closing line; keeps why some were skipped."""
    log = ROOT / f"build/{stage.preset}/Testing/Temporary/LastTest.log"
    if not log.exists():
        return
    lines = log.read_text(errors="replace").splitlines()
    passed = sum(int(m[1]) for line in lines if (m := re.match(r"\[  PASSED  \] (\d+) test", line)))
    reasons: dict[str, int] = {}
    for i, line in enumerate(lines):
        # "file:line: Skipped", the reason, "[  SKIPPED ] Suite.Name (0 ms)"
        if re.match(r"\[  SKIPPED \] \S+ \(", line):
            back = lines[max(0, i - 8) : i]
            starts = [k for k, text in enumerate(back) if text.endswith(": Skipped")]
            reason = " ".join(back[starts[-1] + 1 :]).strip() if starts else ""
            reason = reason or "no reason given"
            reasons[reason] = reasons.get(reason, 0) + 1
    stage.skipped += [f"{count} x {reason}" for reason, count in reasons.items()]
    stage.skip_count += sum(reasons.values())
    if stage.closing and passed:
        stage.closing[-1] += f" ({passed} cases passed, {sum(reasons.values())} skipped)"


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """Runs a command and ends it if it is still running at the end: builds resume later."""
    if not command:
        yield
        return
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**CACHE_ENVIRONMENT, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            for end in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, end)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(30)


def run(stage: Stage) -> None:
    print(
        f"[{elapsed():4.0f} s] {stage.name}: {' '.join(stage.command).replace(str(ROOT) + '/', '')}",
        flush=True,
    )
    start = time.time()
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{stage.name.replace(' ', '-').replace('+', 'p')}.stage.log"
    environment = {**CACHE_ENVIRONMENT, **os.environ, **stage.environment}
    try:
        with (
            log.open("w") as copy,
            running(stage.beside),
            subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                copy.write(line)
                plain = COLOUR.sub("", line.strip())
                if (
                    PYTEST_CLOSING.match(plain)
                    or CTEST_CLOSING.match(plain)
                    or LONG_TESTS.match(plain)
                    or plain.startswith("lint: ")
                ):
                    stage.closing = [plain]
                elif match := PYTEST_SKIP.match(plain):
                    stage.skipped.append(plain)
                    stage.skip_count += int(match[1])
        stage.failed = process.returncode != 0
    except OSError as error:
        print(f"{stage.command[0]} cannot be run: {error}")
        stage.failed = True
    finally:
        stage.minutes = (time.time() - start) / 60
    if stage.preset:
        read_cases(stage)


def report(todo: list[Stage], before: float) -> None:
    done = [stage for stage in todo if stage.minutes is not None]
    width = max(len(stage.name) for stage in todo)
    print("\nSkipped, and why")
    for stage in done:
        for text in stage.skipped:
            print(f"  {stage.name:{width}}  {text}")
    print(f"  {sum(stage.skip_count for stage in done)} in all")
    print("\nClosing lines of the runners")
    for stage in done:
        for line in stage.closing:
            print(f"  {stage.name:{width}}  {line}")
    print("\nMinutes per stage")
    print(f"  {'set-up':{width}}  {before / 60:5.1f}")
    for stage in todo:
        minutes = "    -" if stage.minutes is None else f"{stage.minutes:5.1f}"
        mark = "  FAILED" if stage.failed else "  not run" if stage.minutes is None else ""
        print(f"  {stage.name:{width}}  {minutes}{mark}")
    print(f"  {'all':{width}}  {elapsed() / 60:5.1f}")
    failed = [stage for stage in done if stage.failed]
    for stage in failed:
        print(f"\nFAILED: {stage.name}. What to do: {stage.remedy}")
    if not failed and len(done) == len(todo):
        print(f"\nAll {len(todo)} stages passed.")


def main() -> int:
    todo = stages(sys.argv[1] if len(sys.argv) > 1 else "all")
    before = elapsed()
    interrupted = False
    try:
        for stage in todo:
            run(stage)
            if stage.failed and not os.environ.get("KEEP_GOING"):
                break
    except KeyboardInterrupt:
        interrupted = True
    report(todo, before)
    return 1 if interrupted or any(stage.failed for stage in todo) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Commands and environments that know nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv/bin/uv"


def clean_environment(**changes):
    """The environment of a user: nothing of ours, and bytecode is written."""
    drop = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "XDG_CACHE_HOME"}
    kept = {k: v for k, v in os.environ.items() if k not in drop and not k.startswith("ORCA_")}
    return {**kept, **changes}


def run(*command, timeout=600, check=True, **options):
    """Runs a command away from the checkout; a failure shows what it printed."""
    options.setdefault("env", clean_environment())
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    if check and done.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done


class Venv:
    """A virtual environment made by uv, which links files from its cache."""

    def __init__(self, path, python="/usr/bin/python3"):
        self.path = path
        self.python = path / "bin/python"
        run(UV, "venv", "-q", "--no-project", "--python", python, path)

    def install(self, *packages):
        return run(UV, "pip", "install", "--python", self.python, *packages)

    def run(self, *arguments, **options):
        options.setdefault("cwd", self.path)
        return run(self.python, *arguments, **options)


def pins():
    """The pinned versions by name."""
    lines = (ROOT / "versions/requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)

"""The packages as users meet them: installed, in environments that hold nothing of the checkout."""

from __future__ import annotations

import sys

import pytest

from installed import ROOT, UV, clean_environment, run


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """The C++ package of the release build, installed."""
    if not (ROOT / "build/release/native/liborca.so").exists():
        pytest.fail("build/release has no liborca.so; run 'make build'")
    path = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", ROOT / "build/release", "--prefix", path)
    return path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A wheel, built with the tools of .venv: the compiler's cache knows their paths."""
    path = tmp_path_factory.mktemp("wheel")
    environment = clean_environment(VIRTUAL_ENV=str(ROOT / ".venv"))
    command = ("build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable)
    run(UV, *command, "-o", path, ROOT, env=environment)
    (file,) = path.glob("orca_ml-*.whl")
    return file

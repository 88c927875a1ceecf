"""The packages as users meet them: installed, in environments that hold nothing of the checkout."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
    """A wheel of the release build. Builds from the sources are long tests."""
    path = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "VERSION"):
        shutil.copy(ROOT / name, path)
    # What cmake installs there is not left out here.
    project = path / "pyproject.toml"
    project.write_text(re.sub(r"(?m)^sdist\.exclude = .*$", "", project.read_text()))
    unwanted = shutil.ignore_patterns("_native", "__pycache__")
    shutil.copytree(ROOT / "python", path / "python", ignore=unwanted)
    native = path / "python/orca/_native"
    release = ROOT / "build/release"
    run("cmake", "--install", release, "--component", "python", "--prefix", native)
    # A wheel has no links (cmake/install.cmake).
    (link,) = (file for file in native.iterdir() if file.is_symlink())
    link.resolve().replace(link)
    environment = clean_environment(VIRTUAL_ENV=str(ROOT / ".venv"))
    command = ("build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable)
    settings = ("-C", "wheel.cmake=false", "-C", "wheel.platlib=true")
    run(UV, *command, *settings, "-o", path / "dist", path, env=environment)
    (file,) = (path / "dist").glob("orca_ml-*.whl")
    return file


@pytest.fixture(scope="session")
def fashion_mnist(tmp_path_factory):
    """The folder of the distribution's files, unzipped."""
    listed = subprocess.run(
        ["dpkg", "-L", "dataset-fashion-mnist"], capture_output=True, text=True, check=False
    )
    files = [Path(line) for line in listed.stdout.splitlines() if line.endswith(".gz")]
    if not files:
        pytest.skip("the package dataset-fashion-mnist is not installed")
    folder = tmp_path_factory.mktemp("fashion-mnist")
    for file in files:
        (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return folder

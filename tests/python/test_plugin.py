"""Finding and building the torch plugin. The compiler here is a script, so that it takes no time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT = "import orca.distributed, sys; print(sys.modules['_orca_c10d'].__file__)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package as a wheel installs it: the engine and the plugin's sources, but no plugin."""
    import orca

    source = Path(orca.__file__).parent
    root = tmp_path / "site"
    target = root / "orca"
    (target / "_native").mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "_native":
            (target / entry.name).symlink_to(entry.resolve())
    for entry in (source / "_native").resolve().iterdir():
        if entry.is_file():
            (target / "_native" / entry.name).symlink_to(entry)
    repository = Path(__file__).resolve().parents[2]
    plugin = target / "_native/plugin_src"
    (plugin / "include/orca").mkdir(parents=True)
    for file in [
        *(repository / "plugins/torch").glob("*.cc"),
        *(repository / "plugins/torch").glob("*.h"),
    ]:
        (plugin / file.name).write_bytes(file.read_bytes())
    header = repository / "include/orca/plugin_api.h"
    (plugin / "include/orca/plugin_api.h").write_bytes(header.read_bytes())
    return root


@pytest.fixture
def built_plugin() -> Path:
    import orca

    found = sorted((Path(orca.__file__).parent / "_native").glob("torch-*/_orca_c10d*.so"))
    if not found:
        pytest.skip("the build has no torch plugin; run make build")
    return found[0]


def compiler(folder: Path, body: str) -> Path:
    """A script in place of the compiler; it notes every call."""
    script = folder / "c++"
    script.write_text(f'#!/bin/sh\necho call >> "{folder}/calls"\n{body}\n')
    script.chmod(0o755)
    return script


def environment(tmp_path: Path, package: Path, cxx: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("ORCA_")}
    env.update(
        PYTHONPATH=str(package), XDG_CACHE_HOME=str(tmp_path / "cache"), CXX=cxx, ORCA_LOG="warn"
    )
    return env


def start(env: dict[str, str], program: str = IMPORT) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.long
@pytest.mark.slow
def test_ranks_that_import_at_once_build_once(
    tmp_path: Path, package: Path, built_plugin: Path
) -> None:
    # Copies the plugin that the build has to what follows -o.
    script = compiler(
        tmp_path,
        f'sleep 2\nwhile [ "$1" != -o ]; do shift; done\ncp "{built_plugin}" "$2"',
    )
    env = environment(tmp_path, package, str(script))
    ranks = [start(env) for _ in range(2)]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    said = "".join(error for _, error in outputs)
    assert said.count("building the torch plugin for torch") == 1
    assert said.count("built in") == 1
    assert (tmp_path / "calls").read_text().count("call") == 1
    assert outputs[0][0] == outputs[1][0]
    assert str(tmp_path / "cache/orca/torch-") in outputs[0][0]
    # Nothing half-made stays.
    left = {entry.name for entry in (tmp_path / "cache/orca").iterdir()}
    assert not [name for name in left if name.startswith(".build-")]
    # The second time it is there.
    again = start(env)
    output, error = again.communicate(timeout=60)
    assert again.returncode == 0, error
    assert "building" not in error
    assert output == outputs[0][0]


def test_a_failing_compiler_is_quoted(tmp_path: Path, package: Path) -> None:
    script = compiler(tmp_path, 'echo "plugin.cc:1: fatal error: no such header" >&2\nexit 1')
    failing = start(environment(tmp_path, package, str(script)))
    _, error = failing.communicate(timeout=60)
    assert failing.returncode == 1
    assert "no such header" in error
    assert "apt install g++ python3-dev" in error
    assert not list((tmp_path / "cache/orca").glob("torch-*/*.so"))


def test_a_missing_compiler_is_told(tmp_path: Path, package: Path) -> None:
    failing = start(environment(tmp_path, package, "/nowhere/c++"))
    _, error = failing.communicate(timeout=60)
    assert failing.returncode == 1
    assert "/nowhere/c++" in error


WORKER = """
import sys, torch
import orca.adapters.torch.plugin as plugin
if sys.argv[1:] == ["damaged"]:
    file = plugin._cache_dir() / plugin._file_name()
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_bytes(b"no library")
import orca.adapters.torch.worker
print("_orca_c10d" in sys.modules, torch.nn.Conv2d(1, 20, 5)(torch.ones(2, 1, 28, 28)).shape)
"""


def test_workers_build_no_plugin_for_its_kernels(tmp_path: Path, package: Path) -> None:
    worker = start(environment(tmp_path, package, "/nowhere/c++"), WORKER)
    output, error = worker.communicate(timeout=60)
    assert (worker.returncode, error) == (0, "")
    assert output == "False torch.Size([2, 20, 24, 24])\n"


def test_workers_do_without_kernels_that_cannot_be_loaded(tmp_path: Path, package: Path) -> None:
    program = WORKER.replace("sys.argv[1:]", '["damaged"]')
    worker = start(environment(tmp_path, package, "/nowhere/c++"), program)
    output, error = worker.communicate(timeout=60)
    assert worker.returncode == 0, error
    assert "torch computes its convolutions itself" in error
    assert output == "False torch.Size([2, 20, 24, 24])\n"

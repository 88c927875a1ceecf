"""The Python package in environments of its own: without torch, with torch, on a newer Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from installed import ROOT, Venv, clean_environment, pins

# One process a rank; the ranks meet in a directory.
ALLREDUCE = textwrap.dedent(
    """
    import subprocess, sys, tempfile
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, str(r), folder]) for r in range(2)]
            sys.exit(max(rank.wait(60) for rank in ranks))
    import numpy as np
    from orca.comm import Communicator
    rank, folder = int(sys.argv[1]), sys.argv[2]
    with Communicator.connect(rank=rank, world=2, store=f"file://{folder}") as comm:
        data = np.full(100_000, rank + 1, dtype=np.float32)
        comm.allreduce(data)
        assert (data == 3).all(), data
    frameworks = {"torch", "tensorflow", "pandas"} & set(sys.modules)
    assert not frameworks, frameworks
    sys.stdout.write(f"rank {rank} has the sum\\n")
    """
)
DDP = textwrap.dedent(
    """
    import torch, torch.distributed as dist
    import orca.distributed
    dist.init_process_group("orca")
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == 3).all()
    print(f"rank {dist.get_rank()} has the sum")
    dist.destroy_process_group()
    """
)


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An empty environment after an installation of the wheel."""
    venv = Venv(tmp_path_factory.mktemp("bare") / "venv")
    venv.install(wheel)
    return venv


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_a_wheel_holds_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    assert {f for f in folders if not f.endswith(".dist-info")} == {"orca", "bigdl", "zoo"}
    native = [name.removeprefix("orca/_native/") for name in names if "/_native/" in name]
    assert sorted(name.split(".")[0] for name in native if ".so" in name) == ["_core", "liborca"]
    assert "liborca.so.0" in native
    assert "plugin_src/include/orca/plugin_api.h" in native
    assert "plugin_src/backend.cc" in native
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "orca/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]


def test_it_installs_and_imports_without_a_framework(bare):
    code = "import sys, orca; print(orca.__version__, 'torch' in sys.modules)"
    done = bare.run("-c", code)
    version = (ROOT / "VERSION").read_text().strip()
    assert done.stdout.split() == [version, "False"]
    listed = bare.run("-c", "import importlib.metadata as m; print(m.version('orca-ml'))")
    assert listed.stdout.strip() == version


def test_two_processes_reduce_numpy_arrays(bare, tmp_path):
    done = bare.run(write(tmp_path, "allreduce.py", ALLREDUCE), timeout=90)
    assert sorted(done.stdout.splitlines()[-2:]) == ["rank 0 has the sum", "rank 1 has the sum"]


def test_a_missing_torch_is_named_with_the_pip_line(bare):
    done = bare.run("-c", "import orca.distributed", check=False)
    assert done.returncode == 1
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert "pip install 'torch" in last


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_import_beside_torch_builds_the_plugin_once(wheel, tmp_path):
    venv = Venv(tmp_path / "venv")
    venv.install(wheel, f"torch=={pins()['torch']}", f"numpy=={pins()['numpy']}")
    environment = clean_environment(
        XDG_CACHE_HOME=str(tmp_path / "cache"), OMP_NUM_THREADS="1", CCACHE_DISABLE="1"
    )

    def said():
        done = venv.run("-c", "import orca.distributed", env=environment)
        return [line for line in done.stdout.splitlines() if "orca" in line]

    assert "building the torch plugin" in "\n".join(said())
    assert said() == []

    script = write(tmp_path, "ddp.py", DDP)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
    done = venv.run(*launch, env=environment, timeout=120)
    assert done.stdout.count("has the sum") == 2, done.stdout


def newer_python():
    """A working Python 3.12, or None. A shim of a version manager may be on PATH and not work."""
    found = [shutil.which("python3.12")]
    found += Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(
        "versions/3.12*/bin/python3.12"
    )
    code = "import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    for python in filter(None, found):
        if subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_pip_builds_it_from_its_sources(version, tmp_path):
    python = "/usr/bin/python3" if version == "3.11" else newer_python()
    if python is None:
        pytest.skip("no Python 3.12 with headers here")
    venv = Venv(tmp_path / "venv", python)
    start = time.monotonic()
    venv.install(ROOT)
    print(f"built in {time.monotonic() - start:.0f} s")
    done = venv.run(write(tmp_path, "allreduce.py", ALLREDUCE), timeout=90)
    assert done.stdout.count("has the sum") == 2

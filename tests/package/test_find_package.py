"""A C++ project outside the tree uses find_package(orca)."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys

import pytest
import torch

from installed import ROOT, clean_environment, run


@pytest.fixture(scope="module")
def examples(prefix, tmp_path_factory):
    """The examples, copied away from the checkout and built against the installed package."""
    source = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "examples/cpp", source, dirs_exist_ok=True)
    build = source / "build"
    run(
        *("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"),
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    run("cmake", "--build", build)
    return build


@pytest.fixture
def allreduce(examples):
    return examples / "allreduce"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_of_one_host_agree_on_the_sum(allreduce, transport, ranks):
    done = run(allreduce, "--ranks", ranks, "--transport", transport, timeout=60)
    expected = f"the sum of 1048576 floats is {ranks * (ranks + 1) // 2} everywhere"
    assert done.stdout.count(expected) == ranks, done.stdout


def test_two_addresses_meet_at_a_tcp_store(allreduce, tmp_path):
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [
                *(allreduce, "--store", f"tcp://127.0.0.1:{port}", "--rank", str(rank)),
                *("--world", "2", "--transport", "tcp", "--address", f"127.0.0.{rank + 1}"),
                *("--secret-file", key),
            ],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], texts
    assert all("is 3 everywhere" in text for text in texts), texts


def test_shards_of_files_are_transformed_by_workers(examples, tmp_path):
    done = run(examples / "xshards", cwd=tmp_path, timeout=60)
    assert done.stdout == "1000 rows in 4 shards, mean 0.4891\n"
    assert len((ROOT / "examples/cpp/xshards.cc").read_text().splitlines()) < 60


def test_a_study_finds_a_small_loss(examples):
    done = run(examples / "study", "60", timeout=60)
    found = re.search(r"^60 trials with gp: trial \d+ has the loss (\S+)$", done.stdout, re.M)
    assert found, done.stdout
    assert float(found[1]) < 1


def test_a_wrong_option_is_named(allreduce):
    done = run(allreduce, "--rnaks", "2", check=False)
    assert done.returncode == 1
    assert "cannot read --rnaks" in done.stdout


def test_the_package_needs_no_library_of_ours_but_itself(prefix):
    """Users link orca::orca and nothing else: OpenSSL, fmt and spdlog stay inside."""
    (targets,) = prefix.rglob("orca-targets.cmake")
    text = targets.read_text() + targets.with_name("orca-targets-release.cmake").read_text()
    assert not re.search(r"OpenSSL|fmt|spdlog|orca_objects", text)
    headers = "".join(f.read_text() for f in (prefix / "include").rglob("*.h"))
    assert not re.search(r"#include <(fmt|spdlog|openssl)/", headers)


def test_every_public_header_compiles_alone(prefix, tmp_path):
    compiler = os.environ.get("CXX", "g++")
    for header in sorted((prefix / "include").rglob("*.h")):
        if (
            header.parent.name == "nn"
        ):  # It needs torch's, which take half a minute: see the example.
            continue
        source = tmp_path / "one.cc"
        source.write_text(f"#include <{header.relative_to(prefix / 'include')}>\n")
        run(
            compiler,
            "-std=c++20",
            "-Wall",
            "-Werror",
            "-fsyntax-only",
            f"-I{prefix}/include",
            source,
        )


def test_the_estimator_of_cpp_reaches_the_losses_of_python(examples, fashion_mnist, tmp_path):
    """The same seed, rows and net: every loss within 1e-5; Python reads the weights."""
    workers = 2
    program = (examples / "fashion_mnist", fashion_mnist, 1, workers)
    cpp = run(*program, cwd=tmp_path, timeout=120).stdout
    twin = (ROOT / "examples/fashion_mnist.py", fashion_mnist, "--epochs", 1, "--workers", workers)
    python = run(sys.executable, *twin, env=clean_environment(), timeout=120).stdout

    def losses(text):
        return [float(loss) for loss in re.findall(r"loss (\d+\.\d{7})", text)]

    assert len(losses(cpp)) == 2, cpp
    assert losses(cpp) == pytest.approx(losses(python), abs=1e-5)
    assert "10000 predictions" in cpp
    weights = torch.load(tmp_path / "fashion_mnist.pt", weights_only=True)
    assert weights["fc3.weight"].shape == (10, 84)
    assert len((ROOT / "examples/cpp/fashion_mnist.cc").read_text().splitlines()) < 60


@pytest.mark.parametrize(
    ("python", "message"),
    [("/usr/bin/python3", "orca::nn was built for torch"), (sys.executable, "")],
)
def test_nn_is_found_for_the_torch_it_was_built_for(prefix, tmp_path, python, message):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
        "find_package(orca REQUIRED COMPONENTS nn)\n"
    )
    done = run(
        *("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"),
        f"-DPython_EXECUTABLE={python}",
        check=False,
    )
    assert (done.returncode == 0) == (not message), done.stdout
    assert message in done.stdout


def test_a_newer_minor_version_is_refused(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(orca 99.0 REQUIRED)\n"
    )
    done = run(
        "cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}", check=False
    )
    assert done.returncode != 0
    assert "99.0" in done.stdout

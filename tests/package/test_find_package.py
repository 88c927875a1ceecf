"""A C++ project outside the tree uses find_package(orca)."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess

import pytest

from installed import ROOT, clean_environment, run


@pytest.fixture(scope="module")
def allreduce(prefix, tmp_path_factory):
    """The example, copied away from the checkout and built against the installed package."""
    source = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "examples", source, dirs_exist_ok=True)
    build = source / "build"
    run("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build / "allreduce"


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


def test_a_newer_minor_version_is_refused(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(orca 99.0 REQUIRED)\n"
    )
    done = run(
        "cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}", check=False
    )
    assert done.returncode != 0
    assert "99.0" in done.stdout

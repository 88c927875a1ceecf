"""An Estimator over two machines: network namespaces, each with an agent of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import SILENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SCRIPT = Path(__file__).with_name("scripts_join.py")
HOSTS = 3  # the driver and two agents
SLOW = ["tbf", "rate", "10mbit", "burst", "16kb", "latency", "50ms"]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Names of network namespaces with the addresses 10.78.0.1 and up."""
    names = [f"orca-{os.getpid()}-{host}" for host in (*range(HOSTS), "switch")]
    *machines, switch = names
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(machines):
            port = f"p{number}"
            link = ("type", "veth", "peer", "name", port, "netns", switch)
            ip("link", "add", "eth0", "netns", name, *link)
            ip("-n", switch, "link", "set", port, "master", "br0")
            ip("-n", switch, "link", "set", port, "up")
            ip("-n", name, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield machines
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here (needs root and iproute2): {error}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def joined(
    hosts: list[str], private_env: dict[str, str], tmp_path: Path, what: str
) -> Iterator[tuple[subprocess.Popen[str], list[subprocess.Popen[bytes]]]]:
    """The driver on the first host, at work, and agents on the others."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    env = private_env | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ORCA_SILENCE": SILENCE,
        "ORCA_PEER_TIMEOUT": "2",
    }
    address = "10.78.0.1:7700"
    program = [sys.executable, "-c", "from orca.cli import main; main()", "agent"]
    agents = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *program]
            + ["--join", address, "--secret-file", str(secret)],
            env=env,
        )
        for host in hosts[1:]
    ]
    driver = subprocess.Popen(
        ["ip", "netns", "exec", hosts[0], sys.executable, str(SCRIPT)]
        + [address, str(secret), str(tmp_path), what],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield driver, agents
    finally:
        for process in (driver, *agents):
            process.kill()
            process.wait()


@pytest.mark.parametrize("link", ["quick", "slow"])
def test_f14_workers_of_two_machines_train_as_one_process(
    link: str, hosts: list[str], private_env: dict[str, str], tmp_path: Path
) -> None:
    if link == "slow":
        for host in hosts:
            ip("netns", "exec", host, "tc", "qdisc", "add", "dev", "eth0", "root", *SLOW)
    with joined(hosts, private_env, tmp_path, "train") as (driver, agents):
        output, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
        assert output.endswith("end of join\n")
        assert [agent.wait(15) for agent in agents] == [0, 0]


def cut(host: str, hook: str) -> None:
    """Drops what comes to a host ("input"), or leaves it ("output")."""
    chain = f"add chain inet cut {hook} {{ type filter hook {hook} priority 0; policy drop; }}"
    rules = f"add table inet cut; {chain}"
    subprocess.run(
        ["ip", "netns", "exec", host, "nft", rules], check=True, capture_output=True, text=True
    )


def cut_when_asked(
    tmp_path: Path,
    hosts: list[str],
    driver: subprocess.Popen[str],
    hooks: tuple[str, ...],
    of_who_asked: bool = True,
) -> None:
    mark = tmp_path / "cut"
    wait_until(lambda: mark.exists() or driver.poll() is not None, "a worker asks for a cut")
    assert driver.poll() is None, driver.communicate()
    where = mark.read_text()
    places = [
        subprocess.check_output(
            ["ip", "netns", "exec", host, "readlink", "/proc/self/ns/net"], text=True
        ).strip()
        for host in hosts[1:]
    ]
    index = places.index(where) if of_who_asked else 1 - places.index(where)
    for hook in hooks:
        cut(hosts[1 + index], hook)


needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")


@needs_nft
@pytest.mark.parametrize("of_rank_0", [True, False], ids=["rank-0", "the-other"])
@pytest.mark.parametrize("hooks", [("input", "output"), ("input",), ("output",)], ids="-".join)
def test_f11_f12_a_machine_that_is_cut_off_is_done_without(
    hooks: tuple[str, ...],
    of_rank_0: bool,
    hosts: list[str],
    private_env: dict[str, str],
    tmp_path: Path,
) -> None:
    """Its ranks, too, lose the others; only the side that reaches the driver goes on."""
    with joined(hosts, private_env, tmp_path, "cut") as (driver, agents):
        cut_when_asked(tmp_path, hosts, driver, hooks, of_rank_0)
        output, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
        assert output.endswith("end of cut\n")
        assert "lost with its node" in errors
        assert [agent.wait(30) for agent in agents] == [0, 0]


@needs_nft
@pytest.mark.parametrize(
    "hooks",
    [
        ("input", "output"),
        pytest.param(("input",), marks=pytest.mark.long),
        pytest.param(("output",), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_f11_f12_trials_of_a_machine_that_is_cut_off_run_on_the_other(
    hooks: tuple[str, ...], hosts: list[str], private_env: dict[str, str], tmp_path: Path
) -> None:
    with joined(hosts, private_env, tmp_path, "search") as (driver, agents):
        cut_when_asked(tmp_path, hosts, driver, hooks)
        output, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
        assert output.endswith("end of search\n")
        assert [agent.wait(30) for agent in agents] == [0, 0]

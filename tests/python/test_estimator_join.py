"""An Estimator over two machines: network namespaces, each with an agent of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SCRIPT = Path(__file__).with_name("scripts_join.py")
HOSTS = 3  # the driver and two agents


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


def test_workers_of_two_machines_train_as_one_process(
    hosts: list[str], private_env: dict[str, str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    env = private_env | {"PYTHONPATH": os.pathsep.join(sys.path), "ORCA_SILENCE": "2"}
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
    try:
        done = subprocess.run(
            ["ip", "netns", "exec", hosts[0], sys.executable, str(SCRIPT)]
            + [address, str(secret), str(tmp_path)],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("end of join\n")
        assert [agent.wait(15) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_rooms  # noqa: E402

ROOMS = """
set(ORCA_ROOMS core net comm)
set(ORCA_ROOM_core_USES)
set(ORCA_ROOM_net_USES core)
set(ORCA_ROOM_comm_USES net core)
"""


@pytest.fixture
def tree(tmp_path):
    def write(files, rooms=ROOMS):
        for name, text in {"cmake/rooms.cmake": rooms, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [str(problem) for problem in check_rooms.check(tmp_path)]

    return write


def test_the_repository_follows_its_own_rules():
    assert [str(problem) for problem in check_rooms.check(ROOT)] == []


def test_a_room_may_use_itself_and_the_rooms_of_its_list(tree):
    assert (
        tree(
            {
                "src/comm/ring.cc": '#include "comm/ring.h"\n#include "orca/net/socket.h"\n#include <vector>\n',
                "include/orca/comm/ring.h": '#include "orca/core/error.h"\n',
            }
        )
        == []
    )


def test_a_lower_room_may_not_include_a_higher_one(tree):
    problems = tree({"src/net/socket.cc": '\n#include "orca/comm/ring.h"\n'})
    assert problems == [
        'src/net/socket.cc:2: "orca/comm/ring.h" is not for room net: net may use core (cmake/rooms.cmake)'
    ]


def test_a_torch_room_sees_torch_and_no_other_framework(tree):
    rooms = ROOMS.replace("core net comm)", "core net comm nn)\nset(ORCA_TORCH_ROOMS nn)")
    assert tree({"src/nn/a.cc": "#include <torch/torch.h>\n"}, rooms) == []
    (problem,) = tree({"src/nn/a.cc": "#include <tensorflow/a.h>\n"}, rooms)
    assert "knows no framework" in problem


@pytest.mark.parametrize(
    ("file", "include", "message"),
    [
        ("src/comm/a.cc", '"net/wire.h"', "private to room net"),
        ("src/comm/a.cc", '"orca/data/shard.h"', "belongs to no room; known: core, net, comm"),
        ("src/core/a.cc", "<torch/torch.h>", "knows no framework"),
        ("include/orca/comm/a.h", '"comm/impl.h"', 'private "comm/impl.h"'),
        ("include/orca/comm/a.h", '"orca/plugin_api.h"', "stands above all rooms"),
        ("bindings/python/a.cc", '"comm/impl.h"', "bindings may include"),
        ("plugins/torch/a.cc", '"orca/comm/communicator.h"', "orca/plugin_api.h only"),
        ("src/extra/a.cc", "<vector>", "not a room"),
    ],
)
def test_an_include_that_breaks_a_rule_is_named(tree, file, include, message):
    (problem,) = tree({file: f"#include {include}\n"})
    assert message in problem


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        (
            "python/orca/comm.py",
            "def f():\n    import torch\n",
            "comm.py:2: torch is imported outside",
        ),
        (
            "python/orca/adapters/torch/a.py",
            "import tensorflow as tf\n",
            "outside python/orca/adapters/keras",
        ),
        ("python/orca/a.py", "from tests.helpers import x\n", "the package imports tests"),
        ("python/orca/a.py", "import bigdl.orca\n", "bigdl is an old import root"),
        ("python/zoo/orca/a.py", "from bigdl.orca import b\n", "bigdl is an old import root"),
    ],
)
def test_an_import_that_breaks_a_rule_is_named(tree, file, code, message):
    (problem,) = tree({file: code})
    assert message in problem


def test_adapters_import_their_framework_and_types_may_be_named_anywhere(tree):
    assert (
        tree(
            {
                "python/orca/adapters/torch/a.py": "import torch.distributed\nfrom torchvision import datasets\n",
                "python/orca/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
            }
        )
        == []
    )


def test_a_cycle_in_the_list_is_found(tree):
    assert "does not come before it" in tree({}, ROOMS.replace("core_USES)", "core_USES net)"))[0]

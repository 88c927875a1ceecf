"""Processes that are not of the job and bring shards to it."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import orca
from orca import guests
from orca.data import Shard
from orca.errors import FailedPreconditionError

_ASKING = """
import pickle, sys
import numpy as np
from orca import guests
from orca.data import Shard
door, name = pickle.load(sys.stdin.buffer)
answer = guests.ask(door, name, Shard({"x": np.arange(3.0)}))
print(answer.view()["x"].tolist())
"""

_GUEST = """
import pickle, sys, threading
import numpy as np
from orca import guests
from orca.data import Shard
door, basket, shard, sends_a_lock = pickle.load(sys.stdin.buffer)
def make():
    home = guests.enter(door)
    from orca.data.arrays import _receive
    given = None if shard is None else _receive(*shard).view()["x"].sum()
    return {"shard": Shard({"x": np.arange(6.0)}), "given": given, "lock": threading.Lock() if sends_a_lock else None}
sys.stdout.buffer.write(guests.pack(door, basket, make))
"""


@pytest.fixture
def context():
    with orca.init_orca_context("local", cores=1):
        yield


def ask_guest(door, basket, shard=None, sends_a_lock=False):
    return run_guest(_GUEST, (door, basket, shard, sends_a_lock))


def run_guest(program, told):
    return subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(told),
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_a_shard_of_a_guest_outlives_it_without_a_copy_in_the_package(context):
    basket = guests.Basket()
    package = ask_guest(guests.open_door(), basket.number).stdout
    assert len(package) < 1000
    (found,) = basket.unpack([package])
    assert found["shard"].view()["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert orca.run(lambda: float(found["shard"].view()["x"].sum()), workers=1) == [15.0]


def test_a_guest_reads_shards_of_the_driver(context):
    mine = Shard({"x": np.arange(4)})
    basket = guests.Basket()
    told = (mine._structure, mine._names, mine._hold.id)
    package = ask_guest(guests.open_door(), basket.number, told).stdout
    assert basket.unpack([package])[0]["given"] == 6


def test_what_a_guest_has_imported_is_not_searched_for_garbage(context):
    program = """
import gc, pickle, sys
from orca import guests
guests.enter(pickle.load(sys.stdin.buffer))
print(gc.get_freeze_count(), len(gc.get_objects()))
"""
    frozen, watched = map(int, run_guest(program, guests.open_door()).stdout.split())
    assert frozen > 10 * watched


def test_a_basket_can_be_emptied_once(context):
    basket = guests.Basket()
    assert basket.unpack([]) == []
    late = ask_guest(guests.open_door(), basket.number)
    assert late.returncode != 0
    assert b"nobody waits for these shards any more" in late.stderr


def test_a_guest_of_a_context_that_has_ended_is_told_so():
    with orca.init_orca_context("local", cores=1):
        door, basket = guests.open_door(), guests.Basket()
    late = ask_guest(door, basket.number)
    assert late.returncode != 0
    assert b"use the data before stop_orca_context()" in late.stderr


def test_without_a_context_there_is_no_door():
    with pytest.raises(FailedPreconditionError, match="there is no Orca context"):
        guests.open_door()


def test_what_a_guest_cannot_send_is_named(context):
    with guests.Basket() as basket:
        failed = ask_guest(guests.open_door(), basket.number, sends_a_lock=True)
    assert b"the result['lock'] (_thread.lock) cannot be sent to another process" in failed.stderr


def test_a_guest_asks_and_the_workers_answer(context):
    def answer(shard):
        return orca.run(lambda: Shard({"x": shard.view()["x"] * 2}), workers=1)[0]

    listener = guests.listen(answer)
    asked = run_guest(_ASKING, (guests.open_door(), listener.name))
    assert asked.stdout.decode().strip() == "[0.0, 2.0, 4.0]", asked.stderr.decode()


def test_what_goes_wrong_in_an_answer_reaches_the_guest(context):
    def answer(shard):
        raise KeyError("no such column")

    listener, door = guests.listen(answer), guests.open_door()
    assert b"KeyError: 'no such column'" in run_guest(_ASKING, (door, listener.name)).stderr
    name = listener.name
    del listener
    assert b"any more" in run_guest(_ASKING, (door, name)).stderr
    assert b"nobody answers for 'else' any more" in run_guest(_ASKING, (door, "else")).stderr

"""`reliq move`, run like an operator does, and killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from reliq.admin import Inspector
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.audits import assert_balanced
from tests.support.processes import Process
from tests.support.waiting import wait_until

MESSAGES, KILLS = 2000, 4


@pytest.fixture
def other(redis_factory):
    """Return another broker, whose ledgers balance at the end."""
    server = redis_factory()
    yield server
    assert_balanced(server.url("reliq"))


def command(client, other, *arguments):
    """Return the command line that moves from *client*'s broker to *other*."""
    urls = ("--from", client.url, "--to", other.url("reliq"))
    return [sys.executable, "-m", "reliq.cli", "move", *arguments, *urls]


def move(client, other, *arguments):
    """Run the command."""
    return subprocess.run(
        command(client, other, *arguments), capture_output=True, text=True, timeout=60, check=False
    )


def test_all_queues_that_last(client, other):
    """--all moves the messages, arguments and bindings of durable queues, but no reply queues."""
    connection = client.connect()
    declare(connection, "one", max_length=50)
    declare(connection, "two")
    declare(connection, "replies", expires=60)
    publish(connection, "one", 1, 2)
    publish(connection, "one", 3, headers={"x-delay": 60_000})
    publish(connection, "two", 4)
    publish(connection, "replies", 5)
    Taker(connection, "two").take()[0].reject()
    done = move(client, other, "--all", "--json")
    assert (0, {"one": 3, "two": 1}) == (done.returncode, json.loads(done.stdout)), done.stderr
    with Inspector(other.url("reliq")) as inspector:
        assert ["one", "two"] == inspector.queues()
        one, two = inspector.status("one"), inspector.status("two")
        assert (2, 1, 1) == (one.ready, one.delayed, two.dead)
        assert {"x-max-length": 50} == one.arguments
    assert 1 == client.status("replies").ready


def test_nothing_to_move_from(client, other):
    """An unknown queue, no queue, and a queue with --all are errors that state the reason."""
    done = move(client, other, "nothing")
    assert (2, True) == (done.returncode, "no queue 'nothing'" in done.stderr)
    assert "expected a QUEUE or --all" in move(client, other).stderr
    assert "expected a QUEUE or --all" in move(client, other, "q", "--all").stderr


@pytest.mark.slow
def test_killed_again_and_again(client, other, tmp_path):
    """Each message arrives once, however often the move is killed and continued."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", *range(MESSAGES - 1000))
    publish(connection, "q", *range(MESSAGES - 1000, MESSAGES), headers={"x-delay": 500})
    with Inspector(client.url) as source:

        def left():
            status = source.status("q")
            return status.ready + status.delayed

        for number in range(KILLS):
            goal = left() - chance.randint(1, MESSAGES // (2 * KILLS))
            process = Process(command(client, other, "q"), log_path=tmp_path / f"{number}.log")
            try:
                wait_until(
                    lambda goal=goal: left() <= goal,
                    interval_s=chance.uniform(0.0005, 0.003),
                    timeout_s=30,
                    what=process.tail,
                )
            finally:
                process.kill_group()
        assert 0 < left() < MESSAGES
        done = move(client, other, "q")
        assert 0 == done.returncode, done.stderr
        assert 0 == source.status("q").stored
    with client.connect(other.url("reliq")) as there:
        bodies = Taker(there, "q").take_bodies(MESSAGES)
    assert sorted(bodies) == list(range(MESSAGES))

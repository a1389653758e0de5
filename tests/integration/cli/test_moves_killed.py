"""A process that moves dead letters can be killed at any point: none is lost or doubled."""

from __future__ import annotations

import random
import sys

import pytest

from reliq.admin import Inspector
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

LETTERS = 1000
KILLS = 4


@pytest.mark.slow
@pytest.mark.parametrize("how", ["replay", "route"])
def test_killed_again_and_again(client, tmp_path, how):
    """Each dead letter arrives once, however often the mover dies between storing and removing."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    connection = client.connect()
    declare(connection, "target")
    if how == "replay":
        declare(connection, "source")
        publish(connection, "source", *range(LETTERS))
        for message in Taker(connection, "source").take(LETTERS, timeout_s=30):
            message.reject()
    else:
        # They expire, and only the process that is killed makes passes over their queue.
        routed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}
        declare(connection, "source", queue_arguments={**routed, "x-message-ttl": 1})
        publish(connection, "source", *range(LETTERS))
    client.close()
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def mover(number: int) -> Process:
        return Process(
            [sys.executable, "-m", "tests.integration.apps.moving", how, client.url],
            log_path=tmp_path / f"mover{number}.log",
            env=environment,
            cwd=ROOT,
        )

    with Inspector(client.url) as inspector:

        def arrived() -> int:
            return inspector.status("target").ready

        at_the_start = arrived()
        for number in range(KILLS):
            target = arrived() + chance.randint(1, max(1, LETTERS // (2 * KILLS)))
            process = mover(number)
            try:
                wait_until(
                    lambda: arrived() >= min(target, LETTERS),  # noqa: B023 - used at once
                    interval_s=chance.uniform(0.0005, 0.003),
                    timeout_s=30,
                )
            finally:
                process.kill_group()
        assert arrived() > at_the_start
        process = mover(KILLS)
        try:
            wait_until(lambda: inspector.status("source").stored == 0, timeout_s=60)
        finally:
            process.kill_group()
        assert LETTERS == arrived()
    with client.connect() as connection:
        bodies = Taker(connection, "target", auto_declare=False).take_bodies(LETTERS)
    assert sorted(bodies) == list(range(LETTERS))

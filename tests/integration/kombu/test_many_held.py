"""The thousands of messages of a killed consumer are returned without pauses."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from kombu import Connection, Exchange, Queue

from tests.support.waiting import wait_until

HELD = 4_000
# Longer than a step takes on a busy machine, and shorter than the time between ticks.
PAUSE_S = 0.7
HOLDER = f"""
import time, sys
from kombu import Connection, Consumer, Exchange, Queue
import reliq
held = []
with Connection(sys.argv[1]) as connection:
    with Consumer(connection, [Queue("q", Exchange(""), "q")], on_message=held.append):
        while len(held) < {HELD}:
            connection.drain_events(timeout=60)
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
def test_they_come_back_in_one_go(redis_server, redis_url):
    """A pass that leaves work behind continues at once, with default options, not a tick later."""
    queue = Queue("q", Exchange(""), "q")
    with Connection(redis_url) as connection, redis_server.client() as client:
        producer = connection.Producer()
        queue(connection.default_channel).declare()
        with producer.batch():
            for number in range(HELD):
                producer.publish(number, routing_key="q")
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, redis_url], stdout=subprocess.PIPE)
        try:
            assert b"held\n" == holder.stdout.readline()
        finally:
            os.kill(holder.pid, 9)
            holder.communicate()

        def restored():
            return int(client.hget("reliq:{q}:stats", "restored") or 0)

        with connection.Consumer([queue], on_message=lambda _: None, prefetch_count=1):
            now = wait_until(restored, interval_s=0.01)
            since, pauses, deadline = time.monotonic(), [], time.monotonic() + 60
            while now < HELD and time.monotonic() < deadline:
                before, now = now, restored()
                if now != before:
                    pauses.append(time.monotonic() - since)
                    since = time.monotonic()
                time.sleep(0.01)
    assert HELD == now
    assert len([pause for pause in pauses if pause > PAUSE_S]) <= 2, pauses  # formerly eight

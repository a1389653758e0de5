"""A consumer that held thousands of messages is killed: they come back without pauses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

from kombu import Connection, Exchange, Queue

HELD = 5_000
# Longer than any step takes on a busy machine, and shorter than from one tick to the next.
PAUSE_S = 0.6
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


def test_they_come_back_in_one_go(redis_url):
    """With default options. A pass that leaves work behind goes on at once, not a tick later."""
    queue = Queue("q", Exchange(""), "q")
    came = []
    with Connection(redis_url) as connection:
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

        def take(message):
            came.append(time.monotonic())
            message.ack()

        deadline = time.monotonic() + 120
        with connection.Consumer([queue], on_message=take):
            while len(came) < HELD and time.monotonic() < deadline:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1)
    assert HELD == len(came)
    pauses = [after - before for before, after in pairwise(came) if after - before > PAUSE_S]
    assert len(pauses) <= 2, pauses  # there were ten

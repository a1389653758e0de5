"""Restoring the messages of a consumer that died: how fast, and how long Redis stalls.

A consumer reserves every message and is SIGKILLed; when its leases have lapsed, another
consumer starts. Timed from outside, by watching the unacked messages go.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kombu import Consumer, Queue

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import connect, is_reliq
from benchmarks.publish import QUEUE, publish_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu import Message

    from benchmarks.servers import Server
    from benchmarks.setting import Setting

RATE, LONGEST = "restore", "restore-longest-call"
MESSAGES = 100_000
MESSAGES_OF_BASELINE = 2_000
VISIBILITY_TIMEOUT_S = 5.0
LEAST_VISIBILITY_TIMEOUT_S = 2.0
LOOK_EVERY_S = 0.005
RESTORE_WITHIN_S = 300.0


def reserve_all(url: str, visibility_timeout: float, count: int) -> None:
    """Reserve `count` messages, ack none, say so, and wait to be killed."""
    connection = connect(url, visibility_timeout=visibility_timeout)
    channel = connection.default_channel
    held: list[Message] = []
    with Consumer(channel, [Queue(QUEUE)], on_message=held.append):
        while len(held) < count:
            connection.drain_events(timeout=30)
        print("reserved", flush=True)
        time.sleep(RESTORE_WITHIN_S)


def survive(url: str, visibility_timeout: float) -> None:
    """Consume without an event loop, one message at a time and none acked, until killed."""
    connection = connect(url, visibility_timeout=visibility_timeout)
    channel = connection.default_channel
    held: list[Message] = []
    options = {"on_message": held.append, "prefetch_count": 1}
    with Consumer(channel, [Queue(QUEUE)], **options):
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)


def watch(server: Server, unacked_index: str, count: int) -> float:
    """Return the seconds from the first message seen restored to the last."""
    deadline = time.monotonic() + RESTORE_WITHIN_S
    start: float | None = None
    while True:
        left = server.client.zcard(unacked_index)
        now = time.perf_counter()
        if start is None and left < count:
            start = now
        if start is not None and left <= 1:  # the survivor holds one
            return now - start
        if time.monotonic() > deadline:
            raise AssertionError(f"{left} of {count} messages are still not restored")
        time.sleep(LOOK_EVERY_S)


def measure(setting: Setting) -> Mapping[str, float]:
    """Return messages restored a second and the longest single call."""
    server, index = setting.server, setting.peer.unacked_index(QUEUE)
    full = MESSAGES if is_reliq(setting.url) else MESSAGES_OF_BASELINE
    count = setting.size(full, least=200)
    child.run(publish_loop, url=setting.url, exchange_name="", warm_up=0, count=count)
    lease_s = max(LEAST_VISIBILITY_TIMEOUT_S, VISIBILITY_TIMEOUT_S * setting.scale)
    victim = child.start(reserve_all, url=setting.url, visibility_timeout=lease_s, count=count)
    try:
        assert victim.stdout is not None
        victim.stdout.readline()
    finally:
        child.stop(victim)
    reserved = server.client.zcard(index)
    if reserved != count:
        raise AssertionError(f"{reserved} of {count} messages were reserved")
    time.sleep(lease_s + 1)
    with server.logging_commands():
        survivor = child.start(survive, url=setting.url, visibility_timeout=lease_s)
        try:
            seconds = watch(server, index, count)
        finally:
            child.stop(survivor)
        return {RATE: count / seconds, LONGEST: server.longest_call_ms()}


FIGURES = (
    Figure(
        RATE,
        (
            Row(RATE, "restore expired messages", "messages/s", Target("ratio_at_least", 50)),
            Row(
                LONGEST,
                "longest single call while restoring",
                "ms",
                Target("value_at_most", 5, "ms"),
                digits=2,
            ),
        ),
        measure,
        warm_up=False,
    ),
)

"""Restoring the messages of a dead consumer: the rate, and the effect on other programs.

A consumer reserves every message and is SIGKILLed. When its leases have ended, another consumer
starts. The time is measured from outside, by watching the unacked messages. A bystander on the
same Redis exchanges messages before and during the restore. Its own key prefix keeps it from
restoring any.

The end-to-end time, with default options, is from the kill of a consumer that holds every message
to the last delivery to another one, which waits in the same queue.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from kombu import Consumer

from benchmarks import child, pacing
from benchmarks.fill import fill
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import RELIQ, connect, queue_of
from benchmarks.publish import QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kombu import Message

    from benchmarks.peers import Broker
    from benchmarks.servers import RedisServer
    from benchmarks.setting import Setting

SIZES = (1_000, 10_000, 100_000)
MOST_OF_BASELINE = 2_000
# Long enough for the victim to renew all leases while it reserves more messages.
LEAST_LEASE_S, LEASE_S_OF_LARGEST = 2.0, 6.0
LOOK_EVERY_S = 0.005
KILLED_SIZES = (5_000, 10_000)
DEFAULT_LEASE_S = 60.0
RESTORE_WITHIN_S = 300.0
BYSTANDER, BYSTANDER_RATE, QUIET_SECONDS = "bystander", 200.0, 2.0
LEAST_WINDOW_NS = 250_000_000
BODY_SIZE = 300


def reserve_all(broker: Broker, visibility_timeout: float, count: int, name: str = QUEUE) -> None:
    """Reserve `count` messages without acks, print a line, and wait to be killed."""
    connection = connect(broker, visibility_timeout=visibility_timeout)
    channel = connection.default_channel
    held: list[Message] = []
    with Consumer(channel, [queue_of(broker, name)], on_message=held.append):
        while len(held) < count:
            connection.drain_events(timeout=30)
        print("reserved", flush=True)
        time.sleep(RESTORE_WITHIN_S)


def survive(broker: Broker, visibility_timeout: float) -> None:
    """Consume without an event loop, one message at a time and without acks, until killed."""
    connection = connect(broker, visibility_timeout=visibility_timeout)
    channel = connection.default_channel
    held: list[Message] = []
    with Consumer(channel, [queue_of(broker, QUEUE)], on_message=held.append, prefetch_count=1):
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)


def take_over(broker: Broker, count: int) -> Mapping[str, float]:
    """Consume and ack `count` messages with default options; return the times (monotonic, s)."""
    connection = connect(broker)
    channel = connection.default_channel
    came: list[float] = []

    def take(message: Message) -> None:
        came.append(time.monotonic())
        message.ack()

    with Consumer(channel, [queue_of(broker, QUEUE)], on_message=take):
        print("consuming", flush=True)
        while len(came) < count:
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)
    pause = max((after - before for before, after in pairwise(came)), default=0.0)
    return {"first": came[0], "last": came[-1], "pause": pause}


def watch(server: RedisServer, unacked_index: str, count: int) -> tuple[int, int]:
    """Return when the first and the last message were seen restored (monotonic, ns)."""
    deadline = time.monotonic() + RESTORE_WITHIN_S
    start: int | None = None
    while True:
        before = time.monotonic_ns()
        left = server.client.zcard(unacked_index)
        if start is None and left < count:
            start = before
        if start is not None and left <= 1:  # the surviving consumer holds one
            return start, time.monotonic_ns()
        if time.monotonic() > deadline:
            raise AssertionError(f"{left} of {count} messages are still not restored")
        time.sleep(LOOK_EVERY_S)


def strand(setting: Setting, count: int, lease_s: float) -> None:
    """Leave *count* messages unacked by a dead consumer whose leases end."""
    fill(setting, count, size=BODY_SIZE)
    victim = child.start(
        reserve_all, broker=setting.broker, visibility_timeout=lease_s, count=count
    )
    try:
        child.wait_for_line(victim)
    finally:
        child.stop(victim)
    reserved = setting.redis.client.zcard(setting.peer.unacked_index(QUEUE))
    if reserved != count:
        raise AssertionError(f"{reserved} of {count} messages were reserved")


def measure(setting: Setting, full: int) -> Mapping[str, float]:
    """Return restored messages per second, the longest call, and the bystander's latencies."""
    server, index = setting.redis, setting.peer.unacked_index(QUEUE)
    # The number in a figure's name is not scaled down, only limited.
    count = min(full if setting.peer.ours else min(full, MOST_OF_BASELINE), setting.largest)
    lease_s = max(LEAST_LEASE_S, LEASE_S_OF_LARGEST * count / max(SIZES))
    strand(setting, count, lease_s)
    bystander: Broker = {**setting.broker, "options": {"global_keyprefix": "beside:"}}
    quiet = pacing.exchange(
        bystander,
        BYSTANDER,
        BYSTANDER_RATE,
        setting.size(round(BYSTANDER_RATE * QUIET_SECONDS), least=40),
    )
    time.sleep(lease_s + 1)
    taker = pacing.start_taking(bystander, BYSTANDER)
    # It sends for longer than necessary, and is stopped when all messages are restored.
    with server.logging_commands():
        sender = child.start(
            pacing.send, broker=bystander, name=BYSTANDER, rate=BYSTANDER_RATE, count=10**6
        )
        # On a busy machine, the messages could return before a program has started to send.
        child.wait_for_line(sender)
        survivor = child.start(survive, broker=setting.broker, visibility_timeout=lease_s)
        try:
            start, end = watch(server, index, count)
            time.sleep(max(0, start + LEAST_WINDOW_NS - end) / 1e9)
        finally:
            child.stop(survivor)
            child.stop(sender)
        longest = server.longest_call_ms()
    try:
        child.run(pacing.send, broker=bystander, name=BYSTANDER, rate=0, count=0)
        meanwhile = child.result(taker)
    finally:
        child.stop(taker)
    key = f"restore-{full}"
    return {
        key: count / (end - start) * 1e9,
        f"{key}-ms": (end - start) / 1e6,
        f"{key}-longest-call": longest,
        **_bystander(key, quiet, meanwhile, start, max(end, start + LEAST_WINDOW_NS)),
    }


def measure_killed(setting: Setting, full: int) -> Mapping[str, float]:
    """Return the ms from the kill to the first and the last delivery, and the longest pause."""
    count = min(full, setting.largest)
    fill(setting, count, size=BODY_SIZE)
    victim = child.start(
        reserve_all, broker=setting.broker, visibility_timeout=DEFAULT_LEASE_S, count=count
    )
    survivor = None
    try:
        child.wait_for_line(victim)
        survivor = child.start(take_over, broker=setting.broker, count=count)
        child.wait_for_line(survivor)
        killed = time.monotonic()
        child.stop(victim)
        taken = child.result(survivor)
    finally:
        child.stop(victim)
        if survivor is not None:
            child.stop(survivor)
    key = f"killed-{full}"
    return {
        f"{key}-first-ms": (taken["first"] - killed) * 1e3,
        f"{key}-last-ms": (taken["last"] - killed) * 1e3,
        f"{key}-all-ms": (taken["last"] - taken["first"]) * 1e3,
        f"{key}-pause-ms": taken["pause"] * 1e3,
    }


def _bystander(
    key: str,
    quiet: Sequence[tuple[int, int]],
    meanwhile: Sequence[tuple[int, int]],
    start: int,
    end: int,
) -> Mapping[str, float]:
    # A message due before the restore that came during it has also waited for the restore.
    window = [(due, came) for due, came in meanwhile if came >= start and due <= end]
    if not window:
        raise AssertionError("the bystander received nothing during the restore")
    before = pacing.quantile(pacing.late_ms(quiet[len(quiet) // 20 :]), 0.99)
    during = pacing.quantile(pacing.late_ms(window), 0.99)
    return {
        f"{key}-bystander-quiet": before,
        f"{key}-bystander": during,
        f"{key}-bystander-growth": during / before,
    }


def _figure(full: int, core: bool) -> Figure:
    key, text = f"restore-{full}", f"{full:,}"
    limit = f" (Kombu: {MOST_OF_BASELINE:,})" if full > MOST_OF_BASELINE else ""
    rows = (
        Row(
            key,
            f"restore {text} messages with expired leases",
            "messages/s",
            (Target("ratio_at_least", 100),),
        ),
        Row(f"{key}-ms", f"time to restore {text}{limit}", "ms", digits=1),
        Row(
            f"{key}-longest-call",
            f"longest command while restoring {text}",
            "ms",
            (Target("value_at_most", 5, "ms"),),
            digits=2,
        ),
        Row(f"{key}-bystander-quiet", f"bystander's p99 before restoring {text}", "ms", digits=2),
        Row(f"{key}-bystander", f"bystander's p99 while restoring {text}", "ms", digits=2),
        Row(
            f"{key}-bystander-growth",
            f"bystander's p99 ratio, while / before restoring {text}",
            "x",
            (Target("value_at_most", 2),),
            digits=2,
        ),
    )
    measured = partial(measure, full=full)
    most_rounds = 3 if core else 1
    return Figure(key, rows, measured, most_rounds=most_rounds, warm_up=False, core=core)


def _killed(full: int) -> Figure:
    key, text = f"killed-{full}", f"kill of a consumer with {full:,} messages"
    rows = (
        Row(f"{key}-first-ms", f"{text}, to the first delivery", "ms"),
        Row(f"{key}-last-ms", f"{text}, to the last delivery", "ms"),
        Row(
            f"{key}-all-ms",
            f"{text}, first to last delivery",
            "ms",
            (Target("value_at_most", full / 10, "ms"),),
        ),
        Row(
            f"{key}-pause-ms",
            f"{text}, longest pause between two deliveries",
            "ms",
            (Target("value_at_most", 100, "ms"),),
            digits=1,
        ),
    )
    measured = partial(measure_killed, full=full)
    return Figure(key, rows, measured, (RELIQ,), most_rounds=3, warm_up=False)


FIGURES = (
    *(_figure(full, core=full == max(SIZES)) for full in SIZES),
    *(_killed(full) for full in KILLED_SIZES),
)

"""Ten thousand delayed messages that are due at the same time."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from reliq.lua import scripts
from reliq.message.envelope import Envelope, encode
from reliq.store.urls import connect
from reliq.values.limits import BATCH
from tests.contract.steps import message
from tests.support.audits import assert_balanced

from ..kombu_client import Client, Taker

pytestmark = pytest.mark.slow

MANY = 10_000
# One for each key, one for the size of each message (a reserve is bounded in bytes), and the time.
# The shared functions take a message out of every place where it may wait, with one command each.
MOST_COMMANDS = 33 + 100 + 1
BODY = b"x" * 500


def publish_due_at(url, due_at):
    """Publish MANY numbered messages that are due at *due_at* or, on a slow machine, later."""
    store = connect(url, {}, "publisher")
    for start in range(0, MANY, 500):
        delay_ms = int((due_at - time.monotonic()) * 1000)
        envelopes = [
            encode(Envelope(b"%d %b" % (n, BODY), "text/plain", "utf-8", {}, {}, "", "q"))
            for n in range(start, start + 500)
        ]
        store.publish([message(envelope=item, delay_ms=max(delay_ms, 1)) for item in envelopes])
    store.close()


def test_each_is_delivered_once(fresh_redis):
    """A waiting consumer receives each message once, and none before it is due."""
    client = Client(fresh_redis, fresh_redis.url())
    # On a busy machine a renewal may be a second late.
    taker = Taker(client.connect(visibility_timeout=60), "q", prefetch_count=100)
    due_at = time.monotonic() + 12
    publish_due_at(client.url, due_at)
    seen: Counter[str] = Counter()
    taker.take(timeout_s=60)
    began = time.monotonic()
    assert began - due_at > -0.01
    while True:
        for received in taker.messages:
            seen[received.payload] += 1
            received.ack()
        taker.messages.clear()
        if len(seen) == MANY:
            break
        taker.take(timeout_s=20)
    spent = time.monotonic() - began
    print(f"first {(began - due_at) * 1000:.1f} ms after it was due; {MANY / spent:.0f}/s")
    assert {1} == set(seen.values())
    client.close()
    client.raw.close()
    client.audit()


def arguments_of(command):
    """Return the number of arguments of a command in the slow log, which keeps the first ones."""
    shown = command.split(b" ")
    cut_off = re.search(rb"\((\d+) more arguments\)$", command)
    return len(shown) if cut_off is None else len(shown) - 4 + int(cut_off[1])


def test_no_script_keeps_redis_from_others(fresh_redis):
    """A call that promotes and reserves 100 messages is bounded, however many are waiting.

    Commands are counted instead of timed, because a busy machine may stop the server during a call.
    """
    client = fresh_redis.client()
    due_at = time.monotonic() + 8
    publish_due_at(fresh_redis.url(), due_at)
    time.sleep(max(due_at - time.monotonic() + 0.1, 0))
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 5 * MANY)  # the commands inside a script count too
    client.slowlog_reset()
    store = connect(fresh_redis.url(), {}, "s/1")
    taken = 0
    while deliveries := store.reserve("q", 100, 60_000, no_ack=False).deliveries:
        store.post_ack("q", [item.tag for item in deliveries], lambda _: None)
        taken += len(deliveries)
    store.wait_for_replies()
    store.close()
    assert MANY == taken
    calls = client.slowlog_get(5 * MANY)
    client.close()
    inside: list[int] = []
    of_reserves: list[list[int]] = []
    for call in reversed(calls):  # a script's own entry follows those of its commands
        if not call["command"].startswith((b"EVALSHA ", b"EVAL ")):  # the first call sends the text
            inside.append(arguments_of(call["command"]))
            continue
        if call["command"].startswith(b"EVALSHA " + scripts.RESERVE.sha.encode()):
            of_reserves.append(inside)
        inside = []
    assert MANY // 100 <= len(of_reserves) < MANY // 50
    most = max(map(len, of_reserves))
    longest = max(map(max, of_reserves))
    print(f"{len(of_reserves)} calls, at most {most} commands each, the longest of {longest}")
    assert most <= MOST_COMMANDS
    assert BATCH < longest <= 2 * BATCH + 2  # a score for each tag
    assert_balanced(fresh_redis.url())

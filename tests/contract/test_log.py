"""The log of an exchange: transient messages, appended once for all consumers that read it."""

from __future__ import annotations

import pytest

from reliq.lua import keys
from reliq.values.limits import LOG_LENGTH, LOG_MS
from reliq.values.values import STALE, STORED
from tests.contract.steps import message

EXCHANGE = "e{1}"


class Log:
    """The log of one exchange, which has a binding."""

    def __init__(self, engine, store) -> None:
        self.store = store
        store.bind(EXCHANGE, True, [b"binding"])
        self.key = keys.log("", EXCHANGE)
        self.raw = engine.client_of(self.key)

    def append(self, *envelopes, version=None):
        """Append messages; return their outcomes."""
        known = self.store.bindings_version(EXCHANGE) if version is None else version
        about = {"exchange": EXCHANGE, "version": known, "logged": True}
        return self.store.publish([message("log", envelope, **about) for envelope in envelopes])

    def read(self, place="0", n=100, ttl_ms=LOG_MS):
        """Return the place after the entries, and their envelopes."""
        found = []
        self.store.post_read_log(EXCHANGE, place, ttl_ms, n, found.append)
        self.store.wait_for_replies()
        (logged,) = found
        return logged.place, [envelope for _, envelope in logged.entries]


@pytest.fixture
def log(engine, store):
    """Return the log of an exchange."""
    return Log(engine, store.store)


def test_each_reader_gets_every_message_in_order(log):
    """A reader gets what was appended after its place, in order, and changes nothing."""
    assert ("0", []) == log.read()
    assert [STORED] == log.append(b"before")
    start, nothing = log.read(n=0)
    assert [] == nothing
    assert [STORED] * 3 == log.append(b"a|b", b"", b"\r\n")
    for _ in range(2):
        place, found = log.read(start)
        assert [b"a|b", b"", b"\r\n"] == found
    assert (place, []) == log.read(place)
    middle, found = log.read(start, n=2)
    assert [b"a|b", b""] == found
    assert (place, [b"\r\n"]) == log.read(middle)


def test_changed_bindings_append_nothing(log):
    """A message that was routed by older bindings is not appended."""
    assert [STALE, STALE] == log.append(b"a", b"b", version=b"old")
    assert ("0", []) == log.read()


def test_entries_expire(log):
    """A reader skips entries older than its TTL; the log drops them, and ends with the last one."""
    log.append(b"old")
    (entry,) = log.raw.zrange(log.key, 0, -1)
    log.raw.zadd(log.key, {entry: log.raw.zscore(log.key, entry) - 5_000_000})
    log.append(b"new")
    assert [b"old", b"new"] == log.read()[1]
    assert [b"new"] == log.read(ttl_ms=4000)[1]
    log.raw.zadd(log.key, {entry: log.raw.zscore(log.key, entry) - LOG_MS * 1000})
    log.append(b"newer")
    assert [b"new", b"newer"] == log.read(ttl_ms=60_000)[1]
    assert 0 < log.raw.pttl(log.key) <= LOG_MS


def test_the_log_is_bounded(log):
    """The log keeps a limited number of messages, the last ones."""
    log.append(b"first")
    first = log.raw.zscore(log.key, log.raw.zrange(log.key, 0, -1)[0])
    log.raw.zadd(log.key, {f"t{i}|": first + i for i in range(1, LOG_LENGTH + 50)})
    log.append(b"last")
    assert LOG_LENGTH == log.raw.zcard(log.key)
    assert log.raw.zrange(log.key, -1, -1)[0].endswith(b"|last")


def test_a_lost_log_and_a_clock_behind(log):
    """A reader whose place is ahead of the log, which was lost, reads it from its beginning."""
    log.append(b"lost")
    ahead, _ = log.read()
    log.raw.delete(log.key)
    assert ("0", []) == log.read(ahead)
    log.append(b"new")
    ahead = str(int(ahead) + 3_600_000_000)
    assert [b"new"] == log.read(ahead)[1]


def test_a_clock_that_steps_back(log):
    """After a step of the clock, entries keep their order, and readers their place."""
    log.append(b"before")
    (entry,) = log.raw.zrange(log.key, 0, -1)
    log.raw.zadd(log.key, {entry: log.raw.zscore(log.key, entry) + 3_600_000_000})
    place, _ = log.read()
    log.append(b"after")
    assert [b"after"] == log.read(place)[1]

"""Each script with junk in one field or key: it runs to its end, or refuses before any change."""

from __future__ import annotations

from contextlib import suppress

import pytest

from reliq.errors import ReliqError
from reliq.lua.keys import publisher, queue_keys
from reliq.message.delivery_tag import BATCH, new_tag
from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from reliq.values.values import Lease, Move
from tests.contract.steps import message
from tests.support.waiting import wait_until

K = queue_keys("", "q")
PLACES = {K.ready, K.delayed, K.unacked_index, K.dead}
NUMBERS = publisher("", "q", "move:p")
META = {
    "max_bytes": "1000000",
    "max_length": "6",
    "dead_expired": "1",
    "expires": "3600000",
    "lease": "60000",
    "delivery_limit": "5",
    "message_ttl": "3600000",
}
MARKS = ("promoted", "used_at", "passed", "pass_due", "spared_from", "spared_until", "run_since")
COUNTERS = (
    *("published", "token", "acked", "expired", "purged", "dropped", "moved", "move", "restored"),
    *("lapsed", "nacked", "released", "redelivered", "replayed", "dead_lettered"),
    *(
        "dead:expired",
        "dead:rejected",
        "dead:delivery_limit",
        "dead:maxlen",
        "waiting_bytes",
        "job_events",
    ),
)
OWN = {
    **dict.fromkeys(
        (K.ready, K.delayed, K.unacked_index, K.expiry, K.dead, K.job_events, NUMBERS), "zadd"
    ),
    K.notification: "rpush",
    K.unacked_mutex: "set",
}
VALUES = ("many", "nan", "-1", "9223372036854775807", b"\xff|\xff")


def job(**changes):
    """Return the message of a job, whose outcome is kept for its batch."""
    return message(tag=new_tag(5, {BATCH: "b"}), **changes)


class Junked:
    """A queue with a message of each kind, restored before each piece of junk."""

    meta = META

    def __init__(self, server) -> None:
        self.raw = server.client()
        self.raw.flushall()
        self.store = self.connected(server)
        wait_until(lambda: self.raw.info("server")["uptime_in_seconds"] >= 1)
        self._build()
        self.tags = {tag.decode() for tag in self.raw.hkeys(K.messages)}
        self.dumps = {key: self.raw.dump(key) for key in self.raw.keys("reliq:{q}:*")}

    def connected(self, server):
        """Return a store of the server."""
        store = RedisStore(address(server.url()), parse({}), "s/1")
        store.connect()
        return store

    def _build(self) -> None:
        store = self.store
        store.declare_queue("q", False, b"", self.meta)
        store.publish([job(envelope=b"late", delay_ms=600_000)])
        store.publish([job(envelope=b"due", delay_ms=1)])
        store.publish([job(envelope=b"over", ttl_ms=1)])
        store.publish([job(envelope=b"one", number=1)])
        died, ended, failed, held = self._take(4)
        store.dead_letter("q", "rejected", "", [died])
        store.post_end_leases("q", [ended], lambda _: None)
        store.release("q", "nacked", [failed])
        store.wait_for_replies()
        self.died, self.ended, self.failed, self.held = died, ended, failed, held
        for field in MARKS:
            self.raw.hsetnx(K.meta, field, 1)
        for field in COUNTERS:
            self.raw.hsetnx(K.stats, field, 10)
        now = self.store.now_ms()
        self.raw.zadd(K.delayed, {self.due: now - 10})
        self.raw.zadd(K.expiry, {self.over: now - 10})

    def _take(self, n):
        self.raw.hset(K.meta, "max_length", 100)
        self.store.publish([job(envelope=b"m", ttl_ms=10**7) for _ in range(n)])
        taken = self.store.reserve("q", 20, 60_000, False).deliveries
        back = [Lease(item.tag, item.token) for item in taken if item.envelope != b"m"]
        self.store.release("q", "undelivered", back)
        now = self.raw.hgetall(K.messages)
        self.due = next(tag for tag, envelope in now.items() if envelope == b"due").decode()
        self.raw.zrem(K.ready, self.due)
        self.over = self._over()
        self.raw.hset(K.meta, "max_length", 6)
        return [Lease(item.tag, item.token) for item in taken if item.envelope == b"m"]

    def _over(self):
        found = job(envelope=b"over", ttl_ms=600_000)
        self.store.publish([found])
        return found.tag

    def fresh(self) -> None:
        """Restore all keys, without junk."""
        with self.raw.pipeline() as pipe:
            pipe.delete(*map(str, K), NUMBERS)
            for key, dump in self.dumps.items():
                pipe.restore(key, 0, dump, replace=True)
            pipe.execute()

    def places(self, but):
        """Return tag -> its places, without *but*, which is no longer a place."""
        found = {}
        for place in PLACES - {but}:
            for tag in self.raw.zrange(place, 0, -1):
                found.setdefault(tag.decode(), []).append(place)
        return found

    def operations(self):
        """Return name -> (function, the tags that a successful call removes)."""
        store, new = self.store, job(envelope=b"new", number=7)
        self.new = new.tag
        waits = {self.over, self.due, self.failed.tag, *self._waiting}
        return {
            "publish": (lambda: store.publish([new]), ()),
            "reserve": (lambda: store.reserve("q", 3, 60_000, False), ()),
            "reserve no_ack": (self._reserve_no_ack, waits),
            "ack": (lambda: self._posted(store.post_ack, "q", [self.held.tag]), {self.held.tag}),
            "late ack": (
                lambda: self._posted(store.post_ack, "q", [self.died.tag]),
                {self.died.tag},
            ),
            "release": (lambda: store.release("q", "released", [self.held]), ()),
            "requeue": (lambda: store.release("q", "nacked", [self.held]), ()),
            "dead_letter": (lambda: store.dead_letter("q", "rejected", "", [self.held]), ()),
            "renew": (
                lambda: self._posted(
                    lambda *given: store.post_renew("q", 60_000, *given), [self.held]
                ),
                (),
            ),
            "restore": (
                lambda: self._posted(lambda on: store.post_restore("q", 60_000, on, force=True)),
                (),
            ),
            "end": (lambda: self._posted(store.post_end_leases, "q", [self.held]), ()),
            "promote": (lambda: self._posted(store.post_promote, "q"), ()),
            "expire": (lambda: self._posted(store.post_expire, "q"), ()),
            "survey": (lambda: self._posted(store.post_survey, ["q"]), ()),
            "replay": (lambda: store.replay("q", [self.died.tag]), ()),
            "purge_dead": (lambda: store.purge_dead("q", [self.died.tag]), {self.died.tag}),
            "purge": (lambda: store.purge("q"), waits),
            "move": (lambda: store.begin_move("q", "queue:o", [self.died.tag]), ()),
            "move_out": (lambda: store.move_out("q", "broker:b"), ()),
            "accept": (lambda: store.accept("q", "p", 1, [Move(new.tag, 3, b"new")]), ()),
        }

    @property
    def _waiting(self):
        return {tag.decode() for key in (K.ready, K.delayed) for tag in self.raw.zrange(key, 0, -1)}

    def _reserve_no_ack(self):
        taken = self.store.reserve("q", 3, 60_000, True).deliveries
        return self.store.hand_back("q", taken)

    def _posted(self, post, *given):
        results = []
        post(*given, results.append)
        self.store.wait_for_replies()
        if isinstance(results[0], ReliqError):
            raise results[0]
        return results[0]


class Limited(Junked):
    """The same, with limits, whose scripts keep the state of a rate and the marks of early acks."""

    meta = META | {"concurrency": "50", "rate": "1000/s burst 1000"}

    def operations(self):
        """Return the operations that limits change."""
        found, store, held = super().operations(), self.store, self.held

        def renew(on_result):
            store.post_renew("q", 60_000, [held], on_result, begun={held.tag})

        names = ("reserve", "release", "requeue", "dead_letter", "restore", "end", "late ack")
        return {name: found[name] for name in names} | {
            "ack": (lambda: self._posted(store.post_ack, "q", [held.tag, ""]), {held.tag}),
            "renew": (lambda: self._posted(renew), ()),
            "undelivered": (lambda: store.release("q", "undelivered", [held]), ()),
            "begun": (lambda: store.release("q", "begun", [held]), {held.tag}),
        }


LIMITS = ("concurrency", "rate", "rate_state")


def junk(every):
    """Yield (key, field or command, value) for each field and key, with one value or all values."""
    fields = [(K.meta, name) for name in (*META, *MARKS)] + [(K.stats, name) for name in COUNTERS]
    fields += [(key, None) for key in (K.deliveries, K.unacked, K.dead_info, K.publishers)]
    for key, field in fields:
        for value in VALUES if every else VALUES[:2]:
            yield key, field, value
    for key in (*K, NUMBERS):
        for kind in ("set", "rpush", "sadd", "hset", "zadd") if every else ("set",):
            if kind != OWN.get(key, "hset"):
                yield key, kind, None


def put(raw, key, field, value):
    """Put one piece of junk at *key*."""
    if value is not None:
        names = [field] if field else raw.hkeys(key)
        for name in names:
            raw.hset(key, name, value)
        return
    raw.delete(key)
    arguments = {"set": ("x",), "rpush": ("x",), "sadd": ("x",), "hset": ("x", 1)}
    raw.execute_command(field, key, *arguments.get(field, (1, "x")))


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_no_message_is_lost_or_doubled_by_a_script_that_meets_junk(redis_server, every):
    """After any script each good message is in one place, and a publish is stored or repeatable."""
    queue = Junked(redis_server)
    meets_junk(queue, list(junk(every)))


@pytest.mark.slow
def test_no_message_is_lost_or_doubled_in_a_queue_with_limits(redis_server):
    """Junk in the fields of limits, or a key of another type, loses and doubles no message."""
    queue = Limited(redis_server)
    values = (*VALUES, "0/s", "5/x", "1/s burst 0", ";", "1.5;1,2,3", "0;9,9,9,9")
    pieces = [(K.meta, field, value) for field in LIMITS for value in values]
    pieces += [piece for piece in junk(every=True) if piece[2] is None]
    meets_junk(queue, pieces)


def meets_junk(queue, pieces):
    """Run each operation with each piece of junk; no message is lost or doubled."""
    found = []
    try:
        for name in queue.operations():
            for key, field, value in pieces:
                queue.fresh()
                operation, takes = queue.operations()[name]
                before = queue.places(key)
                put(queue.raw, key, field, value)
                wrong = problem_of(queue, name, operation, takes, before, key, value)
                if wrong:
                    found.append((name, key, field, value, wrong))
        assert "" == "\n".join(map(str, found))
    finally:
        queue.store.close()
        queue.raw.flushall()
        queue.raw.close()


def problem_of(queue, name, operation, takes, before, key, value):
    """Run the operation; return the problem that it caused."""
    error = None
    try:
        operation()
    except ReliqError as exc:
        error = exc
    except ValueError as exc:
        return f"a reply that cannot be read: {exc!r}"
    if error is not None and value is not None:
        return f"a field made it fail: {error}"
    gone_with_key = value is None and key in {K.messages, *PLACES}
    after = queue.places(key if value is None else "")
    wrong = [f"{tag} in {places}" for tag, places in after.items() if len(places) > 1]
    with suppress(Exception):
        stored = {tag.decode() for tag in queue.raw.hkeys(K.messages)}
        if not gone_with_key:
            wrong += [f"{tag} has no envelope" for tag in after.keys() - stored]
            wrong += [f"{tag} is in no place" for tag in stored - after.keys()]
    if error is not None and key != K.messages and not {"ack", "purge", "no_ack"} & {*name.split()}:
        takes = ()  # the other scripts go as far as they can, and then report the error
    wrong += [
        f"{tag} is lost" for tag in before.keys() - after.keys() - set(takes) if tag in queue.tags
    ]
    if error is not None and not gone_with_key and queue.new in after:
        wrong.append("refused, and stored")
    return wrong

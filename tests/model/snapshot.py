"""A broker's stored data of one queue, read at one instant, and its invariants.

The invariants are those of docs/design.md that can be checked without the history. They do not use
the oracle, so they check it as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.oracle import QueueOracle

# KEYS[1] is the queue's `messages`. The names of the other keys are derived from it.
LOOK = """
local base = string.sub(KEYS[1], 1, -#'messages' - 1)
local function hash(part) return redis.call('HGETALL', base .. part) end
local function zset(part) return redis.call('ZRANGE', base .. part, 0, -1, 'WITHSCORES') end
return {hash('messages'), zset('ready'), zset('delayed'), zset('unacked_index'),
  hash('unacked'), hash('deliveries'), zset('expiry'), zset('dead'), hash('dead_info'),
  hash('stats'), hash('meta'), redis.call('LLEN', base .. 'notification'),
  redis.call('GET', base .. 'unacked_mutex') or '', zset('job_events')}
"""

_LEFT = ("acked", "expired", "purged", "dropped", "moved")


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    texts = [item.decode() for item in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _ledger(stats: dict[str, str]) -> dict[str, int]:
    """Return the counters; leases and job events share numbers, and both skip some."""
    ledger = {name: int(n) for name, n in stats.items() if name != "move"}
    ledger["leased"] = ledger.pop("token", 0) - ledger.pop("job_events", 0)
    return {name: n for name, n in ledger.items() if n}


def _scores(flat: Sequence[bytes]) -> dict[str, int]:
    return {tag: int(float(score)) for tag, score in _pairs(flat).items()}


def _event(stored: bytes) -> tuple[str, str, str, str]:
    _, what, tag, reason, size, rest = stored.split(b"|", 5)
    error = rest[: int(size)]
    return what.decode(), tag.decode(), reason.decode(), error.decode()


@dataclass
class Snapshot:
    """One queue; dicts are by tag, and `ready` is in the order of service."""

    envelopes: dict[str, str]
    ready: list[str]
    delayed: dict[str, int]
    leases: dict[str, tuple[int, str]]
    deadlines: dict[str, int]
    failed: dict[str, int]
    expires: dict[str, int]
    dead: dict[str, int]
    dead_info: dict[str, str]
    ledger: dict[str, int]
    marks: dict[str, str]
    isolated: list[str]
    exists: bool
    paused: bool
    begun: list[str]
    """The messages with a lease whose task has begun."""
    notification: int
    mutex: str
    events: list[tuple[str, str, str, str]]
    """Events of jobs, sorted by name, because one step may end several jobs."""

    @classmethod
    def read(cls, reply: list[Any]) -> Snapshot:
        """Make a snapshot from the reply of LOOK."""
        messages, ready, delayed, index, unacked, deliveries, expiry, dead, info = reply[:9]
        stats, meta, notification, mutex, events = reply[9:]
        leases, begun, expires = {}, [], _scores(expiry)
        for tag, record in _pairs(unacked).items():
            token, score, until, consumer = record.split("|", 3)
            leases[tag] = (int(token), consumer)
            if score == "begun":
                begun.append(tag)
            if until:
                assert tag not in expires, f"{tag} would expire while it is held"
                expires[tag] = int(float(until))
        about = _pairs(meta)
        return cls(
            envelopes=_pairs(messages),
            ready=list(_pairs(ready)),
            delayed=_scores(delayed),
            leases=leases,
            deadlines=_scores(index),
            failed={tag: int(n) for tag, n in _pairs(deliveries).items()},
            expires=expires,
            dead=_scores(dead),
            dead_info=_pairs(info),
            ledger=_ledger(_pairs(stats)),
            marks={
                name.removeprefix("candidate:"): tag.removesuffix("|isolated")
                for name, tag in about.items()
                if name.startswith("candidate:")
            },
            isolated=sorted(
                tag
                for tag, (_, consumer) in leases.items()
                if about.get(f"candidate:{consumer}") == f"{tag}|isolated"
            ),
            exists="exists" in about,
            paused="paused" in about,
            begun=sorted(begun),
            notification=notification,
            mutex=mutex.decode(),
            events=sorted(map(_event, events[::2])),
        )

    @classmethod
    def expected(cls, queue: QueueOracle, now: int) -> Snapshot:
        """Make a snapshot from the oracle."""
        by_place = {place: queue.at(place) for place in ("ready", "delayed", "unacked", "dead")}
        messages = queue.messages.values()
        size = Counter(waiting_bytes=queue.waiting_bytes if queue.arguments.max_bytes else 0)
        holder, until = queue.mutex or ("", 0)
        return cls(
            envelopes={m.tag: m.envelope.decode() for m in messages},
            ready=[m.tag for m in by_place["ready"]],
            delayed={m.tag: m.due for m in by_place["delayed"]},
            leases={m.tag: (m.token, m.consumer) for m in by_place["unacked"]},
            deadlines={m.tag: m.deadline for m in by_place["unacked"]},
            failed={m.tag: m.failed for m in messages if m.failed is not None},
            expires={m.tag: m.expires for m in messages if m.expires is not None},
            dead={m.tag: m.died for m in by_place["dead"]},
            dead_info={
                m.tag: f"{m.reason}|{m.failed or 0}|{m.blamed}|{m.error}" for m in by_place["dead"]
            },
            ledger={counter: n for counter, n in (queue.ledger + size).items() if n},
            marks=dict(queue.marks),
            isolated=sorted(
                m.tag
                for m in by_place["unacked"]
                if m.consumer in queue.alone and queue.marks.get(m.consumer) == m.tag
            ),
            exists=queue.exists,
            paused=queue.paused,
            begun=sorted(m.tag for m in by_place["unacked"] if m.begun),
            notification=1 if queue.notification else 0,
            mutex=holder if until > now else "",
            events=sorted(queue.events),
        )

    # -- invariants

    def check(self) -> None:
        """Fail if an invariant is violated."""
        places = [set(self.ready), set(self.delayed), set(self.deadlines), set(self.dead)]
        everywhere = [tag for place in places for tag in place]
        assert len(everywhere) == len(set(everywhere)), f"in two places: {places}"
        assert set(everywhere) == set(self.envelopes), "a place without envelope, or none"
        published = self.ledger.get("published", 0)
        left = {counter: self.ledger.get(counter, 0) for counter in _LEFT}
        here = [len(place) for place in places]
        assert published == sum(left.values()) + sum(here), (self.ledger, here)
        assert set(self.leases) == set(self.deadlines), "a lease without deadline, or the reverse"
        tokens = [token for token, _ in self.leases.values()]
        assert len(tokens) == len(set(tokens)), f"one token, two leases: {self.leases}"
        assert set(self.dead_info) == set(self.dead), "a dead letter without its reason"
        for name in ("failed", "expires"):
            assert set(getattr(self, name)) <= set(self.envelopes), f"{name} of what is gone"
        assert not set(self.expires) & set(self.dead), "a dead letter that expires"
        assert self.notification <= 1

    def differences(self, expected: Snapshot) -> list[str]:
        """Return the differences from the expected snapshot."""
        return [
            f"{field.name}: expected {theirs}, is {mine}"
            for field in fields(self)
            if (mine := getattr(self, field.name)) != (theirs := getattr(expected, field.name))
        ]

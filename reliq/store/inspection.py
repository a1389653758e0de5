"""What a broker shows of its queues, messages, consumers and of itself; nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ..message.delivery_tag import published_ms
from ..message.envelope import Envelope, EnvelopeError, decode, unpack
from .unreadable import left_out


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue's counts and its ledger, read at one instant."""

    name: str
    ready: int
    delayed: int
    unacked: int
    dead: int
    stored: int
    consumers: int
    ledger: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    paused: bool = False
    partitions: int = 1
    """Into how many it is divided, as it knows itself; a partition may have heard of fewer."""

    @property
    def declared(self) -> dict[str, Any]:
        """The arguments it was declared with, whether or not an engine has unpacked them."""
        if "" not in self.arguments:
            return dict(self.arguments)
        stored = self.arguments[""]
        try:
            found = unpack(stored) if isinstance(stored, bytes) and stored else {}
        except EnvelopeError:
            found = None
        if isinstance(found, dict):
            return found
        left_out("its broker", "arguments of queues", [self.name])
        return {}


@dataclass(frozen=True, slots=True)
class Measure:
    """What metrics need of a queue, read at one instant."""

    status: QueueStatus
    """The ledger has, beside what the audit compares: redelivered, lapsed (leases that ended
    without their holder), token (leases granted), requeued, replayed, and for each reason
    dead:<reason>."""
    now_ms: int
    """The broker's time."""
    ready: dict[int, int]
    """Ready messages by rank, for the ranks that have any."""
    oldest_ms: int | None
    """When the oldest that is first at its rank was published, by its publisher's clock;
    None where nothing is ready."""
    due: int
    """Delayed messages that are due: the next consumer that asks will find them ready."""

    @property
    def oldest_age_s(self) -> float | None:
        """Return the age of that oldest one: 0.0 where its publisher's clock is ahead."""
        return None if self.oldest_ms is None else max(self.now_ms - self.oldest_ms, 0) / 1000


@dataclass(frozen=True, slots=True)
class Untold:
    """Queues that cannot be read now: of a broker of several servers, one does not answer."""

    node: str
    """host:port; "" where no server has them."""
    queues: tuple[str, ...]
    """Their names, as far as they are known."""
    error: str
    """Why, in one line."""

    def __str__(self) -> str:
        """Say it to an operator."""
        names = ", ".join(map(repr, self.queues)) or "what it has is not known"
        return f"{self.node or 'no node'}: {self.error}; not told: {names}"


@dataclass(frozen=True, slots=True)
class Told:
    """The names of queues that can be read now, and those that cannot."""

    queues: list[str]
    untold: list[Untold] = field(default_factory=list)
    complete: bool = True
    """Whether these are all; else the list of all queues could not be read, and there may be
    more."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter."""

    tag: str
    died_ms: int
    reason: str
    count: int
    """Failed deliveries."""
    consumer: str
    error: str
    envelope: bytes | None = field(default=None, repr=False)
    """Only where it was asked for."""

    @property
    def published_ms(self) -> int:
        """When it was published, by its publisher's clock."""
        return published_ms(self.tag)

    @property
    def message(self) -> Envelope | None:
        """What is in it; None where that was not asked for or cannot be read."""
        try:
            return None if self.envelope is None else decode(self.envelope)
        except EnvelopeError:
            return None

    @property
    def task(self) -> str | None:
        """The name of the Celery task."""
        message = self.message
        name = None if message is None else message.headers.get("task")
        return name if isinstance(name, str) else None

    @property
    def id(self) -> str | None:
        """The id of the Celery task, or the message id."""
        message = self.message
        if message is None:
            return None
        found = message.headers.get("id") or message.properties.get("message_id")
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Consumer:
    """A process that consumes, as the register knows it. Times are the broker's, in ms."""

    id: str
    host: str
    pid: int
    version: str
    """Of reliq."""
    queues: tuple[str, ...]
    started_ms: int
    """When the process began to consume from this broker."""
    seen_ms: int
    """Its last heartbeat: one in 20 s, with the default visibility_timeout."""
    held: int
    """Messages that it held at its last heartbeat."""
    connected: bool
    """False: its connection is gone, and it will soon be; True also where the Redis user
    may not look."""
    pool: str = ""
    """Of a Celery worker: prefork, thread, gevent, solo ...; "" for a consumer without Celery."""
    options: dict[str, Any] = field(default_factory=dict)
    """Those of its transport options that all consumers of a queue should share."""
    running: dict[str, int] = field(default_factory=dict)
    """Of a Celery worker: queue -> tasks that run and are acknowledged, as they are by default
    when they begin; it is told within a second."""
    processes: int = 0
    """Of a Celery worker: how many tasks it runs at a time."""
    failing: dict[str, Any] = field(default_factory=dict)
    """Queue -> why its last pass over it failed."""


SCANNED_AT_ONCE = 250
"""So many messages one step looks at, at most: two ms of a server's processor."""
SCANNED_BYTES = 1 << 20
"""And so many bytes of envelopes; one that is larger is not read at all."""
Whereabouts: TypeAlias = Literal["there", "dead", ""]
"""Of a message: in its queue, in whatever state; there as a dead letter; not there."""

AnyPlace: TypeAlias = Literal["ready", "delayed", "unacked", "dead"]


class Stored(NamedTuple):
    """A message where it is, as an operator sees it; nothing about it was changed."""

    tag: str
    envelope: bytes | None
    failed: int
    """Failed deliveries; -1 when it was never delivered before."""
    at_ms: int
    """delayed: when it is due; unacked: when its lease ends; dead: when it died; broker's clock.
    Else 0."""
    consumer: str
    """unacked: who holds it, or "move/..." where it is on its way elsewhere; dead: who held it.
    Else ""."""
    size: int = 0
    """Bytes of the envelope, where that was asked for."""
    reason: str = ""
    """dead: why."""
    error: str = ""


class Position(NamedTuple):
    """Where in a place a step begins."""

    score: str = ""
    """In the engine's words; "": at the first of the place."""
    skip: int = 0
    """So many messages from there on are passed over."""


class Looked(NamedTuple):
    """What one step has found."""

    items: list[Stored]
    """In the order of the place; without those that were not asked for."""
    numbers: list[int]
    """The how many-th of those that were looked at each of them is, from 1 on."""
    looked: int
    """How many it has looked at."""
    after: Position | None
    """Where the next step begins; None: there is no more. What leaves the place meanwhile is in
    no way of it; what comes before it is not seen."""


class Failure(NamedTuple):
    """A delivery that failed."""

    tag: str
    at_ms: int
    """When it was found to have failed."""
    how: str
    """lapsed: its lease ended without its holder; requeued; else why the message died of it."""
    failed: int
    """Failed deliveries by then."""
    consumer: str
    """Who held it."""


class Located(NamedTuple):
    """One message, wherever it is in its queue, at one instant."""

    place: AnyPlace
    before: int
    """How many are before it in its place."""
    stored: Stored
    expires_ms: int | None
    """When it expires, where it waits and has a TTL."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What a broker says of itself."""

    broker: str
    """Its URL, without a password."""
    engine: str
    """The server's name: redis or valkey."""
    version: str
    role: str
    """master or replica; of a cluster, of how many masters; "" where there is no such thing."""
    uptime_s: int | None
    memory_bytes: int | None
    """That its data takes."""
    memory_limit_bytes: int | None
    """None: no limit of its own."""
    persistence: str
    """In a few words: what a crash of the broker forgets depends on it."""
    clients: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """One of the servers that a broker consists of."""

    name: str
    """host:port."""
    up: bool
    """Whether it answers."""
    slots: int
    """How many of the cluster's hash slots it has."""
    memory_bytes: int | None
    """None: it does not answer, or this user may not ask."""


Severity: TypeAlias = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what to do about it."""

    check: str
    """What was looked at, in one word or two: maxmemory-policy, clock ..."""
    severity: Severity
    """error: messages can be lost, or nothing works; warning: it will hurt some day."""
    message: str
    remedy: str = ""

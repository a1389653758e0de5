"""Reads over Redis: queues, messages and consumers, as shown to operators. Changes nothing.

Imported and created at the first use: a process that publishes or consumes does not import it.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..client.sentinel import SentinelAddress
from ..doctor.server import Server
from ..errors import BrokerRefused, ReliqError, again
from ..lua import scripts
from ..lua.keys import broker_keys, queue_keys
from ..message.delivery_tag import published_ms
from ..message.queue_arguments import declared_limits
from ..values.history import Snapshot, snapshots
from ..values.inspection import (
    SCANNED_AT_ONCE,
    SCANNED_BYTES,
    AnyPlace,
    Consumer,
    DeadLetter,
    Failure,
    Finding,
    Located,
    Measure,
    Partial,
    Position,
    QueueStatus,
    ScanPage,
    Stored,
)
from ..values.limits import MINUTE_MS, chunks
from ..values.unreadable import counts, left_out, mapping, number
from .base import text_of, texts
from .register import liveness_of, records_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..client.commands import Commands
    from ..client.stream import Command, Reply
    from ..lua.keys import QueueKeys
    from ..lua.scripts import Script
    from ..values.inspection import BrokerInfo, Node, Whereabouts
    from ..values.values import Liveness

# The fields of a consumer's record, its host first; the others come from the register.
_FIELDS = tuple(
    item.name
    for item in fields(Consumer)
    if item.name not in {"id", "queues", "seen_ms", "connected"}
)
_COUNTS = ("ready", "delayed", "unacked", "dead", "stored", "consumers")
_OF_A_NETWORK = frozenset({"login", "replication", "tcp-keepalive"})
_WHEREABOUTS: tuple[Whereabouts, ...] = ("", "there", "dead")
_COUNT = re.compile(rb"-?[0-9]{1,19}")
_PARTITIONS = re.compile(rb"[0-9]{1,2}")
_BLOCK = re.compile(rb"[0-9]{1,15}")
# The number of parts of a lease record ("token|score|expires|consumer"), of a dead letter's
# record ("reason|count|consumer|error") and, after its tag, of a failed delivery.
_PARTS = 4
_CONSUMER_OF_LEASE = 3


class RedisReads:
    """The reads of a broker for operators, and for duties that check queues."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._shared = broker_keys(prefix)
        self._server = Server(wire, prefix)
        self.broker = str(wire.address)

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._prefix, queue)

    def _run(self, script: Script, queue: str, args: Sequence[Any]) -> Reply:
        return self._wire.run(script, self._keys(queue), args)

    # -- queues

    def status(self, queue: str) -> QueueStatus | None:
        """Return counts and ledger of *queue* at one instant, or None if it does not exist."""
        measures = self._measures([queue], [self._run(scripts.MEASURE, queue, ())])
        return measures[0].status if measures else None

    def measure(self, queues: Sequence[str]) -> Partial[Measure]:
        """Return the measures of *queues*, each of one instant; missing queues are left out.

        Cheap: the cost does not grow with the messages in a queue.
        """
        replies: list[Reply] = []
        for names in chunks(queues):
            replies += self._wire.replies([self._measure_command(queue) for queue in names])
        return self._measures(queues, replies)

    def measure_all(self) -> Partial[Measure]:
        """Return the measures of all queues, in the order of their names.

        Only queues at an unreachable node of a cluster can be missing; they are in
        ``unreachable``. Raises BrokerUnavailable if no queue can be listed.
        """
        return self.measure(sorted(texts(self._wire.call(("ZRANGE", self._shared.queues, 0, -1)))))

    def _measures(self, queues: Sequence[str], replies: Sequence[Reply]) -> Partial[Measure]:
        measures = Partial[Measure]()
        refused: dict[str, ReliqError] = {}
        for queue, reply in zip(queues, replies, strict=True):
            if isinstance(reply, BrokerRefused):
                refused[queue] = reply
            elif isinstance(reply, ReliqError):
                raise again(reply)
            elif reply[0]:
                counts, rest = reply[1 : 1 + len(_COUNTS)], reply[1 + len(_COUNTS) :]
                measures.append(_measure(self.broker, queue, counts, rest))
        if refused and not measures:  # a matter of this user's rights
            raise again(next(iter(refused.values())))
        left_out(self.broker, "queues", list(refused))
        measures.asked = [*(measure.status.name for measure in measures), *refused]
        return measures

    def _measure_command(self, queue: str) -> tuple[Command, Script]:
        return scripts.MEASURE.over(self._keys(queue), ())

    def history(
        self, queue: str, since_ms: int, now_ms: int, every_ms: int = MINUTE_MS
    ) -> list[Snapshot]:
        """Return the snapshots of *queue* from *since_ms* to *now_ms* (broker's clock), in order.

        There is one for each *every_ms* with a consumer; a missing queue has none.
        """
        flat = self._wire.call(("HGETALL", self._keys(queue).history))
        blocks = {
            int(name): records
            for name, records in zip(flat[::2], flat[1::2], strict=True)
            if _BLOCK.fullmatch(name)
        }
        try:
            return snapshots(blocks, since_ms, now_ms, every_ms)
        except ValueError:
            left_out(self.broker, "histories of queues", [queue])
            return []

    # -- messages

    def whereabouts(self, queue: str, tags: Sequence[str]) -> dict[str, Whereabouts]:
        """Return for each of *tags* whether *queue* has its message; 200 tags at one instant.

        For a divided queue, *queue* is the partition that stores the message.
        """
        k = self._keys(queue)
        replies = self._wire.exchange([scripts.WHEREABOUTS.over(k, some) for some in chunks(tags)])
        places = (_WHEREABOUTS[reply] for part in replies for reply in part)
        return dict(zip(tags, places, strict=True))

    def scan(
        self,
        queue: str,
        place: AnyPlace,
        start: Position,
        limit: int = SCANNED_AT_ONCE,
        *,
        contains: str = "",
        whole_bytes: int = 0,
    ) -> ScanPage:
        """Read up to *limit* messages of *place* from *start* on, in one step of a few ms.

        The order is that in which they will leave; dead letters come by time of death. The cost
        does not depend on the messages before them. A step reads at most 250 messages
        and a MiB of envelopes; the envelope of a larger message is None. An envelope of more than
        *whole_bytes* comes without its body. contains: only messages with this text in their
        envelope behind the body.
        """
        count = max(min(limit, SCANNED_AT_ONCE), 1)
        args = (place, *start, count, SCANNED_BYTES, whole_bytes, contains)
        looked, score, skip, flat = self._run(scripts.SCAN, queue, args)
        items = [self._stored(queue, place, flat[i + 1 : i + 7]) for i in range(0, len(flat), 7)]
        after = Position(text_of(score), int(skip)) if score else None
        return ScanPage(items, flat[::7], looked, after)

    def locate(self, queue: str, tag: str) -> Located | None:
        """Return one message with all details, at one instant; None if it is not in *queue*."""
        reply = self._run(scripts.LOCATE, queue, (tag,))
        if not reply:
            return None
        kind, score, before, envelope, *more, expires = reply
        place: AnyPlace = text_of(kind)  # type: ignore[assignment]
        row = (tag.encode(), score, len(envelope), envelope, *more)
        expires_ms = None if expires is None else number(expires)
        return Located(place, before, self._stored(queue, place, row), expires_ms)

    def count_due(self, queue: str, until_ms: Sequence[int]) -> list[int]:
        """Return how many delayed messages of *queue* are due at or before each of these times.

        Cheap, however many there are. Not read at one instant.
        """
        key = self._keys(queue).delayed
        return self._wire.call_all(*(("ZCOUNT", key, "-inf", until) for until in until_ms))

    def failures(self, queue: str) -> list[Failure]:
        """Return the last 1,000 failed deliveries, oldest first, also of messages settled since."""
        failures, wrong = [], []
        for entry in reversed(
            self._wire.call(("LRANGE", self._keys(queue).failed_deliveries, 0, -1))
        ):
            tag, *parts = text_of(entry).split("|", 4)
            if len(parts) != _PARTS:
                wrong.append(tag)
                continue
            at_ms, how, failed, consumer = parts
            failures.append(Failure(tag, number(at_ms), how, number(failed), consumer))
        left_out(self.broker, f"failed deliveries of {queue!r}", wrong)
        return failures

    def dead_letters(
        self, queue: str, limit: int, from_ms: int = 0, envelopes: bool = False
    ) -> list[DeadLetter]:
        """Return up to *limit* dead letters from *from_ms* (server clock) on, oldest first."""
        k = self._keys(queue)
        reply = self._wire.call(
            ("ZRANGEBYSCORE", k.dead, from_ms, "+inf", "WITHSCORES", "LIMIT", 0, limit)
        )
        tags = texts(reply[::2])
        if not tags:
            return []
        hashes = (k.dead_info, k.messages) if envelopes else (k.dead_info,)
        infos, *stored = self._wire.call_all(*(("HMGET", key, *tags) for key in hashes))
        dead_letters = []
        for i, (tag, died, info) in enumerate(zip(tags, reply[1::2], infos, strict=True)):
            if info is None:  # it left between the two reads
                continue
            reason, count, consumer, error = self._record(queue, "dead", tag, info)
            envelope = stored[0][i] if envelopes else None
            counted = number(count)
            dead_letters.append(
                DeadLetter(tag, number(died), reason, counted, consumer, error, envelope)
            )
        return dead_letters

    def _stored(self, queue: str, place: AnyPlace, row: Sequence[Any]) -> Stored:
        """Return one message of a reply of scan.lua or locate.lua."""
        tag, score, size, envelope, record, failed = row
        name = text_of(tag)
        at_ms = 0 if place == "ready" else number(score)
        count = -1 if failed is None else number(failed)
        if place not in {"unacked", "dead"}:
            return Stored(name, envelope, count, at_ms, "", size)
        parts = self._record(queue, place, name, record or b"")
        if place == "unacked":
            return Stored(name, envelope, count, at_ms, parts[_CONSUMER_OF_LEASE], size)
        reason, counted, consumer, error = parts
        return Stored(name, envelope, number(counted), at_ms, consumer, size, reason, error)

    def _record(self, queue: str, place: AnyPlace, tag: str, record: bytes) -> list[str]:
        """Return the parts of the record of a lease or dead letter; log an unreadable one."""
        text = record.decode("utf-8", "replace")
        parts = text.split("|", 3)
        if len(parts) == _PARTS:
            return parts
        what = "lease records" if place == "unacked" else "records of dead letters"
        left_out(self.broker, f"{what} of {queue!r}", [tag])
        return ["unknown", "0", "", text] if place == "dead" else [""] * _PARTS

    # -- consumers

    def consumers(self) -> list[Consumer]:
        """Return every consumer with recent heartbeats, by id."""
        flat = self._wire.call(("ZRANGE", self._shared.consumers, 0, -1, "WITHSCORES"))
        seen = {
            text_of(name): number(score) for name, score in zip(flat[::2], flat[1::2], strict=True)
        }
        names = sorted(seen)
        if not names:
            return []
        records = records_of(self._wire, self._prefix, names, _FIELDS)
        living = liveness_of(self._wire, self._prefix, names)
        consumers, wrong = [], []
        for name, record in zip(names, records, strict=True):
            liveness = living[name]
            if liveness is None or liveness.lapsed or record[0] is None:
                continue
            try:
                reported = {
                    field: value.decode()
                    for field, value in zip(_FIELDS, record, strict=True)
                    if value is not None
                }
                consumers.append(_consumer_of(name, seen[name], liveness, reported))
            except (ValueError, RecursionError):  # also wrong JSON or text
                wrong.append(name)
        left_out(self.broker, "records of consumers", wrong)
        return consumers

    # -- the broker

    def about(self) -> BrokerInfo:
        """Return the broker's report on itself; forbidden values are None or ""."""
        return self._server.about(self.broker)

    def diagnose(self) -> list[Finding]:
        """Check the broker itself and this user's rights.

        Takes up to some seconds, but never blocks other clients. The result has each check that
        was made, also one without a problem ("ok").
        """
        behind = isinstance(self._wire.address, SentinelAddress)
        return self._server.diagnose(behind_sentinels=behind)

    def nodes(self) -> list[Node]:
        """Return the nodes of the broker; none for a single server."""
        return []


def _ledger_of(broker: str, queue: str, stats: Sequence[bytes]) -> dict[str, int]:
    """Return the counters of a queue; those that are not numbers are left out."""
    counts = dict(zip(texts(stats[::2]), stats[1::2], strict=True))
    wrong = [name for name, value in counts.items() if not _COUNT.fullmatch(value)]
    left_out(broker, f"counters of {queue!r}", wrong)
    return {name: int(value) for name, value in counts.items() if name not in wrong}


def _measure(broker: str, queue: str, counts: Sequence[int], rest: Sequence[Any]) -> Measure:
    stats, arguments, paused, now_ms, due, ranks, layout, limits = rest
    declared, concurrency, rate, rate_state = (text_of(value or b"") for value in limits)
    status = QueueStatus(
        name=queue,
        **dict(zip(_COUNTS, counts, strict=True)),
        ledger=_ledger_of(broker, queue, stats),
        arguments={"": arguments, **declared_limits(declared)},
        paused=paused == 1,
        partitions=max(
            [1, *(int(text) for text in layout if text and _PARTITIONS.fullmatch(text))]
        ),
    )
    by_rank = dict(zip(ranks[::3], ranks[1::3], strict=True))
    oldest = min(filter(None, (published_ms(text_of(tag)) for tag in ranks[2::3])), default=None)
    return Measure(
        status,
        now_ms,
        by_rank,
        oldest,
        due,
        concurrency=concurrency,
        rate=rate,
        rate_state=rate_state,
    )


def _consumer_of(
    name: str, seen_ms: int, liveness: Liveness, record: Mapping[str, str]
) -> Consumer:
    """Return the consumer of *record*; raises ValueError or RecursionError if it is invalid."""
    return Consumer(
        id=name,
        host=record["host"],
        pid=int(record.get("pid") or 0),
        version=record.get("version") or "0",
        queues=liveness.queues,
        started_ms=int(record.get("started_ms") or 0),
        seen_ms=seen_ms,
        held=int(record.get("held") or 0),
        connected=liveness.connected,
        pool=record.get("pool", ""),
        node=record.get("node", ""),
        options=mapping(record.get("options")),
        running=counts(record.get("running")),
        processes=int(record.get("processes") or 0),
        failing=mapping(record.get("failing")),
        unprotected=tuple(filter(None, record.get("unprotected", "").split("\n"))),
        enforces=record.get("enforces", ""),
    )


class EmbeddedReads(RedisReads):
    """The reads of an embedded broker, which has no login, replica or network."""

    def about(self) -> BrokerInfo:
        """Return the server's report on itself."""
        about = super().about()
        fsync = "second" if about.persistence == "AOF no" else "always"
        return replace(about, persistence=f"AOF {fsync}")

    def diagnose(self) -> list[Finding]:
        """Check the broker, except for logins, replicas and the network, which it does not have."""
        scarce: str = getattr(self._wire.address, "advice", {}).get("OOM", "")
        reason, _, remedy = scarce.partition(": ")
        full = Finding("disk", "error", f"messages are refused: {reason}", remedy)
        return [
            full if scarce and item.check == "memory" else item
            for item in super().diagnose()
            if item.check not in _OF_A_NETWORK and "without fsync" not in item.message
        ]

"""The Redis engine: one method per script builds keys and arguments and reads the reply."""

from __future__ import annotations

import os
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from ...errors import BrokerRefused, ReliqError
from ...store import (
    DeadLetter,
    Delivery,
    Duties,
    ExchangeTable,
    How,
    Lease,
    Liveness,
    Lost,
    Move,
    OnResult,
    Publication,
    QueueDeclared,
    QueueDeleted,
    QueueStatus,
    Released,
    Reservation,
    Restored,
    Returned,
)
from ...tags import new_tag, rank_of
from . import keys, scripts
from .confirm import Confirmer
from .doorbell import RedisDoorbell
from .keys import QueueKeys, queue_keys
from .wire import Command, Reply, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...options import Confirm, Options
    from .connect import Address

T = TypeVar("T")

_PUBLISHER_KEPT_MS = 86_400_000
_KEPT_SAID_EVERY_S = 3600.0
_MOST_REMEMBERED = 4096
# A script handles at most so many messages a call, so that it takes well under 5 ms.
_BATCH = 200
_BATCH_BYTES = 1 << 20
_MOST_MOVED = 100
# Longer than dead letters are kept by default, so that a move that was cut off and is
# taken up again finds its numbers.
_MOVES_KEPT_MS = 200 * 86_400_000
_HELD_BACK = 2
_DECLARED = ("missing", "existed", "created", "differs")
_DELETED = {1: "deleted", 0: "missing", -1: "not_empty", -2: "in_use", -3: "not_idle"}


def _then(parse: Callable[[Reply], T], on_result: OnResult[T]) -> Callable[[Reply], None]:
    """Return a reply handler that parses what is not an error."""

    def on_reply(reply: Reply) -> None:
        on_result(reply if isinstance(reply, ReliqError) else parse(reply))

    return on_reply


def _texts(items: Iterable[bytes]) -> list[str]:
    return [item.decode() for item in items]


def _returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        yield Returned(tag.decode(), int(count), consumer.decode(), envelope if envelopes else None)


def _flat(leases: Iterable[Lease]) -> list[str]:
    return [part for lease in leases for part in lease]


def _batches(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _kind(item: Publication) -> tuple[object, ...]:
    return (
        item.queue,
        item.exchange,
        item.version,
        item.publisher,
        item.moved,
        item.number == 0,
    )


def _alike(publications: Sequence[Publication]) -> Iterable[Sequence[Publication]]:
    """Group neighbours that one script call can store: not too many, and not too large."""
    if len(publications) == 1:
        yield publications
        return
    group: list[Publication] = []
    size = 0
    for item in publications:
        if group and (
            len(group) == _BATCH
            or size + len(item.envelope) > _BATCH_BYTES
            or _kind(item) != _kind(group[0])
        ):
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item.envelope)
    if group:
        yield group


class RedisStore:
    """See :class:`reliq.store.Store`. Two sockets: commands and doorbell."""

    def __init__(self, address: Address, options: Options, consumer: str) -> None:
        self.consumer = consumer
        self.broker = str(address)
        self.options = options
        self._prefix = options.global_keyprefix
        name = f"{options.client_name}:{consumer}"
        self._wire = Wire(address, options, name)
        self._confirmer = Confirmer(self._wire, self._prefix, _PUBLISHER_KEPT_MS)
        self._doorbell = RedisDoorbell(Wire(address, options, f"{name}:bell"))
        # The one command that is sent for each message: its constant part, by queue.
        self._ack_commands: dict[str, tuple[Command, bytes]] = {}
        self._publish_constants: dict[tuple[str, str, str], Command] = {}
        self._kept: dict[str, float] = {}
        self._kept_epoch = 0
        self._delivery_limit = options.delivery_limit or 0
        backoff = options.redelivery_backoff or (0.0, 0.0)
        self._backoff_ms = tuple(int(seconds * 1000) for seconds in backoff)
        self._dead_letter_ttl_ms = int(options.dead_letter_ttl * 1000)

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._prefix, queue)

    # -- the connection

    @property
    def doorbell(self) -> RedisDoorbell:
        """The second socket, on which a consumer waits."""
        return self._doorbell

    @property
    def alive(self) -> bool:
        """Whether the command socket is open and has not failed."""
        return self._wire.alive

    @property
    def epoch(self) -> int:
        """How often the command socket was opened."""
        return self._wire.dials

    def connect(self) -> None:
        """Open the command socket unless it is open; raises BrokerUnavailable."""
        self._wire.connect()

    def close(self) -> None:
        """Close both sockets; what was posted gets a BrokerUnavailable."""
        self._doorbell.close()
        self._wire.close()

    def fileno(self) -> int:
        """Return the descriptor to watch for replies."""
        return self._wire.fileno()

    def pin(self) -> None:
        """Never open the command socket anew: an event loop watches it."""
        self._wire.pin()

    def receive(self) -> None:
        """Read replies that have come, without waiting."""
        self._wire.receive(0.0)

    def settle(self) -> None:
        """Wait for the replies of all that was posted."""
        self._wire.settle()

    def check(self) -> None:
        """Raise BrokerTimeout if a reply is overdue."""
        self._wire.check()

    @property
    def waiting(self) -> bool:
        """Whether something posted has no answer yet."""
        return self._wire.waiting

    def probe(self) -> None:
        """Raise ReliqError unless the server answers and accepts a write now."""
        self._wire.call(("SET", keys.probe(self._prefix), "1", "PX", 1000))

    def server(self) -> tuple[str, str]:
        """Return (this connection's client id, the server's run id or "")."""
        try:
            info: bytes = self._wire.call(("INFO", "server"))
        except BrokerRefused:
            info = b""
        fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
        return str(self._wire.client_id), fields.get(b"run_id", b"").decode()

    # -- publishing

    def _publish_command(self, items: Sequence[Publication]) -> Command:
        """Return the command that stores *items*, which differ in nothing but the message."""
        first = items[0]
        queue, exchange, number = first.queue, first.exchange, first.number
        place = (queue, first.publisher, exchange)
        constant = self._publish_constants.get(place)
        if constant is None:
            constant = self._publish_constant(*place)
        keep = 0
        if number:
            keep = _MOVES_KEPT_MS if first.moved else self._keep_ms(queue)
        low = first.low if len(items) == 1 else max(item.low for item in items)
        head = (
            *constant,
            1 if exchange else 0,
            first.version,
            keep,
            low,
            self.options.dead_letter_max,
            first.tag,
            first.envelope,
            first.rank,
            number,
            first.delay_ms,
            first.ttl_ms,
        )
        if len(items) == 1:
            return head
        command: list[Any] = [*head]
        for item in items[1:]:
            command += item.tag, item.envelope, item.rank
            command += item.number, item.delay_ms, item.ttl_ms
        return tuple(command)

    def _publish_constant(self, queue: str, publisher: str, exchange: str) -> Command:
        """Return the part of a publish command that is the same for each message, and keep it."""
        k = self._keys(queue)
        if len(self._publish_constants) > _MOST_REMEMBERED:
            self._publish_constants.clear()
        constant = self._publish_constants[queue, publisher, exchange] = (
            "EVALSHA",
            scripts.PUBLISH.sha,
            12,
            k.messages,
            k.ready,
            k.delayed,
            k.expiry,
            k.dead,
            k.dead_info,
            k.deliveries,
            k.bell,
            k.stats,
            k.meta,
            keys.publisher(self._prefix, queue, publisher),
            keys.bindings(self._prefix, exchange),
        )
        return constant

    def _keep_ms(self, queue: str) -> int:
        """Return how long to keep our numbers in *queue*; 0 where that was said of late."""
        now = monotonic()
        if self._kept_epoch != self._wire.dials:
            self._kept, self._kept_epoch = {}, self._wire.dials
        if now - self._kept.get(queue, -_KEPT_SAID_EVERY_S) < _KEPT_SAID_EVERY_S:
            return 0
        self._kept.pop(queue, None)
        return _PUBLISHER_KEPT_MS

    def _note_kept(self, publications: Sequence[Publication], outcomes: Sequence[int]) -> None:
        for item, outcome in zip(publications, outcomes, strict=True):
            if outcome > 0 and item.number and item.queue not in self._kept:
                if len(self._kept) > _MOST_REMEMBERED:
                    self._kept.clear()
                self._kept[item.queue] = monotonic()

    def publish(self, publications: Sequence[Publication]) -> list[int]:
        """Store *publications* in one round trip; neighbours alike in one step."""
        if len(publications) == 1:
            command = self._publish_command(publications)
            outcomes: list[int] = self._wire.call(command, scripts.PUBLISH)
        else:
            replies = self._wire.exchange(
                [(self._publish_command(items), scripts.PUBLISH) for items in _alike(publications)]
            )
            outcomes = [outcome for reply in replies for outcome in reply]
        self._note_kept(publications, outcomes)
        return outcomes

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused where the server can never give this confirmation."""
        self._confirmer.require_confirm(level)

    def confirm(
        self,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        publications: Sequence[Publication],
    ) -> None:
        """Wait until what was published is as safe as *level* says; raises NotConfirmed."""
        self._confirmer.confirm(level, replicas, timeout_ms, publications)

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Post what :meth:`publish` sends."""
        replies: list[Any] = []
        groups = list(_alike(publications))

        def on_reply(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) == len(groups):
                error = next((r for r in replies if isinstance(r, ReliqError)), None)
                on_result(error or [outcome for reply in replies for outcome in reply])

        for items in groups:
            self._wire.post(self._publish_command(items), on_reply, scripts.PUBLISH)

    def post_bindings_version(self, exchange: str, on_result: OnResult[bytes | None]) -> None:
        """Post what :meth:`bindings_version` asks."""
        self._wire.post(("HGET", keys.bindings(self._prefix, exchange), "version"), on_result)

    def bindings_version(self, exchange: str) -> bytes | None:
        """Return the version of the bindings of *exchange*."""
        version: bytes | None = self._wire.call(
            ("HGET", keys.bindings(self._prefix, exchange), "version")
        )
        return version

    def list_queue(self, queue: str, check_ms: int = 0) -> None:
        """Make *queue* visible; with *check_ms* its x-expires is looked at after that time."""
        self._wire.execute(scripts.LIST_QUEUE, (keys.queues(self._prefix),), (queue, check_ms))

    # -- taking

    def _reserve(self, queue: str, n: int, lease_ms: int, no_ack: bool) -> tuple[Any, Any]:
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.delayed,
            k.unacked_index,
            k.unacked,
            k.deliveries,
            k.expiry,
            k.dead,
            k.dead_info,
            k.bell,
            k.stats,
            k.meta,
        )
        ack = 1 if no_ack else 0
        return names, (min(n, _BATCH), lease_ms, self.consumer, ack, self._delivery_limit)

    @staticmethod
    def _reservation(queue: str, reply: Reply) -> Reservation:
        next_due_ms, lease_ms, left, token, tags, envelopes, counts = reply
        deliveries = [
            Delivery(queue, tag.decode(), str(token + i), count, envelope)
            for i, (tag, envelope, count) in enumerate(zip(tags, envelopes, counts, strict=True))
        ]
        return Reservation(deliveries, next_due_ms, lease_ms, left == 1, left == _HELD_BACK)

    def reserve(self, queue: str, n: int, lease_ms: int, no_ack: bool) -> Reservation:
        """Take up to *n* messages."""
        names, args = self._reserve(queue, n, lease_ms, no_ack)
        return self._reservation(queue, self._wire.execute(scripts.RESERVE, names, args))

    def post_reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, on_result: OnResult[Reservation]
    ) -> None:
        """Post what :meth:`reserve` sends."""
        names, args = self._reserve(queue, n, lease_ms, no_ack)
        on_reply = _then(partial(self._reservation, queue), on_result)
        self._wire.post_script(scripts.RESERVE, names, args, on_reply)

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease."""
        command = self._ack_commands.get(queue)
        if command is None:
            k = self._keys(queue)
            names = (
                k.messages,
                k.unacked_index,
                k.unacked,
                k.deliveries,
                k.stats,
                k.ready,
                k.delayed,
                k.expiry,
                k.dead,
                k.dead_info,
            )
            if len(self._ack_commands) > _MOST_REMEMBERED:
                self._ack_commands.clear()
            constant: Command = ("EVALSHA", scripts.ACK.sha, len(names), *names)
            _, _, packed = hiredis.pack_command(constant).partition(b"\r\n")
            command = self._ack_commands[queue] = (constant, packed)
        constant, packed = command
        full = (*constant, *tags)
        data = b"*%d\r\n%b%b" % (
            len(full),
            packed,
            b"".join([b"$%d\r\n%b\r\n" % (len(tag), tag.encode()) for tag in tags]),
        )
        self._wire.post_packed(data, full, on_result, scripts.ACK)

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted."""
        k = self._keys(queue)
        names = (
            k.ready,
            k.delayed,
            k.unacked_index,
            k.unacked,
            k.deliveries,
            k.expiry,
            k.dead,
            k.dead_info,
            k.bell,
            k.stats,
            k.meta,
            k.messages,
        )
        result = Released([], [])
        for batch in _batches(leases):
            args = (how, self._delivery_limit, *self._backoff_ms, *_flat(batch))
            refused, died = self._wire.execute(scripts.RELEASE, names, args)
            result.refused.extend(_texts(refused))
            for tag, count in zip(died[::2], died[1::2], strict=True):
                result.dead.append(Returned(tag.decode(), int(count), self.consumer, None))
        return result

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags that were refused."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.unacked_index,
            k.unacked,
            k.deliveries,
            k.dead,
            k.dead_info,
            k.stats,
        )
        limit = self.options.dead_letter_max
        refused: list[str] = []
        for batch in _batches(leases):
            args = (reason, error, limit, *_flat(batch))
            refused += _texts(self._wire.execute(scripts.DEAD_LETTER, names, args))
        return refused

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases, or end them now; the result comes once for each batch."""
        k = self._keys(queue)
        names = (k.unacked_index, k.unacked, k.meta, k.messages)

        def parse(reply: Reply) -> Lost:
            return Lost(*map(_texts, reply))

        for batch in _batches(leases):
            args = (lease_ms, *_flat(batch))
            self._wire.post_script(scripts.RENEW, names, args, _then(parse, on_result))

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        hurry: bool = False,
        envelopes: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the mutex-guarded pass."""
        args = (
            self.consumer,
            0 if hurry else max(int(self.options.restore_interval * 1000), 1),
            _BATCH,
            self._delivery_limit,
            self.options.dead_letter_max,
            self._dead_letter_ttl_ms,
            lease_ms,
            *self._backoff_ms,
            1 if envelopes else 0,
        )

        def parse(reply: Reply) -> Restored:
            granted, more, unacked, restored, died, consumers, to_route = reply
            return Restored(
                granted == 1,
                granted == 1 and more == 1,
                0 if granted else max(more, 0),
                unacked,
                list(_returned(restored, envelopes)),
                list(_returned(died, envelopes)),
                _texts(consumers),
                to_route,
            )

        names = self._keys(queue)[:-1]
        self._wire.post_script(scripts.RESTORE_VISIBLE, names, args, _then(parse, on_result))

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*; one that ends with "/" stands for all that begin so."""
        names = (self._keys(queue).unacked,)
        found: set[Lease] = set()
        cursor = "0"
        while True:
            reply = self._wire.execute(scripts.LEASES_OF, names, (consumer, cursor, _BATCH))
            cursor, *flat = _texts(reply)
            found.update(map(Lease, flat[::2], flat[1::2]))
            if cursor == "0":
                return sorted(found)

    def end_wait(self) -> None:
        """End the doorbell's wait, so that it can begin anew for other queues."""
        if self._doorbell.listening:
            self._wire.post(("CLIENT", "UNBLOCK", self._doorbell.client_id))

    # -- the register of consumers

    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Note who consumes; False when the queue was deleted with the last one."""
        kept: int = self._wire.execute(scripts.ATTACH, self._keys(queue), (consumer, subscriptions))
        if not kept:
            self._unlist(queue)
        return kept == 1

    def post_heartbeat(
        self, consumer: str, ttl_ms: int, record: dict[str, str], on_result: OnResult[Duties]
    ) -> None:
        """Say that *consumer* lives; the result is what queues need of whoever lives."""
        names = (
            keys.consumers(self._prefix),
            keys.consumer(self._prefix, consumer),
            keys.queues(self._prefix),
            keys.rerouted(self._prefix),
        )
        pairs = [part for pair in record.items() for part in pair]
        args = (consumer, ttl_ms, *pairs)

        def parse(reply: Reply) -> Duties:
            expiring, rerouted = reply
            return Duties(_texts(expiring), _texts(rerouted))

        self._wire.post_script(scripts.HEARTBEAT, names, args, _then(parse, on_result))

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, dead ones that nobody removed included."""
        return sorted(_texts(self._wire.call(("HKEYS", self._keys(queue).consumers))))

    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""
        self._wire.exchange(
            [
                (("DEL", keys.consumer(self._prefix, consumer)), None),
                (("ZREM", keys.consumers(self._prefix), consumer), None),
            ]
        )

    def liveness(self, consumers: Sequence[str]) -> dict[str, Liveness | None]:
        """Return what is known of *consumers*; None for one whose record has lapsed."""
        fields = ("client_id", "run_id", "queues")
        records = self._wire.exchange(
            [(("HMGET", keys.consumer(self._prefix, name), *fields), None) for name in consumers]
        )
        _, run_id = self.server()
        ids = [record[0].decode() for record in records if record[0]]
        try:
            listing: bytes = self._wire.call(("CLIENT", "LIST", "ID", *ids)) if ids else b""
            connected = {
                line.split(b" ", 1)[0].removeprefix(b"id=").decode()
                for line in listing.split(b"\n")
            }
        except BrokerRefused:  # not permitted, or not supported: leases alone decide
            connected = set(ids)
        known: dict[str, Liveness | None] = {}
        for name, (client_id, run, queues) in zip(consumers, records, strict=True):
            if client_id is None:
                known[name] = None
                continue
            # After a restart of the server no client id of before means anything.
            present = client_id.decode() in connected or run.decode() != run_id
            held = tuple(filter(None, queues.decode().split("\n")))
            known[name] = Liveness(client_id.decode(), run.decode(), held, present)
        return known

    # -- topology

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""
        k = self._keys(queue)
        pairs = [part for pair in meta.items() for part in pair]
        outcome, messages, consumers, stored = self._wire.execute(
            scripts.DECLARE,
            (k.meta, k.ready, k.delayed, k.consumers),
            (1 if passive else 0, arguments, *pairs),
        )
        if not passive:
            self.list_queue(queue, int(meta.get("expires", 0)))
            if "dead_letter_exchange" in meta:
                self._wire.call(("ZADD", keys.rerouted(self._prefix), "NX", 0, queue))
        return QueueDeclared(_DECLARED[outcome], messages, consumers, stored)  # type: ignore[arg-type]

    def delete_queue(
        self, queue: str, *, if_empty: bool = False, if_unused: bool = False, if_idle: bool = False
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold."""
        flags = tuple(1 if flag else 0 for flag in (if_empty, if_unused, if_idle))
        outcome, count = self._wire.execute(scripts.DELETE_QUEUE, self._keys(queue), flags)
        if outcome in {1, 0}:
            self._unlist(queue)
        elif outcome == -3:  # noqa: PLR2004 - as in the script's header
            self.list_queue(queue, max(count, 0))
        return QueueDeleted(_DELETED[outcome], count)  # type: ignore[arg-type]

    def _unlist(self, queue: str) -> None:
        names = (keys.queues(self._prefix), keys.rerouted(self._prefix))
        self._wire.exchange([(("ZREM", name, queue), None) for name in names])

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*, some hundred messages a call; return how many."""
        k = self._keys(queue)
        names = (k.messages, k.ready, k.delayed, k.deliveries, k.expiry, k.stats)
        total = 0
        while removed := self._wire.execute(scripts.PURGE, names, (_BATCH,)):
            total += removed
        return total

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return sorted(_texts(self._wire.call(("ZRANGE", keys.queues(self._prefix), 0, -1))))

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Store the declaration unless there is one; return what is stored."""
        key = keys.exchanges(self._prefix)
        known = self._wire.call(("HGET", key, exchange))
        if known is not None:  # so that a worker can start when memory is full
            return bytes(known)
        _, stored = self._wire.exchange(
            [(("HSETNX", key, exchange, declaration), None), (("HGET", key, exchange), None)]
        )
        return bytes(stored)

    def delete_exchange(self, exchange: str) -> None:
        """Delete *exchange* and its bindings."""
        self._wire.exchange(
            [
                (("HDEL", keys.exchanges(self._prefix), exchange), None),
                (("DEL", keys.bindings(self._prefix, exchange)), None),
            ]
        )

    def exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""
        return sorted(_texts(self._wire.call(("HKEYS", keys.exchanges(self._prefix)))))

    def bind(self, exchange: str, bound: bool, bindings: Sequence[bytes]) -> None:
        """Add or remove *bindings* and change the table's version, together."""
        names = (keys.bindings(self._prefix, exchange),)
        self._wire.execute(scripts.BIND, names, (1 if bound else 0, *bindings))

    def exchange_table(self, exchange: str) -> ExchangeTable:
        """Return the declaration, the bindings and their version."""
        declaration, fields = self._wire.exchange(
            [
                (("HGET", keys.exchanges(self._prefix), exchange), None),
                (("HGETALL", keys.bindings(self._prefix, exchange)), None),
            ]
        )
        table = dict(zip(fields[::2], fields[1::2], strict=True))
        version = table.pop(b"version", None)
        return ExchangeTable(declaration, version, frozenset(table))

    # -- claims

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own."""
        names = (keys.once(self._prefix, name),)
        args = (token, keep_ms, 1 if finished else 0)
        return int(self._wire.execute(scripts.ONCE, names, args))

    # -- operators

    def now_ms(self) -> int:
        """Return the server's time, in ms since the epoch."""
        seconds, micros = self._wire.call(("TIME",))
        return int(seconds) * 1000 + int(micros) // 1000

    def status(self, queue: str) -> QueueStatus | None:
        """Return the counts and the ledger of *queue*; None where there is no such queue."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.delayed,
            k.unacked_index,
            k.dead,
            k.stats,
            k.meta,
            k.consumers,
        )
        exists, *counts, stats, arguments, paused = self._wire.execute(scripts.STATUS, names, ())
        if not exists:
            return None
        ready, delayed, unacked, dead, stored, consumers = counts
        ledger = dict(zip(_texts(stats[::2]), map(int, stats[1::2]), strict=True))
        arguments = {"": arguments}
        return QueueStatus(
            queue, ready, delayed, unacked, dead, stored, consumers, ledger, arguments, paused == 1
        )

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue."""
        k = self._keys(queue)
        names = (k.meta, k.ready, k.delayed, k.bell)
        return bool(self._wire.execute(scripts.PAUSE, names, (1 if paused else 0,)))

    def dead_letters(
        self, queue: str, limit: int, from_ms: int = 0, envelopes: bool = False
    ) -> list[DeadLetter]:
        """Return up to *limit* that died at *from_ms* or later, oldest first."""
        k = self._keys(queue)
        reply = self._wire.call(
            ("ZRANGEBYSCORE", k.dead, from_ms, "+inf", "WITHSCORES", "LIMIT", 0, limit)
        )
        tags = _texts(reply[::2])
        if not tags:
            return []
        asked: list[tuple[Command, None]] = [(("HMGET", k.dead_info, *tags), None)]
        if envelopes:
            asked.append((("HMGET", k.messages, *tags), None))
        infos, *stored = self._wire.exchange(asked)
        letters = []
        for i, (tag, died, info) in enumerate(zip(tags, reply[1::2], infos, strict=True)):
            if info is None:  # it left between the two looks
                continue
            reason, count, consumer, error = info.decode("utf-8", "replace").split("|", 3)
            envelope = stored[0][i] if envelopes else None
            letters.append(
                DeadLetter(tag, int(float(died)), reason, int(count), consumer, error, envelope)
            )
        return letters

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Put dead letters back into *queue*, uncounted; return the tags that were."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.deliveries,
            k.dead,
            k.dead_info,
            k.bell,
            k.stats,
            k.meta,
            k.moves,
        )
        replayed: list[str] = []
        for batch in _batches(tags):
            replayed += _texts(self._wire.execute(scripts.REPLAY, names, batch))
        return replayed

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""
        k = self._keys(queue)
        names = (k.messages, k.deliveries, k.dead, k.dead_info, k.stats, k.moves)
        return sum(self._wire.execute(scripts.PURGE_DEAD, names, batch) for batch in _batches(tags))

    def begin_move(self, queue: str, target: str, tags: Sequence[str]) -> tuple[int, list[Move]]:
        """Give numbers to dead letters that are to be stored elsewhere, or find them again."""
        k = self._keys(queue)
        names = (k.messages, k.dead, k.stats, k.moves)
        low, *flat = self._wire.execute(scripts.MOVE, names, (target, *tags[:_MOST_MOVED]))
        moves = [
            Move(flat[i].decode(), int(flat[i + 1]), flat[i + 2]) for i in range(0, len(flat), 3)
        ]
        return int(low), moves

    def move_out(self, queue: str, target: str) -> tuple[int, list[Move]]:
        """Take waiting messages out of *queue*, or go on with those taken out before."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.delayed,
            k.unacked_index,
            k.unacked,
            k.deliveries,
            k.expiry,
            k.dead,
            k.stats,
            k.moves,
        )
        low, *flat = self._wire.execute(scripts.MOVE_OUT, names, (target, _MOST_MOVED))
        moves = []
        for i in range(0, len(flat), 6):
            tag, number, envelope, delay_ms, ttl_ms, failed = flat[i : i + 6]
            moves.append(Move(tag.decode(), int(number), envelope, delay_ms, ttl_ms, failed))
        return int(low), moves

    def accept(self, queue: str, source: str, low: int, moves: Sequence[Move]) -> list[int]:
        """Store messages that come from *source*, each once; return what became of each."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.delayed,
            k.expiry,
            k.deliveries,
            k.dead,
            k.dead_info,
            k.bell,
            k.stats,
            k.meta,
            keys.publisher(self._prefix, queue, f"move:{source}"),
        )
        args: list[Any] = [_MOVES_KEPT_MS, low]
        for move in moves:
            rank, letter = rank_of(move.tag), move.letter
            args += new_tag(rank), move.envelope, rank, move.number, move.delay_ms, move.ttl_ms
            args.append(move.failed)
            if letter is None:
                args += 0, ""
            else:
                info = (letter.reason, str(letter.count), letter.consumer, letter.error)
                args += letter.died_ms, "|".join(info)
        outcomes: list[int] = self._wire.execute(scripts.ACCEPT, names, args)
        return outcomes

    def broker_id(self) -> str:
        """Return the name by which other brokers know this one."""
        key = keys.broker_id(self._prefix)
        _, name = self._wire.exchange(
            [(("SET", key, os.urandom(8).hex(), "NX"), None), (("GET", key), None)]
        )
        return str(name.decode())

    def end_move(self, queue: str, tags: Sequence[str]) -> int:
        """Take out what is stored elsewhere now; return how many."""
        k = self._keys(queue)
        names = (
            k.messages,
            k.deliveries,
            k.dead,
            k.dead_info,
            k.unacked_index,
            k.unacked,
            k.stats,
            k.moves,
        )
        return sum(self._wire.execute(scripts.MOVED, names, batch) for batch in _batches(tags))

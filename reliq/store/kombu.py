"""Kombu's own Redis transport as the source or target of a migration.

Knows the layout of ``kombu/transport/redis.py``: one list for each step of priority, the unacked
hash and its index, the sets of bindings. reliq adds two keys for messages that are half way to
another broker and, for each source, the numbers stored already. It does not parse messages.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..lua import keys, scripts
from ..values.limits import chunks
from .base import StoreBase, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..client.connect import Broker
    from ..client.stream import Command
    from ..options import Options

_PAGE = 200
_PARTS = 3  # routing key, pattern, queue


@dataclass(frozen=True, slots=True)
class KombuLayout:
    """The transport options of Kombu that determine where its messages are.

    sep: between a queue's name and a step of priority, and in bindings.
    priority_steps: the steps that have a list, the first served first.
    unacked_key, unacked_index_key: unacked messages.
    """

    sep: str = "\x06\x16"
    priority_steps: tuple[int, ...] = (0, 3, 6, 9)
    unacked_key: str = "unacked"
    unacked_index_key: str = "unacked_index"

    def step_of(self, priority: int) -> int:
        """Return the step whose list holds a message of *priority*, as Kombu determines it."""
        return self.priority_steps[bisect(self.priority_steps, min(max(priority, 0), 9)) - 1]


class KombuBinding(NamedTuple):
    """A queue bound to an exchange, in Kombu's form."""

    exchange: str
    routing_key: str
    pattern: str
    """A regular expression for an exchange of type topic, otherwise ""."""
    queue: str
    temporary: bool = False
    """Whether the binding is known to expire with its queue."""


class KombuRedis(StoreBase):
    """One connection to a Redis with the messages of Kombu's transport."""

    def __init__(
        self, address: Broker, options: Options, consumer: str, layout: KombuLayout
    ) -> None:
        super().__init__(address, options, consumer)
        self.layout = layout

    # -- looking

    def _list(self, queue: str, step: int) -> str:
        return keys.waiting(self._prefix, queue, step, self.layout.sep)

    def bindings(self) -> list[KombuBinding]:
        """Return all bindings. Not read at one instant."""
        beginning = keys.kombu_bindings(self._prefix, "")
        bindings = []
        for key in sorted(self._scan(beginning, "set")):
            exchange = key[len(beginning) :]
            members, durable, deadline = self._wire.call_all(
                ("SMEMBERS", key),
                ("SMEMBERS", keys.kombu_permanent_bindings(self._prefix, exchange)),
                ("ZSCORE", keys.kombu_deadlines(self._prefix), exchange),
            )
            for member in sorted(members):
                parts = member.decode().split(self.layout.sep)
                if len(parts) == _PARTS:
                    routing_key, regex, queue = parts
                    temporary = deadline is not None and member not in durable
                    bindings.append(KombuBinding(exchange, routing_key, regex, queue, temporary))
        return bindings

    def lists(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield (key, length, one element) of each list under the prefix, of any program."""
        for chunk in chunks(sorted(self._scan(self._prefix, "list"))):
            elements = self._wire.call_all(*(("LRANGE", key, -1, -1) for key in chunk))
            lengths = self._wire.call_all(*(("LLEN", key) for key in chunk))
            for key, length, element in zip(chunk, lengths, elements, strict=True):
                if length and element:
                    yield key, length, element[0]

    def keys_of(self, queue: str) -> set[str]:
        """Return the keys of the lists of *queue*."""
        return {self._list(queue, step) for step in self.layout.priority_steps}

    def _scan(self, beginning: str, kind: str) -> set[str]:
        pattern, cursor, names = f"{keys.literal(beginning)}*", b"0", set[str]()
        while True:
            cursor, page = self._wire.call(
                ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", kind)
            )
            names.update(texts(page))
            if cursor == b"0":
                return names

    def lengths(self, queue: str) -> dict[int, int]:
        """Return the number of waiting messages by step of priority."""
        steps = self.layout.priority_steps
        lengths = self._wire.call_all(*(("LLEN", self._list(queue, s)) for s in steps))
        return dict(zip(steps, lengths, strict=True))

    def messages(self, queue: str) -> Iterator[bytes]:
        """Yield the messages in *queue*; messages that come or go meanwhile may be missing."""
        for step in self.layout.priority_steps:
            start, page = 0, [b""]
            while page:
                command = ("LRANGE", self._list(queue, step), start, start + _PAGE - 1)
                page = self._wire.call(command)
                start += len(page)
                yield from page

    def unacked(self, older_than_s: float = 0.0) -> Iterator[tuple[str, bytes]]:
        """Yield (tag, message) of messages unacked for *older_than_s* or longer, oldest first."""
        index, messages = self._unacked_keys()
        seconds, micros = self._wire.call(("TIME",))
        before = int(seconds) + int(micros) / 1e6 - older_than_s
        tags = texts(self._wire.call(("ZRANGEBYSCORE", index, "-inf", repr(before))))
        for chunk in chunks(tags):
            values = self._wire.call(("HMGET", messages, *chunk))
            yield from (item for item in zip(chunk, values, strict=True) if item[1] is not None)

    def held(self) -> dict[tuple[str, str], int]:
        """Return the number of messages that are half way, by (target, queue)."""
        counts: dict[tuple[str, str], int] = {}
        for entry in self._wire.call(("HVALS", self._shared.kombu_held)):
            target, size, rest = entry.split(b"|", 2)
            place = (target.decode(), rest[: int(size)].decode())
            counts[place] = counts.get(place, 0) + 1
        return counts

    # -- out of it

    def take(self, queue: str, target: str, step: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Take up to 100 messages out of one list, or continue with those taken before.

        Atomic. They are held under numbers until :meth:`drop`. Returns (low_water, [(number,
        message), ...]); no messages if none is held and the list is empty.
        """
        waiting, args = self._list(queue, step), (target, queue)
        low_water, *flat = self._wire.run(scripts.KOMBU_TAKE, self._shared, args, waiting=waiting)
        return int(low_water), [(int(flat[i]), flat[i + 1]) for i in range(0, len(flat), 2)]

    def take_unacked(
        self, target: str, older_than_s: float, routed: Sequence[tuple[str, Sequence[str]]]
    ) -> int:
        """Take unacked messages, each (tag, queues); return how many. :meth:`take` follows.

        Atomic for up to 200 messages at a time. Messages that are no longer unacked, or were
        delivered less than *older_than_s* ago by the server's clock, are left.
        """
        taken, index, unacked = 0, *self._unacked_keys()
        for chunk in chunks(routed):
            pairs = [part for tag, queues in chunk for queue in queues for part in (tag, queue)]
            args = (target, repr(float(older_than_s)), *pairs)
            taken += self._wire.run(
                scripts.KOMBU_TAKE_UNACKED, self._shared, args, unacked=unacked, unacked_index=index
            )
        return taken

    def _unacked_keys(self) -> tuple[str, str]:
        k = self.layout
        return f"{self._prefix}{k.unacked_index_key}", f"{self._prefix}{k.unacked_key}"

    def drop(self, numbers: Sequence[int]) -> int:
        """Forget messages that are stored elsewhere now; return how many. May be repeated."""
        held = self._shared.kombu_held
        return sum(self._wire.call(("HDEL", held, *chunk)) for chunk in chunks(numbers))

    # -- into it

    def accept(
        self, queue: str, source: str, low_water: int, items: Sequence[tuple[int, int, bytes]]
    ) -> int:
        """Store messages that come from *source*, each once; return how many were new.

        Each is (number, priority, message). Atomic for each step of priority.
        """
        by_step: dict[int, list[int | bytes]] = {}
        for number, priority, message in items:
            by_step.setdefault(self.layout.step_of(priority), []).extend((number, message))
        publisher = keys.publisher(self._prefix, queue, f"move:{source}")
        stored = 0
        for step, flat in by_step.items():
            at = {"publisher": publisher, "waiting": self._list(queue, step)}
            stored += sum(self._wire.run(scripts.KOMBU_ACCEPT, None, (low_water, *flat), **at))
        return stored

    def bind(self, bindings: Sequence[KombuBinding]) -> None:
        """Add bindings of queues that do not expire. Adding one twice is harmless."""
        commands: list[Command] = []
        for item in bindings:
            member = self.layout.sep.join((item.routing_key, item.pattern, item.queue))
            # The second key prevents Kombu 5.7 from removing the binding of the first.
            for key in (keys.kombu_bindings, keys.kombu_permanent_bindings):
                commands += [("SADD", key(self._prefix, item.exchange), member)]
        for chunk in chunks(commands):
            self._wire.call_all(*chunk)

"""The register of consumers over Redis: who lives, what each says of itself, and its queues."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused, ReliqError, again
from ...store.inspection import Consumer
from ...store.limits import LOOKED_AT
from ...store.unreadable import counts, left_out, mapping, number
from ...store.values import Attached, Duties, Liveness
from . import keys, scripts
from .base import StoreBase, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...store.protocol import OnResult
    from .stream import Reply

_FIELDS = (
    "host",
    "pid",
    "version",
    "started_ms",
    "held",
    "pool",
    "options",
    "running",
    "processes",
    "failing",
)
_CLIENT_ID = re.compile(rb"[0-9]{1,18}")


class RedisRegister(StoreBase):
    """What a store knows of consumers."""

    def post_look(self, consumer: str, hold_ms: int, on_result: OnResult[list[str]]) -> None:
        """Ask for the duty to look after all consumers."""
        names = scripts.LOOK.named(
            consumers=keys.consumers(self._prefix),
            looking=keys.looking(self._prefix),
            guard=keys.guard_of_all(self._prefix),
        )
        args = (consumer, hold_ms, LOOKED_AT)
        self._wire.post_script(scripts.LOOK, names, args, then(texts, on_result))

    def post_heartbeat(
        self,
        consumer: str,
        ttl_ms: int,
        again_ms: int,
        record: dict[str, str],
        on_result: OnResult[Duties],
    ) -> None:
        """Say that *consumer* lives; the result is what queues need of whoever lives."""
        names = scripts.HEARTBEAT.named(
            consumers=keys.consumers(self._prefix),
            consumer=keys.consumer(self._prefix, consumer),
            queues=keys.queues(self._prefix),
            dead_letter_routed=keys.dead_letter_routed(self._prefix),
            stored_format=keys.stored_format(self._prefix),
            guard=keys.guard_of_all(self._prefix),
        )
        pairs = [part for pair in record.items() for part in pair]
        args = (consumer, ttl_ms, again_ms, *pairs)

        def parse(reply: Reply) -> Duties:
            due, more, dead_letter_routed, new = reply
            return Duties(texts(due), more == 1, texts(dead_letter_routed), new == 1)

        self._wire.post_script(scripts.HEARTBEAT, names, args, then(parse, on_result))

    def post_running(
        self, consumer: str, number: int, running: Mapping[str, int], on_result: OnResult[bool]
    ) -> None:
        """Say which tasks a worker runs that are acknowledged; False: it is not known."""
        names = scripts.TELL_RUNNING.named(
            consumer=keys.consumer(self._prefix, consumer), guard=keys.guard_of_all(self._prefix)
        )
        args = (number, json.dumps(running))
        self._wire.post_script(
            scripts.TELL_RUNNING, names, args, then(lambda reply: reply == 1, on_result)
        )

    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""
        self._wire.exchange(
            [
                (("DEL", keys.consumer(self._prefix, consumer)), None),
                (("ZREM", keys.consumers(self._prefix), consumer), None),
            ]
        )

    def _records(self, names: Sequence[str], fields: Sequence[str]) -> list[Any]:
        """Return these fields of each consumer, None where it has none; of one without a record."""
        replies: list[Any] = self._wire.replies(
            [(("HMGET", keys.consumer(self._prefix, name), *fields), None) for name in names]
        )
        wrong = []
        for place, (name, reply) in enumerate(zip(names, replies, strict=True)):
            if isinstance(reply, BrokerRefused) and "WRONGTYPE" in str(reply):
                wrong.append(name)
                replies[place] = [None] * len(fields)
            elif isinstance(reply, ReliqError):
                raise again(reply)
        left_out(self.broker, "records of consumers", wrong)
        return replies

    def liveness(self, consumers: Sequence[str]) -> dict[str, Liveness | None]:
        """Return what is known of *consumers*; None for one that is not in the register."""
        fields = ("client_id", "run_id", "queues", "seen", "ttl", "host", "pid")
        records = self._records(consumers, fields)
        clock = self._wire.call(("TIME",))
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        _, run_id = self.server()
        ids = [text_of(first) for first, *_ in records if _CLIENT_ID.fullmatch(first or b"")]
        listing: bytes | None = self._ask_if_allowed("CLIENT", "LIST", "ID", *ids) if ids else b""
        connected = {
            line.split(b" ", 1)[0].removeprefix(b"id=").decode()
            for line in (listing or b"").split(b"\n")
        }
        if listing is None:  # leases alone decide
            connected.update(ids)
        known: dict[str, Liveness | None] = {}
        for name, record in zip(consumers, records, strict=True):
            if record[0] is None:
                known[name] = None
                continue
            client_id, run, queues, seen, ttl, host, pid = (value or b"" for value in record)
            # After a restart of the server no client id of before means anything; nor is there one
            # where it was not told.
            present = text_of(client_id) in {*connected, ""} or text_of(run) != run_id
            held = tuple(filter(None, text_of(queues).split("\n")))
            known[name] = Liveness(
                text_of(client_id),
                text_of(run),
                held,
                present,
                now - number(seen, now),
                number(ttl, 0),
                text_of(host),
                number(pid, 0),
            )
        return known

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose record has not lapsed, by id."""
        flat = self._wire.call(("ZRANGE", keys.consumers(self._prefix), 0, -1, "WITHSCORES"))
        seen = {
            text_of(name): number(score) for name, score in zip(flat[::2], flat[1::2], strict=True)
        }
        names = sorted(seen)
        if not names:
            return []
        records = self._records(names, _FIELDS)
        living = self.liveness(names)
        found, wrong = [], []
        for name, record in zip(names, records, strict=True):
            liveness = living[name]
            if liveness is None or liveness.lapsed or record[0] is None:
                continue
            try:
                said = {
                    field: value.decode()
                    for field, value in zip(_FIELDS, record, strict=True)
                    if value is not None
                }
                found.append(_consumer_of(name, seen[name], liveness, said))
            except (ValueError, RecursionError):  # also JSON's, and that of text that is none
                wrong.append(name)
        if wrong:
            left_out(self.broker, "records of consumers", wrong)
        return found

    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Note who consumes; False when there is no such queue, or no more."""
        mark = f"{subscriptions} {self.consumer}" if subscriptions else ""
        return self._attach(queue, consumer, mark, "", 0)

    def drop_consumer(self, queue: str, consumer: str, mark: str, silent_ms: int) -> bool:
        """Take a dead consumer off *queue*, unless its mark is another by now."""
        return self._attach(queue, consumer, "", mark, silent_ms)

    def _attach(self, queue: str, consumer: str, mark: str, seen: str, silent_ms: int) -> bool:
        args = (consumer, mark, seen, silent_ms)
        names = scripts.ATTACH.of(self._keys(queue))
        kept: int = self._wire.execute(scripts.ATTACH, names, args)
        return kept == 1

    def attached(self, queue: str) -> Attached:
        """Return who consumes from *queue*, and whether it goes by itself."""
        k = self._keys(queue)
        flags, marks = self._wire.exchange(
            [
                (("HMGET", k.meta, "auto_delete", "expires"), None),
                (("HGETALL", k.consumers), None),
            ]
        )
        found = texts(marks)
        return Attached(any(flags), dict(zip(found[::2], found[1::2], strict=True)))

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, dead ones that nobody removed included."""
        return sorted(texts(self._wire.call(("HKEYS", self._keys(queue).consumers))))


def _consumer_of(
    name: str, seen_ms: int, liveness: Liveness, record: Mapping[str, str]
) -> Consumer:
    """Return what *record* says; raises ValueError, RecursionError for one that is none."""
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
        options=mapping(record.get("options")),
        running=counts(record.get("running")),
        processes=int(record.get("processes") or 0),
        failing=mapping(record.get("failing")),
    )

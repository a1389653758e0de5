"""The register of consumers over Redis: who still lives, and what each says of itself."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused, ReliqError, again
from ...store.consumer_record import FIELDS, consumer_of
from ...store.limits import LOOKED_AT
from ...store.unreadable import left_out, number
from ...store.values import Duties, Liveness
from . import keys, scripts
from .base import StoreBase, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...store.inspection import Consumer
    from ...store.protocol import OnResult
    from .stream import Reply


logger = logging.getLogger("reliq")

_CLIENT_ID = re.compile(rb"[0-9]{1,18}")
# Brokers of which this process has said that it may not look who is connected.
_told_blind: set[str] = set()


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
        try:
            listing: bytes = self._wire.call(("CLIENT", "LIST", "ID", *ids)) if ids else b""
            connected = {
                line.split(b" ", 1)[0].removeprefix(b"id=").decode()
                for line in listing.split(b"\n")
            }
        except BrokerRefused as exc:  # not permitted, or not supported: leases alone decide
            connected = set(ids)
            self._say_once(exc)
        known: dict[str, Liveness | None] = {}
        for name, record in zip(consumers, records, strict=True):
            if record[0] is None:
                known[name] = None
                continue
            client_id, run, queues, seen, ttl, host, pid = (value or b"" for value in record)
            # After a restart of the server no client id of before means anything.
            present = text_of(client_id) in connected or text_of(run) != run_id
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

    def _say_once(self, exc: BrokerRefused) -> None:
        name = str(self._wire.address)
        if name not in _told_blind:
            _told_blind.add(name)
            logger.warning(
                "%s; killed consumers are noticed when their leases end (visibility_timeout), "
                "not after orphan_grace; said once",
                exc,
            )

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose record has not lapsed, by id."""
        flat = self._wire.call(("ZRANGE", keys.consumers(self._prefix), 0, -1, "WITHSCORES"))
        seen = {
            text_of(name): number(score) for name, score in zip(flat[::2], flat[1::2], strict=True)
        }
        names = sorted(seen)
        if not names:
            return []
        records = self._records(names, FIELDS)
        living = self.liveness(names)
        found, wrong = [], []
        for name, record in zip(names, records, strict=True):
            liveness = living[name]
            if liveness is None or liveness.lapsed or record[0] is None:
                continue
            try:
                said = {
                    field: value.decode()
                    for field, value in zip(FIELDS, record, strict=True)
                    if value is not None
                }
                found.append(consumer_of(name, seen[name], liveness, said))
            except (ValueError, RecursionError):  # also JSON's, and that of text that is none
                wrong.append(name)
        if wrong:
            left_out(self.broker, "records of consumers", wrong)
        return found

"""The register of consumers over Redis: who is alive, their records and their queues."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ..client.error_replies import code_of
from ..errors import BrokerRefused, ReliqError, again
from ..lua import keys, scripts
from ..values.unreadable import left_out, number
from ..values.values import Attached, Duties, Liveness
from .base import StoreBase, ask_if_allowed, server, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..client.commands import Commands
    from ..client.pipeline import OnReply
    from ..client.stream import Command, Reply
    from ..lua.scripts import Script
    from ..values.values import OnResult

_CLIENT_ID = re.compile(rb"[0-9]{1,18}")


class RedisRegister(StoreBase):
    """The part of a store for the register."""

    def post_elect(self, consumer: str, hold_ms: int, on_result: OnResult[list[str]]) -> None:
        """Claim the duty to check all consumers, which one consumer has for *hold_ms*.

        The result is the registered consumers, at most 1,000, the longest silent first. It is
        empty if another consumer has the duty.
        """
        command, script = scripts.ELECT.over(self._shared, (consumer, hold_ms))
        self._wire.post(command, then(texts, on_result), script)

    def post_heartbeat(
        self,
        consumer: str,
        ttl_ms: int,
        again_ms: int,
        record: dict[str, str],
        on_result: OnResult[Duties],
    ) -> None:
        """Report that *consumer* is alive; the result is the duties for queues.

        A queue that is returned as due is due again *again_ms* later, for the first consumer to
        ask; later if there are very many queues.
        """
        pairs = [part for pair in record.items() for part in pair]

        def parse(reply: Reply) -> Duties:
            due, more, dead_letter_routed, new = reply
            return Duties(texts(due), more == 1, texts(dead_letter_routed), new == 1)

        args = (consumer, ttl_ms, again_ms, *pairs)
        self._post_of(scripts.HEARTBEAT, consumer, args, then(parse, on_result))

    def _post_of(
        self, script: Script, consumer: str, args: Sequence[Any], on_reply: OnReply
    ) -> None:
        key = keys.consumer(self._prefix, consumer)
        self._wire.post(script.over(self._shared, args, consumer=key)[0], on_reply, script)

    def post_running(
        self, consumer: str, number: int, running: Mapping[str, int], on_result: OnResult[bool]
    ) -> None:
        """Report the acked tasks that a worker still runs: queue -> number.

        A report with a higher *number* is not overwritten. The result is False if the consumer is
        not in the register; nothing is then stored.
        """
        args = (number, json.dumps(running))
        self._post_of(scripts.REPORT_RUNNING, consumer, args, then(bool, on_result))

    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""
        record_key = keys.consumer(self._prefix, consumer)
        self._wire.call_all(("DEL", record_key), ("ZREM", self._shared.consumers, consumer))

    def liveness(
        self, consumers: Sequence[str], *, connections: bool = True
    ) -> dict[str, Liveness | None]:
        """Return the liveness of each of *consumers*; None if it is not in the register.

        Without *connections*, only the heartbeats are read, in one round trip.
        """
        return liveness_of(self._wire, self._prefix, consumers, connections=connections)

    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Record the number of *subscriptions* of a consumer to *queue*; 0 if it left.

        Returns False if there is no such queue (nothing is recorded), or if the last consumer left
        and the queue was deleted (auto_delete). A queue that is deleted while it has consumers
        has them again when it is created anew.
        """
        mark = f"{subscriptions} {self.consumer}" if subscriptions else ""
        return bool(self._run(scripts.ATTACH, queue, (consumer, mark, "", 0)))

    def drop_consumer(self, queue: str, consumer: str, mark: str, silent_ms: int) -> bool:
        """Remove a dead consumer from *queue*, unless its *mark* has changed: it has come back.

        The last use of the queue counts from the consumer's last heartbeat.
        """
        return bool(self._run(scripts.ATTACH, queue, (consumer, "", mark, silent_ms)))

    def attached(self, queue: str) -> Attached:
        """Return the consumers of *queue*, including dead ones not removed yet."""
        k = self._keys(queue)
        flags, marks = self._wire.call_all(
            ("HMGET", k.meta, "auto_delete", "expires"), ("HGETALL", k.consumers)
        )
        pairs = texts(marks)
        return Attached(any(flags), dict(zip(pairs[::2], pairs[1::2], strict=True)))

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, including dead ones not removed yet."""
        return sorted(texts(self._wire.call(("HKEYS", self._keys(queue).consumers))))


def records_of(
    wire: Commands, prefix: str, names: Sequence[str], fields: Sequence[str], *more: Command
) -> list[Any]:
    """Return these fields of each consumer, then the replies to *more*.

    A missing field or record gives None.
    """
    commands: list[Command] = [("HMGET", keys.consumer(prefix, name), *fields) for name in names]
    replies: list[Any] = wire.replies([(command, None) for command in (*commands, *more)])
    wrong = []
    for place, reply in enumerate(replies):
        if isinstance(reply, BrokerRefused) and code_of(reply.reply) == "WRONGTYPE":
            wrong.append(names[place])
            replies[place] = [None] * len(fields)
        elif isinstance(reply, ReliqError):
            raise again(reply)
    left_out(str(wire.address), "records of consumers", wrong)
    return replies


def liveness_of(
    wire: Commands, prefix: str, consumers: Sequence[str], *, connections: bool = True
) -> dict[str, Liveness | None]:
    """Return the liveness of each of *consumers*; None if it is not in the register.

    Without *connections*, each counts as connected.
    """
    fields = ("client_id", "run_id", "queues", "seen", "ttl", "host", "pid")
    *records, clock = records_of(wire, prefix, consumers, fields, ("TIME",))
    now = int(clock[0]) * 1000 + int(clock[1]) // 1000
    run_id = server(wire)[1] if connections else ""
    ids = [text_of(first) for first, *_ in records if _CLIENT_ID.fullmatch(first or b"")]
    listing: bytes | None = b""
    if ids:
        listing = ask_if_allowed(wire, "CLIENT", "LIST", "ID", *ids) if connections else None
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
        # A client id means nothing after a server restart; a refused CLIENT ID leaves none.
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

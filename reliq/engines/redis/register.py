"""The register of consumers over Redis: who consumes, and who still lives."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from ...errors import BrokerRefused
from ...store import (
    Consumer,
    Duties,
    Liveness,
    OnResult,
)
from . import keys, scripts
from .base import (
    StoreBase,
    texts,
    then,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .wire import Reply


logger = logging.getLogger("reliq")

# Brokers of which this process has said that it may not look who is connected.
_told_blind: set[str] = set()


class RedisRegister(StoreBase):
    """What a store knows of consumers."""

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
            return Duties(texts(expiring), texts(rerouted))

        self._wire.post_script(scripts.HEARTBEAT, names, args, then(parse, on_result))

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, dead ones that nobody removed included."""
        return sorted(texts(self._wire.call(("HKEYS", self._keys(queue).consumers))))

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
        except BrokerRefused as exc:  # not permitted, or not supported: leases alone decide
            connected = set(ids)
            self._say_once(exc)
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
            name.decode(): int(float(score))
            for name, score in zip(flat[::2], flat[1::2], strict=True)
        }
        names = sorted(seen)
        if not names:
            return []
        fields = ("host", "pid", "version", "started_ms", "held", "pool", "options")
        records = self._wire.exchange(
            [(("HMGET", keys.consumer(self._prefix, name), *fields), None) for name in names]
        )
        living = self.liveness(names)
        found = []
        for name, record in zip(names, records, strict=True):
            liveness = living[name]
            if liveness is None or record[0] is None:
                continue
            host, pid, version, started, held = (value or b"0" for value in record[:5])
            pool, options = (value or b"" for value in record[5:])
            found.append(
                Consumer(
                    name,
                    host.decode(),
                    int(pid),
                    version.decode(),
                    liveness.queues,
                    int(started),
                    seen[name],
                    int(held),
                    liveness.connected,
                    pool.decode(),
                    json.loads(options) if options else {},
                )
            )
        return found

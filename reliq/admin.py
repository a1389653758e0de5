"""Inspector: what is queued, held and dead, whether the ledger balances; and replay."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .brokers import connect
from .carrying import carry, is_lasting
from .deadletters import Choice, choose, limited, replay
from .envelope import unpack
from .errors import NotFound
from .store import Consumer, DeadLetter, QueueStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

__all__ = ["AuditResult", "Consumer", "DeadLetter", "Inspector", "QueueStatus"]

_LEFT = ("acked", "expired", "purged", "dropped", "moved")
_HERE = ("ready", "delayed", "unacked", "dead")


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The ledger of one queue: published = what left + what is here."""

    queue: str
    balanced: bool
    difference: int
    """published minus everything that is accounted for: above 0, messages are missing."""
    ledger: dict[str, int]
    counts: dict[str, int]


class Inspector:
    """Looks into one broker, pauses queues, puts dead letters right; a context manager.

    *url* and *transport_options* are those of the application. Raises
    ConfigurationError for a wrong one, BrokerUnavailable when it cannot connect.
    """

    def __init__(self, url: str, transport_options: Mapping[str, Any] | None = None) -> None:
        name = f"inspector:{socket.gethostname()}:{os.getpid()}"
        self._store = connect(url, transport_options, name)

    def __enter__(self) -> Inspector:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Return self."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return self._store.queues()

    def status(self, queue: str) -> QueueStatus:
        """Return counts and ledger of *queue* at one instant; raises NotFound."""
        status = self._store.status(queue)
        if status is None:
            raise NotFound(f"no queue {queue!r}")
        stored = status.arguments.get("", b"")
        return replace(
            status, arguments=unpack(stored) if isinstance(stored, bytes) and stored else {}
        )

    def pause(self, queue: str) -> None:
        """Let *queue* accept and keep messages, and give nothing out until it is resumed.

        Atomic, and stored with the queue: it survives restarts, and ends with
        :meth:`resume` or with the queue. What consumers had reserved before is still
        delivered, and what runs is acknowledged. Pausing twice is pausing once.
        Raises NotFound where there is no such queue.
        """
        self._pause(queue, paused=True)

    def resume(self, queue: str) -> None:
        """Let *queue* give out again, and wake who waits; harmless where it was not paused.

        Atomic. Raises NotFound where there is no such queue.
        """
        self._pause(queue, paused=False)

    def _pause(self, queue: str, *, paused: bool) -> None:
        if not self._store.pause(queue, paused):
            raise NotFound(f"no queue {queue!r}")

    def consumers(self) -> list[Consumer]:
        """Return the processes that consume from this broker, by id.

        One that was killed stays, as not connected, until another consumer of its queues
        has ended its leases (5 to 10 s), or its heartbeats have been missing for three
        times their interval. Not read at one instant.
        """
        return self._store.consumers()

    def dead_letters(
        self,
        queue: str,
        limit: int | None = 100,
        *,
        task: str | None = None,
        reason: str | None = None,
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
    ) -> list[DeadLetter]:
        """Return up to *limit* dead letters of *queue* that fit, oldest first.

        task: the name of a Celery task. reason: ``rejected``, ``undecodable``,
        ``delivery_limit``, ``expired`` or ``maxlen``. older_than_s, newer_than_s: seconds
        since it died. Raises NotFound for a queue that does not exist,
        ConfigurationError for a filter that makes no sense.
        """
        choice = Choice(task, reason, older_than_s, newer_than_s)
        found = limited(choose(self._store, queue, choice), limit)
        return [letter for page in found for letter in page]

    def dead_letter(self, queue: str, tag: str) -> DeadLetter:
        """Return one dead letter; raises NotFound."""
        for page in choose(self._store, queue, Choice(tags=frozenset([tag]))):
            return page[0]
        raise NotFound(f"no dead letter {tag!r} in {queue!r}")

    def replay(
        self,
        queue: str,
        tags: Sequence[str] | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        task: str | None = None,
        reason: str | None = None,
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
    ) -> int:
        """Put dead letters back to be delivered again; return how many.

        Those with *tags*, or all that fit the filters (see :meth:`dead_letters`), up to
        *limit*; into their own queue, or into the queue *to*. Their failed deliveries
        are counted anew, and they have no TTL any more. What dies again meanwhile is
        not replayed twice by this call.

        Killed at any point it loses and doubles nothing; calling it again goes on.
        Raises NotFound for a queue that does not exist, QueueFull where *to* is full.
        """
        choice = Choice(task, reason, older_than_s, newer_than_s, _tags(tags))
        return sum(
            replay(self._store, queue, [letter.tag for letter in page], to)
            for page in limited(choose(self._store, queue, choice), limit)
        )

    def purge_dead_letters(
        self,
        queue: str,
        tags: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        task: str | None = None,
        reason: str | None = None,
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
    ) -> int:
        """Remove dead letters for good, chosen as for :meth:`replay`; return how many."""
        choice = Choice(task, reason, older_than_s, newer_than_s, _tags(tags))
        return sum(
            self._store.purge_dead(queue, [letter.tag for letter in page])
            for page in limited(choose(self._store, queue, choice), limit)
        )

    def lasting_queues(self) -> list[str]:
        """Return the names of the queues that do not go by themselves (auto_delete, x-expires)."""
        return [queue for queue in self.queues() if is_lasting(self._store, queue)]

    def carry(self, queue: str, target: Inspector) -> Iterator[int]:
        """Carry what waits in *queue*, and its dead letters, to the broker of *target*.

        Yields how many messages went, step by step; what was not asked for stays. Each
        is stored there once: cut off at any point, the next call goes on. Raises
        NotFound, ConfigurationError where both are one broker, BrokerUnavailable.
        """
        return carry(self._store, target._store, queue)

    def audit(self) -> list[AuditResult]:
        """Check the ledger of every queue. Each queue is read at one instant."""
        results = []
        for queue in self.queues():
            status = self._store.status(queue)
            if status is not None:
                results.append(_audit(status))
        return results


def _tags(tags: Sequence[str] | None) -> frozenset[str] | None:
    return None if tags is None else frozenset(tags)


def _audit(status: QueueStatus) -> AuditResult:
    counts = {name: int(getattr(status, name)) for name in _HERE}
    left = {name: status.ledger.get(name, 0) for name in _LEFT}
    published = status.ledger.get("published", 0)
    difference = published - sum(left.values()) - sum(counts.values())
    # Every envelope belongs to a message that is somewhere, and the other way round.
    difference = difference or sum(counts.values()) - status.stored
    return AuditResult(
        status.name, difference == 0, difference, {"published": published, **left}, counts
    )

"""Inspector: what is queued, held and dead, and whether the ledger balances."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .brokers import connect
from .envelope import unpack
from .errors import NotFound
from .store import DeadLetter, QueueStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["AuditResult", "DeadLetter", "Inspector", "QueueStatus"]

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
    """Looks into one broker; changes nothing but by :meth:`pause` and :meth:`resume`.

    A context manager.

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

    def dead_letters(self, queue: str, limit: int = 100) -> list[DeadLetter]:
        """Return up to *limit* dead letters of *queue*, oldest first."""
        return self._store.dead_letters(queue, limit)

    def audit(self) -> list[AuditResult]:
        """Check the ledger of every queue. Each queue is read at one instant."""
        results = []
        for queue in self.queues():
            status = self._store.status(queue)
            if status is not None:
                results.append(_audit(status))
        return results


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

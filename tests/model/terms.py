"""The values of the oracle: settings, a message, and the expected answers of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reliq.values.values import Lease

PLACES = READY, DELAYED, UNACKED, DEAD = "ready", "delayed", "unacked", "dead"


@dataclass(frozen=True)
class Settings:
    """The options of all stores of one run that affect the rules of a queue."""

    delivery_limit: int | None
    dead_letter_max: int
    dead_letter_ttl_ms: int
    restore_interval_ms: int
    backoff_ms: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a queue's declaration; None for an absent one."""

    message_ttl: int | None = None
    lease: int | None = None
    delivery_limit: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str | None = None
    dead_expired: int | None = None
    concurrency: int | None = None
    rate: str | None = None

    @property
    def limited(self) -> bool:
        """Whether the queue has limits of its own."""
        return self.concurrency is not None or self.rate is not None

    def meta(self) -> dict[str, str]:
        """Return the arguments as a declaration passes them to the store."""
        return {name: str(value) for name, value in vars(self).items() if value is not None}


@dataclass
class Message:
    """One message that the broker holds."""

    tag: str
    envelope: bytes
    rank: int
    place: str = READY
    turn: int = 0
    """Its position among the messages of its rank, once it has been ready."""
    due: int = 0
    expires: int | None = None
    failed: int | None = None
    """The number of failures; None if it was never delivered."""
    token: int = 0
    consumer: str = ""
    deadline: int = 0
    begun: bool = False
    """Whether its task has begun, and the message is acked when the lease ends."""
    died: int = 0
    reason: str = ""
    error: str = ""
    blamed: str = ""
    """The consumer that a dead letter names."""

    @property
    def lease(self) -> Lease:
        """The current lease of the message."""
        return Lease(self.tag, str(self.token))


class Reserved(NamedTuple):
    """The expected answer of a reserve."""

    taken: list[tuple[str, int, bytes]]
    """Tag, failures (-1: never delivered), envelope."""
    first_token: int
    next_due_ms: int
    lease_ms: int
    left: bool
    held_back: bool
    claimed: bool
    isolated: bool


# The tag, failures, consumer and envelope of a failed delivery.
Failure: TypeAlias = "tuple[str, int, str, bytes]"


class Pass(NamedTuple):
    """The expected answer of a step of restore_visible."""

    granted: bool
    retry_ms: int
    unacked: int
    restored: list[Failure]
    dead: list[Failure]

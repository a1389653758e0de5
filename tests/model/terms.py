"""The words of the oracle: settings, a message, and what a step should answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reliq.store.values import Lease

PLACES = READY, DELAYED, UNACKED, DEAD = "ready", "delayed", "unacked", "dead"


@dataclass(frozen=True)
class Settings:
    """The options of every store of one run that a queue's rules depend on."""

    delivery_limit: int | None
    dead_letter_max: int
    dead_letter_ttl_ms: int
    restore_interval_ms: int
    backoff_ms: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Arguments:
    """What a queue was declared with; None: was not."""

    message_ttl: int | None = None
    lease: int | None = None
    delivery_limit: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str | None = None
    dead_expired: int | None = None

    def meta(self) -> dict[str, str]:
        """Return it as a declaration gives it to the store."""
        return {name: str(value) for name, value in vars(self).items() if value is not None}


@dataclass
class Message:
    """One message that the broker holds."""

    tag: str
    envelope: bytes
    rank: int
    place: str = READY
    turn: int = 0
    """Its place in the line of its rank, once it has been ready."""
    due: int = 0
    expires: int | None = None
    failed: int | None = None
    """None: it was never delivered."""
    token: int = 0
    consumer: str = ""
    deadline: int = 0
    died: int = 0
    reason: str = ""
    error: str = ""
    blamed: str = ""
    """The consumer that a dead letter names."""

    @property
    def lease(self) -> Lease:
        """The lease that it is held by."""
        return Lease(self.tag, str(self.token))


class Reserved(NamedTuple):
    """What a reserve should bring."""

    taken: list[tuple[str, int, bytes]]
    """Tag, failures (-1: never delivered), envelope."""
    first_token: int
    next_due_ms: int
    lease_ms: int
    left: bool
    held_back: bool
    claimed: bool
    isolated: bool


# Of a failed delivery: tag, failures, consumer, envelope.
Failure: TypeAlias = "tuple[str, int, str, bytes]"


class Pass(NamedTuple):
    """What a step of restore_visible should do."""

    granted: bool
    retry_ms: int
    unacked: int
    restored: list[Failure]
    dead: list[Failure]

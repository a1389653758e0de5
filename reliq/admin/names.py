"""The names that operators choose from. Imports nothing: the help of commands lists them."""

from __future__ import annotations

from typing import TypedDict

ROLES = ("producer", "worker", "operator", "exporter", "viewer", "migration", "sentinel")
"""Of Redis users; ``reliq acl --help`` says what each does."""

STATES = ("ready", "delayed", "unacked", "dead")
"""Of messages."""

REASONS = ("rejected", "undecodable", "malformed", "delivery_limit", "expired", "maxlen")
"""Of which a message is dead."""

LEFT = ("acked", "expired", "purged", "dropped", "moved")
"""In the ledger of a queue: where its messages went."""

CHANGEABLE = (
    "x-delivery-limit",
    "x-max-length",
    "x-message-ttl",
    "x-overflow",
    "x-partitions",
    "x-visibility-timeout",
)
"""Of the arguments of a queue: those that hold from the next step on, whatever is in it."""


class Filters(TypedDict, total=False):
    """What dead letters are chosen by; see :class:`.dead_letter_choice.Choice`."""

    task: str | None
    reason: str | None
    older_than_s: float | None
    newer_than_s: float | None
    match: str | None
    fingerprint: str | None


class Part(Filters, total=False):
    """Those that fit, as many as are wanted, as fast as is wanted; see :class:`.DeadLetters`."""

    limit: int | None
    rate: float | None

"""Names for operators to choose from. Imports nothing, because the commands' help lists them."""

from __future__ import annotations

from typing import TypedDict

ROLES = ("producer", "worker", "operator", "exporter", "viewer", "migration", "sentinel")
"""Roles of Redis users; ``reliq acl --help`` describes them."""

STATES = ("ready", "delayed", "unacked", "dead")
"""States of messages."""

REASONS = ("rejected", "undecodable", "malformed", "delivery_limit", "expired", "maxlen")
"""Reasons of dead letters."""

LEFT = ("acked", "expired", "purged", "dropped", "moved")
"""Counters of a ledger for messages that left the queue."""

CHANGEABLE = (
    "x-concurrency",
    "x-delivery-limit",
    "x-max-length",
    "x-message-ttl",
    "x-overflow",
    "x-partitions",
    "x-rate",
    "x-visibility-timeout",
)
"""Arguments of a queue that can change while it is in use; a change applies at once."""


class Filters(TypedDict, total=False):
    """Filters of dead letters; see :class:`.dead_letter_choice.Choice`."""

    task: str | None
    reason: str | None
    older_than_s: float | None
    newer_than_s: float | None
    match: str | None
    fingerprint: str | None


class Part(Filters, total=False):
    """Filters, maximum number and rate of dead letters; see :class:`.DeadLetters`."""

    limit: int | None
    rate: float | None

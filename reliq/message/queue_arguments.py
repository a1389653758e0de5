"""Queue arguments: AMQP's ``x-...`` names, validated before anything is stored."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ConfigurationError, unknown
from ..options import Check, choice, typed, whole
from .envelope import EnvelopeError, pack, unpack
from .queue_names import MOST_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEMPORARY = frozenset({"auto_delete", "expires", "x-expires"})
_LONGEST_MS = 10 * 366 * 86_400_000
_LARGEST = 2**53 - 1
RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])(?: burst ([1-9][0-9]{0,5}))?")
"""A rate: its number, its unit of time, and its burst if it is not the default."""
INSTANT_MS = 100
"""The TTL in ms stored for a TTL of 0: waiting consumers receive a message within this time."""

# The expectation as text, and the function that returns the stored value.
Rule: TypeAlias = tuple[str, Check]


def _number(least: int, most: int, unit: str = "") -> Rule:
    words = f"of {unit}, at least {least}" if unit else f"from {least} to {most}"
    return f"a whole number {words}", lambda value: str(whole(value, least, most))


def _ttl(value: Any) -> str:
    return str(whole(value, 0, _LONGEST_MS) or INSTANT_MS)


def _limit(value: Any) -> str:
    return "0" if whole(value, -1, _LARGEST) == -1 else str(whole(value, 1, _LARGEST))


def _concurrency(value: Any) -> str:
    return "" if whole(value, -1, _LARGEST) == -1 else str(whole(value, 1, _LARGEST))


def _rate(value: Any) -> str:
    if value == "none":
        return ""
    if not RATE.fullmatch(str(value)):
        raise ValueError(value)
    return str(value)


def _flag(value: Any) -> str:
    return "1" if typed(bool, "")[1](value) else ""


# argument -> (field of the queue's meta, rule)
_RULES: dict[str, tuple[str, Rule]] = {
    "x-expires": ("expires", _number(1, _LONGEST_MS, "ms")),
    "x-message-ttl": ("message_ttl", ("a whole number of ms, at least 0", _ttl)),
    "x-max-priority": ("max_priority", _number(0, 255)),
    "x-visibility-timeout": ("lease", _number(100, _LONGEST_MS, "ms")),
    "x-delivery-limit": (
        "delivery_limit",
        ("a whole number of failed deliveries, at least 1, or -1 for no limit", _limit),
    ),
    "x-max-length": ("max_length", _number(1, _LARGEST, "messages")),
    "x-max-length-bytes": ("max_bytes", _number(1, _LARGEST, "bytes")),
    "x-overflow": (
        "overflow",
        ("'drop-head' or 'reject-publish'", choice("drop-head", "reject-publish")[1]),
    ),
    "x-dead-letter-exchange": ("dead_letter_exchange", typed(str, "the name of an exchange")),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", typed(str, "a routing key")),
    "x-dead-letter-expired": ("dead_expired", ("True or False", _flag)),
    "x-partitions": ("partitions", _number(1, MOST_PARTITIONS)),
    "x-concurrency": (
        "concurrency",
        ("a whole number of messages such as 200, at least 1, or -1 for no limit", _concurrency),
    ),
    "x-rate": ("rate", ("a rate such as '500/s', '100/m burst 10' or 'none'", _rate)),
}
LIMITS = ("x-concurrency", "x-rate")
"""The arguments that limit how many messages consumers take. A new declaration changes them."""
DECLARED_LIMITS = "declared_limits"
"""The field of the meta with the declared limits, which operators may have changed since."""
WHOLE = {"max_length": "queue_max_length", "max_bytes": "queue_max_bytes"}
"""Limit of one partition -> limit of the whole divided queue; both are stored."""
FIELDS = {name: field for name, (field, _) in _RULES.items()}
"""Argument -> field of the queue's meta."""
_UNLIMITED = frozenset(FIELDS[name] for name in LIMITS)

# Arguments of RabbitMQ that have no effect here.
_IGNORED = frozenset({"x-queue-type", "x-queue-mode", "x-queue-version", "x-queue-master-locator"})


def is_durable(names: Iterable[str]) -> bool:
    """Whether a queue exists until it is deleted, even without consumers.

    names: those of its arguments, or of the fields that store them. Temporary queues, such as
    reply and event queues, are useless without the process that declared them.
    """
    return _TEMPORARY.isdisjoint(names)


def queue_arguments(
    queue: str, auto_delete: bool, arguments: dict[str, Any] | None
) -> tuple[bytes, dict[str, str]]:
    """Return the declaration as stored and compared, and its fields for scripts.

    Raises ConfigurationError with the queue, the argument, the expectation and the value.
    """
    meta = {"auto_delete": "1"} if auto_delete else {}
    kept: dict[str, Any] = {"auto_delete": True} if auto_delete else {}
    for name, value in sorted((arguments or {}).items()):
        if value is None or name in _IGNORED or not name.startswith("x-"):
            continue
        if name not in _RULES:
            raise unknown(f"argument of queue {queue!r}", name, _RULES)
        field, (words, check) = _RULES[name]
        try:
            meta[field] = check(value)
        except (TypeError, ValueError) as exc:
            raise ConfigurationError(
                f"queue {queue!r}: expected {name} to be {words}, got: {value!r}"
            ) from exc
        kept[name] = value
    _refuse_contradictions(queue, kept)
    meta = {field: value for field, value in meta.items() if value or field not in _UNLIMITED}
    if "dead_letter_exchange" in meta:
        meta["dead_expired"] = "1"
    elif not meta.get("dead_expired", "1"):
        del meta["dead_expired"]
    limits = {name: kept.pop(name) for name in LIMITS if name in kept}
    if limits:
        # Not in the declaration, which processes without limits, or of older versions, repeat.
        meta[DECLARED_LIMITS] = json.dumps(limits)
    return pack(kept), meta


def declared(stored: bytes) -> dict[str, Any] | None:
    """Return the content of a stored declaration; None if reliq did not write it."""
    try:
        arguments = unpack(stored) if stored else {}
    except EnvelopeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def declared_limits(stored: str | bytes) -> dict[str, Any]:
    """Return the declared limits as arguments; none if reliq did not write the text."""
    try:
        limits = json.loads(stored or "{}")
    except ValueError:
        return {}
    return limits if isinstance(limits, dict) else {}


def differ_in_partitions(declaration: bytes, other: bytes) -> bool:
    """Whether two declarations differ only in x-partitions, which operators may change."""
    first, second = declared(declaration), declared(other)
    if first is None or second is None:
        return False
    return {**first, "x-partitions": 0} == {**second, "x-partitions": 0}


def refuse_divided_limits(queue: str, arguments: Iterable[str], partitions: int) -> None:
    """Raise ConfigurationError for limits of a queue that is, or is to be, divided."""
    if partitions > 1 and (limits := sorted(set(LIMITS).intersection(arguments))):
        raise ConfigurationError(
            f"queue {queue!r}: {limits[0]} is not possible for a queue with several partitions, "
            f"which consumers serve separately, got: x-partitions {partitions}; use one partition"
        )


def _refuse_contradictions(queue: str, kept: dict[str, Any]) -> None:
    for name, needed in (
        ("x-dead-letter-routing-key", ("x-dead-letter-exchange",)),
        ("x-overflow", ("x-max-length", "x-max-length-bytes")),
    ):
        if name in kept and not any(other in kept for other in needed):
            raise ConfigurationError(
                f"queue {queue!r}: {name} has no effect without {' or '.join(needed)}"
            )
    if "x-partitions" in kept and not is_durable(kept):
        raise ConfigurationError(
            f"queue {queue!r}: x-partitions requires a durable queue; this queue is temporary "
            "(auto_delete, x-expires)"
        )
    limits = (name for name, value in kept.items() if value not in (-1, "none"))
    refuse_divided_limits(queue, limits, kept.get("x-partitions", 1))


def is_auto_delete(declaration: bytes) -> bool:
    """Whether an exchange is deleted with its last binding; False for a malformed declaration."""
    return bool((declared(declaration) or {}).get("auto_delete"))

"""Dead letters that died of the same: grouped by task, reason and exception, and counted."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .views import Message
    from .walking import Cursor

# "ValueError: ...", "shop.OutOfStock('x')": what stands before that is the exception.
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?=[:(])")
_DIGITS = re.compile(r"\d+")
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one task, reason and exception."""

    fingerprint: str
    """What the filter ``fingerprint`` takes: sixteen hexadecimal digits."""
    task: str | None
    reason: str
    exception: str
    """Its name, where the error begins with one; else the error, its numbers left out."""
    count: int
    first_ms: int
    """When the first of them died, and the last, of those that were counted."""
    last_ms: int
    tag: str
    """The delivery tag of the last one."""
    error: str
    """Its error."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """The groups of a queue's dead letters, as far as they were counted."""

    queue: str
    groups: list[DeadLetterGroup]
    """The largest first."""
    counted: int
    """So many dead letters were counted,"""
    total: int
    """of so many that there are now."""
    cursor: Cursor | None = field(default=None, repr=False)
    """Where to go on; None: all were counted."""


def exception_of(error: str) -> str:
    """Return what *error* has in common with others of its kind."""
    line = error.strip().partition("\n")[0]
    found = _EXCEPTION.match(line)
    return found[1] if found else _DIGITS.sub("#", line)[:_LONGEST]


def fingerprint(task: str | None, reason: str, error: str) -> str:
    """Return what dead letters have in common that died of the same."""
    said = json.dumps([task, reason, exception_of(error)])
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


def added(groups: Iterable[DeadLetterGroup], messages: Iterable[Message]) -> list[DeadLetterGroup]:
    """Return *groups* with these dead letters counted, the largest first."""
    found = {group.fingerprint: group for group in groups}
    for message in messages:
        one = _group_of(message)
        known = found.get(one.fingerprint)
        found[one.fingerprint] = one if known is None else _together(known, one)
    return sorted(found.values(), key=lambda group: (-group.count, group.fingerprint))


def _group_of(message: Message) -> DeadLetterGroup:
    reason, error, died_ms = message.reason or "", message.error or "", message.died_ms or 0
    name = fingerprint(message.task, reason, error)
    exception = exception_of(error)
    return DeadLetterGroup(
        name, message.task, reason, exception, 1, died_ms, died_ms, message.tag, error
    )


def _together(known: DeadLetterGroup, one: DeadLetterGroup) -> DeadLetterGroup:
    newer = one if one.last_ms >= known.last_ms else known
    first_ms = min(known.first_ms, one.first_ms)
    return replace(newer, count=known.count + one.count, first_ms=first_ms)

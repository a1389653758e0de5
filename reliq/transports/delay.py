"""When a message is due and when it expires: read from its headers and properties.

Owns the rule by which a Celery task's ``eta`` becomes a delay in the broker. Knows
Celery's message format, as far as it is documented, and needs no Celery to read it.
"""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ..errors import MessageRefused
from ..message.queue_arguments import INSTANT_MS

# Sorted sets hold whole numbers up to 2**53 exactly: now, a delay and a TTL of ten
# thousand years each are far below. Celery's own horizon is the year 9999.
_LONGEST_MS = 10_000 * 366 * 86_400_000

DELAY, DELAYED = "x-delay", "x-delayed"
ETA, NATIVE_ETA = "eta", "x-eta"


class Delayed(NamedTuple):
    """What is stored of a message's headers, and how long it waits."""

    headers: dict[str, Any]
    delay_ms: int


def take_delay(headers: dict[str, Any], native: bool) -> Delayed:
    """Return *headers* as they are stored, and the delay they ask for; never changes them.

    ``x-delay`` (ms) is stored as ``x-delayed``: a message that is forwarded, or a task
    that is retried, with the headers it came with is not delayed again. With *native*
    the ``eta`` of a Celery task becomes a delay too and is stored as ``x-eta``, so that
    the worker runs the task when it arrives; ``x-delay`` wins over it. An eta that
    cannot be read is left for Celery to complain about. An ``x-eta`` among *headers* is
    that of an earlier message, and is not stored. Raises MessageRefused.
    """
    asked, eta = headers.get(DELAY), headers.get(ETA)
    if asked is None and not eta and NATIVE_ETA not in headers:
        return Delayed(headers, 0)
    delay_ms = None if asked is None else _ms(DELAY, asked)
    stored = dict(headers)
    stored.pop(NATIVE_ETA, None)
    if delay_ms is not None:
        stored[DELAYED] = stored.pop(DELAY)
    if native and eta and "task" in headers:
        until_eta_ms = _until_ms(eta)
        if until_eta_ms is not None:
            stored[ETA], stored[NATIVE_ETA] = None, eta
            delay_ms = until_eta_ms if delay_ms is None else delay_ms
    return Delayed(stored, delay_ms or 0)


def ttl_ms(properties: dict[str, Any]) -> int:
    """Return the message's time to live, -1 for none; raises MessageRefused."""
    expiration = properties.get("expiration")
    return -1 if expiration is None else _ms("expiration", expiration) or INSTANT_MS


def _until_ms(eta: Any) -> int | None:
    """Return the ms until *eta* on this clock; None where it cannot be read.

    A relative delay, because this clock is the one that most etas were derived from.
    Rounded so that the message is not due before the eta, however the server rounds.
    """
    if not isinstance(eta, str):
        return None
    text = f"{eta[:-1]}+00:00" if eta.endswith("Z") else eta
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:  # as Celery's worker reads it, whatever its own timezone
            moment = moment.replace(tzinfo=timezone.utc)
        # Not timestamp(): a float of seconds is not exact to the ms far from now.
        since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return max(-(-microseconds // 1000) - time.time_ns() // 1_000_000, 0)


def _ms(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise TypeError  # noqa: TRY301 - one message for every way to be wrong
        number = math.ceil(value) if isinstance(value, float) else int(value)
        if number > _LONGEST_MS or float(value) < 0:
            raise ValueError  # noqa: TRY301 - as above
    except (TypeError, ValueError, OverflowError) as exc:
        raise MessageRefused(
            f"expected {name} to be a number of ms from 0 to {_LONGEST_MS}, got: {value!r}; "
            "nothing was stored"
        ) from exc
    return number

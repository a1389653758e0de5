"""Conversion of messages between Kombu's Redis transport and reliq.

Pure functions for priority, eta, redelivery and unreadable messages.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ..errors import MessageRefused
from ..message.delivery_tag import new_tag
from ..message.envelope import Envelope, EnvelopeError, decode, encode
from ..transports.publish.encoder import DELAY, ETA, NATIVE_ETA, take_delay
from ..values.inspection import DeadLetter
from ..values.limits import HIGHEST_RANK
from ..values.values import Move
from .kombu_messages import read, write

if TYPE_CHECKING:
    from ..options import Options

# Drift of the two clocks by which an eta may differ from the delay made from it.
_SAME_ETA_MS = 1000
_LATEST = datetime(9999, 12, 31, tzinfo=timezone.utc)


def to_move(queue: str, number: int, message: bytes, options: Options, now_ms: int) -> Move:
    """Return Kombu's *message* as a message for reliq.

    The eta of a Celery task becomes a delay, unless ``native_delay`` is off. A message TTL is
    not enforced, as in Kombu's Redis transport. An unreadable message becomes a dead letter with
    the original bytes and the time *now_ms*.
    """
    try:
        envelope, priority, redelivered = read(message)
        # Kombu ignored x-delay, so a move must not start the delay.
        headers = dict(envelope.headers)
        unused = {DELAY: headers.pop(DELAY)} if DELAY in headers else {}
        stored, delay_ms = take_delay(headers, options.native_delay)
        headers = unused | stored
        data = encode(envelope._replace(headers=headers))
    except (EnvelopeError, MessageRefused) as exc:
        raw = Envelope(message, "application/octet-stream", "binary", {}, {}, "", queue)
        tag = new_tag(_rank(0, options))
        dead_letter = DeadLetter(tag, now_ms, "undecodable", 0, "", str(exc))
        return Move(tag, number, encode(raw), dead_letter=dead_letter)
    failed = 0 if redelivered else -1
    return Move(new_tag(_rank(priority, options), headers), number, data, delay_ms, -1, failed)


def to_foreign(move: Move) -> tuple[int, bytes, bool]:
    """Return Kombu's priority (0 to 9) and bytes, and whether the task has an eta in the future.

    A delayed Celery task gets an eta: its original one, or its due time if that differs. Failed
    deliveries become "redelivered". The TTL is lost. Raises EnvelopeError.
    """
    envelope, waits = _with_eta(decode(move.envelope), move.delay_ms)
    priority, message = write(envelope, new_tag(0), redelivered=move.failed >= 0)
    return priority, message, waits


def _rank(priority: int, options: Options) -> int:
    return priority if options.priority_order == "ascending" else HIGHEST_RANK - priority


def _with_eta(envelope: Envelope, delay_ms: int) -> tuple[Envelope, bool]:
    headers = dict(envelope.headers)
    eta = headers.pop(NATIVE_ETA, None)
    if eta is not None:
        headers[ETA] = eta
    waits = delay_ms > 0 and "task" in headers
    if waits:
        until_eta_ms = take_delay({"task": "", ETA: eta}, native=True)[1]
        if abs(until_eta_ms - delay_ms) > _SAME_ETA_MS:
            moment = _LATEST
            with suppress(OverflowError):
                moment = datetime.now(timezone.utc) + timedelta(milliseconds=delay_ms)
            headers[ETA] = moment.isoformat()
    return envelope._replace(headers=headers), waits

"""What this process tells its operator about messages: one wording for each event."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..printable import word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.values import Returned

logger = logging.getLogger("reliq")


def consuming(broker: str, consumer: str, visibility_timeout_s: float) -> None:
    """Tell, once in the life of a consumer, which broker it is on and by which name."""
    logger.info(
        "consuming at %s as %s; messages return %g s after it stops renewing them",
        broker,
        consumer,
        visibility_timeout_s,
    )


def restored(queue: str, consumer: str, number: int) -> None:
    """Tell of messages that returned because their consumer did not renew their leases."""
    logger.warning(
        "restored %d messages to %r: the lease of consumer %s ended; it was killed, "
        "frozen or lost its network: look at its log and at its machine's memory",
        number,
        queue,
        consumer,
    )


def queue_refused(queue: str, error: BaseException, again_s: float) -> None:
    """Tell that nothing can be had of a queue, and that its consumer goes on with others."""
    logger.error(
        "nothing can be taken from %r: %s; it is asked again every %g s, and what else this "
        "process consumes goes on",
        queue,
        error,
        again_s,
    )


def lease_gone(queue: str, tag: str) -> None:
    """Tell of a lease whose message is stored no longer."""
    logger.warning(
        "lease lost: message %s of %r is not there any more; it was finished "
        "elsewhere while this process held it too, its queue was deleted, or the "
        "broker has lost its data (reliq doctor looks for that)",
        tag,
        queue,
    )


def lease_lost(queue: str, tag: str, visibility_timeout_s: float) -> None:
    """Tell of a lease that another consumer may have now."""
    logger.warning(
        "lease lost: message %s of %r went back to its queue and may run twice; "
        "this process did not renew it within visibility_timeout (%g s): raise that where "
        "processes are frozen for longer, and keep from a second run with reliq.once",
        tag,
        queue,
        visibility_timeout_s,
    )


def acked_late(queue: str, tag: str) -> None:
    """Tell of a message that was finished when its lease had ended."""
    logger.warning(
        "lease lost: message %s of %r was finished after its lease had ended, and may have run "
        "elsewhere too; this process did not renew it in time: raise visibility_timeout where "
        "processes are frozen for longer, and keep from a second run with reliq.once",
        tag,
        queue,
    )


def dead_lettered(queue: str, tag: str, reason: str, error: str) -> None:
    """Tell of a message that this process has dead-lettered."""
    if reason in {"undecodable", "malformed"}:
        logger.error(
            "message %s of %r is %s and was dead-lettered: %s; look at it with "
            "reliq dead show %s %s",
            tag,
            queue,
            reason,
            error,
            word(queue),
            word(tag),
        )
    else:  # the application has said so: it knows
        logger.info(
            "message %s of %r was %s and dead-lettered; reliq dead replay %s --tag %s brings "
            "it back",
            tag,
            queue,
            reason,
            word(queue),
            word(tag),
        )


def raised(queue: str, tag: str, error: str, no_ack: bool) -> None:
    """Tell of a message that made the worker's code raise when nothing was left to do for it."""
    logger.error(
        "message %s of %r made the code that received it raise %s; it is no dead letter, as %s",
        tag,
        queue,
        error,
        "its consumer needs no ack" if no_ack else "it had been acknowledged or rejected before",
    )


def at_the_limit(queue: str, died: Sequence[Returned]) -> None:
    """Tell of messages that were dead-lettered because their deliveries failed."""
    for item in died:
        logger.error(
            "message %s of %r was dead-lettered: it reached its delivery limit with %d failed "
            "deliveries, the last by consumer %s; look at it with reliq dead show %s %s, and "
            "replay it when its cause is mended",
            item.tag,
            queue,
            item.failed,
            item.consumer,
            word(queue),
            word(item.tag),
        )

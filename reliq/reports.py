"""What this process tells its operator about messages: one wording for each event."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .store import Returned

logger = logging.getLogger("reliq")


def at_the_limit(queue: str, died: Sequence[Returned]) -> None:
    """Tell of messages that were dead-lettered because their deliveries failed."""
    for item in died:
        logger.error(
            "message %s of %r was dead-lettered: it reached its delivery limit with %d failed "
            "deliveries, the last by consumer %s; look at it with "
            "reliq.admin.Inspector.dead_letters",
            item.tag,
            queue,
            item.failed,
            item.consumer,
        )

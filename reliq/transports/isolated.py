"""What a transport may take while a message is delivered alone, or waits to be.

The message, and who waits for it, are the process's (``ISOLATION``); here is what one
transport says of itself to the broker, and what it leaves alone meanwhile. Of the thread
that asks; it keeps no state of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..consumer.isolation import ISOLATION
from ..consumer.sessions import SESSIONS
from ..integrations.celery import WATCH
from ..store.values import ALONE, BUSY, HOLDING, IDLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.values import Reservation
    from .link import Link


class IsolatedDelivery:
    """The rules for one transport; *of_worker* says whether a worker itself takes over it."""

    def __init__(self, link: Link, of_worker: Callable[[], bool], began_at: float) -> None:
        self._link = link
        self.of_worker = of_worker
        self._began_at = began_at

    @property
    def company(self) -> int:
        """What an ordinary reserve says of what this process holds."""
        if ISOLATION.in_back_off and self.alone != ALONE:
            return BUSY
        return HOLDING if self._link.session.leases.held else IDLE

    @property
    def alone(self) -> int:
        """What a reserve says while no other is made: whether the process holds nothing."""
        return ALONE if SESSIONS.nothing_in_hand() and not WATCH.busy else HOLDING

    @property
    def awaited_from(self) -> str | None:
        """The queue whose message waits for this process to be alone; None where none does."""
        if ISOLATION.holds or ISOLATION.session is not self._link.session:
            return None
        return ISOLATION.queue

    def note(
        self, queue: str, result: Reservation, asked_at: float, began_at: float | None = None
    ) -> None:
        """Note what a reserve of *queue* has said of it; *began_at*: of whoever asked."""
        session = self._link.session
        if result.isolated and result.deliveries:
            ISOLATION.given(session, result.deliveries[0])
        elif result.claimed:
            ISOLATION.wait_for(session, queue, asked_at, began_at or self._began_at)
        else:
            ISOLATION.over(session, queue)

    def shuts_out(self, began_at: float) -> bool:
        """Whether a consumer that began then is to take nothing now.

        While a message waits the tasks of a worker go on, and so does what they consume;
        what began after an isolated delivery is its own doing.
        """
        if not ISOLATION.holds and WATCH.worker and not self.of_worker():
            return False
        return began_at <= ISOLATION.since

    def may_get(self, queue: str) -> bool:
        """Whether ``basic_get`` may take a message of *queue* now."""
        if ISOLATION.holds:
            return self._began_at > ISOLATION.since
        if WATCH.worker and not self.of_worker():
            return True
        return queue == self.awaited_from

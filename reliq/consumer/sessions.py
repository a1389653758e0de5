"""Sessions: those of this process, one for each broker that it uses.

Finds the session for a transport, says for the whole process whether a message is in hand,
and does for all of them what a fork and the end of the process ask for.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from ..failover.jitter import Paces
from ..forks import OwnLock, Part, here, register
from ..integrations.celery import WATCH
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..options import Options
    from .attached import AttachedTransport
    from .session import StoreFactory


class Sessions:
    """The sessions of this process."""

    lock = OwnLock(reentrant=True)

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Session] = {}
        self._paces = Paces()
        atexit.register(self._finish_all)
        WATCH.at_child_end = self._end_publishing

    def session_for(
        self, key: Hashable, options: Options, factory: StoreFactory, transport: AttachedTransport
    ) -> Session:
        """Return the session for *key*, which *transport* uses until it leaves."""
        self._end_deserted(key)
        with self.lock:
            session = self.by_key.get(key)
            if session is None:
                session = Session(key, options, factory, self._paces.of(key), self)
                self.by_key[key] = session
            session.transports.add(transport)
            return session

    def _end_deserted(self, key: Hashable) -> None:
        """End other sessions whose transports vanished without leaving, or do not come back."""
        for session in list(self.by_key.values()):
            if session.key != key and session.deserted:
                session.maybe_end()

    def remove(self, session: Session) -> None:
        """Note that it has ended, unless another one is in its place."""
        if self.by_key.get(session.key) is session:
            del self.by_key[session.key]

    def nothing_in_hand(self) -> bool:
        """Whether no message of any broker may run here, and no reserve is under way."""
        return not any(session.in_hand for session in list(self.by_key.values()))

    def is_of_this_process(self, consumer: str) -> bool:
        """Whether a consumer in the register is a session of this process that goes on."""
        return any(session.id == consumer for session in list(self.by_key.values()))

    # -- forks, and the end

    def stop_background_loops(self) -> None:
        """Have no thread while the process forks: the child could inherit a held lock."""
        loops = [session.background for session in list(self.by_key.values())]
        for background in loops:
            background.pause()
        for background in loops:
            background.wait_paused()

    def start_background_loops(self) -> None:
        """Start again those that ran, or that somebody has wanted to start meanwhile."""
        for session in list(self.by_key.values()):
            session.background.resume()

    def forget_parents(self) -> None:
        """Have no session hold anything."""
        for session in list(self.by_key.values()):
            session.forget_parent()

    def _end_publishing(self) -> None:
        here()
        for session in list(self.by_key.values()):
            session.end_publishing()

    def _finish_all(self) -> None:
        here()
        for session in list(self.by_key.values()):
            session.finish()


SESSIONS = Sessions()
register(
    Part(
        "sessions",
        stop=SESSIONS.stop_background_loops,
        start=SESSIONS.start_background_loops,
        forget=SESSIONS.forget_parents,
    )
)

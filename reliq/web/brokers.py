"""The brokers, and who uses a connection to one: a thread at a time.

Pages borrow one of a few inspectors of a broker and give it back. One whose broker went away is
closed, and another is made when somebody asks again.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ..admin import Inspector
from ..errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from ..failover.brokers import without_password
from ..forks import OwnLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .settings import Settings

# As many as threads make pages at a time; those of operations come and go.
_KEPT = 3
# A broker that is away is asked again after so long, by one thread: nobody waits longer for that.
_AWAY_S = 1.0
_PATIENT_S = 0.1


class Broker:
    """One broker. Thread-safe."""

    _lock = OwnLock()

    def __init__(self, number: int, url: str, settings: Settings) -> None:
        self.number = number
        """Its place among the brokers: by that a page names it."""
        self.name = without_password(url)
        """Its URL without user and password."""
        self._url, self._options = url, settings.transport_options
        self._idle: list[Inspector] = []
        self._away: BrokerUnavailable | None = None
        self._asked_at = float("-inf")
        self._asking: threading.Thread | None = None

    @contextmanager
    def inspector(self) -> Iterator[Inspector]:
        """Lend an inspector, which nobody else uses meanwhile; raises BrokerUnavailable."""
        lent = self._lent()
        kept = False
        try:
            yield lent
            kept = True
        except Exception as exc:
            kept = not isinstance(exc, BrokerUnavailable)
            if isinstance(exc, BrokerTimeout):
                self._note(again(exc), float("-inf"))
            raise
        finally:
            if not (kept and self._keep(lent)):
                lent.close()

    def _lent(self) -> Inspector:
        with self._lock:
            due = self._away is not None and monotonic() - self._asked_at > _AWAY_S
            if due and self._asking is None:
                self._asking = threading.Thread(target=self._ask, name="reliq-web", daemon=True)
                self._asking.start()
            asking = self._asking
        if asking is not None:
            asking.join(_PATIENT_S)
        with self._lock:
            if self._away is not None:
                raise again(self._away)
            if self._idle:
                return self._idle.pop()
        return self._connected()

    def _ask(self) -> None:
        """Connect, for all who wait for the broker to be back."""
        try:
            made = self._connected()
            if not self._keep(made):
                made.close()
        except ReliqError:  # noted, or told to who asks next
            pass
        finally:
            self._asking = None

    def _connected(self) -> Inspector:
        away: BrokerUnavailable | None = None
        try:
            return Inspector(self._url, self._options)
        except BrokerUnavailable as exc:
            away = again(exc)
            raise
        finally:
            self._note(away, monotonic())

    def _note(self, away: BrokerUnavailable | None, asked_at: float) -> None:
        with self._lock:
            self._away, self._asked_at = away, asked_at

    def _keep(self, inspector: Inspector) -> bool:
        with self._lock:
            if len(self._idle) >= _KEPT:
                return False
            self._idle.append(inspector)
            return True

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inspector in idle:
            inspector.close()

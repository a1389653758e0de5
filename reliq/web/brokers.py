"""The brokers, and who uses a connection to one: a thread at a time.

Pages borrow one of a few inspectors of a broker and give it back. One whose broker went away is
closed, and another is made when somebody asks again.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ..admin import Inspector
from ..errors import BrokerUnavailable, again
from ..forks import OwnLock
from .names import shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .settings import Settings

# As many as threads make pages at a time; those of operations come and go.
_KEPT = 3
# So long nobody else waits for a broker that could not be reached: the pages of others would, too.
_AWAY_S = 1.0


class Broker:
    """One broker. Thread-safe."""

    _lock = OwnLock()

    def __init__(self, number: int, url: str, settings: Settings) -> None:
        self.number = number
        """Its place among the brokers: by that a page names it."""
        self.name = shown_url(url)
        """Its URL without user and password."""
        self._url, self._options = url, settings.transport_options
        self._idle: list[Inspector] = []
        self._away: tuple[float, BrokerUnavailable] | None = None

    @contextmanager
    def inspector(self) -> Iterator[Inspector]:
        """Lend an inspector, which nobody else uses meanwhile; raises BrokerUnavailable."""
        with self._lock:
            lent = self._idle.pop() if self._idle else None
        if lent is None:
            lent = self._connected()
        kept = False
        try:
            yield lent
            kept = True
        except BrokerUnavailable:
            raise
        except Exception:
            kept = True
            raise
        finally:
            if not (kept and self._keep(lent)):
                lent.close()

    def _connected(self) -> Inspector:
        with self._lock:
            if self._away is not None and monotonic() - self._away[0] < _AWAY_S:
                raise again(self._away[1])
        try:
            return Inspector(self._url, self._options)
        except BrokerUnavailable as exc:
            with self._lock:
                self._away = monotonic(), again(exc)
            raise

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


class Brokers:
    """All brokers of the pages, in the order in which they were named."""

    def __init__(self, settings: Settings) -> None:
        self._brokers = [Broker(n, url, settings) for n, url in enumerate(settings.urls)]

    def __iter__(self) -> Iterator[Broker]:
        """Yield each."""
        return iter(self._brokers)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._brokers)

    def __getitem__(self, number: int) -> Broker:
        """Return one; raises IndexError."""
        if number < 0:
            raise IndexError(number)
        return self._brokers[number]

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for broker in self._brokers:
            broker.close()

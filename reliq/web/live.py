"""Live updates of pages: server-sent events, from one reader for each broker.

In each interval, a reader makes each viewed page once, for all its viewers, and sends the changed
parts. Without viewers there is no reader and no query.
"""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import anyio.to_thread

from ..errors import ReliqError, logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Hashable

# Seconds. Proxies close silent streams, and a write detects a viewer that has gone.
_HEARTBEAT_S = 15.0
# Shortest pause between two rounds, so that other work of this process gets a turn.
_PAUSE_S = 0.2
# Limits: open pages in total, open pages of one user, different pages.
_MOST = 500
_MOST_EACH = 20
_MOST_PAGES = 100
_TOO_MANY = "too many pages are open. Updates resume when other pages are closed."
_HEARTBEAT = b": still here\n\n"

T = TypeVar("T", bound="Hashable")


class _Looker:
    """One viewer: the parts to send to its page. A newer part replaces an older one."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.parts: dict[str, str] = {}
        self.outage: str | None = None
        self.news = asyncio.Event()

    def take(self) -> bytes:
        self.news.clear()
        if self.outage is not None:
            text, self.outage = self.outage, None
            return _event("away", {"text": text})
        parts, self.parts = self.parts, {}
        return _event("parts", parts)


class _Channel:
    """One page and its viewers."""

    def __init__(self) -> None:
        self.lookers: set[_Looker] = set()
        self._parts: dict[str, str] = {}

    def add(self, looker: _Looker) -> None:
        """Add a viewer, and send it all parts: its page may be older than they are."""
        self.lookers.add(looker)
        if self._parts:
            looker.parts = dict(self._parts)
            looker.news.set()

    def made(self, parts: dict[str, str]) -> None:
        changed = {name: text for name, text in parts.items() if self._parts.get(name) != text}
        self._parts = parts
        for looker in self.lookers:
            if changed or looker.outage is not None:
                looker.outage = None
                looker.parts.update(changed)
                looker.news.set()

    def failed(self, text: str) -> None:
        """Report to the viewers why the page is not updated."""
        self._parts = {}  # send all parts after recovery
        for looker in self.lookers:
            looker.outage = text
            looker.news.set()


class Hub(Generic[T]):
    """Makes the viewed pages. Belongs to one event loop of asyncio.

    *make* returns the parts of a page, or raises ReliqError; it is called in a thread. *lane*
    returns the lane of a page. Each lane has one reader, so its pages wait for each other.
    """

    def __init__(
        self,
        interval_s: float,
        make: Callable[[T], dict[str, str]],
        lane: Callable[[T], Hashable] = lambda _: None,
    ) -> None:
        self._interval_s, self._make, self._lane = interval_s, make, lane
        self._channels: dict[T, _Channel] = {}
        self._readers: dict[Hashable, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def lookers(self) -> list[_Looker]:
        """All viewers."""
        return [looker for channel in self._channels.values() for looker in channel.lookers]

    async def follow(self, page: T, user: str = "") -> AsyncGenerator[bytes, None]:
        """Yield the events of a page until it is closed; above a limit, only report the limit."""
        theirs = sum(looker.user == user for looker in self.lookers)
        full = page not in self._channels and len(self._channels) >= _MOST_PAGES
        if full or theirs >= _MOST_EACH or len(self.lookers) >= _MOST:
            yield b"retry: 10000\n\n"
            yield _event("away", {"text": _TOO_MANY})
            return
        looker, lane = _Looker(user), self._lane(page)
        channel = self._channels.setdefault(page, _Channel())
        channel.add(looker)
        if lane not in self._readers or self._readers[lane].done():
            self._readers[lane] = asyncio.create_task(self._read(lane))
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(looker.news.wait(), _HEARTBEAT_S)
                except asyncio.TimeoutError:
                    yield _HEARTBEAT
                    continue
                if not self._closed:
                    yield looker.take()
        finally:
            channel.lookers.discard(looker)
            if not channel.lookers:
                self._channels.pop(page, None)

    async def _read(self, lane: Hashable) -> None:
        limiter = anyio.CapacityLimiter(1)
        while not self._closed:
            began = monotonic()
            there = [item for item in self._channels.items() if self._lane(item[0]) == lane]
            if not there:
                break
            for page, channel in there:
                try:
                    parts = await anyio.to_thread.run_sync(self._make, page, limiter=limiter)
                except ReliqError as exc:  # noqa: PERF203 - one of few pages
                    channel.failed(str(exc))
                except Exception:
                    logger.exception("web: updating a page failed")
                    channel.failed("Internal error. See the log of reliq web for the cause.")
                else:
                    channel.made(parts)
            # After a slow round, leave the broker alone for at least as long.
            took = monotonic() - began
            await asyncio.sleep(max(self._interval_s - took, took, _PAUSE_S))
        del self._readers[lane]

    def close(self) -> None:
        """End all streams: a stopping server waits for them."""
        self._closed = True
        for looker in self.lookers:
            looker.news.set()


def _event(name: str, data: dict[str, str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()

"""A TCP proxy in front of the broker that simulates network faults, in its own thread.

cut: close both sides of every connection. delay: hold back every chunk, in order. black hole:
discard the data of the present connections without closing them; new connections work. lose
replies: discard the next reply of each connection, then cut it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Side(asyncio.Protocol):
    """One socket of a link; its received data goes to the other one."""

    def __init__(self, link: _Link, client: bool) -> None:
        self.link, self.client = link, client
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[bytes] = deque()
        self.delayed: deque[bytes] = deque()
        self.latest = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the data that arrived before the connection was made."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.client:
            self.link.dial()
        while self.waiting:
            transport.write(self.waiting.popleft())
        if self.link.closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Forward the data, delay it, or discard it."""
        self.link.received(self, data)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Close the other side."""
        if not (self.link.vanished and not self.client):
            self.link.close()

    def send(self, data: bytes) -> None:
        """Write now, or when the connection is made."""
        if self.transport is None:
            self.waiting.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)


class _Link:
    """A client's connection, and the proxy's connection to the broker for it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.near, self.far = _Side(self, True), _Side(self, False)
        self.closed = self.vanished = self.loses_reply = False

    def dial(self) -> None:
        """Connect to the broker for a client that has just connected."""
        self.proxy.links.add(self)
        self.proxy.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self.proxy.loop.create_connection(lambda: self.far, *self.proxy.target)
        except OSError:
            self.close()

    def received(self, side: _Side, data: bytes) -> None:
        """Handle a chunk according to the state of the proxy."""
        if self.vanished:
            return
        if self.loses_reply and side is self.far:
            self.proxy.replies_lost += 1
            self.close()
            return
        other = self.far if side is self.near else self.near
        if self.proxy.delay_s or side.delayed:  # never overtake delayed data
            loop = self.proxy.loop
            side.delayed.append(data)
            side.latest = max(side.latest, loop.time() + self.proxy.delay_s)
            loop.call_at(side.latest, self._late, side, other)
            return
        other.send(data)

    def _late(self, side: _Side, other: _Side) -> None:
        data = side.delayed.popleft()  # whatever timer has fired, bytes keep their order.
        if not self.vanished:
            other.send(data)

    def close(self) -> None:
        """Close both sides at once."""
        self.closed = True
        self.proxy.links.discard(self)
        for side in (self.near, self.far):
            if side.transport is not None:
                side.transport.abort()


class Proxy:
    """Listens on a port and forwards all data to `target`, which may change."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.port, self.target = port, target
        self.loop = asyncio.new_event_loop()
        self.links: set[_Link] = set()
        self.delay_s = 0.0
        self.replies_lost = 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()
        self._server: asyncio.AbstractServer | None = None

    def start(self) -> Proxy:
        """Listen; return when connections are accepted."""
        self._thread.start()
        assert self._ready.wait(10), f"the proxy could not listen on port {self.port}"
        return self

    def stop(self) -> None:
        """Close everything."""
        self.cut()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    def cut(self) -> int:
        """Close every connection; return their number."""

        def act() -> int:
            links = list(self.links)
            for link in links:
                link.close()
            return len(links)

        return self._call(act)

    def black_hole(self) -> int:
        """Discard the data of the present connections, without closing them."""

        def act() -> int:
            for link in self.links:
                link.vanished = True
            return len(self.links)

        return self._call(act)

    def lose_replies(self, active: bool = True) -> None:
        """Discard the next reply of each present connection, then cut the connection."""

        def act() -> None:
            for link in self.links:
                link.loses_reply = active

        self._call(act)

    def delay(self, seconds: float) -> None:
        """Hold every chunk back for *seconds* from now on; 0: no longer."""
        self.delay_s = seconds

    def _call(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._server = self.loop.run_until_complete(
            self.loop.create_server(lambda: _Link(self).near, "127.0.0.1", self.port)
        )
        self._ready.set()
        try:
            self.loop.run_forever()
        finally:
            self._server.close()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

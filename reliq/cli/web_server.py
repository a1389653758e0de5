"""The server of ``reliq web``: uvicorn with the application, on a socket opened here."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from reliq.hosts import is_loopback
from reliq.web import app
from reliq.web.access import LOOPBACK_ONLY, Seldom

from .endings import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from reliq.web import Application

_STOPS_WITHIN_S = 3
_BACKLOG = 128
# Seconds that a connection may stay without a complete request header or an open response.
_HEADER_S = 10.0
_MOST_CONNECTIONS = 4096

_full = Seldom(60.0)


class _Connection(AutoHTTPProtocol):  # type: ignore[valid-type,misc]  # h11's or httptools'
    """A connection; one address may have at most half of all connections."""

    most = _MOST_CONNECTIONS
    _seen: Any = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept the connection, or abort it if there are too many."""
        super().connection_made(transport)
        self._since = monotonic()
        peer = self.client and self.client[0]
        theirs = sum(bool(item.client) and item.client[0] == peer for item in self.connections)
        if len(self.connections) > self.most or theirs > self.most // 2:
            _full.warn("refused a connection from %s, which has %d connections", peer, theirs)
            transport.abort()

    def end_if_late(self) -> None:
        """Close the connection if no complete request has arrived in time."""
        if self.cycle is not self._seen or not (self.cycle is None or self.cycle.response_complete):
            self._seen, self._since = self.cycle, monotonic()
        elif monotonic() - self._since > _HEADER_S:
            self.transport.close()


def _in_one_line(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if getattr(context.get("exception"), "errno", None) in {errno.EMFILE, errno.ENFILE}:
        _full.warn("cannot accept a connection: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


class _Server(uvicorn.Server):
    """Ends the event streams before a shutdown: uvicorn waits for every open response."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self._application = application

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_in_one_line)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        for connection in list(self.server_state.connections) if counter % 10 == 0 else ():
            connection.end_if_late()  # type: ignore[union-attr]  # all are _Connections
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._application.hub.close()
        super().handle_exit(sig, frame)


def serve(
    urls: Sequence[str], options: Mapping[str, Any], host: str, port: int, given: Mapping[str, Any]
) -> None:
    """Serve the pages until SIGTERM or Ctrl-C; raises ConfigurationError and Refused."""
    application = app(*urls, transport_options=options, **given)
    settings = application.site.settings
    if not (settings.users or settings.user_header or is_loopback(host)):
        raise Refused(f"--host {host}: {LOOPBACK_ONLY}")
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"serving reliq on http://{shown}:{listening.getsockname()[1]}{settings.root_path}/")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY:  # the rest is for brokers and for uncounted connections
        _Connection.most = min(_MOST_CONNECTIONS, files * 3 // 4)
    config = uvicorn.Config(
        application,
        http=_Connection,
        backlog=min(_BACKLOG, max(_Connection.most // 8, 1)),
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # the application itself decides which proxy to trust
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_STOPS_WITHIN_S,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again after its stop
    try:
        _Server(config, application).run(sockets=[listening])
    finally:
        application.close()


def _listen(host: str, port: int) -> socket.socket:
    six = ":" in host
    try:  # the backlog holds connections until the server runs
        return socket.create_server(
            (host.strip("[]"), port),
            family=socket.AF_INET6 if six else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=six and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise Refused(f"cannot listen on {host}:{port}: {why}; choose another --port") from error

"""The server of ``reliq web``: uvicorn around the application, on a socket that is ours."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, Any

import click
import uvicorn

from reliq.hosts import is_loopback
from reliq.web import app
from reliq.web.access import LOOPBACK_ONLY
from reliq.web.passwords import hashed

from .console import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from reliq.web import Application

__all__ = ["hashed", "serve"]

_STOPS_WITHIN_S = 3
_BACKLOG = 128


class _Server(uvicorn.Server):
    """Ends the streams of events first: uvicorn waits for every answer that has begun."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self._application = application

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        self._application.end_streams()
        super().handle_exit(sig, frame)


def serve(
    urls: Sequence[str], options: Mapping[str, Any], host: str, port: int, given: Mapping[str, Any]
) -> None:
    """Serve the pages until SIGTERM or Ctrl-C; raises ConfigurationError, and Refused."""
    application = app(*urls, transport_options=options, **given)
    if not (application.has_credentials or is_loopback(host)):
        raise Refused(f"--host {host}: {LOOPBACK_ONLY}")
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(
        f"serving reliq on http://{shown}:{listening.getsockname()[1]}{application.root_path}/"
    )
    # A header that names the peer is believed by nobody but who was told to.
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_STOPS_WITHIN_S,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _nothing)  # uvicorn raises it again when it has stopped
    try:
        _Server(config, application).run(sockets=[listening])
    finally:
        application.close()


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Let the process end as one that has done its work."""


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(_BACKLOG)  # from here on nobody is refused
    except OSError as error:
        made.close()
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    return made

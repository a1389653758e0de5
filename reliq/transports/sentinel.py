"""``reliq-sentinel://``: the master of a Sentinel group. Nothing but choosing the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.utils.url import as_url

from ..engines.redis.sentinel import DEFAULT_PORT, SCHEME, sentinel_address
from ..options import parse
from .redis import Transport as RedisTransport
from .redis import login

if TYPE_CHECKING:
    from ..engines.redis.connect import Broker


class Transport(RedisTransport):
    """Redis behind Sentinel: each connection goes to whichever server is the master then.

    Kombu takes a list of URLs for failover alternatives and hands one at a time; all of
    them name the same broker here, so each connection knows every Sentinel, and stays
    the same consumer through a failover.
    """

    default_port = DEFAULT_PORT

    def _address(self, client: Any) -> Broker:
        urls = [url for url in client.alt or () if str(url).startswith(f"{SCHEME}://")]
        if not urls:
            host, port = client.hostname or "localhost", client.port or self.default_port
            urls = [as_url(SCHEME, host, port, path=str(client.virtual_host or "").strip("/"))]
        options = parse(client.transport_options)
        username, password = login(client)
        return sentinel_address(urls, options, username, password, client.ssl)

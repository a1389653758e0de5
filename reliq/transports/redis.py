"""``reliq://``, ``reliqs://`` and ``reliq-unix://``: nothing but choosing the engine."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Hashable
from typing import Any

from ..engines.redis.connect import Address
from ..engines.redis.store import RedisStore
from ..errors import ConfigurationError
from ..store import Store
from .base import Transport as BaseTransport

_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)


def tls_options(given: Any) -> dict[str, Any]:
    """Return redis-py's TLS options: certificates and host names are verified by default.

    *given* is Kombu's ``ssl``: True, or a mapping with or without the prefix
    ``ssl_``. Raises ConfigurationError for an unknown name.
    """
    options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    for name, value in (given.items() if isinstance(given, dict) else ()):
        full = name if name.startswith("ssl_") else f"ssl_{name}"
        if full not in _TLS_OPTIONS:
            near = difflib.get_close_matches(full, _TLS_OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(sorted(_TLS_OPTIONS))
            raise ConfigurationError(f"unknown TLS option {name!r}: {hint}")
        options[full] = value
    if options["ssl_cert_reqs"] in {ssl.CERT_NONE, "none", "CERT_NONE", None}:
        options["ssl_cert_reqs"] = ssl.CERT_NONE
        options["ssl_check_hostname"] = False
    return options


class Transport(BaseTransport):
    """Redis over TCP."""

    default_port = 6379
    tls = False
    unix = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self.address = self._address(client)
        super().__init__(client, **kwargs)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What Kombu fills in where the URL says nothing."""
        return {"hostname": "localhost", "port": self.default_port}

    def _address(self, client: Any) -> Address:
        given = client.transport_options or {}
        password = client.password or given.get("password")
        username = client.userid or given.get("username")
        if callable(password):
            password = password()
        if self.unix:
            path = "/" + str(client.virtual_host or "").lstrip("/")
            return Address(path=path, username=username, password=password)
        return Address(
            host=client.hostname or "localhost",
            port=int(client.port or self.default_port),
            db=_database(client.virtual_host),
            username=username,
            password=password,
            tls=tls_options(client.ssl) if self.tls or client.ssl else None,
        )

    def session_key(self) -> Hashable:
        """Return what makes two connections the same consumer of the same broker."""
        return (self.address.identity, self.options)

    def open_store(self, consumer: str) -> Store:
        """Return a store over two new connections."""
        return RedisStore(self.address, self.options, consumer)


class TLSTransport(Transport):
    """Redis over TLS."""

    tls = True


class UnixTransport(Transport):
    """Redis over a Unix socket."""

    unix = True


def _database(virtual_host: Any) -> int:
    text = str(virtual_host or "0").strip("/") or "0"
    if not text.isdigit():
        raise ConfigurationError(f"expected the database in the URL to be a number, got: {text!r}")
    return int(text)

"""The brokers of a Celery application. Imports no slow module."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlencode

import click

from reliq.errors import ReliqError

Brokers = tuple[tuple[str, ...], dict[str, Any]]


class Application:
    """The Celery application of ``celery -A proj reliq``, read when a command runs."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def options(self) -> dict[str, Any]:
        """Return its transport options, whatever its broker."""
        return dict(self._app.conf.broker_transport_options or {})

    def brokers(self) -> Brokers:
        """Return the URLs of its brokers, and its transport options.

        Raises UsageError if a broker is not one of reliq's.
        """
        connection = self._app.connection_for_write()
        urls = tuple(url for url in connection.alt or () if "://" in url)
        if len(urls) < 2:  # noqa: PLR2004 - one broker: Kombu's URL includes all settings
            try:
                urls = (connection.as_uri(include_password=True),)
            except ReliqError as error:  # as_uri creates the transport, which checks its options
                raise click.UsageError(str(error)) from None
        for url in urls:
            scheme, separator, _ = url.partition("://")
            if not separator or not scheme.startswith("reliq"):
                raise click.UsageError(f"a broker of this application is {scheme}://, not reliq://")
        if connection.ssl:
            urls = tuple(_with_tls(url, connection.ssl) for url in urls)
        return urls, dict(connection.transport_options or {})


def _with_tls(url: str, given: Any) -> str:
    """Return *url* with the settings of ``broker_use_ssl``, unless it has TLS settings itself."""
    scheme, _, rest = url.partition("://")
    base, _, own = rest.partition("?")
    if scheme not in {"reliq", "reliqs", "reliq-sentinel", "reliq-cluster"} or "ssl" in own:
        return url
    query = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        full = name if name.startswith("ssl_") else f"ssl_{name}"
        if isinstance(value, (ssl.VerifyMode, ssl.TLSVersion)):
            query[full] = value.name
        elif value is not None:
            query[full] = str(value)
        elif full == "ssl_cert_reqs":
            query[full] = "none"
    if scheme in {"reliq-sentinel", "reliq-cluster"}:
        query = query or {"ssl": "true"}
    parameters = "&".join(filter(None, (own, urlencode(query))))
    scheme = "reliqs" if scheme == "reliq" else scheme
    return f"{scheme}://{base.rstrip('/')}" + (f"?{parameters}" if parameters else "")

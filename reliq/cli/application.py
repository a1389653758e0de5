"""Celery's application as what names the brokers. Imports nothing that takes time."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlencode

import click

Brokers = tuple[tuple[str, ...], dict[str, Any]]


class Application:
    """The Celery application of ``celery -A proj reliq``; asked when a command runs."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def brokers(self) -> Brokers:
        """Return the URLs of its brokers, and its transport options.

        Raises UsageError where its broker is not one of reliq's.
        """
        connection = self._app.connection_for_write()
        urls = tuple(url for url in connection.alt or () if "://" in url)
        if len(urls) < 2:  # noqa: PLR2004 - one broker: what Kombu has made of all settings
            urls = (connection.as_uri(include_password=True),)
        for url in urls:
            scheme = url.partition(":")[0]
            if not scheme.startswith("reliq"):
                raise click.UsageError(f"a broker of this application is {scheme}://, not reliq://")
        if connection.ssl:
            urls = tuple(_with_tls(url, connection.ssl) for url in urls)
        return urls, dict(connection.transport_options or {})


def _with_tls(url: str, given: Any) -> str:
    """Return the URL that says what ``broker_use_ssl`` says."""
    if not url.startswith("reliq://"):
        return url
    query = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        full = name if name.startswith("ssl_") else f"ssl_{name}"
        if isinstance(value, ssl.VerifyMode):
            query[full] = value.name
        elif value is not None:
            query[full] = str(value)
        elif full == "ssl_cert_reqs":
            query[full] = "none"
    base = url.replace("reliq://", "reliqs://", 1).rstrip("/")
    return f"{base}?{urlencode(query)}" if query else base

"""Find the broker URL that a Kombu connection uses now.

Kombu switches a connection in place to the next URL of its list, and does not report which one.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu.utils.url import parse_url

from ..errors import refuse_sqlite
from ..failover.brokers import one_by_one

# The parts of a URL: the attribute of a Kombu connection, and the name in the parsed URL.
PARTS = {
    "transport_cls": "transport",
    "hostname": "hostname",
    "port": "port",
    "userid": "userid",
    "password": "password",
    "virtual_host": "virtual_host",
}
# Schemes for which several URLs form one broker.
_GROUPED = ("reliq-sentinel:", "reliq-cluster:")
# Attributes that Kombu keeps when the new URL does not set them, and their defaults.
_STICKY = {"port": None, "virtual_host": "/", "ssl": False}


def urls_of(client: Any) -> tuple[tuple[str, ...], str]:
    """Return (the broker URLs of a Kombu connection, the current one); ((), "") for one broker.

    All Sentinels of a list are one broker, and so are all nodes of a cluster. Their URLs are
    joined with semicolons. Raises ConfigurationError for a list with ``reliq-sqlite://``.
    """
    urls, current = _listed(client)
    if any(url.startswith("reliq-sqlite:") for url in urls):
        refuse_sqlite()
    brokers = {url: url for url in urls}
    for scheme in _GROUPED:
        group = [url for url in urls if url.startswith(scheme)]
        brokers.update(dict.fromkeys(group, ";".join(group)))
    distinct = tuple(dict.fromkeys(brokers.values()))
    return (distinct, brokers[current]) if len(distinct) > 1 else ((), "")


def _listed(client: Any) -> tuple[tuple[str, ...], str]:
    """Return (all URLs of a Kombu connection, the current one); ((), "") for a single URL."""
    urls = tuple(url for url in client.alt or () if "://" in url)
    if len(set(urls)) < 2:  # noqa: PLR2004 - one broker is no choice
        return (), ""
    fitting = {url: named for url in urls if (named := _named(url, client)) is not None}
    return urls, max(fitting, key=fitting.__getitem__, default=urls[0])


def reset_inherited_url(client: Any) -> None:
    """Reset the parts of a Kombu connection that come from another URL of its list.

    When the new URL has no port or path, Kombu keeps those of the previous URL. Kombu also splits
    the first item of a list at its semicolons, and keeps the unsplit item in the list.
    """
    if any(len(one_by_one(item)) > 1 for item in client.alt or ()):
        client.alt[:] = dict.fromkeys(url for item in client.alt for url in one_by_one(item))
    urls, url = _listed(client)
    if not url:
        return
    if url.startswith("reliq-unix:"):
        client.hostname = url  # as with a single URL; after a switch, Kombu has parsed it
    own, others = parse_url(url), [parse_url(other) for other in urls if other != url]
    for name, empty in _STICKY.items():
        value = _plain(getattr(client, name))
        if _plain(own.get(name)) is None and value in [_plain(item.get(name)) for item in others]:
            setattr(client, name, empty)


def _named(url: str, client: Any) -> int | None:
    """Return the number of parts of *url* that match *client*; None if one differs.

    Attributes in ``_STICKY`` are compared only if the URL sets them.
    """
    if "://" in (client.hostname or ""):  # a Unix socket, which Kombu does not parse
        same = urlsplit(url)[::2] == urlsplit(client.hostname)[::2]  # scheme and path
        return len(PARTS) if same else None
    parts = parse_url(url)
    named = 0
    for name, part in PARTS.items():
        expected = _plain(parts.get(part))
        if expected is not None:
            if expected != _plain(getattr(client, name)):
                return None
            named += 1
        elif name not in _STICKY and _plain(getattr(client, name)) is not None:
            return None
    return named


def arguments_of(client: Any) -> dict[str, Any]:
    """Return the arguments for a Connection to another broker of the list."""
    arguments = {"transport_options": client.transport_options}
    # TLS options in a URL of the list apply to that URL only, which sets them itself.
    if client.ssl and client.ssl not in [parse_url(url).get("ssl") for url in client.alt or ()]:
        arguments["ssl"] = client.ssl
    return arguments


def _plain(value: Any) -> Any:
    return None if not value or value == "/" else value

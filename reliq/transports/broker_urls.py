"""Which broker of its list of URLs a Kombu connection is set to.

Kombu switches a connection in place, from one URL of its list to the next, and does not
say to which.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu.utils.url import parse_url

from ..errors import refuse_sqlite
from ..failover.brokers import one_by_one

# What of a Kombu connection a URL says, by its name in each.
PARTS = {
    "transport_cls": "transport",
    "hostname": "hostname",
    "port": "port",
    "userid": "userid",
    "password": "password",
    "virtual_host": "virtual_host",
}
# Whose URLs name parts of one broker.
_GROUPED = ("reliq-sentinel:", "reliq-cluster:")
# What Kombu keeps when it switches to a URL that does not name it, and what it is at first.
_STICKY = {"port": None, "virtual_host": "/", "ssl": False}


def urls_of(client: Any) -> tuple[tuple[str, ...], str]:
    """Return (all brokers of a Kombu connection, the one it is set to now); () for one.

    All Sentinels of a list are one broker, and so are all nodes of a cluster: their URLs,
    separated by semicolons. Raises ConfigurationError for a list with ``reliq-sqlite://``.
    """
    urls, current = _listed(client)
    if any(url.startswith("reliq-sqlite:") for url in urls):
        refuse_sqlite()
    brokers = {url: url for url in urls}
    for scheme in _GROUPED:
        group = [url for url in urls if url.startswith(scheme)]
        brokers.update(dict.fromkeys(group, ";".join(group)))
    found = tuple(dict.fromkeys(brokers.values()))
    return (found, brokers[current]) if len(found) > 1 else ((), "")


def _listed(client: Any) -> tuple[tuple[str, ...], str]:
    """Return (all URLs of a Kombu connection, the one it is set to now); () for one."""
    urls = tuple(url for url in client.alt or () if "://" in url)
    if len(set(urls)) < 2:  # noqa: PLR2004 - one broker is no choice
        return (), ""
    fitting = {url: named for url in urls if (named := _named(url, client)) is not None}
    return urls, max(fitting, key=fitting.__getitem__, default=urls[0])


def reset_inherited_url(client: Any) -> None:
    """Take from a Kombu connection what it has kept of another URL of its list.

    Switched to a URL without a port or a path, Kombu keeps those of the URL before. Of a list it
    splits the first item at its semicolons, and keeps that whole as well.
    """
    if any(len(one_by_one(item)) > 1 for item in client.alt or ()):
        client.alt[:] = dict.fromkeys(url for item in client.alt for url in one_by_one(item))
    urls, url = _listed(client)
    if not url:
        return
    if url.startswith("reliq-unix:"):
        client.hostname = url  # as where it is the only one; switched to, Kombu has parsed it
    own, others = parse_url(url), [parse_url(other) for other in urls if other != url]
    for name, empty in _STICKY.items():
        value = _plain(getattr(client, name))
        if _plain(own.get(name)) is None and value in [_plain(item.get(name)) for item in others]:
            setattr(client, name, empty)


def _named(url: str, client: Any) -> int | None:
    """Return how much *url* names of where *client* is; None where that is elsewhere.

    What sticks (see reset_inherited_url) is not compared where the URL does not name it.
    """
    if "://" in (client.hostname or ""):  # a socket's, which Kombu has not parsed
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
    """Return what a Connection to another broker of the list is made with."""
    arguments = {"transport_options": client.transport_options}
    # What a URL of the list says of TLS is for that one; it says so by itself.
    if client.ssl and client.ssl not in [parse_url(url).get("ssl") for url in client.alt or ()]:
        arguments["ssl"] = client.ssl
    return arguments


def _plain(value: Any) -> Any:
    return None if not value or value == "/" else value

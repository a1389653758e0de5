"""Whether a page of ours has asked: a browser sends a login along with what any page asks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.datastructures import Headers

SAFE_METHODS = frozenset({"GET", "HEAD"})


def is_same_origin(headers: Headers) -> bool:
    """Whether a request that changes something comes from a page of this very site.

    Browsers say so in Sec-Fetch-Site, over TLS and to this machine; elsewhere by the Origin, which
    is compared with the Host. Who says neither is no browser of today, and is refused.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    host = headers.get("host")
    return bool(origin and host) and _netloc(str(origin)) == str(host).lower()


def _netloc(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or parts.path or parts.query:
        return None
    return parts.netloc.lower()

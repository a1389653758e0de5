"""Whether a page of ours has asked: a browser sends a login along with what any page asks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hosts import host_of, is_loopback

if TYPE_CHECKING:
    from starlette.datastructures import Headers

SAFE_METHODS = frozenset({"GET", "HEAD"})


def may_read(headers: Headers) -> bool:
    """Whether a page may be made: for other sites only where somebody follows their link here."""
    if headers.get("sec-fetch-site") not in {"cross-site", "same-site"}:
        return True
    way = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return way == ("navigate", "document")


def is_same_origin(headers: Headers, scheme: str) -> bool:
    """Whether a request that changes something comes from a page of this very site.

    Browsers say so in Sec-Fetch-Site, over TLS and to this machine; elsewhere by the Origin, which
    is compared with the Host. Who says neither is no browser of today, and is refused.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    host = str(headers.get("host", "")).lower()
    # A proxy may speak TLS for us; between this machine and itself there is none.
    schemes = {scheme} if is_loopback(host_of(host)) else {scheme, "https"}
    return bool(host) and str(origin).lower() in {f"{one}://{host}" for one in schemes}

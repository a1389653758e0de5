"""The guard in front of every page: security headers, authentication, and checks of the origin."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse

from ..errors import logger
from ..hosts import host_of, is_loopback
from .access import Refused

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .access import Access

# Pages load no foreign content, run no inline script, and cannot be framed.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer", forms would send Origin: null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware. The inner application finds the user in ``scope["reliq.user"]``."""

    def __init__(self, inner: ASGIApp, access: Access, root_path: str = "") -> None:
        self._inner, self._access, self._root_path = inner, access, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer refused requests, and pass others to the inner application."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are not supported
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = _under(scope, self._root_path)
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            refused = await self._refused(scope)
            if refused is not None:
                await _page(refused)(scope, receive, guarded)
                return
            await self._inner(scope, receive, guarded)
        except HTTPException as exc:
            text = f"{exc.detail}\n"
            await PlainTextResponse(text, exc.status_code, exc.headers)(scope, receive, guarded)
        except Exception:
            logger.exception("web: %s %s failed", scope["method"], scope["path"])
            if begun:
                raise
            text = "Internal error. See the log of reliq web for the cause."
            await _page(Refused(500, text, {}))(scope, receive, guarded)

    async def _refused(self, scope: Scope) -> Refused | None:
        connection = HTTPConnection(scope)
        who = await self._access(connection)
        if isinstance(who, Refused):
            return who
        if scope["method"] in {"GET", "HEAD"}:
            # From another site, only a link that a user follows may open a page.
            names = ("sec-fetch-mode", "sec-fetch-dest")
            followed = [connection.headers.get(name) for name in names] == ["navigate", "document"]
            elsewhere = connection.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
            allowed = followed or not elsewhere
        else:
            allowed = is_same_origin(connection.headers, scope["scheme"])
        if not allowed:
            return Refused(403, "Refused: the request came from another site.", {})
        scope["reliq.user"] = who
        return None


def _under(scope: Scope, root_path: str) -> Scope:
    """Return *scope* under the path of a proxy, whether or not the proxy strips that path."""
    if not root_path:
        return dict(scope)
    path = scope["path"]
    if path != root_path and not path.startswith(root_path + "/"):
        path = root_path + path
    return {**scope, "path": path, "root_path": root_path}


def _page(refused: Refused) -> HTMLResponse:
    text = html.escape(refused.text)
    return HTMLResponse(
        f'<!doctype html><html lang="en"><title>reliq</title><main><h1>{refused.status}</h1>'
        f"<p>{text}</p></main></html>\n",
        refused.status,
        refused.headers,
    )


def is_same_origin(headers: Headers, scheme: str) -> bool:
    """Whether a request that changes data comes from a page of this site.

    Browsers report this in Sec-Fetch-Site, over TLS and to this machine. Otherwise the Origin is
    compared with the Host. Current browsers send one of them; requests without both are refused.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    host = str(headers.get("host", "")).lower()
    # A proxy may terminate TLS, so https is accepted too, except on this machine.
    schemes = {scheme} if is_loopback(host_of(host)) else {scheme, "https"}
    return bool(host) and str(origin).lower() in {f"{own}://{host}" for own in schemes}

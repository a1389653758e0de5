"""What stands before every page, a page for an error too: headers, who asks, and from where."""

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

# Nothing is loaded from elsewhere, nothing inline is run, and nobody shows us in a frame.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all a form would say that its origin is null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """An ASGI application around another, which finds the user in ``scope["reliq.user"]``."""

    def __init__(self, inner: ASGIApp, access: Access, root_path: str = "") -> None:
        self._inner, self._access, self._root_path = inner, access, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or have the inner application answer."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: there are none
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
            text = "This page could not be made. The log of reliq web says why."
            await _page(Refused(500, text, {}))(scope, receive, guarded)

    async def _refused(self, scope: Scope) -> Refused | None:
        asked = HTTPConnection(scope)
        who = await self._access(asked)
        if isinstance(who, Refused):
            return who
        if scope["method"] in {"GET", "HEAD"}:
            # For other sites a page is made only where somebody follows their link here.
            names = ("sec-fetch-mode", "sec-fetch-dest")
            followed = [asked.headers.get(name) for name in names] == ["navigate", "document"]
            elsewhere = asked.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
            allowed = followed or not elsewhere
        else:
            allowed = is_same_origin(asked.headers, scope["scheme"])
        if not allowed:
            return Refused(403, "Another site has asked for this: nothing was done.", {})
        scope["reliq.user"] = who
        return None


def _under(scope: Scope, root_path: str) -> Scope:
    """Return *scope* as it is under a proxy's path, whether or not the proxy has cut that off."""
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

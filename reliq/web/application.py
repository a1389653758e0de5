"""The ASGI application: routes to pages, events, actions and static files."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from importlib.resources import files
from time import time
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route, Router

from ..errors import ConfigurationError, NotFound, ReliqError
from ..printable import plain
from . import pages
from .access import access_of
from .actions import perform, question
from .guard import Guard
from .live import Hub
from .page_request import PageRequest, link, query_of
from .pages import ABOUT_ALL, PAGES, Page, Site

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Hashable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .settings import Settings

T = TypeVar("T")

_STATIC = {
    "reliq.css": "text/css",
    "reliq.js": "text/javascript",
    "reliq.svg": "image/svg+xml",
}
# Pages of one broker that are made at a time; also the limit of its inspectors.
_AT_ONCE = 4
# These pages take seconds. They are made one at a time, beside the others.
_SLOW = frozenset({"/health"})
_LONGEST_FORM = 100_000
# Seconds for which the outcome of an action is shown to its user.
_NOTICE_S = 60


class _Events(StreamingResponse):
    """A stream of events that is always closed when its request ends."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        # Without this header, nginx buffers some kilobytes of events.
        headers = {"x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the page is closed."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


class Application:
    """The ASGI application of :func:`reliq.web.app`. Close it when it is no longer used."""

    def __init__(self, settings: Settings) -> None:
        self.site = Site(settings)
        self.hub: Hub[tuple[Page, PageRequest]] = Hub(
            settings.interval_s,
            lambda topic: pages.parts(self.site, *topic),
            lambda topic: self._lane(topic[0].path, topic[1]),
        )
        self._limiters: dict[object, anyio.CapacityLimiter] = {}
        folder = files("reliq.web") / "static"
        self._static = {name: (folder / name).read_bytes() for name in _STATIC}
        self._version = sha256(b"".join(self._static.values())).hexdigest()[:12]
        routes = [Route(page.path, partial(self._page, page), name=page.path) for page in PAGES]
        routes += [
            Route("/confirm", self._confirm, methods=["GET", "POST"]),
            Route("/download", self._download),
            Route("/actions/{name}", self._act, methods=["POST"]),
            Route("/events", self._events),
            Route("/static/{name}", self._file),
        ]
        root = settings.root_path
        if root and any(f"{route.path}/".startswith(f"{root}/") for route in routes):
            # A request would not show whether the proxy strips the path.
            raise ConfigurationError(
                f"expected root_path not to be the path of a page, got: {root!r}; use another"
            )
        self._guarded: ASGIApp = Guard(Router(routes), access_of(settings), settings.root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guarded(scope, receive, send)

    def close(self) -> None:
        """End the streams of events, and close the connections to the brokers."""
        self.hub.close()
        self.site.close()

    def _page_request(self, http: Request, query: bytes, page: Page | None = None) -> PageRequest:
        user, given = http.scope["reliq.user"], query_of(query)
        if page is not None:  # drop names that the page does not read: they make no other page
            first = dict(reversed(given))
            given = [
                (name, first[name]) for name in ("broker", *page.reads.split()) if name in first
            ]
        return PageRequest(
            user,
            self.site.settings.allow_actions and user.role == "operator",
            tuple(given),
            http.scope.get("root_path", ""),
            len(self.site.brokers) > 1,
        )

    async def _page(self, page: Page, http: Request) -> Response:
        query = http.scope["query_string"]
        request = self._page_request(http, query, page)
        here = link("", page.path, dict(request.query))
        follow = link(request.root_path, "/events", {"page": here}) if page.live else ""
        notice = self.site.log.entry(self._page_request(http, query).number("said"))
        late_ms = (time() - _NOTICE_S) * 1000
        user = plain(request.user.name)
        if notice is not None and (notice.user != user or notice.at_ms < late_ms):
            notice = None
        return await self._whole(page, request, follow=follow, notice=notice)

    async def _whole(self, page: Page, request: PageRequest, **more: object) -> Response:
        lane, about = self._lane(page.path, request), {"version": self._version, **more}
        text, status = await self._in_thread(lane, pages.whole, self.site, page, request, about)
        # Escape characters that UTF-8 cannot encode, although all text is already printable.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)

    async def _confirm(self, http: Request) -> Response:
        """Show the confirmation page of an action. Ticked messages come as a form."""
        request = self._page_request(http, await _with_form(http))
        page = Page("/confirm", "confirm.html", "Confirm", question, "", live=False)
        return await self._whole(page, request, follow="")

    async def _act(self, http: Request) -> Response:
        request = self._page_request(http, await _with_form(http))
        name = http.path_params["name"].replace("-", " ")
        if name == "stop":
            return self._stop(request)
        try:
            url = await self._in_thread(self._lane("", request), perform, self.site, request, name)
        except ReliqError as exc:
            return PlainTextResponse(f"{exc}\n", 404 if isinstance(exc, NotFound) else 400)
        return RedirectResponse(url, 303)

    def _stop(self, request: PageRequest) -> Response:
        if not request.may_act:
            return PlainTextResponse("Only operators may stop it, if actions are allowed.\n", 403)
        name = request.text("id")
        operation = self.site.operations.stop(name)
        if operation is not None:
            what = f"{operation.action} {operation.target}"
            self.site.log.note(request.user.name, "stop", operation.broker, what, "stopping")
        return RedirectResponse(link(request.root_path, "/operation", {"id": name}), 303)

    async def _download(self, http: Request) -> Response:
        request = self._page_request(http, http.scope["query_string"])
        item = self.site.operations.get(request.text("id"))
        if item is None or not item.file or item.state != "done" or self.site.redaction:
            return PlainTextResponse("no such file\n", 404)
        if not await anyio.Path(item.file).exists():
            return PlainTextResponse("this file was deleted: export again\n", 404)
        name = f"dead-letters-{item.id}.jsonl"
        return FileResponse(item.file, media_type="application/x-ndjson", filename=name)

    def _lane(self, path: str, request: PageRequest) -> Hashable:
        """Return the lane of a page: its broker, or its path if it shows no broker or all."""
        broker = min(request.broker, len(self.site.brokers))
        return path if path in ABOUT_ALL else (broker, path in _SLOW)

    async def _in_thread(self, lane: Hashable, do: Callable[..., T], *arguments: object) -> T:
        most = 1 if isinstance(lane, tuple) and lane[1] else _AT_ONCE
        limiter = self._limiters.setdefault(lane, anyio.CapacityLimiter(most))
        return await anyio.to_thread.run_sync(do, *arguments, limiter=limiter)

    async def _events(self, http: Request) -> Response:
        given = dict(query_of(http.scope["query_string"]))
        path, _, query = given.get("page", "").partition("?")
        page = next((page for page in PAGES if page.path == path and page.live), None)
        if page is None:
            return PlainTextResponse("no such page", 404)
        request = self._page_request(http, query.encode("latin-1", "replace"), page)
        return _Events(self.hub.follow((page, request), request.user.name))

    async def _file(self, http: Request) -> Response:
        name = http.path_params["name"]
        if name not in self._static:
            return PlainTextResponse("no such file", 404)
        kept = "public, max-age=31536000, immutable"
        return Response(
            self._static[name], headers={"cache-control": kept}, media_type=_STATIC[name]
        )


async def _with_form(request: Request) -> bytes:
    """Return the query of a request, followed by its form."""
    form = b""
    async for chunk in request.stream():
        form += chunk
        if len(form) > _LONGEST_FORM:
            raise HTTPException(413)
    query: bytes = request.scope["query_string"]
    return query + b"&" + form if form else query

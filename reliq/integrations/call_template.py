"""Call templates: build the messages of many calls of a task from one message.

Knows which fields of a task message differ from call to call; all others are copied.
"""

from __future__ import annotations

import os
import sys
from types import NoneType
from typing import TYPE_CHECKING, Any

from ..message.envelope import Differing
from ..transports.publish.chunk import Prepared
from .collecting import Content
from .middleware.chain import PublishContext, chain_of
from .middleware.install import apply_publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .collecting import Collector

_TEXTS = ("id", "root_id", "argsrepr", "kwargsrepr")
FILLED_IN = frozenset(_TEXTS)
"""The headers that differ from call to call."""
_TIMES = ("eta", "expires")
# Parts of a body of protocol 2: args, kwargs, embedded options.
_FIELDS = 3
_SCALARS: frozenset[Any] = frozenset({int, float, bool, NoneType})
_CONTAINERS: dict[Any, str] = {tuple: "(%s)", list: "[%s]", dict: "{%s}"}


def task_ids(count: int) -> Iterator[str]:
    """Yield *count* random UUIDs of version 4, as Celery's task ids, in a third of its time."""
    text = os.urandom(16 * count).hex()
    for at in range(0, 32 * count, 32):
        a, b, c, d, e = at + 8, at + 12, at + 16, at + 20, at + 32
        variant = "89ab"[int(text[c], 16) & 3]
        yield f"{text[at:a]}-{text[a:b]}-4{text[b + 1 : c]}-{variant}{text[c + 1 : d]}-{text[d:e]}"


class CallTemplate:
    """A message of one call, from which messages of other calls are made."""

    def __init__(
        self,
        message: Prepared,
        content: Content,
        limits: tuple[int, int, int],
    ) -> None:
        task_id = message.headers["id"]
        self._headers = dict(message.headers)
        self._headers.pop("compression", None)
        self._properties = dict(message.properties)
        self._content = content
        self._embedded = content.body[2]
        self._limits = limits
        self._exchange, self._routing_key = message.exchange, message.routing_key
        self._declare = message.declare
        self._priority, self._timeout = message.priority, message.confirm_timeout
        self.timed = bool(
            message.headers.get("eta")
            or message.headers.get("expires")
            or message.properties.get("expiration")
        )
        """Whether it has times relative to its creation."""
        self.options: Mapping[str, Any] = {}
        self.given_properties: Mapping[str, Any] = {}
        """The publishing options that the app's middleware receives."""
        self._own_root = message.headers["root_id"] == task_id
        self._own_correlation = message.properties.get("correlation_id") == task_id
        self._differing = None if self.timed else Differing(_TEXTS, ("correlation_id",))

    @classmethod
    def of(
        cls,
        task_id: str,
        message: Prepared,
        content: Content,
        collector: Collector,
        limits: tuple[int, int, int],
    ) -> CallTemplate | None:
        """Return a template; None if the message has an unknown form."""
        headers, body = message.headers, content.body
        if type(body) is not tuple or len(body) != _FIELDS or not headers.keys() >= FILLED_IN:
            return None
        template = cls(message, content, limits)
        again = template.fill(task_id, body[0], body[1], collector)
        # Two texts of equal arguments may differ if they contain an address.
        alike = again._replace(differing=None) == message
        return template if alike and headers["id"] == task_id else None

    def time_as(self, message: Prepared) -> None:
        """Count relative times from the creation of *message*."""
        for name in _TIMES:
            self._headers[name] = message.headers[name]
        if "expiration" in message.properties:
            self._properties["expiration"] = message.properties["expiration"]

    def fill(
        self, task_id: str, args: Any, kwargs: Any, collector: Collector, app: Any = None
    ) -> Prepared:
        """Return the message of a call with these arguments; raises errors of serialization.

        Calls the middleware of *app* first, which may change the headers and raise.
        """
        of_args, of_kwargs, levels = self._limits
        headers = self._headers.copy()
        headers["id"] = task_id
        if self._own_root:
            headers["root_id"] = task_id
        headers["argsrepr"] = text_of(args, of_args, levels)
        headers["kwargsrepr"] = text_of(kwargs, of_kwargs, levels) if kwargs else "{}"
        properties = self._properties.copy()
        if self._own_correlation:
            properties["correlation_id"] = task_id
        notified = app is not None and chain_of(app) is not None
        if notified:
            apply_publish(
                PublishContext(
                    app=app,
                    name=headers["task"],
                    id=task_id,
                    headers=headers,
                    args=args,
                    kwargs=kwargs,
                    properties={**self.given_properties, "correlation_id": task_id},
                    options=self.options,
                )
            )
        _, serializer, compression = self._content
        content = Content((args, kwargs, self._embedded), serializer, compression)
        body, content_type, encoding = collector.serialize(content, headers)
        return Prepared(
            body=body,
            priority=self._priority,
            content_type=content_type,
            content_encoding=encoding,
            headers=headers,
            properties=properties,
            exchange=self._exchange,
            routing_key=self._routing_key,
            declare=self._declare,
            confirm_timeout=self._timeout,
            differing=None if notified else self._differing,
        )


def text_of(value: Any, longest: int, levels: int) -> str:
    """Return the result of Celery's ``saferepr(value, longest, maxlevels=levels)`` (``argsrepr``).

    Celery walks any value with a stack of iterators. This function writes plain, short arguments
    directly, in a fifth of the time, and leaves all others to Celery.
    """
    text = _plain(value, longest, levels) if levels > 0 else None
    if text is not None and len(text) < longest:  # Celery would not shorten it
        return text
    saferepr = sys.modules["celery.utils.saferepr"].saferepr
    shown: str = saferepr(value, longest, maxlevels=levels)
    return shown


def _plain(value: Any, longest: int, levels: int) -> str | None:
    """Return the text of *value*; None if Celery must write it."""
    kind = type(value)
    if kind is str:
        return None if len(value) >= longest else "'" + value.replace("'", "\\'") + "'"
    if kind in _SCALARS:
        return str(value)
    form = _CONTAINERS.get(kind) if levels > 0 else None
    if form is None:
        return None
    inner = _joined(value, longest, levels - 1, named=kind is dict)
    if inner is None:
        return None
    return f"({inner},)" if kind is tuple and len(value) == 1 else form % inner


def _joined(values: Any, longest: int, levels: int, *, named: bool) -> str | None:
    texts: list[str] = []
    left = longest
    for item in values:
        name = _plain(item, left, 0) if named else ""
        text = _plain(values[item] if named else item, left, levels)
        if name is None or text is None or len(name) + len(text) >= left:
            return None
        left -= len(name) + len(text)
        texts.append(f"{name}: {text}" if named else text)
    return ", ".join(texts)

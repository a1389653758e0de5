"""A request for a page: its user, broker and query, with the query parsed defensively."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from ..errors import BrokerRefused, BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..admin import Inspector, Message
    from .brokers import Watch
    from .redaction import Redaction
    from .settings import User

T = TypeVar("T")

# The largest offset in a list: scripts count with it.
_MOST = 2**31
PAGE = 50
"""Rows on one page of a list."""
_LONGEST = 2000


@dataclass(frozen=True)
class PageRequest:
    """One request for a page. Equal requests show the same page."""

    user: User = field(compare=False)
    may_act: bool
    """Whether the user is an operator, and actions are allowed."""
    query: tuple[tuple[str, str], ...] = ()
    root_path: str = ""
    several: bool = field(default=False, compare=False)
    """Whether there are several brokers, so that links must name theirs."""

    def text(self, name: str, default: str = "") -> str:
        """Return the first value of *name* in the query."""
        return next((value for key, value in self.query if key == name), default)[:_LONGEST]

    def texts(self, name: str) -> list[str]:
        """Return all values of *name* in the query."""
        return [value for key, value in self.query if key == name]

    def number(self, name: str) -> int:
        """Return a value as a number, 0 or more; 0 if it is not a number."""
        value = self.text(name)
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(_MOST))):
            return 0
        return min(int(value), _MOST)

    @property
    def broker(self) -> int:
        """The number of the page's broker; 0, the first, by default."""
        return self.number("broker")

    def link(self, path: str, **values: object) -> str:
        """Return the URL of another page of the same broker."""
        if self.several and "broker" not in values and self.broker:
            values = {**values, "broker": self.broker}
        return link(self.root_path, path, values)

    def again(self, path: str, query: Iterable[tuple[str, str]]) -> str:
        """Return the URL of a page with *query* unchanged, including repeated names."""
        return _url(self.root_path + path, query)

    def here(self, path: str, **changes: object) -> str:
        """Return the URL of this page with changes to its query."""
        return link(self.root_path, path, {**dict(self.query), **changes})


# The name of a queue may contain bytes that are not UTF-8.
_ERRORS = "surrogateescape"
_MOST_FIELDS = 300


def query_of(raw: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a query or form; empty if it has too many fields."""
    try:
        return parse_qsl(
            raw.decode("latin-1"),
            keep_blank_values=True,
            errors=_ERRORS,
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        return []


def link(root_path: str, path: str, values: Mapping[str, object]) -> str:
    """Return the URL of a page, from the root of its server. Values None and "" are omitted."""
    kept = [(name, str(value)) for name, value in values.items() if value not in {None, ""}]
    return _url(root_path + path, kept)


def _url(path: str, query: Iterable[tuple[str, str]]) -> str:
    text = urlencode(list(query), errors=_ERRORS)
    return f"{path}?{text}" if text else path


@dataclass(frozen=True, slots=True)
class Source:
    """The parts with which a view reads one broker for one request."""

    inspector: Inspector
    request: PageRequest
    watch: Watch
    redaction: Redaction

    @property
    def queue(self) -> str:
        """The queue of the page."""
        return self.request.text("queue")

    @property
    def cursor(self) -> str | None:
        """The position at which a search continues."""
        return self.request.text("cursor") or None

    def most(self, place: str) -> list[tuple[str, int]]:
        """Return the requested queues with messages in *place*, with counts, largest first."""
        counts = [
            (queue.queue, int(getattr(queue, place)))
            for queue in self.watch.report(self.inspector).queues
            if self.queue in {"", queue.queue}
        ]
        return sorted((item for item in counts if item[1]), key=lambda item: -item[1])

    def hidden(self, messages: Iterable[Message]) -> list[Message]:
        """Return *messages* with redacted values hidden."""
        redaction = self.redaction
        return [
            replace(
                message,
                args=redaction.written(message.args),
                kwargs=redaction.written(message.kwargs),
                body=redaction.json(message.body),
            )
            for message in messages
        ]


def if_reachable(ask: Callable[[], T]) -> T | None:
    """Return the reply; None without permission, or if a node is unreachable."""
    try:
        return ask()
    except (BrokerRefused, BrokerUnavailable):
        return None


class Pager(NamedTuple):
    """The position of a page in a list."""

    skip: int
    shown: int
    total: int | None
    """None: unknown."""
    more: bool
    size: int = PAGE


def pager(request: PageRequest, rows: Sequence[object], total: int | None) -> Pager:
    """Return the position of a page; *found* may have one row more than the page shows."""
    skip = request.number("skip")
    shown = min(len(rows), PAGE)
    more = len(rows) > PAGE or (total is not None and skip + shown < total and shown == PAGE)
    return Pager(skip, shown, total, more)

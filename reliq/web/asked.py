"""What somebody asks of a page: who it is, of which broker, and the query, read with care."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..admin import Inspector, Message
    from .brokers import Watch
    from .redaction import Redaction
    from .settings import User

# Of which the place is a number that scripts count with.
_MOST = 2**31
PAGE = 50
"""So many rows a page of a list has."""
_LONGEST = 2000


@dataclass(frozen=True)
class Asked:
    """One request for a page. Two that are equal are shown the same."""

    user: User = field(compare=False)
    may_act: bool
    """Whether the user is an operator, and actions are allowed at all."""
    query: tuple[tuple[str, str], ...] = ()
    root_path: str = ""
    several: bool = field(default=False, compare=False)
    """Whether there are several brokers, so that links have to name theirs."""

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return next((value for key, value in self.query if key == name), default)[:_LONGEST]

    def texts(self, name: str) -> list[str]:
        """Return all values of a name."""
        return [value for key, value in self.query if key == name]

    def number(self, name: str) -> int:
        """Return a value that is a number from 0 on; 0 for what is none."""
        value = self.text(name)
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(_MOST))):
            return 0
        return min(int(value), _MOST)

    @property
    def broker(self) -> int:
        """The number of the broker that the page is about; the first unless one is named."""
        return self.number("broker")

    def link(self, path: str, **values: object) -> str:
        """Return the URL of another page of the same broker."""
        if self.several and "broker" not in values and self.broker:
            values = {**values, "broker": self.broker}
        return link(self.root_path, path, values)

    def again(self, path: str, query: Iterable[tuple[str, str]]) -> str:
        """Return the URL of a page with a query as it was given, names that stand twice too."""
        text = urlencode(list(query), errors=_ERRORS)
        return f"{self.root_path}{path}?{text}" if text else f"{self.root_path}{path}"

    def here(self, path: str, **changes: object) -> str:
        """Return the URL of this page with another query."""
        return link(self.root_path, path, {**dict(self.query), **changes})


# A name of a queue may have bytes that are no text.
_ERRORS = "surrogateescape"
_MOST_FIELDS = 300


def query_of(raw: bytes) -> list[tuple[str, str]]:
    """Return names and values of a query, or of a form; what is too much of it is left out."""
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
    """Return the URL of a page, from the root of its server; None and "" are left out."""
    kept = {name: str(value) for name, value in values.items() if value not in {None, ""}}
    query = urlencode(kept, errors=_ERRORS)
    return f"{root_path}{path}?{query}" if query else f"{root_path}{path}"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one broker."""

    inspector: Inspector
    asked: Asked
    watch: Watch
    redaction: Redaction

    @property
    def queue(self) -> str:
        """The queue that the page is about."""
        return self.asked.text("queue")

    @property
    def cursor(self) -> str | None:
        """Where a search goes on."""
        return self.asked.text("cursor") or None

    def most(self, place: str) -> list[tuple[str, int]]:
        """Return the queues asked for with messages in *place*, and how many, the most first."""
        counts = [
            (queue.queue, int(getattr(queue, place)))
            for queue in self.watch.report(self.inspector).queues
            if self.queue in {"", queue.queue}
        ]
        return sorted((item for item in counts if item[1]), key=lambda item: -item[1])

    def hidden(self, messages: Iterable[Message]) -> list[Message]:
        """Return *messages* without what is to be hidden in them."""
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


class Pager(NamedTuple):
    """Where in a list a page is."""

    skip: int
    shown: int
    total: int | None
    """None: nobody knows."""
    more: bool
    size: int = PAGE


def pager(look: Asked, found: Sequence[object], total: int | None) -> Pager:
    """Return where a page of *found* is; it was asked for one more than it shows."""
    skip = look.number("skip")
    shown = min(len(found), PAGE)
    more = len(found) > PAGE or (total is not None and skip + shown < total and shown == PAGE)
    return Pager(skip, shown, total, more)

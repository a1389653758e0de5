"""What a view is made from: the inspector, the query, and what is remembered and hidden."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..asked import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...admin import Inspector, Message
    from ..asked import Asked
    from ..redaction import Redaction
    from ..watch import Watch


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

    def hidden(self, messages: Iterable[Message]) -> list[Message]:
        """Return *messages* without what is to be hidden in them."""
        redaction = self.redaction
        if not redaction:
            return list(messages)
        return [
            replace(
                message,
                args=redaction.written(message.args),
                kwargs=redaction.written(message.kwargs),
                body=redaction.json(message.body),
            )
            for message in messages
        ]


@dataclass(frozen=True, slots=True)
class Pager:
    """Where in a list a page is."""

    skip: int
    shown: int
    total: int | None
    """None: nobody knows."""
    more: bool
    size: int = PAGE

    @property
    def first(self) -> int:
        """The number of the first row that is shown, from 1."""
        return self.skip + 1 if self.shown else 0

    @property
    def last(self) -> int:
        """The number of the last."""
        return self.skip + self.shown

    @property
    def before(self) -> int:
        """Where the page before begins."""
        return max(self.skip - self.size, 0)

    @property
    def after(self) -> int:
        """Where the next begins."""
        return self.skip + self.size


def pager(look: Asked, found: Sequence[object], total: int | None, size: int = PAGE) -> Pager:
    """Return where a page of *found* is; it was asked for one more than it shows."""
    skip = look.number("skip")
    shown = min(len(found), size)
    more = len(found) > size or (total is not None and skip + shown < total and shown == size)
    return Pager(skip, shown, total, more, size)

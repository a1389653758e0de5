"""What a read of many queues, or batches, has found, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ..errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..store.inspection import Untold

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class BatchesUntold:
    """Batches that cannot be read: a server of several does not answer, a key is another's."""

    batches: tuple[str, ...]
    error: str
    """Which node, and why, in one line."""

    def __str__(self) -> str:
        """Say it to an operator."""
        names = ", ".join(map(repr, self.batches)) or "which there are is not known"
        return f"{self.error}; batches not told: {names}"


class Partial(list[T]):
    """A list of what was found. Of a cluster, it is without what lost nodes have.

    Of any other broker it is always the whole: one that does not answer is a BrokerUnavailable,
    and so is a cluster of which no node does.
    """

    def __init__(
        self, found: Iterable[T] = (), unreachable: Iterable[Untold | BatchesUntold] = ()
    ) -> None:
        super().__init__(found)
        self.unreachable = list(unreachable)
        """What is not in it, by node, and why."""

    def each(self, change: Callable[[T], U]) -> Partial[U]:
        """Return *change* of each."""
        return Partial(map(change, self), self.unreachable)

    def whole(self) -> list[T]:
        """Return the list; raises BrokerUnavailable where something is missing in it."""
        if self.unreachable:
            raise BrokerUnavailable("; ".join(map(str, self.unreachable)))
        return self

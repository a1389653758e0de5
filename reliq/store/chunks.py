"""Chunks: the size of one step of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .limits import BATCH, BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .values import Publication


T = TypeVar("T")


def chunks(items: Sequence[T], at_once: int = BATCH) -> Iterator[Sequence[T]]:
    """Yield *items* in groups of *at_once*; by default the size of one step."""
    for start in range(0, len(items), at_once):
        yield items[start : start + at_once]


def _kind(item: Publication) -> tuple[object, ...]:
    route = item.queue, item.exchange, item.version, item.create
    return (*route, item.publisher, item.moved, item.number == 0)


def alike(publications: Sequence[Publication]) -> Iterable[Sequence[Publication]]:
    """Group neighbours that one step can store: so many, and so many bytes of envelopes.

    One that is larger is a group of its own.
    """
    if len(publications) == 1:
        yield publications
        return
    group: list[Publication] = []
    size = 0
    for item in publications:
        if group and (
            len(group) == BATCH
            or size + len(item.envelope) > BATCH_BYTES
            or _kind(item) != _kind(group[0])
        ):
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item.envelope)
    if group:
        yield group

"""How the messages of one publish are parted: what any engine stores in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .values import Publication


def _kind(item: Publication) -> tuple[object, ...]:
    route = item.queue, item.exchange, item.version, item.create
    return (*route, item.publisher, item.moved, item.number == 0)


def alike(
    publications: Sequence[Publication], most: int, most_bytes: int
) -> Iterable[Sequence[Publication]]:
    """Group neighbours that one step can store: up to *most*, and *most_bytes* of envelopes.

    One that is larger is a group of its own.
    """
    if len(publications) == 1:
        yield publications
        return
    group: list[Publication] = []
    size = 0
    for item in publications:
        if group and (
            len(group) == most
            or size + len(item.envelope) > most_bytes
            or _kind(item) != _kind(group[0])
        ):
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item.envelope)
    if group:
        yield group

"""Blocks of snapshots in the format of ``snapshot.lua``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reliq.values.history import PER_BLOCK
from reliq.values.limits import MINUTE_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

_MORE = 0x80


class Noted(NamedTuple):
    """The result of a snapshot: one block, and the record of the last snapshot."""

    block: int
    records: bytes
    last: str


def noted(
    last: str,
    records: bytes,
    now_ms: int,
    gauges: Sequence[int],
    counters: Sequence[int],
    every_ms: int = MINUTE_MS,
) -> Noted:
    """Return the data to store for a snapshot at *now_ms*.

    *records* is the stored block of that time, *last* the record of the previous snapshot.
    """
    current = now_ms // every_ms
    before, size, *known = [int(text) for text in last.split()] or [-1, 0]
    known = known if len(known) == len(counters) else list(counters)
    grown = [max(now - then, 0) for now, then in zip(counters, known, strict=True)]
    content = b"".join(map(_packed, (*gauges, *grown)))
    again = records[-1] if records else 0
    if (
        before == current - 1
        and records
        and again < PER_BLOCK - 1
        and records[-size - 1 : -1] == content
    ):
        records = records[:-1] + bytes((again + 1,))
    else:
        records += bytes((current % PER_BLOCK, *content, 0))
    said = " ".join(map(str, (current, len(content), *counters)))
    return Noted(current // PER_BLOCK, records, said)


def _packed(number: int) -> bytes:
    found = bytearray()
    while number >= _MORE:
        found.append(_MORE | number % _MORE)
        number //= _MORE
    found.append(number)
    return bytes(found)

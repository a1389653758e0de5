"""Postponing: a batch that has ended is looked after no more until it is to be forgotten.

What is noted with the batch and when the list of batches has it next are in two slots. So what a
change says of a postponed batch that goes on it says until the list has been put right: whoever
was to do that may die, and the next one does. Who postpones may be late: the list takes it only
where it is as it was before the batch was looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BrokerUnavailable, ReliqError
from . import keys, scripts
from .base import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .commands import Commands
    from .stream import Reply


class Postponing:
    """What is postponed, and taken back, at one Redis or at the nodes of a cluster."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix

    def postpone(self, batch: str, until_ms: int) -> bool:
        """Have *batch* looked after no sooner than that, where it has ended; whether so."""
        seen = self._wire.call(("ZSCORE", keys.batches(self._prefix), batch))
        if seen is None or not self._wire.execute(*self._noting(batch, "")):
            return False
        return bool(self._wire.execute(*self._scheduling(batch, text_of(seen), until_ms)))

    def end(self, batch: str, noted: str) -> None:
        """Have *batch* looked after at once: what was noted is over. Harmless when repeated."""
        self._wire.execute(*self._scheduling(batch, "", 0))
        self._wire.execute(*self._noting(batch, noted))

    def post_end(self, batch: str, noted: str, then: Callable[[Reply], None]) -> None:
        """Post what :meth:`end` sends; *then* gets the error that keeps it from being so, or 0."""

        def scheduled(reply: Reply) -> None:
            if isinstance(reply, ReliqError):
                then(reply)
                return
            try:
                self._wire.post_script(*self._noting(batch, noted), then)
            except BrokerUnavailable as exc:
                then(exc)

        try:
            self._wire.post_script(*self._scheduling(batch, "", 0), scheduled)
        except BrokerUnavailable as exc:
            then(exc)

    def _noting(
        self, batch: str, noted: str
    ) -> tuple[scripts.Script, tuple[str, ...], tuple[str, ...]]:
        found = keys.batch_keys(self._prefix, batch)._asdict()
        return scripts.POSTPONE_BATCH, scripts.POSTPONE_BATCH.named(**found), (noted,)

    def _scheduling(
        self, batch: str, seen: str, at_ms: int
    ) -> tuple[scripts.Script, tuple[str, ...], tuple[int | str, ...]]:
        names = scripts.SCHEDULE_BATCH.named(
            batches=keys.batches(self._prefix), guard=keys.guard_of_all(self._prefix)
        )
        return scripts.SCHEDULE_BATCH, names, (batch, seen, at_ms)

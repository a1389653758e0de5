"""Job reports: how jobs have ended, owed to their batches until the broker has it.

A message is acked when its batch knows how its job has ended, not before: whoever dies in between
leaves a message that is delivered again, and not a job of which nobody will ever hear. Its lease
is kept meanwhile. The batch may be at another node than the queue, and be away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, ReliqError
from ..forks import OwnLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.jobs import Change, Changed
    from ..store.protocol import Store

logger = logging.getLogger("reliq")


@dataclass(slots=True)
class _Report:
    """One change that is owed."""

    batch: str
    change: Change
    then: Callable[[], None] | None
    """To acknowledge the message, which waits for the report."""
    since: float = 0.0
    """When it was sent last."""


class JobReports:
    """What one session owes batches. Thread-safe."""

    lock = OwnLock(reentrant=True)
    """Guards what is owed. Nothing is sent, and nobody waits, under it."""

    def __init__(self, look_soon: Callable[[str], None]) -> None:
        self._look_soon = look_soon

    def begin(self) -> None:
        """Owe nothing, as a child does: what was owed is its parent's."""
        self._owed: dict[int, _Report] = {}
        self._unsent: set[int] = set()
        self._numbers = count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is owed."""
        return not self._owed

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def report(
        self,
        store: Store | None,
        batch: str,
        change: Change,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Tell *batch* of *change*, and call *then* when it knows. Never waits, never raises.

        What cannot be told over *store* is told over the next connection; without a store all.
        """
        with self.lock:
            number = next(self._numbers)
            self._owed[number] = _Report(batch, change, then)
            if store is None:
                self._unsent.add(number)
        if store is not None:
            self._post(store, number)

    def resend(self, older_than_s: float) -> None:
        """Have those sent again that have had no answer for so long: it is harmless."""
        limit = monotonic() - older_than_s
        with self.lock:
            self._unsent |= {number for number, one in self._owed.items() if one.since < limit}

    def flush(self, store: Store, patience_s: float = inf) -> None:
        """Send what earlier connections could not. Posts it, and does not wait."""
        del patience_s
        with self.lock:
            unsent, self._unsent = self._unsent, set()
        for number in sorted(unsent):
            self._post(store, number)

    def _post(self, store: Store, number: int) -> None:
        with self.lock:
            report = self._owed.get(number)
            if report is None:
                return  # it was answered meanwhile
            report.since = monotonic()
        try:
            done = partial(self._done, number)
            store.batches.post_change(report.batch, (report.change,), done)
        except BrokerUnavailable as exc:
            self._unsent_again(number)
            logger.warning("%s; the end of a job is reported over the next connection", exc)

    def _unsent_again(self, number: int) -> None:
        with self.lock:
            self._unsent.add(number)

    def _done(self, number: int, result: Changed | ReliqError | None) -> None:
        if isinstance(result, BrokerUnavailable):
            self._unsent_again(number)
            return
        with self.lock:
            report = self._owed.pop(number, None)
        if report is None:
            return
        if isinstance(result, ReliqError):
            logger.error(
                "job %s of batch %s: that it has %s could not be noted, and its message is "
                "acknowledged all the same: %s",
                report.change.job,
                report.batch,
                report.change.state or report.change.what,
                result,
            )
        elif result is not None and result.due:
            self._look_soon(report.batch)
        if report.then is not None:
            report.then()

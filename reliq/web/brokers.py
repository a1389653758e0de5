"""The brokers: their shared inspectors, and the data kept between two reads.

Pages borrow one of a few inspectors of a broker, one thread at a time. An inspector whose broker
is lost is closed, and the next request makes another. Kept are reports, for rates; the doctor's
findings; and the groups of dead letters. A read that finds recent data sends no query.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING

from ..admin import Inspector
from ..errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from ..failover.brokers import without_password
from ..forks import OwnLock
from .charts import MINUTE_MS, points_of, series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..admin import DeadLetterGroups, Finding, Report
    from .charts import Series
    from .settings import Settings

# Idle inspectors kept for the next requests; others are closed after use.
_KEPT = 3
# Seconds between two tries to reach an unreachable broker, and how long a page waits for a try.
_RETRY_S = 1.0
_PATIENT_S = 0.1


class Broker:
    """One broker. Thread-safe."""

    _lock = OwnLock()

    def __init__(self, number: int, url: str, settings: Settings) -> None:
        self.number = number
        """Its position in the list of brokers, by which pages name it."""
        self.name = without_password(url)
        """Its URL without user and password."""
        self._url, self._options = url, settings.transport_options
        self._idle: list[Inspector] = []
        self._outage: BrokerUnavailable | None = None
        self._read_at = float("-inf")
        self._asking: threading.Thread | None = None

    @contextmanager
    def inspector(self) -> Iterator[Inspector]:
        """Lend an inspector exclusively; raises BrokerUnavailable."""
        lent = self._lent()
        kept = False
        try:
            yield lent
            kept = True
        except Exception as exc:
            kept = not isinstance(exc, BrokerUnavailable)
            if isinstance(exc, BrokerTimeout):
                self._note(again(exc), float("-inf"))
            raise
        finally:
            if not (kept and self._keep(lent)):
                lent.close()

    def _lent(self) -> Inspector:
        with self._lock:
            due = self._outage is not None and monotonic() - self._read_at > _RETRY_S
            if due and self._asking is None:
                self._asking = threading.Thread(target=self._ask, name="reliq-web", daemon=True)
                self._asking.start()
            asking = self._asking
        if asking is not None:
            asking.join(_PATIENT_S)
        with self._lock:
            if self._outage is not None:
                raise again(self._outage)
            if self._idle:
                return self._idle.pop()
        return self._connected()

    def _ask(self) -> None:
        """Connect, for all requests that wait for the broker."""
        try:
            made = self._connected()
            if not self._keep(made):
                made.close()
        except ReliqError:  # noted, or raised by the next request
            pass
        finally:
            self._asking = None

    def _connected(self) -> Inspector:
        outage: BrokerUnavailable | None = None
        try:
            return Inspector(self._url, self._options)
        except BrokerUnavailable as exc:
            outage = again(exc)
            raise
        finally:
            self._note(outage, monotonic())

    def _note(self, outage: BrokerUnavailable | None, read_at: float) -> None:
        with self._lock:
            self._outage, self._read_at = outage, read_at

    def _keep(self, inspector: Inspector) -> bool:
        with self._lock:
            if len(self._idle) >= _KEPT:
                return False
            self._idle.append(inspector)
            return True

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inspector in idle:
            inspector.close()


# Seconds over which rates are computed.
_RATES_S = 10.0
_YOUNG_S = 0.3
# An older report is no base for rates. The longest interval is half of this.
_OLD_S = 120.0
_CHECKED_EVERY_S = 60.0
# Seconds for which a history is reused. The broker has one snapshot a minute.
_HISTORY_S = 20.0
_MOST_HISTORIES = 500


@dataclass(frozen=True, slots=True)
class Checkup:
    """The findings of the doctor, and when it ran."""

    findings: list[Finding] = field(default_factory=list)
    at: float | None = None
    """Seconds since the epoch, by this machine's clock; None: not yet."""
    error: str = ""

    @property
    def warnings(self) -> list[Finding]:
        """Errors and warnings, errors first."""
        order = {"error": 0, "warning": 1}
        bad = (finding for finding in self.findings if finding.severity in order)
        return sorted(bad, key=lambda finding: order[finding.severity])


class Watch:
    """The recent reports, histories and findings of one broker. Thread-safe."""

    _lock = OwnLock()
    _report_lock = OwnLock()

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.counting = Counting()
        """The groups of dead letters."""
        self._reports: deque[Report] = deque()
        self._histories: dict[tuple[str, int], tuple[float, Series]] = {}
        self._forgotten = float("-inf")
        self._checkup = Checkup()
        self._checked_at = float("-inf")
        self._checking = False

    def report(self, inspector: Inspector) -> Report:
        """Return a current report, with the rates of the last seconds."""
        with self._report_lock:  # concurrent requests share one report
            with self._lock:
                while self._reports and monotonic() - self._reports[0].at > _OLD_S:
                    self._reports.popleft()
                young = max(monotonic() - _YOUNG_S, self._forgotten)
                if self._reports and self._reports[-1].at > young:
                    return self._reports[-1]
                since = self._reports[0] if self._reports else None
            made = inspector.report(since)
            with self._lock:
                self._reports.append(made)
                while len(self._reports) > 1 and made.at - self._reports[1].at > _RATES_S:
                    self._reports.popleft()
            return made

    def forget(self, queue: str) -> None:
        """Discard kept data that an action has changed."""
        self.counting.forget(queue)
        with self._lock:
            self._forgotten = monotonic()

    def history(self, inspector: Inspector, queue: str, minutes: int) -> Series:
        """Return the last *minutes* of a queue, at most some seconds old; raises NotFound."""
        key = (queue, minutes)
        with self._lock:
            at, history = self._histories.get(key, (float("-inf"), None))
            if history is not None and monotonic() - at < _HISTORY_S:
                return history
        now_ms = inspector.now_ms()
        since_ms = now_ms - minutes * MINUTE_MS
        snapshots = inspector.history(queue, since_ms, points_of(minutes))
        made = series(snapshots, now_ms, minutes)
        with self._lock:
            if len(self._histories) >= _MOST_HISTORIES:
                self._histories.clear()
            self._histories[key] = (monotonic(), made)
        return made

    def checkup(self) -> Checkup:
        """Return the last findings of the doctor, and start another check if they are old.

        A check takes seconds on a large broker, so the request does not wait for it.
        """
        with self._lock:
            due = monotonic() - self._checked_at > _CHECKED_EVERY_S and not self._checking
            self._checking = self._checking or due
            checkup = self._checkup
        if due:
            threading.Thread(target=self._check, name="reliq-web-doctor", daemon=True).start()
        return checkup

    def check_now(self, inspector: Inspector) -> Checkup:
        """Run the doctor now, and return its findings; raises ReliqError."""
        checkup = Checkup(inspector.doctor(), time())
        with self._lock:
            self._checkup, self._checked_at = checkup, monotonic()
        return checkup

    def _check(self) -> None:
        try:
            with self._broker.inspector() as inspector:
                self.check_now(inspector)
        except ReliqError as exc:
            with self._lock:
                self._checkup = Checkup(self._checkup.findings, time(), str(again(exc)))
                self._checked_at = monotonic()
        finally:
            with self._lock:
                self._checking = False


# Seconds for which a complete count is reused.
_COUNT_YOUNG_S = 10.0
_SCANS = 5000
_MOST_QUEUES = 200
# Errors with an id in their text may make each dead letter a group of its own.
_MOST_GROUPS = 5000


@dataclass(slots=True)
class _Count:
    shown: DeadLetterGroups | None = None
    """The last complete count, shown while another is in progress."""
    going: DeadLetterGroups | None = None
    ended: float = 0.0


class Counting:
    """Counts the dead letters of one broker by group. Thread-safe; one count at a time."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def groups(self, inspector: Inspector, queue: str, looks: int = _SCANS) -> DeadLetterGroups:
        """Return the groups of *queue* counted so far; each call counts *looks* more dead letters.

        The count ends early when it has found 5,000 groups. Raises NotFound.
        """
        with self._lock:
            if len(self._counts) > _MOST_QUEUES:
                self._counts.clear()
            count = self._counts.setdefault(queue, _Count())
            if count.going is None and count.shown and monotonic() - count.ended < _COUNT_YOUNG_S:
                return count.shown
            count.going = inspector.dead_letter_groups(queue, count.going, looks)
            full = len(count.going.groups) >= _MOST_GROUPS
            if count.going.cursor is not None and not full:
                # The last complete count, or else the partial one.
                return count.shown or count.going
            count.shown, count.going, count.ended = count.going, None, monotonic()
            return count.shown

    def forget(self, queue: str) -> None:
        """Discard the count of a changed queue."""
        with self._lock:
            self._counts.pop(queue, None)

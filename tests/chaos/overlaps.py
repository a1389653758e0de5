"""The verdict on a queue with limits: how many of its tasks ran at once, and who may be to blame.

Pure. A run counts from its first record to its last, so less than its slot. An overlap above every
limit in force meanwhile is a finding, unless as many of its runs may have lost their lease: their
process was stopped, killed, or without a broker for longer than a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.checker import Blame
    from tests.chaos.model import Fault, Run

_MOST_FINDINGS = 20


@dataclass
class Overlaps:
    """The overlaps of one queue."""

    runs: int = 0
    highest: int = 0
    """The highest number of runs at once, without those that a fault explains."""
    explained: int = 0
    """Starts above the limit that faults explain."""
    findings: list[str] = field(default_factory=list)


class LimitsInForce:
    """The limits that may have been in force at a time."""

    def __init__(self, first: int, faults: Iterable[Fault], in_flight_s: float) -> None:
        faults = [fault for fault in faults if fault.applied]
        self._changes = [(fault.at, fault.until, fault.limit) for fault in faults if fault.limit]
        self._changes.insert(0, (0.0, 0.0, first))
        # A promoted replica may lack the last change, or the one before.
        self._lost = [fault.at for fault in faults if fault.master]
        self._in_flight_s = in_flight_s

    def highest(self, since: float, until: float) -> int:
        """Return the highest limit in force at some time of this period."""
        if any(at <= until for at in self._lost):
            since = 0.0
        since -= self._in_flight_s
        ends = [at for _, at, _ in self._changes[1:]] + [float("inf")]
        return max(
            limit
            for (begin, _, limit), end in zip(self._changes, ends, strict=True)
            if begin <= until and end >= since
        )


def check_overlaps(
    runs: Iterable[Run], limits: LimitsInForce, blame: Blame, found: Overlaps | None = None
) -> Overlaps:
    """Judge the runs of the queue, of any number of tasks."""
    found = found or Overlaps()
    ordered = sorted(runs, key=lambda run: run.start)
    found.runs += len(ordered)
    running: list[Run] = []
    for run in ordered:
        running = [other for other in running if _end(other, blame) > run.start]
        running.append(run)
        _judge(running, limits, blame, found)
    return found


def _judge(running: Sequence[Run], limits: LimitsInForce, blame: Blame, found: Overlaps) -> None:
    now = running[-1].start
    doubtful = [run for run in running if _may_have_lost_its_lease(run, now, blame)]
    number = len(running) - len(doubtful)
    found.highest = max(found.highest, number)
    most = limits.highest(min(run.start for run in running), now)
    if number > most:
        shown = ", ".join(f"{run.id} ({run.worker}, from {run.start:.2f})" for run in running)
        if len(found.findings) < _MOST_FINDINGS:
            found.findings.append(f"{number} at once, and the limit was {most}: {shown}")
    elif len(running) > most:
        found.explained += 1


def _may_have_lost_its_lease(run: Run, now: float, blame: Blame) -> bool:
    """Whether a run may have continued after its lease: another one may have its slot."""
    if blame.of(run) is not None:
        return True
    # The children of a killed main process end their tasks.
    return any(fault.until <= fault.at <= now for fault in blame.of_worker.get(run.worker, ()))


def _end(run: Run, blame: Blame) -> float:
    """Return the end of a run: that of its process, if it never finished."""
    if run.finish is not None:
        return run.finish
    return min((at for at in blame.deaths(run) if at >= run.start), default=run.start)

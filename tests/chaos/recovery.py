"""Recovery times for each kind of fault.

Death or freeze of a worker: for each message that was running there, the time from the fault to
the start of its next run, in any worker. Fault of the broker or the network: for each worker that
was up and not full of long tasks, the time from the end of the fault (with a second broker: from
its start) to the first run there of a task published after the start of the fault. Publishers
must therefore have recovered too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.chaos.settings import CONCURRENCY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.model import Fault, History, Run

_LONG_S = 0.1
OF_EVERYBODY = frozenset(
    {
        "broker-kill",
        "demotion",
        "switch-over",
        "url-failover",
        "sentinel-kill",
        "sentinel-freeze",
        "script-flush",
        "client-kill",
        "net-cut",
        "net-delay",
        "net-half-open",
        "net-reply-lost",
        "slot-move",
        "reshard",
        "node-kill",
        "node-restart",
        "node-freeze",
        "node-failover",
        "source-restart",
        "target-restart",
        "target-kill",
        "anchor-flap",
    }
)


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """Return p50, p95, p99 and the maximum of *samples*, by the nearest rank; {} for none."""
    ordered = sorted(samples)
    if not ordered:
        return {}
    last = len(ordered) - 1
    ranks = {name: ordered[min(last, int(share * len(ordered)))] for name, share in _SHARES}
    return {name: round(value, 3) for name, value in {**ranks, "max": ordered[-1]}.items()}


_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


class Recovery:
    """Collects samples, one part of the ledger at a time."""

    def __init__(self, faults: Iterable[Fault], end: float) -> None:
        self._faults = [fault for fault in faults if fault.applied]
        self._end = end
        """The end of all faults: later starts are not samples of recovery."""
        self._of_worker: dict[str, list[Fault]] = defaultdict(list)
        for fault in self._faults:
            if fault.worker:
                self._of_worker[fault.worker].append(fault)
        self._starts: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        self._long: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._samples: dict[str, list[float]] = defaultdict(list)

    def add(self, tasks: Iterable[History]) -> None:
        """Add the samples of some tasks."""
        for history in tasks:
            for run in history.runs:
                self._starts[run.worker].append((run.start, history.intent or 0.0, run.queue))
                if run.finish is None or run.finish - run.start > _LONG_S:
                    end = float("inf") if run.finish is None else run.finish
                    self._long[run.worker].append((run.start, end))
                for fault in self._of_worker.get(run.worker, ()):
                    self._held_up(fault, run, history.runs)

    def _held_up(self, fault: Fault, run: Run, runs: Sequence[Run]) -> None:
        if (fault.pid and fault.pid != run.pid) or run.start > fault.at:
            return
        if run.finish is not None and run.finish <= fault.at:
            return
        again = [
            other.start
            for other in runs
            if other.tag == run.tag and other is not run and other.start > fault.at
        ]
        if again:
            self._samples[fault.kind].append(min(again) - fault.at)

    def samples(self) -> dict[str, list[float]]:
        """Return the samples of each kind of fault."""
        found = {kind: list(samples) for kind, samples in self._samples.items()}
        for starts in self._starts.values():
            starts.sort()
        for fault in self._faults:
            if fault.kind not in OF_EVERYBODY:
                continue
            for worker, starts in self._starts.items():
                if starts[0][0] > fault.at or self._full(worker, fault.lifted):
                    continue  # it started later, or could not run anything
                later = starts[bisect_left(starts, (fault.lifted,)) :]
                first = next(
                    (at for at, intent, queue in later if intent > fault.at and fault.hit(queue)),
                    None,
                )
                if first is not None and first <= self._end:
                    found.setdefault(fault.kind, []).append(first - fault.lifted)
        return found

    def _full(self, worker: str, at: float) -> bool:
        busy = sum(start <= at and end > at + _LONG_S for start, end in self._long[worker])
        return busy >= CONCURRENCY.get(worker.rstrip("0123456789."), 1)

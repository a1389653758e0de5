"""The verdict of a soak: no drift, no endless growth, no slowdown.

It is pure: observations in, findings out.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.soak.model import Sample, Seen
    from tests.soak.settings import Bounds

_BACK_S = 10.0
"""The time in which a disconnected client reconnects and finishes its pending work."""
FEWEST = 10
"""The minimum of samples for a comparison."""


def findings(seen: Seen, bounds: Bounds) -> list[str]:
    """Return all findings, one sentence each."""
    found = list(seen.findings)
    if len(seen.samples) < FEWEST:
        return [*found, f"only {len(seen.samples)} samples: too few to judge by"]
    return [
        *found,
        *_drifted(seen),
        *_failed(seen),
        *_grown(seen.samples, bounds),
        *_slower(seen.samples, bounds),
    ]


def _drifted(seen: Seen) -> list[str]:
    """Compare each worker's limit with the messages that it held and the limit that it reported."""
    found = []
    for probe in seen.probes:
        for worker, limit in seen.limits.items():
            held = probe.held.get(worker, 0)
            if held != limit:
                found.append(f"{worker} held {held} at {probe.at:.0f} s, its limit is {limit}")
    told = [visit for visit in seen.visits if visit.prefetch]
    for visit in told:
        found += [
            f"{worker} named {count} as its prefetch count at {visit.at:.0f} s, not "
            f"{seen.limits.get(worker)}"
            for worker, count in visit.prefetch.items()
            if count != seen.limits.get(worker)
        ]
    if not seen.probes:
        found.append("no worker was filled to its limit")
    if not told:
        found.append("no worker was asked for its prefetch count")
    return found


def _failed(seen: Seen) -> list[str]:
    """Report failed visits without a killed connection, and kinds without any success."""
    found = []
    for visit in seen.visits:
        excused = any(visit.at - _BACK_S <= at <= visit.until for at in seen.reconnects)
        if visit.error and not excused:
            found.append(f"{visit.what} at {visit.at:.0f} s: {visit.error}")
    done = {visit.what for visit in seen.visits if not visit.error}
    never = {visit.what for visit in seen.visits} - done
    return found + [f"{what}: none was done" for what in sorted(never)]


def _grown(samples: Sequence[Sample], bounds: Bounds) -> list[str]:
    """Compare the values at the end with those halfway."""
    found = []
    for series in held(samples):
        halfway, end = halfway_and_end(samples, series.value)
        factor, slack = (
            (bounds.keys, bounds.slack_keys) if series.counts else (bounds.memory, bounds.slack_kb)
        )
        if end > halfway * factor + slack:
            found.append(f"{series.name}: {halfway:,.0f} halfway, {end:,.0f} at the end")
    return found


class Series(NamedTuple):
    """A value that must not grow endlessly."""

    name: str
    value: Callable[[Sample], float]
    counts: bool = False
    """Whether the value is a count instead of KB."""


def held(samples: Sequence[Sample]) -> list[Series]:
    """Return all values that must level off."""
    return [
        *(Series(f"memory of {name}, KB", _memory(name)) for name in samples[0].processes),
        Series("used_memory of the server, KB", lambda sample: sample.server_kb),
        Series("keys", lambda sample: sum(sample.keys.values()), counts=True),
    ]


def halfway_and_end(
    samples: Sequence[Sample], value: Callable[[Sample], float]
) -> tuple[float, float]:
    """Return the medians of the third and of the last fifth of the run."""
    fifth = max(1, len(samples) // 5)
    middle = samples[2 * len(samples) // 5 :][:fifth]
    return median(map(value, middle)), median(map(value, samples[-fifth:]))


def _memory(name: str) -> Callable[[Sample], float]:
    return lambda sample: sample.processes[name].rss_kb


def tenths(samples: Sequence[Sample]) -> tuple[tuple[Sample, Sample], tuple[Sample, Sample]]:
    """Return the first and the last sample of the first tenth, and of the last."""
    tenth = max(1, (len(samples) - 1) // 10)
    return (samples[0], samples[tenth]), (samples[-1 - tenth], samples[-1])


def throughput(begin: Sample, end: Sample) -> float:
    """Return the tasks per second from one sample to another."""
    return (end.finished - begin.finished) / max(end.at - begin.at, 1e-9)


def cpu_a_task(begin: Sample, end: Sample, name: str) -> float:
    """Return the processor time of a process per task, in milliseconds."""
    used = end.processes[name].cpu_s - begin.processes[name].cpu_s
    return 1000 * used / max(end.finished - begin.finished, 1)


def _slower(samples: Sequence[Sample], bounds: Bounds) -> list[str]:
    """Compare the last tenth with the first."""
    first, last = tenths(samples)
    found = []
    before, after = throughput(*first), throughput(*last)
    if after < before * bounds.throughput:
        found.append(
            f"throughput: {before:.1f} tasks a second in the first tenth, {after:.1f} in the last"
        )
    for name in samples[0].processes:
        before, after = cpu_a_task(*first, name), cpu_a_task(*last, name)
        if after > before * bounds.cpu:
            found.append(
                f"processor time of {name}: {before:.2f} ms a task in the first tenth, "
                f"{after:.2f} ms in the last"
            )
    return found

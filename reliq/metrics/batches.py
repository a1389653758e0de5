"""The metrics of batches: one series for each name, of which there are not too many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

from ..printable import plain
from ..store.jobs import STAGES, STATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..admin.batches import Records

OTHERS = "(others)"
"""The label of all batches whose names have no series of their own."""

# Whoever puts a date into the name of each batch makes no series for each.
_MOST_NAMES = 50
_MOST_LABEL = 100

BATCHES = {
    "batches": ("reliq_batches", "Batches of jobs that are kept.", ("name", "stage")),
    "jobs": ("reliq_batch_jobs", "Jobs of the batches that are kept.", ("name", "state")),
    "oldest": (
        "reliq_batch_oldest_age_seconds",
        "Since the oldest batch that has not ended was opened; 0 where all have.",
        ("name",),
    ),
    "untold": ("reliq_batches_untold", "Batches that could not be read.", ()),
    "more": (
        "reliq_batches_more",
        "1 while there are more batches than a scrape reads: those opened last are told of.",
        (),
    ),
}


class Names:
    """Which names of one broker's batches have series: a name keeps its own while it is used."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def labels(self, used: Iterable[str]) -> dict[str, str]:
        """Return the label of each name that is used."""
        names = list(dict.fromkeys(used))
        self._kept = {name: self._kept[name] for name in names if name in self._kept}
        for name in names:
            if name not in self._kept and len(self._kept) < _MOST_NAMES:
                self._kept[name] = plain(name)[:_MOST_LABEL]
        return {name: self._kept.get(name, OTHERS) for name in names}


class BatchFamilies:
    """The metrics of batches in one scrape."""

    def __init__(self) -> None:
        self._families = {
            key: GaugeMetricFamily(name, text, labels=("broker", *labels))
            for key, (name, text, labels) in BATCHES.items()
        }

    def all(self) -> list[GaugeMetricFamily]:
        """Return those of which there is something to say."""
        return [family for family in self._families.values() if family.samples]

    def add(self, broker: str, records: Records, names: Names, now_ms: int) -> None:
        """Add the batches of one broker."""
        if any(not item.batches for item in records.untold):
            return  # it is not known which there are
        add = {key: family.add_metric for key, family in self._families.items()}
        labels = names.labels(record.name for record in records.found)
        # Several long names may have one label.
        batches = {label: Counter[str]() for label in labels.values()}
        jobs = {label: Counter[str]() for label in labels.values()}
        oldest = dict.fromkeys(labels.values(), now_ms)
        for record in records.found:
            label = labels[record.name]
            batches[label][record.stage] += 1
            jobs[label].update(record.counts)
            if not record.ended_ms:
                oldest[label] = min(oldest[label], record.created_ms)
        for label, created_ms in oldest.items():
            for stage in STAGES:
                add["batches"]([broker, label, stage], batches[label][stage])
            for state in STATES:
                add["jobs"]([broker, label, state], jobs[label][state])
            add["oldest"]([broker, label], max(now_ms - created_ms, 0) / 1000)
        add["untold"]([broker], sum(len(item.batches) for item in records.untold))
        add["more"]([broker], int(records.more))

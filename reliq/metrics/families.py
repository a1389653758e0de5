"""The metrics of one scrape: their names, descriptions and values."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .._version import __version__
from ..admin.audit import audit
from ..admin.names import REASONS
from ..batches.jobs import STAGES, STATES
from ..printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.core import Metric

    from ..admin.limits import QueueLimits
    from ..admin.partitions import Coverage
    from ..batches.jobs import BatchRecord
    from ..values.inspection import Consumer, Measure, Node, Partial

_QUEUE = ("broker", "queue")

# counter of the ledger -> name without _total, description
_COUNTERS = {
    "published": ("reliq_messages_published", "Messages stored in the queue."),
    "acked": ("reliq_messages_acked", "Messages finished."),
    "redelivered": (
        "reliq_messages_redelivered",
        "Deliveries of messages that had been delivered before.",
    ),
    "nacked": ("reliq_messages_nacked", "Messages returned as failed."),
    "expired": ("reliq_messages_expired", "Messages removed at the end of their TTL."),
    "purged": ("reliq_messages_purged", "Messages removed by a purge."),
    "dropped": ("reliq_dead_letters_dropped", "Dead letters removed by their cap or TTL."),
    "replayed": ("reliq_dead_letters_replayed", "Dead letters returned to their queue."),
    "moved": ("reliq_messages_moved", "Messages moved to another queue or broker."),
    "token": ("reliq_leases_granted", "Deliveries that require an acknowledgement."),
    "lapsed": ("reliq_leases_lost", "Leases that were not renewed, or whose consumer died."),
}
_BROKERS = {
    "up": ("reliq_up", "1 if the broker answered this scrape."),
    "seconds": ("reliq_scrape_duration_seconds", "Duration of the queries to the broker."),
}
_GAUGES = {
    "delayed": ("reliq_messages_delayed", "Delayed messages."),
    "due": ("reliq_messages_due", "Delayed messages that are due: the next reserve takes them."),
    "unacked": ("reliq_messages_unacked", "Messages held by consumers."),
    "dead": ("reliq_dead_letters", "Dead letters that are kept."),
    "consumers": ("reliq_queue_consumers", "Consumers of the queue."),
    "running": (
        "reliq_acked_tasks_running",
        "Running Celery tasks that are acknowledged, and thus no longer in the queue.",
    ),
    "startable": (
        "reliq_messages_startable",
        "Ready and due messages that may start now: at most what the limits of the queue allow.",
    ),
    "paused": ("reliq_queue_paused", "1 while the queue is paused."),
    "oldest": (
        "reliq_oldest_ready_age_seconds",
        "Time since the oldest ready message was published; 0 without ready messages.",
    ),
    "difference": (
        "reliq_ledger_difference",
        "Published messages minus those accounted for; 0 unless a key was deleted.",
    ),
}

NODES = {
    "up": ("reliq_node_up", "Redis Cluster: 1 if the node answered this scrape."),
    "slots": ("reliq_node_slots", "Redis Cluster: hash slots of the node."),
    "untold": (
        "reliq_node_queues_untold",
        "Redis Cluster: known queues of the node that could not be read.",
    ),
    "memory": ("reliq_node_memory_bytes", "Redis Cluster: size of the node's data."),
}

SPOOLS = {
    "publishes": ("reliq_spool_publishes", "Publishes in the spool."),
    "oldest_s": ("reliq_spool_oldest_age_seconds", "Age of the oldest of them; 0 without any."),
    "bytes": ("reliq_spool_bytes", "Size of the spool on the disk."),
    "doubtful": ("reliq_spool_doubtful", "Forwarded publishes that may be stored twice."),
}

LIMITS = {
    "concurrency": ("reliq_queue_concurrency_limit", "Messages that consumers may hold at a time."),
    "reached": ("reliq_queue_at_limit", "1 while a limit of the queue allows no further start."),
}

PARTITIONS = (
    "reliq_queue_partitions_untold",
    "Partitioned queue: partitions that could not be read.",
)

OTHERS = "(others)"
"""The label of all batches without separate series for their names."""

# This bounds the series if each batch has a different name, for example with a date.
_MOST_NAMES = 50
_MOST_LABEL = 100

_BATCHES = {
    "batches": ("reliq_batches", "Batches of jobs that are kept.", ("name", "stage")),
    "jobs": ("reliq_batch_jobs", "Jobs of the batches that are kept.", ("name", "state")),
    "oldest": (
        "reliq_batch_oldest_age_seconds",
        "Time since the oldest unfinished batch was opened; 0 if all have ended.",
        ("name",),
    ),
    "untold": ("reliq_batches_untold", "Batches that could not be read.", ()),
    "more": (
        "reliq_batches_more",
        "1 while there are more batches than a scrape reads: only the most recent are exported.",
        (),
    ),
}

# The names, labels and descriptions of celery-exporter, for its dashboards.
_CELERY = {
    "length": ("celery_queue_length", "The number of message in broker queue."),
    "consumers": (
        "celery_active_consumer_count",
        "The number of active consumer in broker queue.",
    ),
    "workers": ("celery_active_worker_count", "The number of workers in broker queue."),
    "processes": ("celery_active_process_count", "The number of processes in broker queue."),
}


def _families(
    table: Mapping[str, tuple[str, str]], labels: Sequence[str], kind: Any = GaugeMetricFamily
) -> dict[str, Any]:
    return {key: kind(name, text, labels=labels) for key, (name, text) in table.items()}


class Families:
    """The metrics of one scrape."""

    def __init__(self, celery_names: bool) -> None:
        gauge = GaugeMetricFamily
        self.build = gauge("reliq_build_info", "The version of reliq.", labels=["version"])
        self.build.add_metric([__version__], 1)
        self.brokers = _families(_BROKERS, ("broker",))
        self.ready = gauge(
            "reliq_messages_ready",
            "Messages that wait for a consumer.",
            labels=[*_QUEUE, "priority"],
        )
        self.dead = CounterMetricFamily(
            "reliq_messages_dead_lettered",
            "Messages that became dead letters.",
            labels=[*_QUEUE, "reason"],
        )
        self.counters = _families(_COUNTERS, _QUEUE, CounterMetricFamily)
        self.gauges = _families(_GAUGES, _QUEUE)
        self.nodes = _families(NODES, ("broker", "node"))
        self.limits = _families(LIMITS, _QUEUE)
        self.partitions = gauge(*PARTITIONS, labels=_QUEUE)
        self.batches = {
            key: gauge(name, text, labels=("broker", *labels))
            for key, (name, text, labels) in _BATCHES.items()
        }
        self.celery = _families(_CELERY if celery_names else {}, ("queue_name",))
        # One series for each queue name, summed over all brokers.
        self._sums: dict[str, dict[str, int]] = {key: {} for key in self.celery}

    def all(self) -> list[Metric]:
        """Return the metrics for Prometheus."""
        for key, values in self._sums.items():
            for queue, value in values.items():
                self.celery[key].add_metric([queue], value)
        first = [self.build, *self.brokers.values(), self.ready, self.dead]
        rest = [*self.counters.values(), *self.gauges.values(), *self.celery.values()]
        special = (*self.nodes.values(), self.partitions, *self.limits.values())
        some = [family for family in special if family.samples]
        return [*first, *some, *rest, *(item for item in self.batches.values() if item.samples)]

    def add_node(self, broker: str, node: Node, untold: int) -> None:
        """Add one node of a cluster. untold: the number of its unreadable queues."""
        labels = [broker, node.name]
        self.nodes["up"].add_metric(labels, int(node.up))
        self.nodes["slots"].add_metric(labels, node.slots)
        self.nodes["untold"].add_metric(labels, untold)
        if node.memory_bytes is not None:
            self.nodes["memory"].add_metric(labels, node.memory_bytes)

    def add(
        self,
        broker: str,
        measure: Measure,
        ready: Mapping[int, int],
        consumers: Sequence[Consumer] | None,
        parts: Coverage,
        limits: QueueLimits | None = None,
    ) -> None:
        """Add one queue. ready: by priority; consumers: of all queues, None if unreadable.

        If partitions are missing, the gauges cover the others. The counters are omitted: lower
        sums would look like a restarted counter to Prometheus.
        """
        status = measure.status
        name = plain(status.name)
        labels = [broker, name]
        for priority, count in sorted(ready.items()):
            self.ready.add_metric([*labels, str(priority)], count)
        if not parts.untold:
            self._add_counters(labels, status.ledger)
        waiting = status.ready + measure.due
        theirs = {"length": waiting, "consumers": status.consumers}
        running = None
        if consumers is not None:
            # Include disconnected workers: they may be about to reconnect.
            running = sum(consumer.running.get(status.name, 0) for consumer in consumers)
            serving = (item for item in consumers if item.connected and status.name in item.queues)
            workers = [item.processes for item in serving if item.pool]
            theirs |= {"workers": len(workers), "processes": sum(workers)}
        values = {
            "delayed": status.delayed,
            "due": measure.due,
            "unacked": status.unacked,
            "dead": status.dead,
            "consumers": status.consumers,
            "running": running,
            "startable": limits.startable if limits else waiting * (not status.paused),
            "paused": int(status.paused),
            "oldest": measure.oldest_age_s or 0.0,
            "difference": audit(status).difference,
        }
        if limits is not None and limits.concurrency is not None:
            self.limits["concurrency"].add_metric(labels, limits.concurrency)
        if limits is not None and limits.limited:
            self.limits["reached"].add_metric(labels, int(bool(limits.reached)))
        for key, gauge in self.gauges.items():
            value = values[key]
            if value is not None:
                gauge.add_metric(labels, value)
        for key, sums in self._sums.items():
            if key in theirs:
                sums[name] = sums.get(name, 0) + theirs[key]

    def add_batches(
        self, broker: str, records: Partial[BatchRecord], names: dict[str, str], now_ms: int
    ) -> None:
        """Add the batches of one broker. names: name -> label, of the names with series."""
        if any(not item.batches for item in records.unreachable):
            return  # the list of batches is unreadable
        add = {key: family.add_metric for key, family in self.batches.items()}
        labels = _labels(names, (record.name for record in records))
        # Long names are cut, so several of them may share a label.
        batches = {label: Counter[str]() for label in labels.values()}
        jobs = {label: Counter[str]() for label in labels.values()}
        oldest = dict.fromkeys(labels.values(), now_ms)
        for record in records:
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
        add["untold"]([broker], sum(len(item.batches) for item in records.unreachable))
        add["more"]([broker], int(not records.complete))

    def _add_counters(self, labels: list[str], ledger: Mapping[str, int]) -> None:
        for key, counter in self.counters.items():
            count = ledger.get(key, 0)
            if key == "token":  # leases and job events share this counter
                count -= ledger.get("job_events", 0)
            counter.add_metric(labels, count)
        by_reason = dict.fromkeys(REASONS, 0)
        for key, count in ledger.items():
            if key.startswith("dead:"):
                by_reason[key[len("dead:") :]] = count
        # Dead letters from before the reasons were counted.
        by_reason["unknown"] = ledger.get("dead_lettered", 0) - sum(by_reason.values())
        for reason, count in by_reason.items():
            if count or reason != "unknown":
                self.dead.add_metric([*labels, reason], count)


def spool_gauges(statuses: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    """Return the metrics of spools from the status of their journals."""
    for key, gauge in _families(SPOOLS, ("spool",)).items():
        for status in statuses:
            gauge.add_metric([status["spool"]], status[key])
        yield gauge


def _labels(kept: dict[str, str], used: Iterable[str]) -> dict[str, str]:
    """Return the label of each name in *used*; update *kept*, the names with their own label."""
    names = list(dict.fromkeys(used))
    for gone in kept.keys() - set(names):
        del kept[gone]
    for name in names:
        if name not in kept and len(kept) < _MOST_NAMES:
            kept[name] = plain(name)[:_MOST_LABEL]
    return {name: kept.get(name, OTHERS) for name in names}

"""The collector: it queries every broker at each scrape."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector as PrometheusCollector

from ..admin.batches import listed_records
from ..admin.limits import limits_of
from ..admin.partitions import WHOLE, coverage, merged_measures
from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError, ReliqError, logger
from ..forks import OwnLock
from ..integrations.connections import client_name
from ..message.queue_arguments import is_durable
from ..options import parse
from ..printable import plain
from ..spool import is_spool
from ..spool.journal import JOURNALS
from ..store.urls import store_of
from ..values.limits import HIGHEST_RANK
from .families import Families, spool_gauges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.core import Metric

    from ..values.inspection import Consumer, Measure, Untold

# A scrape must end within Prometheus' timeout, by default 10 s.
_PATIENCE = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}


class Collector(PrometheusCollector):
    """Collects the metrics of one or several brokers; register it with your Prometheus registry.

    urls: the brokers; a ``reliq-sentinel://`` URL may name several Sentinels.
    transport_options: the options of the application.
    all_queues: include temporary queues (auto_delete, x-expires). Every process that waits
        for a reply may create one.
    celery_names: add celery-exporter's metrics of queues, under its names.

    An unreachable broker has only ``reliq_up`` 0; a cluster reports its readable queues.
    Thread-safe; connects at the first scrape. Raises ConfigurationError.
    """

    def __init__(
        self,
        *urls: str,
        transport_options: Mapping[str, Any] | None = None,
        all_queues: bool = False,
        celery_names: bool = False,
    ) -> None:
        if not urls:
            raise ConfigurationError("expected the URL of at least one broker, got none")
        options = {**_PATIENCE, **(transport_options or {})}
        self._celery_names = celery_names
        self._spools = [JOURNALS.at(url) for url in urls if is_spool(url)]
        brokers = [url for url in urls if not is_spool(url)]
        self._brokers = [_Broker(url, options, all_queues) for url in brokers]

    def describe(self) -> Iterable[Metric]:
        """Return an empty list, because the registration must not query the brokers."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Query every broker, and return the metrics."""
        families = Families(self._celery_names)
        for broker in self._brokers:
            broker.collect(families)
        spools = []
        for journal in self._spools:
            with suppress(ReliqError):  # the spool may not exist yet
                spools.append(journal.status())
        return [*families.all(), *(spool_gauges(spools) if spools else ())]

    def close(self) -> None:
        """Close the connections. Later scrapes report every broker as down."""
        for broker in self._brokers:
            broker.close()


class _Broker:
    """One broker. It connects at the first scrape, and reconnects after a lost connection."""

    _lock = OwnLock()

    def __init__(self, url: str, options: Mapping[str, Any], all_queues: bool) -> None:
        self._store = store_of(url, options, client_name("metrics"), create=False)
        self._ascending = parse(options).priority_order == "ascending"
        self._all_queues = all_queues
        self._well = True
        self._warned: set[str] = set()
        self._names: dict[str, str] = {}
        # Priorities seen in each queue: their series stay, at 0, while the queue exists.
        self._seen: dict[str, set[int]] = {}

    def collect(self, families: Families) -> None:
        name = self._store.broker
        began = perf_counter()
        with self._lock:
            try:
                each = self._store.reads.measure_all()
                parts, measures, lost = coverage(each), merged_measures(each), each.unreachable
                if not measures:
                    each.whole()
                limits = {item.queue: item for item in limits_of(measures)}
                # Read these after the queues: a worker reports a running task before its ack.
                consumers = self._consumers(partial=bool(lost))
                if each.complete:  # otherwise, the node with the list of batches is lost too
                    self._add_batches(families)
            except ReliqError as exc:
                if self._well:
                    logger.warning("metrics: %s; logged once, until the broker answers again", exc)
                self._well = False
                families.brokers["up"].add_metric([name], 0)
                self._add_nodes(families)
                return
            if self._well and lost:
                text = "; ".join(map(str, lost))
                logger.warning("metrics: %s: %s; logged once, until all is readable", name, text)
            self._well = not lost
            self._add_nodes(families, lost)
            kept = [m for m in measures if self._all_queues or is_durable(m.status.declared)]
            ready = {m.status.name: self._by_priority(m) for m in kept}
            self._seen = {queue: set(ranks) for queue, ranks in ready.items()}
        for queue, part in parts.items():
            if part.partitions > 1:
                families.partitions.add_metric([name, plain(queue)], part.untold)
        for measure in kept:
            queue = measure.status.name
            coverage_of = parts.get(queue, WHOLE)
            families.add(name, measure, ready[queue], consumers, coverage_of, limits.get(queue))
        families.brokers["up"].add_metric([name], 1)
        families.brokers["seconds"].add_metric([name], perf_counter() - began)

    def _add_nodes(self, families: Families, untold: Sequence[Untold] = ()) -> None:
        """Add the nodes of a cluster, even if one of them does not answer."""
        queues = Counter[str]()
        for item in untold:
            queues[item.node] += len(item.queues)
        with suppress(ReliqError):
            for node in self._store.reads.nodes():
                families.add_node(self._store.broker, node, queues[node.name])

    def _add_batches(self, families: Families) -> None:
        """Add the batches, if this user may read them."""
        try:
            records = listed_records(self._store)
            now_ms = self._store.now_ms() if records else 0
        except BrokerRefused as exc:
            self._warn_once("the series of batches are missing", exc)
            return
        families.add_batches(self._store.broker, records, self._names, now_ms)

    def _consumers(self, *, partial: bool) -> list[Consumer] | None:
        """Return the consumers; None if this user may not read them.

        partial: some queues are unreadable. Then an unreadable register also returns None.
        """
        try:
            return self._store.reads.consumers()
        except BrokerUnavailable:
            if not partial:
                raise
        except BrokerRefused as exc:
            self._warn_once(
                "reliq_acked_tasks_running and other series of workers are missing: give this user "
                "the rule of `reliq acl exporter`",
                exc,
            )
        return None

    def _warn_once(self, text: str, error: BrokerRefused) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("metrics: %s; %s; logged once", error, text)

    def _by_priority(self, measure: Measure) -> dict[int, int]:
        counts = dict.fromkeys(self._seen.get(measure.status.name, {0}), 0)
        for rank, count in measure.ready.items():
            counts[rank if self._ascending else HIGHEST_RANK - rank] = count
        return counts

    def close(self) -> None:
        with self._lock:
            self._store.close()

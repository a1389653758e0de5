"""Metrics for Prometheus: a collector over any number of brokers.

Reads the ledger and the counts of each queue when it is scraped, one script for each
queue, and keeps nothing but which series there were. Needs the extra ``metrics``
(prometheus-client). ``reliq exporter`` is a process around it.
"""

from __future__ import annotations

from .collector import Collector

__all__ = ["Collector"]

"""Metrics for Prometheus: a collector over any number of brokers. Needs the extra ``metrics``."""

from __future__ import annotations

from .collector import Collector

__all__ = ["Collector"]

"""Metrics for Prometheus: a collector for one or several brokers. Needs the extra ``metrics``."""

from __future__ import annotations

from .collector import Collector

__all__ = ["Collector"]

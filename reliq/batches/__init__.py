"""Batches: many tasks, one progress, nothing forgotten.

A batch counts its jobs in the broker, where their messages are, and publishes a task when they are
done. :mod:`.batch` is what a producer uses, :mod:`.middleware` what a task does, whose outcome its
worker tells (:mod:`reliq.integrations.outcomes`).
"""

from __future__ import annotations

from .batch import Batch
from .middleware import BatchMiddleware, add_jobs, cancelled
from .status import BatchStatus

__all__ = ["Batch", "BatchMiddleware", "BatchStatus", "add_jobs", "cancelled"]

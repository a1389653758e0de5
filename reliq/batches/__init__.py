"""Batches: many tasks with one progress and callbacks.

A batch counts its jobs at the broker of their messages, and publishes callbacks when they end.
:mod:`.batch` is for producers, :mod:`.tasks` for tasks. Lower layers handle a job in its worker
(:mod:`reliq.integrations.job_runs`, ``outcomes``).
"""

from __future__ import annotations

from .batch import Batch, BatchStatus
from .tasks import add_jobs, cancelled, current_batch, progress, report

__all__ = ["Batch", "BatchStatus", "add_jobs", "cancelled", "current_batch", "progress", "report"]

"""Batches: many tasks, one progress, nothing forgotten.

A batch counts its jobs in the broker, where their messages are, and publishes a task when they are
done. :mod:`.batch` is what a producer uses, :mod:`.tasks` what a task does. What surrounds a job
in its worker is below (:mod:`reliq.integrations.job_runs`, ``outcomes``).
"""

from __future__ import annotations

from .batch import Batch, BatchStatus
from .tasks import add_jobs, cancelled, current_batch, progress, report

__all__ = ["Batch", "BatchStatus", "add_jobs", "cancelled", "current_batch", "progress", "report"]

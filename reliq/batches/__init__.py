"""Batches: many tasks with one progress and callbacks.

A batch counts its jobs at the broker of their messages, and publishes callbacks when they end.
:mod:`.batch` is for producers, :mod:`.tasks` for tasks. The other files are parts of lower layers:
values, callbacks, and the reports of a job's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .batch import Batch, BatchStatus
    from .tasks import add_jobs, cancelled, current_batch, progress, report

__all__ = ["Batch", "BatchStatus", "add_jobs", "cancelled", "current_batch", "progress", "report"]

# Imported when used: the parts of lower layers need neither.
__getattr__ = names_of(
    __name__,
    {".batch": "Batch BatchStatus", ".tasks": "add_jobs cancelled current_batch progress report"},
)

"""Nested batches: those that are jobs of a batch, cancelled with it.

Whoever cancels a batch may be killed before it has cancelled those in it: each pass over one of
these looks at its parent, and makes up for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.jobs import NESTED, OPEN, Change
from .batch_callbacks import change

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store.protocol import Store


def cancel_nested(
    store: Store, batch: str, at_work: Callable[[list[str]], None] | None = None
) -> None:
    """Cancel the batches that are open jobs of *batch*, at all levels, and publish what is due.

    *at_work* is given the ids of the jobs that run in each of them, some hundred at a time. Waits,
    and reads all jobs. Raises ReliqError; harmless when repeated.
    """
    left, seen = [batch], {batch}
    while left:
        for part in store.batches.jobs(left.pop()):
            running = [job.id for job in part if job.state == "working"]
            if at_work is not None and running:
                at_work(running)
            nested = {job.id for job in part if job.tag == NESTED and job.state in OPEN} - seen
            for child in sorted(nested):
                change(store, child, Change("cancel"))
            left += nested
            seen |= nested

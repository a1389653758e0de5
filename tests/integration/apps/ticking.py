"""The tasks, and a worker whose timer writes a mark to the journal five times a second.

A gap between two marks is the time for which the worker's event loop was blocked.
"""

from __future__ import annotations

from celery import bootsteps

from tests.integration.apps.tasks import app, journal

PERIOD_S = 0.2


class Ticker(bootsteps.StartStopStep):
    """A step of the worker itself: unlike the consumer's, it outlives connections."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Hub")

    def start(self, worker):
        """Start the ticks, under the worker's own name."""
        nodename = worker.hostname.partition("@")[0]
        worker.timer.call_repeatedly(PERIOD_S, journal.write, ("tick", nodename))


app.steps["worker"].add(Ticker)

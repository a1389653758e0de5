"""Batches of the kill tests: their publication, and further steps with the batch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from reliq.batches import Batch
from reliq.errors import QueueFull

JOBS = 2
CALLBACKS = ("success", "complete", "failure")


class _Left(Exception):
    """Leaves a batch open."""


class Publisher:
    """Publishes batches with an app."""

    def __init__(self, app: Any, url: str) -> None:
        self._app = app
        self._url = url

    def batch(self, name: str, **options: Any) -> Batch:
        """Return the batch with the id *name*, with all callbacks."""
        callbacks = {
            f"on_{what}": self._app.signature("report", (what,)).set(queue="callbacks")
            for what in CALLBACKS
        }
        transport_options = self._app.conf.broker_transport_options
        given = {"seal_timeout": 2, **callbacks, **options}
        return Batch("killed", url=self._url, transport_options=transport_options, id=name, **given)

    def publish(self, name: str, task: str, how: str, scenario: str = "", queue: str = "") -> None:
        """Publish jobs to *queue*, and treat their batch as *scenario* requires."""
        queue = queue or name
        if scenario == "cancelled":
            self.batch(name).cancel()
            return
        outer = self.batch(name, **({"batch_ttl": 0.001} if scenario == "forgotten" else {}))
        with suppress(_Left), outer:
            if scenario == "map":
                outer.map(self._app.tasks[task], [how] * JOBS, queue=queue)
            elif scenario == "nested":
                with self.batch(f"{name}-inner", parent=outer):
                    self._send(queue, task, how)
            else:
                self._send(queue, task, how)
            if scenario == "left":
                raise _Left

    def _send(self, queue: str, task: str, how: str) -> None:
        for _ in range(JOBS):
            with suppress(QueueFull):
                self._app.send_task(task, (how,), queue=queue)

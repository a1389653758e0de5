"""A Celery application under test: broker, journal, workers and a client, closed together."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.pools import connections, producers

from reliq.integrations.job_runs import _CONNECTIONS
from tests.support.audits import is_reliq, wait_settled
from tests.support.journal import Journal
from tests.support.waiting import wait_until
from tests.support.workers import CeleryBeat, CeleryWorker

if TYPE_CHECKING:
    from pathlib import Path

    from celery.result import AsyncResult

    from reliq.admin import Inspector
    from tests.support.servers import RedisServer

# Recovery within a second or two, to keep the tests short.
FAST = {
    "visibility_timeout": 2.0,
    "restore_interval": 0.5,
    "orphan_grace": 0.5,
    "poll_interval": 1.0,
}


class CelerySite:
    """An application with its processes; `config` are Celery settings for all of them."""

    def __init__(
        self,
        server: RedisServer,
        scheme: str,
        directory: Path,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.server = server
        self.broker = server.url(scheme)
        self.backend = server.url("redis", db=1)
        self.directory = directory
        self.config = {"broker_transport_options": dict(FAST), **(config or {})}
        if "result_backend" not in self.config:
            self.config["result_backend"] = self.backend
        self.journal = Journal(directory / "journal")
        self._stack = ExitStack()
        self._stack.callback(self.journal.close)
        self._count = 0
        self._app: Celery | None = None

    @property
    def transport_options(self) -> dict[str, Any]:
        """The transport options of all parts."""
        return dict(self.config["broker_transport_options"])

    @property
    def app(self) -> Celery:
        """The client, which publishes by task name and reads results."""
        if self._app is None:
            app = Celery("client", broker=self.broker, set_as_current=False)
            app.conf.update(self.config)
            self._app = app
            self._stack.callback(close_app, app)
        return self._app

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult:
        """Publish a task; `kwargs` and all other options are those of send_task."""
        return self.app.send_task(task, args, **options)

    def worker(self, *, ready: bool = True, **options: Any) -> CeleryWorker:
        """Start a worker; options as CeleryWorker's, with `config` added to the site's."""
        self._count += 1
        options.setdefault("name", f"worker{self._count}")
        options["config"] = {**self.config, **options.get("config", {})}
        broker = options.pop("broker", self.broker)
        worker = CeleryWorker(broker, self.journal, directory=self.directory, **options)
        self._stack.callback(worker.kill_group)
        return worker.wait_ready() if ready else worker

    def beat(self, **options: Any) -> CeleryBeat:
        """Start a beat process."""
        options["config"] = {**self.config, **options.get("config", {})}
        beat = CeleryBeat(self.broker, self.journal, directory=self.directory, **options)
        self._stack.callback(beat.kill_group)
        return beat

    def settled(self, queue: str = "celery", *, timeout_s: float = 60.0, **expected: int) -> None:
        """Wait until the queue has the expected counts (0 by default) and balances."""
        options = self.transport_options
        wait_settled(self.broker, queue, timeout_s=timeout_s, transport_options=options, **expected)

    def counts(self, queue: str = "celery") -> dict[str, int]:
        """Return the current ready, delayed, unacked and dead counts of the queue."""
        from reliq.admin import Inspector

        with Inspector(self.broker, transport_options=self.transport_options) as inspector:
            return counts_of(inspector, queue)

    def wait_counts(
        self, queue: str = "celery", *, timeout_s: float = 60.0, **expected: int
    ) -> None:
        """Wait until the given counts of the queue are reached."""
        if not is_reliq(self.broker):
            return
        from reliq.admin import Inspector

        seen: dict[str, int] = {}
        with Inspector(self.broker, transport_options=self.transport_options) as inspector:

            def reached() -> bool:
                seen.update(counts_of(inspector, queue))
                return all(seen[name] == value for name, value in expected.items())

            what = lambda: f"{queue}: {expected}; have {seen}"  # noqa: E731
            wait_until(reached, timeout_s=timeout_s, what=what)

    def close(self) -> None:
        """End all processes and connections."""
        self._stack.close()


def counts_of(inspector: Inspector, queue: str) -> dict[str, int]:
    """Return the ready, delayed, unacked and dead counts of a queue."""
    status = inspector.status(queue)
    return {name: getattr(status, name) for name in ("ready", "delayed", "unacked", "dead")}


def close_app(app: Celery) -> None:
    """Close every connection of a Celery application."""
    for place in [place for place in _CONNECTIONS._stores if place[0] == id(app)]:
        _CONNECTIONS._stores.pop(place).close()
    app.pool.force_close_all()
    # Kombu keeps its pools by URL in the process: the next test must not get a closed one.
    for group, pool in ((producers, app.producer_pool), (connections, app.pool)):
        for key in [key for key, value in group.items() if value is pool]:
            dict.__delitem__(group, key)
    if app.conf.result_backend:
        backend = app.backend
        consumer = getattr(backend, "result_consumer", None)
        if consumer is not None:
            # Results that outlive the application have no subscription to end.
            consumer.subscribed_to.clear()
            with contextlib.suppress(AttributeError):  # it was never started.
                consumer.stop()
        client = getattr(backend, "client", None)
        if client is not None:
            client.connection_pool.disconnect()
    app.close()

"""Processes killed between two steps of a batch: the cases, and the site that they run on."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from reliq.admin import Inspector
from reliq.store.urls import connect
from tests.integration.apps.killed_batches import Publisher
from tests.integration.apps.killing import AFTER, BEFORE, HANDLED, SENT, Point
from tests.support.processes import Process
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, app_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.support.servers import RedisServer
    from tests.support.workers import CeleryWorker

__all__ = ["AFTER", "BEFORE", "HANDLED", "SENT", "Case", "Killing"]

APP = "tests.integration.apps.killed"
ENDS_S = 60
ALL_WELL = ("complete", "success")
SOME_BAD = ("complete", "failure")


class Case(NamedTuple):
    """A batch, the point at which a process is killed, and the expected outcome."""

    name: str
    step: str
    when: str
    seen: str
    """The state of the job and its message at the point, as "state/place"; "" is not checked."""
    counts: dict[str, int]
    said: tuple[str, ...]
    """The expected callbacks."""
    how: str = "succeed"
    task: str = "end_late"
    scenario: str = ""
    number: int = 1
    who: str = "parent"
    of: str = ""
    """The batch of the point, if it is another batch."""
    queue: str = ""
    """The queue of the jobs; "" is the queue with the batch's name."""

    @property
    def point(self) -> Point:
        """Return the point of the case."""
        return Point(self.step, self.when, self.number, self.who, self.of or self.name, self.queue)


class Killing:
    """A site with processes that are killed at points, and other processes."""

    def __init__(self, server, scheme: str, directory: Path) -> None:
        config = {"task_ignore_result": True, "result_backend": None}
        self.site = CelerySite(server, scheme, directory, config)
        self.url = self.site.broker
        self._directory = directory

    def _env(self, cases: Iterable[Case] = ()) -> dict[str, str]:
        """Return the environment in which processes are killed at the points of *cases*."""
        points = [case.point for case in cases]
        return {"RELIQ_TEST_KILL": json.dumps(points), "RELIQ_TEST_KILLED": str(self._directory)}

    def publish(self, cases: Iterable[Case]) -> None:
        """Publish the batches of *cases*."""
        publisher = Publisher(self.site.app, self.url)
        for case in cases:
            publisher.publish(case.name, case.task, case.how, case.scenario, case.queue)

    def kill_producers(self, cases: Sequence[Case], back: Callable[[], None] | None = None) -> None:
        """Publish the batch of each case in a process that is killed at its point.

        *back* is given if the victim is a server instead of that process: it starts the server
        again.
        """
        producers = [
            ([case.point], [case.name, case.task, case.how, case.scenario]) for case in cases
        ]
        command = [sys.executable, "-m", APP, json.dumps(producers)]
        site = self.site
        environment = app_environment(site.broker, site.journal, site.config, self._env())
        log = self._directory / "producers.log"
        process = Process(command, log_path=log, env=environment, cwd=ROOT)
        try:
            if back is not None:
                self.was_there(cases)
                back()
            assert 0 == process.wait(ENDS_S), process.tail()
            codes = json.loads(process.tail(1))
        finally:
            process.kill_group()
        expected = -9 if back is None else 0
        for case, code in zip(cases, codes, strict=True):
            wrong = f"nobody was killed at {case.point}: it ended with {code}\n{process.tail()}"
            assert expected == code, wrong
        self.was_there(cases)

    def worker(self, cases: Sequence[Case] = (), **options) -> CeleryWorker:
        """Start a worker for the queues of *cases*; it, or its child, is killed at their points."""
        options.setdefault("queues", [case.queue or case.name for case in cases])
        return self.site.worker(app=APP, env=self._env(cases), ready=False, **options)

    def kill_workers(
        self, cases: Sequence[Case], prepare: Callable[[Case], None] | None = None
    ) -> None:
        """Publish the batches of *cases* one after the other; a worker is killed at each point."""
        for case in cases:
            self.publish([case])
            if prepare is not None:
                prepare(case)
            worker = self.worker([case])
            self.was_there([case], worker)
            assert -9 == worker.wait(), worker.tail()
            worker.kill_group()

    def victim(self, case: Case, server: RedisServer, key: str = "") -> None:
        """Have *server* killed at the point of *case*, instead of the process that reaches it.

        With *key*, a key of that server, it is killed only after a replica has all its data.
        """
        found = json.dumps([server.pid, server.port, key])
        (self._directory / f"{case.name}.victim").write_text(found)

    def was_there(self, cases: Sequence[Case], worker: CeleryWorker | None = None) -> None:
        """Wait until a process was killed at each point; check the state at that time."""
        for case in cases:
            mark = self._directory / f"{case.of or case.name}.killed"

            def left(mark=mark):
                return mark.exists() and mark.read_text().endswith("\n")

            def reached(left=left):
                return left() or (worker is not None and not worker.running)

            said = worker.tail if worker is not None else str
            wait_until(
                reached,
                timeout_s=ENDS_S,
                what=lambda case=case, said=said: f"{case.point} to be reached:\n{said()}",
            )
            assert left(), f"ended, and not at {case.point}:\n{said()}"
            seen = json.loads(mark.read_text())
            place = f"{seen.get('state') or '-'}/{seen.get('message') or '-'}"
            assert not case.seen or place in case.seen.split(" "), (case, seen)

    def ended(self, cases: Sequence[Case], **options) -> None:
        """Start a worker that is not killed; check the end of each batch, as :meth:`ends` does."""
        queues = [*(case.name for case in cases), "callbacks"]
        self.worker(queues=queues, concurrency=2, **options)
        self.ends(cases)

    def ends(self, cases: Sequence[Case]) -> None:
        """Wait until the batches have ended; their counts are right, and each callback ran once."""
        options = self.site.transport_options
        with (
            closing(connect(self.url, options, "look/1")) as store,
            Inspector(self.url, transport_options=options) as inspector,
        ):
            batches = store.batches
            for case in cases:
                wait_until(
                    lambda case=case: batches.batch(case.name).ended_ms,
                    timeout_s=ENDS_S,
                    what=lambda case=case: f"{case} to end: {batches.batch(case.name)}",
                )
                wait_until(
                    lambda case=case: set(case.said) <= set(self.heard(case.name)),
                    timeout_s=ENDS_S,
                    what=lambda case=case: (
                        f"{case}: heard {self.heard(case.name)}, {batches.batch(case.name)}, "
                        f"{batches.failures(case.name, 10)}"
                    ),
                )
            # No callback is pending any more.
            wait_until(lambda: not any(batches.batch(case.name).due for case in cases))
            for name in (*(case.queue or case.name for case in cases), "callbacks"):
                wait_until(
                    lambda name=name: (
                        (found := inspector.status(name)) is None or found.stored == found.dead
                    ),
                    timeout_s=ENDS_S,
                    what=lambda name=name: f"{name} to be empty: {inspector.status(name)}",
                )
            for case in cases:
                counts = {k: n for k, n in batches.batch(case.name).counts.items() if n}
                assert {k: n for k, n in case.counts.items() if n} == counts, (
                    case,
                    counts,
                    batches.failures(case.name, 10),
                )
                assert sorted(case.said) == self.heard(case.name), case
            assert [] == [one for one in inspector.audit_batches() if not one.balanced]

    def heard(self, name: str) -> list[str]:
        """Return the names of the callbacks of a batch that have run."""
        every = self.site.journal.entries(key=name)
        return sorted(entry.event.removeprefix("callback-") for entry in every)

    def close(self) -> None:
        """Close the site."""
        self.site.close()

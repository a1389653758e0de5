"""One run: constant load, regular cuts of all connections, and a sample every few seconds."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu import Exchange, Queue

from reliq.admin import Inspector
from reliq.lua.keys import queue_keys
from tests.chaos import keys, ledger
from tests.chaos.checker import Blame, Verdict, check, histories
from tests.chaos.crew import APP, Crew
from tests.chaos.settings import QUEUES
from tests.soak import sampling
from tests.soak.model import Probe, Seen, Visit
from tests.soak.settings import CONFIG
from tests.support.journal import Journal
from tests.support.processes import Process
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, CeleryWorker

if TYPE_CHECKING:
    import redis

    from tests.soak.settings import Settings

_STEP_S = 0.05
_WARM_S = 3.0
_PAUSE_S = 2.0
_PROBE_AT = 0.6
"""The time of a probe between two reconnects: all clients are back, and the next cut is far."""
_FILLED_WITHIN_S = 20.0
_PROBE_TASK_S = 0.5
_SETTLED_WITHIN_S = 60.0


def carry_out(settings: Settings) -> Seen:
    """Carry out the whole run, return its observations, and leave no process behind."""
    server = RedisServer()
    server.start()
    crew = Crew(settings.crewed, server.url("reliq"), {})
    run = _Run(settings, server, crew)
    try:
        return run.carry_out()
    finally:
        crew.kill()
        run.end()
        server.destroy()


class _Run:
    def __init__(self, settings: Settings, server: RedisServer, crew: Crew) -> None:
        self.settings, self.server, self.crew = settings, server, crew
        self.client: redis.Redis = server.client()
        self.tail = ledger.Tail(settings.directory)
        self.visits = settings.directory / "visits.jsonl"
        self.visitor: Process | None = None
        self.idle: list[CeleryWorker] = []
        self.began = 0.0
        self.seen = Seen({})
        self._written = ledger.Writer(settings.directory / "published-probes.ledger")
        self._probes = 0
        self._app = Celery("probe", broker=server.url("reliq"), set_as_current=False)
        self._app.conf.broker_transport_options = dict(settings.options)

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.began

    def end(self) -> None:
        """End the processes that the crew does not end."""
        for process in (self.visitor, *self.idle):
            if process is not None:
                process.kill_group()
        self._written.close()
        self._app.close()

    def carry_out(self) -> Seen:
        """Carry out the run, phase by phase."""
        crew, settings = self.crew, self.settings
        crew.start()
        by_pool = settings.limits
        self.seen.limits = {slot.name: by_pool[slot.pool] for slot in crew.slots}
        self._start_idle()
        self._start_visitor()
        crew.hold(wait=False)
        wait_until(self._warm, timeout_s=_SETTLED_WITHIN_S, what="the first tasks and visits")
        self.began = time.monotonic()
        self._load()
        crew.end_producers()
        self._drain()
        self._judge()
        return self.seen

    def _start_idle(self) -> None:
        """Start the workers without tasks, a few at a time."""
        settings = self.settings
        journal = Journal(settings.directory / "idle.ledger")
        config = {**CONFIG, "broker_transport_options": dict(settings.options)}
        for number in range(settings.idle):
            worker = CeleryWorker(
                self.server.url("reliq"),
                journal,
                directory=settings.directory,
                name=f"idle{number}",
                app=APP,
                pool="solo",
                queues=("idle",),
                config=config,
                mingle=True,
            )
            self.idle.append(worker)
            if number % 4 == 3:
                worker.wait_ready()
        for worker in self.idle:
            worker.wait_ready()

    def _start_visitor(self) -> None:
        settings = self.settings
        told = {
            "pause_s": min(_PAUSE_S, settings.reconnect_every_s / 30),
            "workers": [f"{name}@test" for name in self.seen.limits],
            "gate": str(settings.directory / "gate"),
            "visits": str(self.visits),
        }
        environment = self.crew.environment("visitor")
        environment["RELIQ_SOAK_VISITOR"] = json.dumps(told)
        self.visitor = Process(
            [sys.executable, "-m", "tests.soak.visitor"],
            log_path=settings.directory / "visitor.log",
            env=environment,
            cwd=ROOT,
        )

    def _warm(self) -> bool:
        """Return whether all processes have imported their modules, and work."""
        self.tail.look()
        return self.tail.finished >= _WARM_S * self.settings.rate and self.visits.exists()

    # -- while it runs

    def _load(self) -> None:
        every = self.settings.reconnect_every_s
        sample_at, reconnect_at, probe_at = 0.0, every, _PROBE_AT * every
        while self.now < self.settings.duration_s:
            self.crew.supervise()
            if self.now >= sample_at:
                sample_at = self.now + self.settings.sample_every_s
                self._sample()
            if self.now >= probe_at:
                probe_at += every
                self._probe()
            if self.now >= reconnect_at:
                reconnect_at += every
                self.seen.reconnects.append(self.now)
                self.client.client_kill_filter(_type="normal", skipme=True)
            time.sleep(_STEP_S)
        self._sample()

    def _sample(self) -> None:
        self.tail.look()
        pids = {slot.name: slot.worker.pid for slot in self.crew.slots if slot.worker is not None}
        if self.visitor is None or not self.visitor.running:
            tail = "" if self.visitor is None else self.visitor.tail(5)
            raise AssertionError(f"the visitor ended by itself: {tail}")
        pids |= {"visitor": self.visitor.pid, "producer": self.crew.producers[0].pid}
        if self.idle:
            pids["idle worker"] = self.idle[0].pid
        pids["server"] = self.server.pid
        sample = sampling.look(self.now, self.tail.finished, pids, self.client)
        self.seen.samples.append(sample)

    def _probe(self) -> None:
        """Publish more tasks than all workers may hold, and record how many each one holds."""
        limits = self.seen.limits
        for number in range(3 * sum(limits.values())):
            self._publish(QUEUES[number % len(QUEUES)])
        most = dict.fromkeys(limits, 0)
        deadline = time.monotonic() + _FILLED_WITHIN_S
        at = self.now
        while time.monotonic() < deadline and self._waiting():
            for worker, held in self._held().items():
                most[worker] = max(most.get(worker, 0), held)
            time.sleep(_STEP_S)
        self.seen.probes.append(Probe(at, most))

    def _publish(self, queue: str) -> None:
        self._probes += 1
        task_id = f"{ledger.IMMEDIATE}p-{self._probes}"
        self._written.write(ledger.INTENT, task_id, 0.0)
        self._app.send_task(
            "chaos.work",
            (_PROBE_TASK_S,),
            task_id=task_id,
            queue=Queue(queue, Exchange("chaos", "direct"), routing_key=queue),
            ignore_result=True,
        )
        self._written.write(ledger.CONFIRMED, task_id)

    def _waiting(self) -> int:
        return sum(self.client.zcard(queue_keys("", queue).ready) for queue in QUEUES)

    def _held(self) -> dict[str, int]:
        """Return the number of messages of each worker, as the broker has it."""
        worker_of = {
            slot.worker.pid: slot.name for slot in self.crew.slots if slot.worker is not None
        }
        held = dict.fromkeys(worker_of.values(), 0)
        pipeline = self.client.pipeline()  # reads all queues at one instant
        for queue in QUEUES:
            pipeline.hvals(queue_keys("", queue).unacked)
        for records in pipeline.execute():
            for record in records:
                consumer = record.split(b"|")[3]
                held[worker_of[int(consumer.split(b":")[1])]] += 1
        return held

    # -- the end

    def _drain(self) -> None:
        assert self.visitor is not None
        self.visitor.wait(2 * _SETTLED_WITHIN_S)
        deadline = time.monotonic() + _SETTLED_WITHIN_S
        while (left := self._left()) and time.monotonic() < deadline:
            self.crew.supervise()
            self.tail.look()
            time.sleep(_STEP_S)
        if left:
            self.seen.findings.append(f"{_SETTLED_WITHIN_S:g} s after the end: {left}")
        for worker in self.idle:
            worker.terminate()
        for worker in self.idle:
            if code := worker.wait(_SETTLED_WITHIN_S):
                self.seen.findings.append(f"{worker.name} ended with {code}: {worker.tail(5)}")
        self.crew.end_workers()

    def _left(self) -> str:
        """Describe the unfinished tasks and remaining queues and keys; "" if there are none."""
        if self.tail.outstanding:
            return f"{len(self.tail.outstanding)} tasks are not done"
        with Inspector(self.server.url("reliq")) as inspector:
            visits = [name for name in inspector.queues() if name.startswith("visit.")]
        if visits:
            return f"queues of visits are still there: {', '.join(visits)}"
        living = {slot.worker.pid for slot in self.crew.slots if slot.worker is not None}
        living |= {worker.pid for worker in self.idle}
        return keys.haunted(self.client, living)

    def _judge(self) -> None:
        seen, settings = self.seen, self.settings
        limits = settings.crewed.limits
        verdict = Verdict()
        blame = Blame([], [], [], limits)  # a lost connection excuses nothing
        for part in ledger.in_parts(settings.directory):
            verdict.add(check(histories(part).values(), blame, limits))
        seen.tasks = verdict.tasks
        seen.findings += [f"lost: {task_id}" for task_id in verdict.lost]
        seen.findings += verdict.findings + self.crew.findings
        with Inspector(self.server.url("reliq")) as inspector:
            seen.findings += [
                f"the ledger of {result.queue!r} does not balance: {result.difference}"
                for result in inspector.audit().whole()
                if not result.balanced
            ]
        seen.findings += keys.unexplained(self.client)
        if self.visits.exists():
            lines = self.visits.read_text(encoding="utf-8").splitlines()
            seen.visits = [self._visit(**json.loads(line)) for line in lines]

    def _visit(self, at: float, until: float, **known: Any) -> Visit:
        return Visit(at - self.began, until - self.began, **known)

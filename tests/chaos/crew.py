"""The workers and producers of a run: started, replaced when they end, and stopped."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.gate import END, PUBLISH, WAIT, Gate
from tests.chaos.model import Exit
from tests.chaos.settings import CONCURRENCY, LIMITED, Settings
from tests.support.journal import Journal
from tests.support.processes import Process
from tests.support.workers import ROOT, CeleryWorker, app_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

APP = "tests.chaos.app"
_WARM_S = 40.0
_TASKS_OF_A_CHILD = 50
_ORPHANED_S = 3.0
_STACKS_S = 2.0
"""Time for a process to write its stacks."""


class Slot:
    """A place for one worker of one pool; a worker that ends is replaced."""

    def __init__(self, number: int, pool: str, start: Callable[[str, str], CeleryWorker]) -> None:
        self.number, self.pool, self._start = number, pool, start
        self.incarnation = 0
        self.worker: CeleryWorker | None = None
        self.name = ""
        self.frozen = False
        self.asked: float | None = None
        """Time of the request for an orderly end."""
        self.killed = False
        """Whether the suite has killed it."""

    def fill(self) -> None:
        """Start the next worker."""
        self.incarnation += 1
        self.name = f"{self.pool}{self.number}.{self.incarnation}"
        self.frozen = self.killed = False
        self.asked = None
        self.worker = self._start(self.name, self.pool)

    @property
    def target(self) -> bool:
        """Whether it has a worker that a fault may hit now."""
        return (
            self.worker is not None
            and self.worker.running
            and not self.frozen
            and self.asked is None
            and " ready." in self.worker.log()
        )

    def children(self) -> list[int]:
        """Return the pids of the pool's children."""
        assert self.worker is not None
        path = Path(f"/proc/{self.worker.pid}/task/{self.worker.pid}/children")
        try:
            return [int(pid) for pid in path.read_text(encoding="ascii").split()]
        except OSError:
            return []


class Crew:
    """All processes that use the broker."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        more: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> None:
        """*more* are transport options, and *environment* variables, that the broker needs."""
        self.settings, self.url = settings, url
        self.exits: list[Exit] = []
        self.findings: list[str] = []
        self.deaths: dict[str, int] = {}
        """Workers killed by poison, and their exit codes."""
        self.gate = Gate(settings.directory / "gate")
        pools = settings.pools
        self.slots = [
            Slot(number, pools[number % len(pools)], self._start_worker)
            for number in range(settings.workers)
        ]
        self.producers: list[Process] = []
        self.batcher: Process | None = None
        """The producer of batches, which kills itself at times and is replaced."""
        self._batchers = 0
        self._orphaned: deque[tuple[float, CeleryWorker]] = deque()
        options = {**settings.options, **more}
        self._config = {**settings.config, "broker_transport_options": options}
        self._environment = {
            "RELIQ_CHAOS_QUEUES": json.dumps(settings.queues),
            **({"RELIQ_CHAOS_BATCHES": "1"} if settings.has_batches else {}),
            **environment,
            **settings.environment,
        }
        if settings.brokers == "two":
            self._config["broker_failover_strategy"] = "primary"
        if settings.brokers == "logins":
            self._config["worker_max_tasks_per_child"] = _TASKS_OF_A_CHILD
            self._environment["RELIQ_CHAOS_ALARMS"] = str(settings.directory / "gate")

    # -- start

    def environment(self, ledger: str) -> dict[str, str]:
        """Return the environment of a process that writes the ledger of this name."""
        journal = Journal(self.settings.directory / f"{ledger}.ledger")
        extra = {"MALLOC_ARENA_MAX": "2", **self._environment}
        return app_environment(self.url, journal, self._config, extra)

    def _start_worker(self, name: str, pool: str) -> CeleryWorker:
        journal = Journal(self.settings.directory / "runs.ledger")
        return CeleryWorker(
            self.url,
            journal,
            directory=self.settings.directory,
            name=name,
            app=APP,
            pool=pool,
            concurrency=CONCURRENCY[pool],
            config=self._config,
            env={**self._environment, "RELIQ_CHAOS_QUEUES": json.dumps(self._queues_of(name))},
        )

    def _queues_of(self, name: str) -> list[str]:
        """Return the queues of a worker: half of the workers, in each pool, have the limited one.

        Such a worker takes no message in advance, so the others show what happens to these.
        """
        number = int(name.partition(".")[0].lstrip("abcdefghijklmnopqrstuvwxyz"))
        takes_limited = (number + number // len(self.settings.pools)) % 2 == 0
        return [queue for queue in self.settings.queues if queue != LIMITED or takes_limited]

    def pids(self) -> dict[str, list[int]]:
        """Return the living processes, without children, by their roles."""
        workers = [slot.worker for slot in self.slots if slot.worker is not None]
        return {
            "workers": [worker.pid for worker in workers if worker.running],
            "producers": [
                producer.pid
                for producer in (*self.producers, self.batcher)
                if producer is not None and producer.running
            ],
        }

    def start(self) -> None:
        """Start all workers, and producers that wait at the gate."""
        for slot in self.slots:
            slot.fill()
        for slot in self.slots:
            assert slot.worker is not None
            slot.worker.wait_ready()
        settings = self.settings
        share = settings.batches if settings.has_batches else 0.0
        for number in range(settings.producers):
            rate = settings.rate * (1 - share) / settings.producers
            every_s = settings.poison_every_s * settings.producers
            self.producers.append(self._start_producer("producer", str(number), rate, every_s))
        if share:
            self._start_batcher()

    def _start_batcher(self) -> None:
        settings = self.settings
        self._batchers += 1
        rate, every_s = settings.rate * settings.batches, 2 * settings.poison_every_s
        self.batcher = self._start_producer("batcher", f"b{self._batchers}", rate, every_s)

    def _start_producer(
        self, module: str, name: str, rate: float, poison_every_s: float
    ) -> Process:
        settings = self.settings
        told = {
            "name": name,
            "rate": rate,
            "longest_s": settings.longest_s,
            "poison_every_s": poison_every_s,
            "gate": str(settings.directory / "gate"),
            "seed": f"{settings.seed}-{name}",
            "two_brokers": settings.brokers == "two",
            "limited": settings.limited / settings.producers,
        }
        environment = self.environment(f"published-{module}")
        environment["RELIQ_CHAOS_PRODUCER"] = json.dumps(told)
        return Process(
            [sys.executable, "-m", f"tests.chaos.{module}"],
            log_path=settings.directory / f"{module}{name}.log",
            env=environment,
            cwd=ROOT,
        )

    # -- during the run

    def supervise(self) -> None:
        """Replace workers that have ended, and record their ends."""
        self._end_orphans(time.monotonic())
        for slot in self.slots:
            worker = slot.worker
            if worker is None or worker.running:
                if slot.asked is not None and time.monotonic() - slot.asked > _WARM_S:
                    self._still_runs(slot)
                continue
            self._ended(slot, worker)
            slot.fill()
        for producer in list(self.producers):
            if not producer.running and self.gate.state != END:
                self.findings.append(f"a producer ended by itself: {producer.tail(5)}")
                self.producers.remove(producer)
        if self.batcher is not None and not self.batcher.running and self.gate.state != END:
            self._batcher_ended(self.batcher)
            self._start_batcher()

    def _batcher_ended(self, batcher: Process) -> None:
        if batcher.returncode not in (0, -signal.SIGKILL):
            self.findings.append(f"who publishes batches ended by itself: {batcher.tail(5)}")

    def _ended(self, slot: Slot, worker: CeleryWorker) -> None:
        code = worker.returncode
        if code == -9 and not slot.killed:  # by poison, possibly after a request to end
            self.deaths[slot.name] = code
        elif slot.asked is not None and not slot.killed:
            self.exits.append(Exit(slot.name, slot.asked, time.monotonic()))
            # A worker that was not ready had no signal handler yet, and no task.
            if code != 0 and (code != -signal.SIGTERM or " ready." in worker.log()):
                self.findings.append(f"{slot.name}: exit code {code} after SIGTERM")
        elif not slot.killed:
            self.findings.append(
                f"{slot.name}: ended by itself with exit code {code}: {worker.tail(3)}"
            )
        self._orphaned.append((time.monotonic() + _ORPHANED_S, worker))

    def _still_runs(self, slot: Slot) -> None:
        """Kill a worker that did not end when requested; its stacks are then in its log."""
        assert slot.worker is not None
        self.findings.append(
            f"{slot.name}: still runs {_WARM_S:g} s after SIGTERM; its stacks are in its log"
        )
        slot.killed = True
        slot.worker.signal_group(signal.SIGUSR2)
        time.sleep(_STACKS_S)
        slot.worker.kill_group()

    def _end_orphans(self, now: float) -> None:
        """Kill, after a while, children that did not notice the end of their worker."""
        while self._orphaned and self._orphaned[0][0] <= now:
            self._orphaned.popleft()[1].kill_group()

    def hold(self, wait: bool) -> None:
        """Open or close the producers' gate."""
        self.gate.state = WAIT if wait else PUBLISH

    # -- the end

    def end_producers(self, timeout_s: float = 60.0) -> None:
        """Let the producers finish publishes that they have begun."""
        self.gate.state = END
        for producer in self.producers:
            code = producer.wait(timeout_s)
            if code != 0:
                self.findings.append(f"a producer ended with exit code {code}: {producer.tail(5)}")
        if self.batcher is not None:
            self.batcher.wait(timeout_s)
            self._batcher_ended(self.batcher)

    def end_workers(self) -> None:
        """Request the end of all workers, and check that each ends by itself."""
        for slot in self.slots:
            if slot.worker is not None and slot.worker.running:
                slot.asked = time.monotonic()
                slot.worker.terminate()
        for slot in self.slots:
            worker = slot.worker
            if worker is None:
                continue
            try:
                worker.wait(_WARM_S)
            except AssertionError:
                self._still_runs(slot)
            else:
                self._ended(slot, worker)
            slot.worker = None
        self._end_orphans(float("inf"))

    def kill(self) -> None:
        """Kill all processes now."""
        self._end_orphans(float("inf"))
        for slot in self.slots:
            if slot.worker is not None:
                slot.worker.kill_group()
        for producer in (*self.producers, self.batcher):
            if producer is not None:
                producer.kill_group()

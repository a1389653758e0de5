"""One producer process, which publishes tasks of every kind and records the confirmed ones.

Run as `python -m tests.chaos.producer`; its settings are in RELIQ_CHAOS_PRODUCER (JSON). A publish
is confirmed only when it has returned.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

from celery.exceptions import OperationalError

from tests.chaos import ledger as record
from tests.chaos.app import app, ledger, publish_at_alarms
from tests.chaos.gate import END, PUBLISH, Gate
from tests.chaos.settings import CALLBACKS, LIMITED

RETRY = {"max_retries": 20, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.5}
TASKS = {
    record.RETRYING: "chaos.again",
    record.POISON: "chaos.poison",
    record.EARLY: "chaos.early",
}
OVERLAPPING_S = (0.02, 0.6)
"""Duration of ordinary tasks of the queue with limits."""
_UNLIMITED = 300.0


class Producer:
    """Publishes until the gate requests the end."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.name = str(settings["name"])
        self.rate = float(settings["rate"])
        self.longest_s = float(settings["longest_s"])
        self.poison_every_s = float(settings["poison_every_s"])
        # On average, about one is running: each occupies a place of a pool.
        self.long_from = 1 - min(0.01, 0.5 / self.longest_s / max(self.rate, 50))
        self.gate = Gate(Path(str(settings["gate"])))
        self.chance = random.Random(str(settings["seed"]))
        self.next_poison = time.monotonic() + self.chance.random() * self.poison_every_s
        names = [queue.name for queue in app.conf.task_queues]
        self.queues = [name for name in names if name not in (CALLBACKS, LIMITED)]
        self.limited = 0.0
        """The share of the queue with limits."""
        if LIMITED in names:
            self.limited = min(0.5, float(settings["limited"]) / (self.rate or _UNLIMITED))
        self.number = 0

    def run(self) -> None:
        """Publish at the given rate while the gate is open."""
        due = time.monotonic()
        while (state := self.gate.state) != END:
            now = time.monotonic()
            if state != PUBLISH:
                time.sleep(0.02)
                due = now
            elif self.rate and now < due:
                time.sleep(min(0.05, due - now))
            else:
                self.publish(self._kind(now))
                # The delay of a fault is not made up for.
                due = max(due + 1 / self.rate, now - 0.1) if self.rate else now

    def _kind(self, now: float) -> str:
        if self.poison_every_s and now >= self.next_poison:
            self.next_poison = now + self.poison_every_s * self.chance.uniform(0.8, 1.2)
            return record.POISON
        share = self.chance.random()
        if share < 0.80:
            return record.IMMEDIATE
        if share < 0.87:
            return record.URGENT
        if share < 0.93:
            return record.DELAYED
        return record.RETRYING if share < self.long_from else record.LONG

    def publish(self, kind: str) -> None:
        """Publish one task, and record the begin and the result."""
        chance, self.number = self.chance, self.number + 1
        task_id = f"{kind}{self.name}-{self.number}"
        queue = chance.choice(self.queues)
        if self.limited and chance.random() < self.limited:
            queue = LIMITED
            if kind == record.IMMEDIATE and chance.random() < 0.5:
                kind, task_id = record.EARLY, record.EARLY + task_id[1:]
        args, options = self._of(kind, queue)
        countdown = options.get("countdown", 0.0)
        ledger.write(record.INTENT, task_id, countdown, queue)
        try:
            app.send_task(
                TASKS.get(kind, "chaos.work"),
                args,
                task_id=task_id,
                retry=True,
                retry_policy=RETRY,
                **options,
            )
        except (OperationalError, OSError) as exc:
            ledger.write(record.FAILED, task_id, type(exc).__name__)
            print(f"{task_id}: {exc!r}", flush=True)
            time.sleep(0.1)
        else:
            ledger.write(record.CONFIRMED, task_id)

    def _of(self, kind: str, queue: str) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments and options of a task."""
        chance = self.chance
        args: tuple[object, ...] = ()
        options: dict[str, object] = {"queue": queue}
        if kind == record.DELAYED:
            options["countdown"] = round(chance.uniform(0.5, 5.0), 2)
        elif kind == record.RETRYING:
            args = (chance.randint(1, 3), round(chance.uniform(0.0, 1.0), 2))
        elif kind == record.URGENT:
            options["priority"] = chance.randint(0, 9)
        elif kind == record.LONG:
            args = (round(chance.uniform(0.5, 1.5) * self.longest_s, 2),)
        elif queue == LIMITED and kind in (record.IMMEDIATE, record.EARLY):
            args = (round(chance.uniform(*OVERLAPPING_S), 3),)
        elif kind == record.IMMEDIATE and chance.random() < 0.2:
            args = (round(chance.uniform(0.0, 0.02), 3),)
        return args, options


if __name__ == "__main__":
    if "RELIQ_CHAOS_ALARMS" in os.environ:
        publish_at_alarms(0.2)
    Producer(json.loads(os.environ["RELIQ_CHAOS_PRODUCER"])).run()

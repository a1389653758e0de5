"""A process that publishes batches of jobs one after the other, and records the results.

Run as `python -m tests.chaos.batcher`; its settings are in RELIQ_CHAOS_PRODUCER (JSON). Most
batches are sealed at the end of their block. Some are cancelled, in their block or after it. In the
block of some, the process kills itself shortly after a random job. These have a short
`seal_timeout`, and a consumer's batch pass seals them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from reliq import Batch, BatchClosed, BatchUncertain, NotFound, PartlyPublished
from tests.chaos import ledger as record
from tests.chaos.app import app, callback, job, ledger
from tests.chaos.gate import END, PUBLISH, Gate
from tests.chaos.producer import RETRY, TASKS
from tests.chaos.settings import CALLBACKS, LIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

CALLBACKS_OF = ("success", "complete", "failure")
_SMALLEST, _LARGEST = 12, 250
_TRIES_S = 15.0
"""Seconds for which a seal, a cancellation, or a flush of uncertain jobs is retried."""
_LEFT_S, _HELD_UP_S = 4.0, 30.0
"""The `seal_timeout` of batches that are left open, and of the others."""
_KILLED_WITHIN_S = 0.03
_AFTER_CANCEL = 3
"""Jobs published, in vain, after a batch was cancelled in its block."""
_AWAY = (OperationalError, OSError, NotFound, BatchClosed, BatchUncertain)


class BatchProducer:
    """Publishes batches until the gate requests the end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name = str(settings["name"])
        self.rate = float(settings["rate"])
        self.longest_s = float(settings["longest_s"])
        self.poison_every_s = float(settings["poison_every_s"])
        # Another broker does not have the batch: a retried publish may have been stored there.
        self.is_sure = not settings["two_brokers"]
        self.gate = Gate(Path(str(settings["gate"])))
        self.chance = random.Random(f"{settings['seed']}-{self.name}")
        names = [queue.name for queue in app.conf.task_queues]
        self.queues = [name for name in names if name not in (CALLBACKS, LIMITED)]
        self.next_poison = time.monotonic() + self.chance.random() * self.poison_every_s
        self.batches = self.jobs = 0
        self.all_succeed = False
        """Whether all jobs of this batch succeed, except those killed too often."""

    def run(self) -> None:
        """Publish batches at the given rate while the gate is open."""
        due = time.monotonic()
        while (state := self.gate.state) != END:
            if state != PUBLISH or time.monotonic() < due:
                time.sleep(0.02)
                continue
            before, began = self.jobs, time.monotonic()
            self.publish()
            due = began + (self.jobs - before) / self.rate

    def publish(self) -> None:
        """Publish one batch, possibly with nested ones, and end it in a random way."""
        size = int(_SMALLEST * (_LARGEST / _SMALLEST) ** self.chance.random())
        fate = self.chance.choices(
            ["sealed", "killed", "cancelled", "cancelled early"], [66, 18, 8, 8]
        )[0]
        self.all_succeed = self.chance.random() < 0.5
        if self.chance.random() < 0.02:
            size, fate = 0, "sealed"
        children = self.chance.choice([1, 2]) if self.chance.random() < 0.12 else 0
        made: list[str] = []
        self._publish(size // (1 + children), fate, children, made)
        if fate == "cancelled":
            time.sleep(self.chance.uniform(0, 0.5))
            self._cancel(made)

    def _publish(self, size: int, fate: str, children: int, made: list[str]) -> None:
        self.batches += 1
        name = f"{self.name}-{self.batches}"
        batch = Batch(
            "chaos",
            id=name,
            app=app,
            seal_timeout=_LEFT_S if fate == "killed" else _HELD_UP_S,
            **{f"on_{one}": self._callback(name, one) for one in CALLBACKS_OF},
        )
        ledger.write(record.OPENING, name, made[0] if made else "-")
        try:
            batch.__enter__()
        except _AWAY as exc:
            print(f"{name} was not opened: {exc!r}", flush=True)
            time.sleep(0.1)
            return
        ledger.write(record.OPENED, name)
        made.append(name)
        turns = self._turns(batch, size, fate)
        for number in range(children):
            turns.insert(
                self.chance.randrange(len(turns) + 1),
                lambda number=number: self._publish(size, "sealed", 0, made),
            )
        try:
            for turn in turns:
                turn()
            if fate == "cancelled early":
                self._cancel(made)
                for _ in range(_AFTER_CANCEL):
                    self._one(batch, record.IMMEDIATE)
        finally:
            self._seal(batch)

    @staticmethod
    def _callback(batch: str, name: str) -> Any:
        return callback.s().set(task_id=record.callback_id(batch, name), queue=CALLBACKS)

    def _turns(self, batch: Batch, size: int, fate: str) -> list[Callable[[], None]]:
        """Return the steps that fill a batch with *size* jobs, one by one or together."""
        turns: list[Callable[[], None]] = []
        left = size
        while left > 0:
            together = min(left, self.chance.randint(5, 150)) if self.chance.random() < 0.1 else 0
            if together:
                turns.append(lambda n=together: self._many(batch, n))
            else:
                turns.append(lambda: self._one(batch, self._kind()))
            left -= together or 1
        if fate == "killed":
            turns.insert(self.chance.randrange(len(turns) + 1), self._die)
        return turns

    def _die(self) -> None:
        """Kill this process after a short random time."""
        delay = self.chance.uniform(0, _KILLED_WITHIN_S)
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def _kind(self) -> str:
        now = time.monotonic()
        if self.poison_every_s and now >= self.next_poison and not self.all_succeed:
            self.next_poison = now + self.poison_every_s * self.chance.uniform(0.8, 1.2)
            return record.POISON
        kinds = {
            record.IMMEDIATE: 70,
            record.URGENT: 6,
            record.DELAYED: 8,
            record.RETRYING: 6,
            record.FAILING: 0 if self.all_succeed else 5,
            record.RAISING: 0 if self.all_succeed else 4,
            record.LONG: 50 / self.longest_s / max(self.rate, 10),
        }
        return self.chance.choices(list(kinds), list(kinds.values()))[0]

    # -- publishing

    def _one(self, batch: Batch, kind: str) -> None:
        """Publish one job as most applications do, and record the result."""
        chance = self.chance
        self.jobs += 1
        task_id = f"{kind}{self.name}.{self.jobs}"
        queue = chance.choice(self.queues)
        name, args, countdown = TASKS.get(kind, "chaos.work"), (), 0.0
        options: dict[str, Any] = {}
        if kind == record.DELAYED:
            countdown = options["countdown"] = round(chance.uniform(0.3, 4.0), 2)
        elif kind == record.RETRYING:
            args = (chance.randint(1, 3), round(chance.uniform(0.0, 1.0), 2))
        elif kind == record.URGENT:
            options["priority"] = chance.randint(0, 9)
        elif kind == record.LONG:
            args = (round(chance.uniform(0.5, 1.5) * self.longest_s, 2),)
        elif kind in (record.FAILING, record.RAISING):
            name, args = job.name, (0.0, "fail" if kind == record.FAILING else "raise")
        ledger.write(record.INTENT, task_id, countdown, queue)
        ledger.write(record.JOINED, task_id, batch.id, queue)
        try:
            app.send_task(
                name,
                args,
                task_id=task_id,
                queue=queue,
                retry=True,
                retry_policy=RETRY,
                **options,
            )
        except _AWAY as exc:
            closed = isinstance(exc, BatchClosed) and self.is_sure
            if closed:
                ledger.write(record.UNSENT, task_id)
            else:
                ledger.write(record.FAILED, task_id, type(exc).__name__)
            print(f"{task_id}: {exc!r}", flush=True)
            time.sleep(0.0 if closed else 0.1)
        else:
            ledger.write(record.CONFIRMED, task_id)

    def _many(self, batch: Batch, number: int) -> None:
        """Publish jobs by `batch.map`; if this process is killed, only their runs record them."""
        self.jobs += number
        queue = self.chance.choice(self.queues)
        bad = 0 if self.all_succeed else 3
        ends = self.chance.choices(["return", "fail", "raise"], [94, bad, bad], k=number)
        items = [(round(self.chance.uniform(0.0, 0.01), 4), end) for end in ends]
        options: dict[str, Any] = {"countdown": 1.5} if self.chance.random() < 0.2 else {}

        def sent(ids: Any) -> None:
            for task_id in ids:
                ledger.write(record.JOINED, task_id, batch.id, queue)
                ledger.write(record.CONFIRMED, task_id)

        try:
            batch.map(
                job,
                items,
                star=True,
                queue=queue,
                retry=True,
                retry_policy=RETRY,
                on_sent=sent,
                **options,
            )
        except PartlyPublished as exc:
            print(f"{batch.id}: {exc!r}", flush=True)
            stored = exc.batch is not None and self._insist(exc.batch.flush, batch.id)
            for task_id in exc.uncertain:
                ledger.write(record.JOINED, task_id, batch.id, queue)
                ledger.write(
                    *((record.CONFIRMED, task_id) if stored else (record.FAILED, task_id, "-"))
                )
            time.sleep(0.1)

    # -- ends

    def _seal(self, batch: Batch) -> None:
        """Leave the block; if the seal fails, seal the batch explicitly."""
        try:
            batch.__exit__(None, None, None)
        except _AWAY as exc:
            print(f"{batch.id} was not sealed: {exc!r}", flush=True)
            if not self._insist(batch.seal, batch.id):
                return
        finally:
            batch.close()
        ledger.write(record.SEALED, batch.id)

    def _cancel(self, made: list[str]) -> None:
        """Cancel a batch and those nested in it."""
        for name in made:
            ledger.write(record.CANCELLING, name)
        if not made:
            return
        batch = Batch.get(made[0], app=app)
        try:
            if self._insist(batch.cancel, made[0]):
                for name in made:
                    ledger.write(record.CANCELLED, name)
        finally:
            batch.close()

    @staticmethod
    def _insist(step: Callable[[], Any], name: str) -> bool:
        """Retry until it succeeds; return whether. Always at the batch's own broker."""
        until = time.monotonic() + _TRIES_S
        while True:
            with suppress(*_AWAY):
                step()
                return True
            if time.monotonic() > until:
                print(f"{name}: {step} did not work for {_TRIES_S:g} s", flush=True)
                return False
            time.sleep(0.2)


if __name__ == "__main__":
    BatchProducer(json.loads(os.environ["RELIQ_CHAOS_PRODUCER"])).run()

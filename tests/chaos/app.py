"""The Celery application whose tasks run during faults and record their runs in the ledger.

Every task but `early` is acked late and runs again if its child dies. Knows only the URL of the
transport. The intentionally broken transports are registered, so that a test can show that the
checker detects them.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from celery import Celery, signals
from celery.exceptions import Retry
from kombu import Exchange, Queue

import reliq
from reliq.batches import lost_jobs
from reliq.consumer import batch_passes
from reliq.transports import failback_rounds
from reliq.values.job_headers import BATCH
from tests.chaos import broken
from tests.chaos.gate import PUBLISH, Gate
from tests.chaos.ledger import (
    CONFIRMED,
    FAILED,
    FINISHED,
    HANDED_ON,
    IMMEDIATE,
    INTENT,
    JOINED,
    RAISED,
    REFUSED,
    RETRIED,
    STARTED,
    Writer,
)
from tests.chaos.settings import DIVIDED, LIMIT, LIMITED, PARTITIONS, QUEUES

broken.register()


def _tell_stacks():
    """Make SIGUSR2 write the stacks of all threads to the log; in gevent, of all greenlets.

    The stacks of threads are written even if no Python code runs any more.
    """
    gevent = sys.modules.get("gevent.monkey")
    is_patched = gevent is not None and gevent.is_module_patched("threading")
    if is_patched:
        from gevent.util import print_run_info

        signal.signal(signal.SIGUSR2, lambda *_: print_run_info(file=sys.__stderr__))
    faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, chain=is_patched)


_tell_stacks()

# Shortened like all times of a run. By default, batches are checked every 30 s, all jobs every five
# minutes, and jobs are lost after a minute without a message. A process at the first of two brokers
# visits the second one every 30 s.
if os.environ.get("RELIQ_CHAOS_BATCHES"):
    batch_passes._EVERY_S = 3.0
    batch_passes._AGAIN_MS = 2000
    batch_passes._RESTS_MS = 2000
    batch_passes._SWEPT_EVERY_S = 10.0
    lost_jobs.MISSING_MS = 20_000
    failback_rounds._SWEPT_EVERY_S = 5.0


def _queues():
    """Yield the queues of the run, as named in RELIQ_CHAOS_QUEUES."""
    for name in json.loads(os.environ.get("RELIQ_CHAOS_QUEUES", json.dumps(QUEUES))):
        arguments = {DIVIDED: {"x-partitions": PARTITIONS}, LIMITED: {"x-concurrency": LIMIT}}
        exchange = Exchange("chaos", "direct")
        yield Queue(name, exchange, routing_key=name, queue_arguments=arguments.get(name))


BASE = {
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_ignore_result": True,
    "task_publish_retry_policy": {
        # Celery rejects a task whose retry cannot be published, so retry for long.
        "max_retries": 600,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.5,
    },
    "worker_prefetch_multiplier": 4,
    "worker_enable_soft_shutdown_on_idle": False,
    # Queues of killed workers expire soon, so that the end of a run can be inspected.
    "control_queue_expires": 5.0,
    "event_queue_expires": 5.0,
    "task_queues": list(_queues()),
    "task_default_queue": QUEUES[0],
    "task_default_exchange": "chaos",
    "task_default_routing_key": QUEUES[0],
}

app = Celery("chaos", broker=os.environ["RELIQ_TEST_BROKER"])
app.conf.update(BASE)
app.conf.update(json.loads(os.environ.get("RELIQ_TEST_CONFIG", "{}")))
ledger = Writer(os.environ["RELIQ_TEST_JOURNAL"])


def publish_at_alarms(every_s):
    """Publish a task in a handler of SIGALRM, at random times, over a connection of its own.

    Does so while the producers publish.

    The pool of producers of Kombu has a lock that a handler would wait for in vain.
    """
    gate = Gate(Path(os.environ["RELIQ_CHAOS_ALARMS"]))
    producer = app.amqp.Producer(app.connection_for_write(), auto_declare=False)

    def arm():
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.1, 1.9) * every_s)

    def publish(*_):
        if gate.state == PUBLISH:
            publish_one()
        arm()

    def publish_one():
        task_id, queue = f"{IMMEDIATE}a{os.getpid()}-{time.monotonic_ns()}", QUEUES[0]
        ledger.write(INTENT, task_id, 0, queue)
        try:
            app.send_task("chaos.work", task_id=task_id, queue=queue, producer=producer)
        except Exception as exc:  # noqa: BLE001 - a handler must not end the process
            ledger.write(FAILED, task_id, type(exc).__name__)
        else:
            ledger.write(CONFIRMED, task_id)

    gevent = sys.modules.get("gevent")
    if gevent is not None and sys.modules["gevent.monkey"].is_module_patched("threading"):
        gevent.signal_handler(signal.SIGALRM, publish)  # in a greenlet: the hub must not wait
    else:
        signal.signal(signal.SIGALRM, publish)
    atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)  # by default, it ends a process
    arm()


if "RELIQ_CHAOS_ALARMS" in os.environ:
    for begun in (signals.worker_ready, signals.worker_process_init):
        begun.connect(lambda **_: publish_at_alarms(1.0), weak=False)


def _identity(request):
    tag = (getattr(request, "properties", None) or {}).get("delivery_tag") or "-"
    attempt = request.get("x-delivery-count") or 0
    worker = (request.hostname or "-").partition("@")[0]
    return request.retries or 0, tag, attempt, worker, os.getpid()


def _started(request):
    """Record the start of a run and its batch; return the identity of the run."""
    identity, batch = _identity(request), request.get(BATCH)
    if batch:
        ledger.write(JOINED, request.id, batch, request.delivery_info["routing_key"])
    ledger.write(STARTED, request.id, *identity)
    return identity


@app.task(bind=True, name="chaos.work")
def work(self, seconds=0.0):
    """Run for *seconds*."""
    identity = _started(self.request)
    if seconds:
        reliq.progress(0, 1, "works")
        time.sleep(seconds)
    ledger.write(FINISHED, self.request.id, *identity)


@app.task(bind=True, name="chaos.early", acks_late=False)
def early(self, seconds=0.0):
    """Do as `work`, acked at the begin."""
    work.__wrapped__.__func__(self, seconds)


@app.task(bind=True, name="chaos.job")
def job(self, seconds, ends):
    """Run for *seconds*, then return, fail or raise, according to *ends*."""
    identity = _started(self.request)
    reliq.progress(0, 1, "works")
    time.sleep(seconds)
    ledger.write({"fail": REFUSED, "raise": RAISED}.get(ends, FINISHED), self.request.id, *identity)
    if ends == "fail":
        raise reliq.Failed("it was told to")
    if ends == "raise":
        raise ValueError("it was told to")


@app.task(bind=True, name="chaos.callback")
def callback(self, batch):
    """Record the run; the task id names the callback of the batch."""
    identity = _started(self.request)
    assert batch in self.request.id
    ledger.write(FINISHED, self.request.id, *identity)


@app.task(bind=True, name="chaos.again", max_retries=None)
def again(self, times, countdown):
    """Ask for *times* retries, then finish."""
    identity = _started(self.request)
    if (self.request.retries or 0) < times:
        ledger.write(RETRIED, self.request.id, *identity)
        try:
            raise self.retry(countdown=countdown)
        except Retry:
            ledger.write(HANDED_ON, self.request.id, *identity)
            raise
    ledger.write(FINISHED, self.request.id, *identity)


@app.task(bind=True, name="chaos.poison")
def poison(self):
    """Kill the process that runs it: the pool's child, or the worker if it has no children."""
    _started(self.request)
    os.kill(os.getpid(), signal.SIGKILL)

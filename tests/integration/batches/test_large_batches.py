"""A batch of very many jobs: no step blocks the server for long, and a job uses little memory.

    RELIQ_TEST_JOBS=500000 python -m pytest -sm slow tests/integration/batches/test_large_batches.py

The duration of a step is the CPU time of the server's thread, so other processes of the machine do
not distort it.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from itertools import islice
from pathlib import Path
from uuid import uuid4

import pytest

from reliq.admin import Inspector
from reliq.batches.jobs import OPEN, Change, Note
from reliq.message.delivery_tag import new_tag
from reliq.message.envelope import Envelope, encode
from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from reliq.values.job_headers import BATCH
from reliq.values.limits import BATCH as AT_ONCE
from tests.contract.jobs import sweep_of
from tests.contract.steps import LONG_MS, message
from tests.support.servers import RedisServer

JOBS = int(os.environ.get("RELIQ_TEST_JOBS", "50000"))
# The requirements are 5 ms and 300 bytes. The time limit leaves room for a machine that is three
# times slower.
LONGEST_MS = 15.0
MOST_BYTES = 300
TIMEOUT_S = 1200 if JOBS > 100_000 else 200
HOUR_MS = 3_600_000
WORKER = f"host.example:{uuid4()}"


class Steps:
    """A store, with the longest CPU time of the server's thread for each kind of step."""

    def __init__(self, server) -> None:
        self.raw = server.client()
        self.store = RedisStore(address(server.url()), parse({}), WORKER)
        self.longest_ms = defaultdict(float)
        pid = self.raw.info("server")["process_id"]
        self._thread = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self.measure(self.store)

    def measure(self, store):
        """Measure every call over *store* that waits for a reply."""
        replies = store._wire.replies

        def measured(commands, patience_s=0.0):
            command, script = commands[0]
            before = self._busy_ms()
            found = replies(commands, patience_s)
            took_ms = (self._busy_ms() - before) / len(commands)
            kind = script.name if script is not None else command[0]
            self.longest_ms[kind] = max(self.longest_ms[kind], took_ms)
            return found

        store._wire.replies = measured

    def _busy_ms(self):
        return int(self._thread.read_text().split()[0]) / 1e6

    def memory(self):
        """Return the bytes of memory that the server uses."""
        return self.raw.info("memory")["used_memory"]

    def acked(self, tags):
        """Ack the messages, and wait for the replies."""
        self.store.post_ack("q", tags, lambda _: None)
        self.store.wait_for_replies()


def parts(items):
    """Yield the items in parts of the size of one step."""
    iterator = iter(items)
    while some := list(islice(iterator, AT_ONCE)):
        yield some


def envelope(batch, job):
    """Return the envelope of a job, with headers like Celery's."""
    headers = {"lang": "py", "task": "shop.enrol", "id": job, "root_id": job, "retries": 0}
    headers |= {"argsrepr": "(13,)", "kwargsrepr": "{}", "origin": "gen1@host.example"}
    content = "application/json", "utf-8", {**headers, BATCH: batch}
    return encode(Envelope(b'[[13], {}, {"chord": null}]', *content, {}, "", "q"))


def entered(steps, batch, count):
    """Open a batch and enter *count* jobs; return their changes."""
    steps.store.batches.open_batch(batch, "enrol", {})
    jobs = [str(uuid4()) for _ in range(count)]
    sent = [Change("enter", job, "waiting", 0, 0, new_tag(5, {BATCH: "b"}), "q") for job in jobs]
    for some in parts(sent):
        steps.store.batches.change(batch, some)
    return sent


def published(steps, batch, sent):
    """Publish the messages of the jobs."""
    for some in parts(sent):
        envelopes = [(one.tag, envelope(batch, one.job)) for one in some]
        steps.store.publish([message("q", bytes_, tag=tag) for tag, bytes_ in envelopes])


def begin(job, token, tag):
    """Return the change with which a worker begins a job."""
    return Change("begin", job, "", 0, token, tag, "q", WORKER)


def begun(steps, batch, by_tag, count):
    """Reserve at least *count* messages and begin their jobs; return the changes."""
    found = []
    while len(found) < count:
        taken = steps.store.reserve("q", AT_ONCE, LONG_MS, False).deliveries
        some = [begin(by_tag[one.tag], int(one.token), one.tag) for one in taken]
        steps.store.batches.change(batch, some)
        found += some
    return found


def looked_at(steps):
    """Search for lost jobs; list, show and audit the batch."""
    store, batches = steps.store, steps.store.batches
    sweep = sweep_of("b", store.now_ms() + HOUR_MS)
    while sweep.step(store):
        pass
    with Inspector(f"reliq://{store.broker.partition('://')[2]}") as inspector:
        steps.measure(inspector._store)
        assert all(result.balanced for result in inspector.audit_batches())
        assert 1 == len(list(inspector.batches()))
        inspector.job_failures("b", limit=20)
    for skip in (0, JOBS // 20):
        batches.failures("b", 100, skip)
        batches.progress("b", 100, skip)
        batches.reports("b", 100, skip)


@pytest.fixture
def steps():
    """Return a measured store on a new server."""
    server = RedisServer().start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.destroy)
        found = Steps(server)
        stack.callback(found.store.close)
        yield found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S, method="signal")
def test_no_step_is_long(steps):
    """No step of a large batch blocks the server for long, from its entry until it is forgotten."""
    store, batches = steps.store, steps.store.batches
    sent = entered(steps, "b", JOBS)
    by_tag = {one.tag: one.job for one in sent}
    published(steps, "b", sent)
    at_work = begun(steps, "b", by_tag, JOBS // 2)
    for some in parts(at_work[: JOBS // 4]):
        ends = [one._replace(what="end", state="succeeded", text="") for one in some]
        ends[::4] = [one._replace(state="failed", text="no price" * 20) for one in ends[::4]]
        for one in some[:3]:
            batches.note("b", Note(one.job, 0, one.token, "q", (3, 10, "at it"), "a report"))
        batches.change("b", ends)
        steps.acked([one.tag for one in some])
    batches.change("b", [one._replace(what="end", state="error") for one in at_work[-AT_ONCE:]])
    looked_at(steps)
    batches.change("b", [Change("seal"), Change("cancel")])
    begun(steps, "b", by_tag, JOBS // 8)
    while store.purge("q"):
        pass
    looked_at(steps)
    # The purge leaves the unacked messages. Their jobs are lost with the queue, after two searches
    # without a sign of their consumers.
    store.delete_queue("q")
    looked_at(steps)
    looked_at(steps)
    counts = batches.batch("b").counts
    assert (JOBS, 0) == (sum(counts.values()), sum(counts[state] for state in OPEN))
    batches.forget_batch("b")
    print(f"\n{JOBS} jobs, {counts}")
    for kind, ms in sorted(steps.longest_ms.items(), key=lambda item: -item[1]):
        print(f"{ms:8.2f} ms {kind}")
    assert {} == {kind: ms for kind, ms in steps.longest_ms.items() if ms > LONGEST_MS}


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S, method="signal")
def test_what_a_job_takes(steps):
    """A job takes little server memory beside its message, while it waits and while it runs."""
    before, count = steps.memory(), JOBS // 3
    sent = entered(steps, "b", count)
    waiting = (steps.memory() - before) / count
    for some in parts(begin(one.job, n, one.tag) for n, one in enumerate(sent, 1)):
        steps.store.batches.change("b", some)
    running = (steps.memory() - before) / count
    print(f"\n{count} jobs: {waiting:.0f} bytes each that waits, {running:.0f} that runs")
    assert waiting < running < MOST_BYTES

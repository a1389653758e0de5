"""Each script of a batch, with junk in one field or key, and at a Redis with full memory.

A script runs to its end or refuses before it changes anything, and no job is counted twice.
"""

from __future__ import annotations

import pytest

from reliq.batches.jobs import DONE, UNCHANGED, Change, Note
from reliq.errors import BrokerRefused, ReliqError
from reliq.lua.keys import batch_keys, broker_keys
from reliq.options import parse
from reliq.store.store import RedisStore
from reliq.store.urls import address
from tests.contract.jobs import OTHER_TAG, TAG, begin, end, enter, job_of, lost
from tests.support.contents import contents

K = batch_keys("", "b")
LISTS = (broker_keys("").batches, broker_keys("").batches_opened)
COUNTERS = (
    *("waiting", "delayed", "working", "retrying"),
    *("succeeded", "failed", "error", "dropped"),
)
FLAGS = (
    *("sealed", "cancelled", "ended", "due_failure", "due_complete", "due_success"),
    *("said_failure", "said_complete", "said_success", "created", "added"),
)
OWN = {
    **dict.fromkeys((K.failures, K.progressed, *LISTS), "zadd"),
    K.reports: "rpush",
}
VALUES = ("many", "nan", "-1", "9223372036854775807", b"\xff|\xff")
NOTES = (*VALUES, "", "1|x|3|10|", "1|1|many|10|x", "1|1|nan|1e999|x", "|||||")
RECORDS = (*VALUES, "w", "q|0|0|0|||", "w|0|0|x|t||q", "w|-1|0|0|t||q", "k|0|1e3|0|t||q", "||||||")


class Batch:
    """A batch with a job in each state, restored before each piece of junk."""

    def __init__(self, server) -> None:
        self.raw = server.client()
        self.raw.flushall()
        self.store = RedisStore(address(server.url()), parse({}), "s/1")
        self.batches = self.store.batches
        self.batches.open_batch("b", "enrol", {})
        jobs = "wkrsfexc"
        self.batches.change("b", [enter(job) for job in jobs])
        ends = [end(how, job) for how, job in (("succeeded", "s"), ("failed", "f"), ("error", "e"))]
        ends += [end("cancelled", "c"), lost("x")]
        retry = enter("r", tag=OTHER_TAG, retries=1)
        self.batches.change("b", [*(begin(job) for job in jobs[1:]), retry, *ends, Change("seal")])
        self._note()
        self.since = str(job_of(self.batches, "b", "w").since_ms)
        self.dumps = {key: self.raw.dump(key) for key in self.raw.scan_iter()}

    def _note(self):
        return self.batches.note("b", Note("k", 0, 1, "q", (3, 10, "checking"), "no price"))

    def fresh(self) -> None:
        """Restore all keys, without junk."""
        with self.raw.pipeline() as pipe:
            pipe.delete(*K, *LISTS)
            for key, dump in self.dumps.items():
                pipe.restore(key, 0, dump, replace=True)
            pipe.execute()

    def close(self) -> None:
        """Empty the server and close the connections."""
        self.raw.config_set("maxmemory", 0)
        self.raw.flushall()
        self.store.close()
        self.raw.close()

    def operations(self):
        """Return name -> function for each operation."""

        def change(*changes, by=""):
            return lambda: self.batches.change("b", changes, by=by)

        whole = [begin("w", token=2), end("error", "w", token=2), Change("replay", "f", tag=TAG)]
        return {
            "enter": change(enter("new"), by="k"),
            "enter a retry": change(enter("k", tag=OTHER_TAG, retries=1), by="k"),
            "withdraw": change(Change("withdraw", "w", tag=TAG)),
            "withdraw a retry": change(Change("withdraw", "r", tag=OTHER_TAG)),
            "begin": change(begin("w")),
            "begin again": change(begin("x", token=2)),
            "begin a new one": change(begin("new")),
            "return": change(Change("return", "k", token=1)),
            "succeed": change(end("succeeded", "k")),
            "fail": change(end("failed", "k", why="no")),
            "give up": change(lost("w")),
            "lose": change(Change("lose", "w", tag=TAG, text=self.since)),
            "replay": change(Change("replay", "e", tag=TAG)),
            "cancel": change(Change("cancel"), begin("w")),
            "several": change(*whole, enter("r", tag="c" * 30, retries=2)),
            "note": self._note,
            "said": lambda: self.batches.note_published("b", "failure"),
            "next": lambda: self.batches.next_batches(10, 1000),
            "look later": lambda: self.batches.postpone({"b": 1000}),
            "open again": lambda: self.batches.open_batch("b", "enrol", {}),
            "open": lambda: self.batches.open_batch("new", "enrol", {}),
            "forget": lambda: self.batches.forget_batch("b"),
            "look": self._look,
        }

    def _look(self):
        self.batches.batch("b")
        self.batches.batches(10)
        self.batches.failures("b", 10)
        self.batches.progress("b", 10)
        self.batches.reports("b", 10)
        return [job_of(self.batches, "b", job) for job in "wkrsfexc"], list(self.batches.jobs("b"))


@pytest.fixture(scope="module")
def batch():
    """Return a batch on a server whose memory can be filled."""
    from tests.support.servers import RedisServer

    server = RedisServer(extra=["--maxmemory-policy", "noeviction"])
    try:
        made = Batch(server.start())
        yield made
        made.close()
    finally:
        server.destroy()


def junk(every):
    """Yield (key, field or command, value) for each field and key, with one value or all values."""
    for field in (*COUNTERS, *FLAGS):
        for value in VALUES if every else VALUES[:1]:
            yield K.batch, field, value
    for job in "wkrfex" if every else "w":
        for value in RECORDS:
            yield K.jobs, job, value
    for value in NOTES if every else NOTES[:2]:
        yield K.progress, "k", value
    for key in (*K[:7], *LISTS):
        for kind in ("set", "rpush", "sadd", "hset", "zadd") if every else ("set",):
            if kind != OWN.get(key, "hset"):
                yield key, kind, None


def put(raw, key, field, value):
    """Put one piece of junk at *key*."""
    if value is not None:
        raw.hset(key, field, value)
        return
    raw.delete(key)
    arguments = {"set": ("x",), "rpush": ("x",), "sadd": ("x",), "hset": ("x", 1)}
    raw.execute_command(field, key, *arguments.get(field, (1, "x")))


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_no_job_is_counted_twice_by_a_script_that_meets_junk(batch, every):
    """The counters equal the number of jobs after junk; a refused script has changed nothing."""
    found = []
    for name, operation in batch.operations().items():
        for key, field, value in junk(every):
            batch.fresh()
            put(batch.raw, key, field, value)
            wrong = _run(batch, name, operation, key, field, value)
            if wrong:
                found.append((name, key, field, value, wrong))
    assert "" == "\n".join(map(str, found))


def _run(batch, name, operation, key, field, value):
    """Run the operation; return the problem that it caused."""
    before = contents(batch.raw)
    try:
        operation()
    except ReliqError as exc:
        if value is not None:
            return f"a field made it fail: {exc}"
        # The batch and its place in the list are changed by separate steps when a batch is opened
        # or forgotten.
        if name not in {"open", "open again", "forget"} and before != contents(batch.raw):
            return f"refused, and changed: {exc}"
        return ""
    except ValueError as exc:
        return f"a reply that cannot be read: {exc!r}"
    if (key in {K.batch, K.jobs} and value is None) or field in COUNTERS or name == "forget":
        return ""
    counted = sum(int(batch.raw.hget(K.batch, counter) or 0) for counter in COUNTERS)
    there = batch.raw.hlen(K.jobs)
    return "" if counted == there else f"{counted} counted, {there} there"


def test_a_report_that_cannot_be_read(batch):
    """An unreadable report is left out; the others are listed."""
    batch.fresh()
    for value in (*VALUES, "1|9|x", "1|999999999999|x"):
        batch.raw.rpush(K.reports, value)
    found = [(one.job, one.text) for one in batch.batches.reports("b", 100)]
    assert ("k", "no price") == found[0]
    assert len(found) <= 2


def test_a_job_that_cannot_be_read(batch, caplog):
    """An unreadable job stays unchanged and is logged by name; the other jobs continue."""
    batch.fresh()
    batch.raw.hset(K.jobs, "torn", "junk")
    result = batch.batches.change("b", [begin("torn"), end("error", "torn"), begin("w")])
    assert [UNCHANGED, UNCHANGED, DONE] == result.outcomes
    assert b"junk" == batch.raw.hget(K.jobs, "torn")
    assert job_of(batch.batches, "b", "torn") is None
    assert 8 == len([job for part in batch.batches.jobs("b") for job in part])
    assert "'torn'" in caplog.text
    assert "jobs of batch 'b'" in caplog.text


REFUSED = {"enter", "enter a retry", "open", "note"}
"""The operations that store something new: they are refused as a whole."""


def test_full_memory_stops_only_what_is_new(batch):
    """With full memory, ends of jobs and batch messages are stored, and nothing counts twice."""
    for name, operation in batch.operations().items():
        batch.fresh()
        before = contents(batch.raw)
        batch.raw.config_set("maxmemory", 1)
        error = None
        try:
            operation()
        except BrokerRefused as exc:
            error = exc
        finally:
            batch.raw.config_set("maxmemory", 0)
        assert (error is not None) == (name in REFUSED), (name, error)
        if error is not None:
            assert before == contents(batch.raw), name
        elif name != "forget":
            counts = batch.batches.batch("b").counts
            assert sum(counts.values()) == batch.raw.hlen(K.jobs), name


# -- the list of batches, which is in another slot


def test_a_name_without_a_batch(batch):
    """A listed name whose opener died before it created the batch is found and forgotten."""
    batch.raw.flushall()
    batch.batches._list("gone")
    assert ["gone"] == batch.batches.next_batches(10, 1000)
    assert batch.batches.batch("gone") is None
    batch.batches.forget_batch("gone")
    assert [] == batch.batches.batches(10)
    assert [] == batch.raw.keys()


def test_a_name_that_is_forgotten_before_its_batch_is_made(batch, monkeypatch):
    """An opener lists its batch again if the name was forgotten in between."""
    batch.raw.flushall()
    list_ = batch.batches._list
    calls = []

    def list_and_be_forgotten(name):
        created = list_(name)
        if not calls:
            batch.batches.forget_batch(name)
        calls.append(name)
        return created

    monkeypatch.setattr(batch.batches, "_list", list_and_be_forgotten)
    assert batch.batches.open_batch("b", "enrol", {})
    assert ["b"] == batch.batches.batches(10)
    assert ["b"] == batch.batches.next_batches(10, 1000)


def test_a_batch_that_is_made_while_one_of_its_id_is_forgotten(batch, monkeypatch):
    """Forgetting a batch checks again for a new batch of the same id."""
    batch.raw.flushall()
    call, opened = batch.store._wire.call, []

    def call_and_open(command, script=None):
        reply = call(command, script)
        if command[0] == "UNLINK":
            opened.append(batch.batches.open_batch("b", "enrol", {}))
        return reply

    batch.batches.open_batch("b", "enrol", {})
    monkeypatch.setattr(batch.store._wire, "call", call_and_open)
    batch.batches.forget_batch("b")
    assert [True] == opened
    assert ["b"] == batch.batches.batches(10)
    assert ["b"] == batch.batches.next_batches(10, 1000)

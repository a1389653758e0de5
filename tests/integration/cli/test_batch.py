"""`reliq batch`, the audit of batches, and the doctor's findings about batches."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import threading
import time
from contextlib import closing

import jsonschema
import pytest
from click.testing import CliRunner

from reliq import BrokerUnavailable, ConfigurationError, NotFound
from reliq.admin import Inspector
from reliq.batches import Batch
from reliq.batches.callbacks import CallbackMessage, packed
from reliq.batches.jobs import CANCELLED, STATES, Change
from reliq.cli import main
from reliq.cli.schema import SCHEMAS
from reliq.lua.keys import batch_keys
from reliq.store.urls import connect
from tests.contract.jobs import begin, end, enter
from tests.integration.cli.test_top import terminal  # noqa: F401 - a fixture
from tests.integration.kombu_client import declare
from tests.support.commands import RELIQ, data, environment
from tests.support.processes import INTERRUPTED
from tests.support.waiting import wait_until

SOON = 0.1


class Broker:
    """A broker with batches; tests that damage a batch write its keys directly."""

    def __init__(self, url, raw=None):
        self.url, self._raw = url, raw
        self.store = connect(url, {}, "owner/1")
        self.batches = self.store.batches

    def open(self, batch="b", jobs=0, name="import", **fields):
        """Open a batch with *jobs* jobs."""
        self.batches.open_batch(batch, name, fields)
        self.batches.change(batch, [enter(f"j{n}") for n in range(jobs)])
        return batch

    def end(self, *jobs, batch="b", how="succeeded", why=""):
        """Begin and end jobs."""
        for job in jobs:
            self.batches.change(batch, [begin(job), end(how, job, why=why)])

    def settled(self):
        """Wait until the broker's clock is later than all earlier changes."""
        now_ms = self.store.now_ms()
        wait_until(lambda: self.store.now_ms() > now_ms)

    def ask(self, *arguments, code=0):
        """Run a command in this process; return its --json output."""
        done = self.run(*arguments, "--json", code=code)
        found = json.loads(done.stdout)
        name = " ".join(arguments[:2]) if arguments[0] == "batch" else arguments[0]
        jsonschema.validate(found, SCHEMAS[name])
        return found

    def run(self, *arguments, code=0):
        """Run a command in this process, without a terminal, at a width of 220 columns."""
        done = CliRunner().invoke(
            main, [*map(str, arguments)], env={"RELIQ_URL": self.url, "COLUMNS": "220"}
        )
        assert code == done.exit_code, done.output
        return done

    # -- changes outside reliq

    def set(self, batch, **fields):
        """Write fields of a batch: counters and times."""
        self._raw.hset(batch_keys("", batch).batch, mapping=fields)

    def unlist_failure(self, batch, job):
        """Remove a job from the list of failures."""
        assert 1 == self._raw.zrem(batch_keys("", batch).failures, job)

    def remove_job(self, batch, job):
        """Remove a job without changing the counters."""
        assert 1 == self._raw.hdel(batch_keys("", batch).jobs, job)


@pytest.fixture
def broker(redis_url, redis_server):
    """Return an empty broker."""
    with redis_server.client() as raw:
        made = Broker(redis_url, raw)
        yield made
        made.store.close()


@pytest.fixture
def inspector(broker):
    """Return an Inspector of the broker."""
    with Inspector(broker.url) as inspector:
        yield inspector


def only(rows):
    """Return the only row."""
    (row,) = rows
    return row


# -- list


def test_batches_are_listed(broker):
    """`batch list` shows the newest batches first, with progress, filters and paging."""
    for name in ("b1", "b2", "b3"):
        broker.open(name, 4, name="mail" if name == "b2" else "import")
        broker.settled()
    broker.end("j0", "j1", batch="b1", how="failed", why="no")
    broker.batches.change("b2", [Change("cancel")])
    broker.end("j0", batch="b3")
    rows = broker.ask("batch", "list")
    assert ["b3", "b2", "b1"] == [row["id"] for row in rows]
    first = rows[2]
    assert (4, 2, 50.0, 2) == (
        first["total"],
        first["done"],
        first["percent"],
        first["counts"]["failed"],
    )
    assert 0 < first["age_s"] < 600
    assert [None, None, None] == [first[f"{what}_ms"] for what in ("sealed", "cancelled", "ended")]
    assert ["b3", "b1"] == [row["id"] for row in broker.ask("batch", "list", "--name", "import")]
    assert ["b2"] == [row["id"] for row in broker.ask("batch", "list", "--stage", "sealed")]
    assert [] == broker.ask("batch", "list", "--stage", "ended")
    page = broker.ask("batch", "list", "--limit", 1, "--skip", 1)
    assert ["b2"] == [row["id"] for row in page]
    shown = broker.run("batch", "list").stdout
    assert re.search(r"b1 *│ *import *│ *open *│ *4 │ *50 % │ *2 │ *0 │ *0 │", shown), shown
    assert "sealed, cancelled" in shown
    assert "3 batch(es)" in shown


def test_a_page_that_is_none(inspector):
    """A negative limit or skip and an unknown stage are refused."""
    assert [] == inspector.batches(0)
    for wrong in ({"limit": -1}, {"skip": -1}, {"stage": "late"}):
        with pytest.raises(ConfigurationError):
            inspector.batches(**wrong)


# -- show


def test_one_batch(broker):
    """`batch show` prints the number of jobs in each state and the latest failures with reasons."""
    broker.open("b", 30, name="im[port]")
    broker.end(*(f"j{n}" for n in range(10)))
    for n in range(10, 15):
        broker.end(f"j{n}", how="failed", why=f"price {n} is [red]missing\x1b[31m")
        broker.settled()
    row = only(broker.ask("batch", "show", "b", "--limit", 2, "--skip", 1))
    expected = dict.fromkeys(STATES, 0) | {"succeeded": 10, "failed": 5, "waiting": 15}
    assert (expected, 50.0, []) == (row["counts"], row["percent"], row["jobs"])
    assert ["j13", "j12"] == [item["job"] for item in row["failures"]]
    assert "price 13 is" in row["failures"][0]["reason"]
    assert row["failures"][0]["at_ms"] >= row["created_ms"]
    shown = broker.run("batch", "show", "b").stdout
    assert "price 14 is [red]missing\\x1b[31m" in shown
    assert "\x1b" not in shown
    assert re.search(r"jobs *│ *30, 15 done \(50 %\)", shown), shown


def test_the_beginning_of_an_id(broker):
    """Commands for one batch take the beginning of its id, if it is the only one."""
    ids = [f"{beginning}{'0' * 28}" for beginning in ("5f0c", "5f1d", "7b21")]
    for batch in ids:
        broker.open(batch, jobs=1)
    (row,) = broker.ask("batch", "show", "5f0", "--state", "waiting")
    assert (ids[0], ["j0"]) == (row["id"], [job["id"] for job in row["jobs"]])
    done = broker.run("batch", "show", "5f", code=2)
    assert "2 batches begin with '5f': " in done.output
    assert "no batch '6'" in broker.run("batch", "show", "6", code=2).output
    broker.run("batch", "seal", "7b")
    broker.run("batch", "cancel", "5f1", "--yes")
    broker.end("j0", batch=ids[2])
    broker.run("batch", "watch", "7b2")
    stages = [broker.ask("batch", "show", batch)[0] for batch in ids]
    assert ["open", "sealed", "ended"] == [row["stage"] for row in stages]
    assert [False, True, False] == [bool(row["cancelled_ms"]) for row in stages]


def test_jobs_of_a_batch_by_state(broker, inspector):
    """Jobs are listed by state in pages, each job once, with its queue and worker."""
    broker.open("b", 1200)
    broker.batches.change("b", [begin("j7", who="worker:1")])
    working = only(inspector.jobs("b", "working"))
    assert ("j7", 0, "worker:1", "q") == (
        working.id,
        working.retries,
        working.worker,
        working.queue,
    )
    assert 0 <= working.since_s < 600
    pages = [inspector.jobs("b", "waiting", 500, skip) for skip in (0, 500, 1000)]
    assert [500, 500, 199] == [len(page) for page in pages]
    assert 1199 == len({job.id for page in pages for job in page})
    assert 1200 == len(inspector.jobs("b", limit=5000))
    row = only(broker.ask("batch", "show", "b", "--state", "working"))
    assert (["j7"], []) == ([job["id"] for job in row["jobs"]], row["failures"])
    shown = broker.run("batch", "show", "b", "--state", "working").stdout
    assert re.search(r"j7 *│ *working", shown), shown
    with pytest.raises(ConfigurationError, match="state to be one of waiting"):
        inspector.jobs("b", "lost")


@pytest.mark.parametrize(
    "command", ["show nothing", "watch nothing", "seal nothing", "cancel nothing --yes"]
)
def test_there_is_no_such_batch(broker, command):
    """An unknown batch is an error with the likely reasons; exit code 2."""
    done = broker.run("batch", *shlex.split(command), code=2)
    assert "no batch 'nothing': it was not opened here, or its batch_ttl has expired" in done.stderr
    assert broker.batches.batch("nothing") is None


def test_several_brokers(broker, redis_factory):
    """A command finds the broker that has the batch; the other brokers cause no error."""
    other = Broker(redis_factory().url())
    broker.open("b", 1)
    other.open("c", 1)
    try:
        urls = ("--url", broker.url, "--url", other.url)
        rows = broker.ask("batch", "list", *urls)
        assert [(broker.url, "b"), (other.url, "c")] == [(r["broker"], r["id"]) for r in rows]
        assert other.url == only(broker.ask("batch", "show", "c", *urls))["broker"]
        assert broker.ask("batch", "seal", "b", *urls)[0]["sealed"]
        broker.end("j0")
        (line,) = broker.run("batch", "watch", "b", "--json", *urls).stdout.splitlines()
        assert broker.url == json.loads(line)["broker"]
    finally:
        other.store.close()


# -- seal and cancel


def test_a_batch_is_sealed(broker):
    """A batch is sealed once and ends when its jobs have ended."""
    broker.open("b", 1)
    broker.end("j0")
    rows = broker.ask("batch", "seal", "b")
    assert [{"broker": broker.url, "batch": "b", "sealed": True}] == rows
    assert broker.batches.batch("b").ended_ms > 0
    assert not only(broker.ask("batch", "seal", "b"))["sealed"]
    assert "b at " in broker.run("batch", "seal", "b").stdout


def test_a_cancelled_batch(broker):
    """`batch cancel` requires confirmation, and waiting jobs of a cancelled batch do not begin."""
    broker.open("b", 2)
    done = broker.run("batch", "cancel", "b", code=2)
    assert "2 of 2 jobs not yet ended? There is no terminal to confirm: use --yes" in done.stderr
    assert 0 == broker.batches.batch("b").cancelled_ms
    assert only(broker.ask("batch", "cancel", "b", "--yes"))["cancelled"]
    assert [CANCELLED] == broker.batches.change("b", [begin("j0")]).outcomes
    # Cancelling again destroys nothing: no confirmation is required.
    assert not only(broker.ask("batch", "cancel", "b"))["cancelled"]


def test_who_seals_publishes_what_is_due(client):
    """Sealing publishes a due callback once; without its exchange the callback stays pending."""
    owner = Broker(client.url)
    with closing(owner.store), client.inspector() as inspector:
        connection = client.connect()
        declare(connection, "calls")
        for batch, exchange in (("b", ""), ("c", "missing")):
            message = CallbackMessage(exchange, "calls", b"x" * 20, 0, "a" * 30)
            owner.open(batch, 1, on_complete=packed(message))
            owner.end("j0", batch=batch)
            assert inspector.seal_batch(batch)
            assert not inspector.seal_batch(batch)
        assert 1 == inspector.status("calls").ready
        assert ([], ["complete"]) == (
            inspector.batch("b").due,
            inspector.batch("b").published,
        )
        assert ["complete"] == inspector.batch("c").due
        inspector.purge("calls")


# -- watch


def test_a_batch_is_watched_to_its_end(broker):
    """A watch prints one line per query, with the rate since the previous one, until its end."""
    broker.open("b", 30)
    broker.end("j0", how="failed", why="first")
    looked = []

    def go_on():
        for n in range(1, 30):
            broker.end(f"j{n}", how="error" if n in {10, 20} else "succeeded", why=f"error {n}")
            time.sleep(0.01)
        broker.batches.change("b", [Change("seal")])

    others = threading.Thread(target=go_on)
    others.start()
    done = broker.run("batch", "watch", "b", "--interval", SOON, "--json", code=1)
    others.join(20)
    for text in done.stdout.splitlines():
        look = json.loads(text)
        jsonschema.validate(look, SCHEMAS["batch watch"])
        looked.append(look)
    assert ("ended", 30, 100.0) == (looked[-1]["stage"], looked[-1]["done"], looked[-1]["percent"])
    assert all(look["stage"] != "ended" for look in looked[:-1])
    assert looked[0]["rate"] is None
    assert any(look["rate"] > 0 for look in looked[1:])
    assert ["j20", "j10", "j0"] == [item["job"] for item in looked[-1]["failures"]]
    assert [(1, 2), (1, 0)] == [
        (look["counts"]["failed"], look["counts"]["error"]) for look in (looked[-1], looked[0])
    ]


@pytest.mark.parametrize(
    ("ends", "code"), [("succeeded", 0), ("failed", 1), ("error", 1), ("cancelled", 1), ("", 0)]
)
def test_how_a_watch_ends(broker, ends, code):
    """A watch exits with 0 if all jobs succeeded or the batch has no jobs, else with 1."""
    broker.open("b", 1 if ends else 0)
    if ends == "cancelled":
        broker.batches.change("b", [Change("cancel"), begin("j0")])
    elif ends:
        broker.end("j0", how=ends, why="so [it] is")
    broker.batches.change("b", [Change("seal")])
    shown = broker.run("batch", "watch", "b", code=code).stdout
    counted = (f"{int(ends == state)} {state}" for state in ("failed", "error"))
    assert f", {', '.join(counted)}, " in shown
    assert ", ended" in shown.splitlines()[-1]


def test_a_watch_on_a_terminal(client, terminal):  # noqa: F811 - the fixture
    """A watch on a terminal shows a progress bar and a final summary."""
    owner = Broker(client.url)
    with closing(owner.store):
        owner.open("b", 4, name="im[port]")
        watch = terminal(client.url, "batch", "watch", "b", "--interval", "0.1")
        wait_until(lambda: "0%" in watch.said(), what=watch.said)
        owner.end("j0", how="failed", why="price is missing")
        wait_until(lambda: "25%" in watch.said(), what=watch.said)
        assert "im[port]" in watch.said()
        owner.end("j1", "j2", "j3")
        owner.batches.change("b", [Change("seal")])
        assert (1,) == wait_until(watch.ended, what=watch.said)
        assert "4 of 4 done (100 %)" in watch.said()
        assert "1 failed" in watch.said()
        assert "Traceback" not in watch.said()


def test_a_watch_is_interrupted(client):
    """Ctrl-C ends a watch with exit code 130, which is not a result of the batch."""
    owner = Broker(client.url)
    with closing(owner.store):
        owner.open("b", 1)
        process = subprocess.Popen(
            [*RELIQ, "batch", "watch", "b", "--interval", "0.1", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(client.url),
        )
        try:
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode in {130, *INTERRUPTED}
        assert "Traceback" not in err


@pytest.mark.slow
def test_a_watch_outlives_its_broker(redis_factory):
    """A watch reports an unreachable broker and continues after its return, within its patience."""
    server = redis_factory(appendonly=True)
    owner = Broker(server.url())
    owner.open("b", 1)
    owner.store.close()
    command = [*RELIQ, "batch", "watch", "b", "--interval", "0.1"]
    processes = [
        subprocess.Popen(
            [*command, "--patience", patience],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(server.url()),
        )
        for patience in ("60s", "0s")
    ]
    patient, impatient = processes
    try:
        for process in processes:
            assert "0 of 1 done" in process.stdout.readline()
        server.kill()
        _, said = impatient.communicate(timeout=30)
        assert (2, True) == (impatient.returncode, "not reachable" in said), said
        assert "not reachable" in patient.stderr.readline()
        server.start()
        owner = Broker(server.url())
        owner.end("j0")
        owner.batches.change("b", [Change("seal")])
        owner.store.close()
        out, _ = patient.communicate(timeout=30)
        assert (0, True) == (patient.returncode, out.rstrip().endswith("ended")), out
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# -- audit


def test_the_audit_counts_jobs(broker, inspector):
    """Counters, jobs and the list of failures agree in a batch with jobs in every state."""
    broker.open("b", 700)
    broker.batches.change("b", [enter("d", "delayed"), enter("r"), begin("r")])
    broker.batches.change("b", [enter("r", retries=1)])
    broker.end(*(f"j{n}" for n in range(40)))
    broker.end(*(f"j{n}" for n in range(40, 60)), how="failed")
    broker.end(*(f"j{n}" for n in range(60, 70)), how="error")
    broker.batches.change("b", [begin("j100"), Change("cancel"), begin("j101")])
    broker.settled()
    result = only(inspector.audit_batches())
    assert (True, 0, 0, 30) == (
        result.balanced,
        result.difference,
        result.failures_difference,
        result.failures,
    )
    assert result.counts == result.jobs == inspector.batch("b").counts
    assert all(result.jobs.values())
    row = only(row for row in broker.ask("audit") if "batch" in row)
    assert ("b", True) == (row["batch"], row["balanced"])
    assert "1 batch(es), all balanced" in broker.run("audit").stdout
    assert [] == [row for row in broker.ask("audit", "--no-batches") if "batch" in row]


@pytest.mark.parametrize(
    ("harm", "difference", "failures"),
    [
        (lambda broker: broker.set("b", waiting=7), 1, 0),
        (lambda broker: broker.set("b", waiting=9), 1, 0),
        (lambda broker: broker.set("b", waiting=7, working=1), 1, 0),
        (lambda broker: broker.remove_job("b", "j5"), 1, 0),
        (lambda broker: broker.remove_job("b", "j0"), 1, None),
        (lambda broker: broker.unlist_failure("b", "j0"), 0, 1),
    ],
    ids=["one less", "one more", "another state", "no job", "no failed job", "no failure"],
)
def test_what_does_not_agree_is_found(broker, harm, difference, failures):
    """The audit names a damaged batch with the differences; exit code 1."""
    broker.open("b", 10)
    broker.end("j0", "j1", how="failed")
    broker.open("sound", 3)
    broker.settled()
    harm(broker)
    rows = {row["batch"]: row for row in broker.ask("audit", code=1)}
    assert rows["sound"]["balanced"]
    wrong = rows["b"]
    assert (False, difference) == (wrong["balanced"], wrong["difference"])
    if failures is not None:
        assert failures == wrong["failures_difference"]
    assert "NOT balanced: batch b" in broker.run("audit", code=1).stdout


def test_what_cannot_be_read_is_named(client):
    """A batch with a foreign value in a key is named in an error; the other batches are shown."""
    owner = Broker(client.url, raw=client.raw)
    with closing(owner.store):
        for name in ("sound", "jobs", "hash"):
            owner.open(name, 3)
        for key in (batch_keys("", "jobs").jobs, batch_keys("", "hash").batch):
            client.raw.set(key, "a text")
        for words, wrong in ((("batch", "list"), {"hash"}), (("audit",), {"hash", "jobs"})):
            done = owner.run(*words, code=2)
            assert wrong == set(re.findall("'(hash|jobs|sound)'", done.stderr))
            assert " sound " in done.stdout
        assert "WRONGTYPE" in owner.run("batch", "show", "hash", code=2).stderr
        with client.inspector() as inspector:
            found = [item for item in inspector.doctor() if item.check == "batches"]
        assert ["error"] == [item.severity for item in found]
        client.raw.delete(batch_keys("", "jobs").jobs, batch_keys("", "hash").batch)
        owner.batches.forget_batch("jobs")


def test_jobs_that_go_on_are_no_difference(broker, inspector):
    """The audit of a sound batch balances while its jobs change state."""
    broker.open("b", 1500)
    over = threading.Event()

    def work():
        with closing(connect(broker.url, {}, "worker/1")) as store:
            for token in range(1, 10_000):
                if over.is_set():
                    return
                jobs = [f"j{(7 * n + 13 * token) % 1500}" for n in range(20)]
                how = ("succeeded", "failed", "error")[token % 3]
                store.batches.change("b", [begin(job, token) for job in jobs])
                store.batches.change("b", [end(how, job, token) for job in jobs])
                store.batches.change("b", [Change("replay", job) for job in jobs])
                store.batches.change("b", [enter(f"n{token}")])
                if token % 20 == 0:
                    out = enter(f"n{token}")._replace(what="withdraw", state="")
                    store.batches.change("b", [out])

    worker = threading.Thread(target=work)
    worker.start()
    try:
        found = [only(inspector.audit_batches()) for _ in range(15)]
    finally:
        over.set()
        worker.join(20)
    assert [] == [result for result in found if not result.balanced]
    assert any(result.moving for result in found)
    broker.settled()
    last = only(inspector.audit_batches())
    assert (True, 0, last.counts) == (last.balanced, last.moving, last.jobs)


def test_more_batches_than_one_page(broker, inspector, monkeypatch):
    """The audit covers all batches beyond one page; a list shows the latest."""
    monkeypatch.setattr("reliq.admin.batches.MOST", 3)
    for n in range(8):
        broker.open(f"b{n}", 1)
        broker.settled()
    assert {f"b{n}" for n in range(8)} == {item.batch for item in inspector.audit_batches()}
    assert 3 == len(inspector.batches(100))


# -- the doctor, completion


def test_the_doctor_looks_at_batches(broker, inspector):
    """The doctor warns of an abandoned batch and of an overdue callback, each with a remedy."""

    def found():
        return [
            (item.severity, item.message, item.remedy)
            for item in inspector.doctor()
            if item.check == "batches"
        ]

    broker.open("fresh", 1)
    # A pending callback without a message has no effect.
    broker.open("quiet", 1)
    broker.end("j0", batch="quiet")
    broker.batches.change("quiet", [Change("seal")])
    broker.set("quiet", due_complete=1)
    assert [("ok", "2, none abandoned or with an overdue callback", "")] == found()
    broker.open("left", 1, name="import", seal_timeout_ms="1")
    broker.open("unsaid", 1, name="mail", on_complete="message")
    broker.end("j0", batch="unsaid")
    broker.batches.change("unsaid", [Change("seal")])
    broker.set("unsaid", due_complete=1)
    broker.settled()
    broker.settled()
    (_, left, seal), (_, unsaid, start) = found()
    assert ["warning", "warning"] == [severity for severity, *_ in found()]
    assert ("'left' (import)" in left, "reliq batch seal left" in seal) == (True, True)
    assert ("'unsaid' (mail)" in unsaid, "start a worker" in start) == (True, True)


def test_ids_are_completed(broker):
    """Completion offers only batch ids that need no quotes in a shell."""
    for name in ("b1", "b2", "c1", "b 3", "b;4"):
        broker.open(name)
    done = CliRunner().invoke(
        main,
        [],
        env={
            "RELIQ_URL": broker.url,
            "_RELIQ_COMPLETE": "bash_complete",
            "COMP_WORDS": "reliq batch show b",
            "COMP_CWORD": "3",
        },
        prog_name="reliq",
    )
    assert {"plain,b1", "plain,b2"} == set(done.stdout.split())


def test_a_broker_that_is_away(broker):
    """An unreachable broker is named, and reachable brokers are shown; exit code 2."""
    nobody = "reliq://127.0.0.1:1/0"
    broker.open("b", 1)
    for command in ("list", "watch b", "seal b"):
        done = broker.run("batch", *shlex.split(command), "--url", nobody, code=2)
        assert "127.0.0.1:1" in done.stderr
    rows = json.loads(
        broker.run("batch", "list", "--json", "--url", nobody, "--url", broker.url, code=2).stdout
    )
    assert ["b"] == [row["id"] for row in rows]
    with pytest.raises(BrokerUnavailable):
        Inspector(nobody)


def test_batches_of_the_api_are_seen(client):
    """Commands, started as processes, show a batch that `reliq.batches` opened."""
    with Batch("import", url=client.url) as batch:
        pass
    row = only(data(client.url, "batch", "list"))
    assert (batch.id, "import", "ended", []) == (
        row["id"],
        row["name"],
        row["stage"],
        row["published"],
    )
    with client.inspector() as inspector:
        assert "ended" == inspector.batch(batch.id).stage
        with pytest.raises(NotFound):
            inspector.batch("nothing")

"""The checker with handmade ledgers: errors that it must detect, and runs that it must accept."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from tests.chaos import ledger
from tests.chaos.checker import Blame, check, check_dead, histories
from tests.chaos.keys import Contents, misplaced
from tests.chaos.model import PROMOTION, WENT_BACK, Exit, Fault, Limits
from tests.chaos.recovery import Recovery, percentiles
from tests.chaos.sentinel_broker import Promotion, Sample, judge, promotions

LIMITS = Limits(lease=4.0, renewed_every=4.0 / 3)


class Book:
    """A handmade ledger; times are seconds."""

    def __init__(self):
        self.lines = []
        self.faults = []
        self.exits = []

    def write(self, event, at, task_id, *rest):
        """Write a line in the real format, and parse it."""
        self.lines.append(ledger.parse(" ".join(map(str, (event, at, task_id, *rest)))))
        return self

    def published(self, task_id, at=1.0, countdown=0.0):
        """Record a confirmed publish."""
        self.write("P", at, task_id, countdown)
        return self.write("C", at + 0.01, task_id)

    def run(
        self, task_id, start, finish=None, *, worker="w1", pid=11, tag="t1", retries=0, end="F"
    ):
        """Record a run; without *finish*, it never ended."""
        self.write("S", start, task_id, retries, tag, 0, worker, pid)
        if end == "R":
            self.write("R", start, task_id, retries, tag, 0, worker, pid)
        if finish is not None:
            self.write({"R": "T"}.get(end, end), finish, task_id, retries, tag, 0, worker, pid)
        return self

    def fault(self, kind, at, until=None, **known):
        """Record a fault."""
        self.faults.append(Fault(kind, at, at if until is None else until, **known))
        return self

    def verdict(self, limits=LIMITS, *, one_tag=True):
        """Return the verdict of the checker."""
        tasks = histories(self.lines)
        poisoned = [run for task in tasks.values() if task.id[0] == "x" for run in task.runs]
        blame = Blame(self.faults, self.exits, poisoned, limits)
        return check(tasks.values(), blame, limits, one_tag=one_tag)

    def recovery(self, end=100.0):
        """Return the samples of each kind of fault."""
        recovery = Recovery(self.faults, end)
        recovery.add(histories(self.lines).values())
        return recovery.samples()


@pytest.fixture
def book():
    """Return an empty ledger."""
    return Book()


def test_one_run_of_each_passes(book):
    """A confirmed task with one run is no finding."""
    verdict = book.published("i1").run("i1", 2, 3).verdict()
    assert verdict.passed
    assert (verdict.tasks, verdict.runs, verdict.duplicates.total()) == (1, 1, 0)


def test_a_task_that_never_ran_is_lost(book):
    """A confirmed task without a run is lost."""
    assert ["i1"] == book.published("i1").verdict().lost


def test_a_task_that_never_finished_is_lost(book):
    """A confirmed task that started and never finished is lost, whatever was killed."""
    book.published("i1").run("i1", 2).fault("worker-kill", 2.5, worker="w1")
    assert ["i1"] == book.verdict().lost


def test_a_retried_task_that_was_not_done_is_lost(book):
    """A task whose retry never ran is lost."""
    assert ["r1"] == book.published("r1").run("r1", 2, 2.1, end="R").verdict().lost


def test_a_task_acked_early_ends_with_its_process(book):
    """A killed process ends a task that was acked at its begin; each kill explains one unseen."""
    book.published("e1").run("e1", 2).published("e2").published("e3")
    assert ["e1", "e2", "e3"] == book.verdict().lost
    verdict = book.fault("worker-kill", 2.5, worker="w1").verdict()
    assert ([], 3, ["e2", "e3"]) == (verdict.lost, verdict.interrupted, verdict.unrecorded)


def test_a_task_acked_early_runs_once(book):
    """A task that was acked early and ran twice needs a cause, as any other does."""
    book.published("e1").run("e1", 2, 3).run("e1", 4, 5, worker="w2")
    assert not book.verdict().passed


def test_an_unconfirmed_task_may_be_missing(book):
    """An unconfirmed task may be missing, because a failed publish gives no guarantee."""
    verdict = book.write("P", 1, "i1", 0).write("E", 2, "i1", "OperationalError").verdict()
    assert verdict.passed
    assert (0, 1) == (verdict.tasks, verdict.unconfirmed)


def test_a_run_that_nobody_published(book):
    """A task without a publish is a finding."""
    assert ["i1: ran and was never published"] == book.run("i1", 1, 2).verdict().findings


def test_a_duplicate_without_a_cause(book):
    """Two runs without a death are a finding that names both."""
    verdict = book.published("i1").run("i1", 2, 3).run("i1", 4, 5, worker="w2").verdict()
    assert Counter(unexplained=1) == verdict.duplicates
    (finding,) = verdict.findings
    assert "w1" in finding
    assert "w2" in finding


@pytest.mark.parametrize(
    ("kind", "known"),
    [("worker-kill", {"worker": "w1"}), ("child-kill", {"worker": "w1", "pid": 11})],
)
def test_a_death_explains_what_it_interrupted(book, kind, known):
    """A task that ran in a killed process may run again."""
    book.published("i1").run("i1", 2).run("i1", 4, 5, worker="w2", pid=22)
    verdict = book.fault(kind, 2.5, **known).verdict()
    assert verdict.passed
    assert Counter({kind: 1}) == verdict.duplicates


@pytest.mark.parametrize(
    ("at", "known"),
    [
        (2.5, {"worker": "w3"}),  # another worker
        (2.5, {"worker": "w1", "pid": 12}),  # another child
        (0.5, {"worker": "w1"}),  # before the run
        (9.0, {"worker": "w1"}),  # long after the run
        (2.5, {"worker": "w1", "applied": False}),  # not applied
    ],
)
def test_a_death_elsewhere_explains_nothing(book, at, known):
    """A death explains a repeated run only if the worker, the child and the time match."""
    book.published("i1").run("i1", 2, 3).run("i1", 10, 11, worker="w2", pid=22)
    verdict = book.fault("worker-kill", at, **known).verdict()
    assert Counter(unexplained=1) == verdict.duplicates


def test_one_death_does_not_explain_two_more_runs(book):
    """Three runs need two causes, so one death leaves one run unexplained."""
    book.published("i1").run("i1", 2).run("i1", 4, 5, worker="w2").run("i1", 6, 7, worker="w3")
    verdict = book.fault("worker-kill", 2.5, worker="w1").verdict()
    assert Counter({"worker-kill": 1, "unexplained": 1}) == verdict.duplicates


def test_an_ack_that_was_under_way_died_with_its_worker(book):
    """A worker killed right after the end of a task explains a second run: its ack may be lost."""
    book.published("i1").run("i1", 2, 3).run("i1", 5, 6, worker="w2")
    assert book.fault("worker-kill", 3.5, worker="w1").verdict().passed


def test_an_ack_that_waited_for_the_broker_died_with_its_worker(book):
    """A task that ended in an outage may run again if its worker was killed right afterwards."""
    book.published("i1").run("i1", 2, 3).run("i1", 8, 9, worker="w2")
    book.fault("broker-kill", 2.5, 4.0, outage=True)
    assert book.fault("worker-kill", 5.0, worker="w1").verdict().passed


def test_an_ack_that_was_cut_off_before_a_freeze(book):
    """A task may run again if its ack was cut off and a freeze prevented another ack."""
    book.published("i1").run("i1", 2, 2.1).run("i1", 8, 9, worker="w2")
    book.fault("worker-freeze", 4, 10, worker="w1")
    assert not book.verdict().passed
    assert book.fault("net-cut", 2.5, cuts=True).verdict().passed


def test_a_lost_connection_explains_nothing_by_itself(book):
    """A lost connection alone is no excuse, because the ack is sent over the next connection."""
    book.published("i1").run("i1", 2, 2.1).run("i1", 4, 5, worker="w2")
    assert not book.fault("net-cut", 2.5, cuts=True).verdict().passed


def test_the_last_acks_are_lost_with_their_master(book):
    """Acks that the old master had not replicated are lost, but not those of long before."""
    book.published("i1").run("i1", 2, 3).run("i1", 8, 9, worker="w2")
    book.fault("sentinel-kill", 3.2, 5, outage=True, master=True)
    assert Counter({"sentinel-kill": 1}) == book.verdict().duplicates
    book.published("i2").run("i2", 1, 1.1, tag="t2").run("i2", 8, 9, worker="w2", tag="t2")
    assert Counter({"sentinel-kill": 1, "unexplained": 1}) == book.verdict().duplicates


def test_a_death_while_a_retry_was_published(book):
    """A task may run again if it was killed before the publish of its retry was recorded."""
    book.published("r1").run("r1", 2, end="R", tag="a").run("r1", 8, 8.1, end="R", tag="a")
    book.run("r1", 9, 9.1, retries=1, tag="b")
    assert book.fault("main-kill", 5, worker="w1").verdict().passed


def test_poison_excuses_its_neighbours_in_the_same_process(book):
    """Tasks in the process of a poison task died with it, but not those in another child."""
    book.published("x1").run("x1", 2.5, pid=11, tag="tx")
    book.published("i1").run("i1", 2, pid=11).run("i1", 4, 5, worker="w2", pid=22)
    book.published("i2").run("i2", 2, 3, pid=12, tag="t2").run("i2", 4, 5, pid=13, tag="t2")
    verdict = book.verdict()
    assert Counter({"poison": 1, "unexplained": 1}) == verdict.duplicates


def test_a_freeze_longer_than_the_lease(book):
    """Messages of a frozen worker may run elsewhere, and again after it is thawed."""
    book.published("i1").run("i1", 5, 6, worker="w2").run("i1", 9.5, 9.6, worker="w1")
    assert book.fault("worker-freeze", 2, 9, worker="w1").verdict().passed


def test_a_freeze_shorter_than_the_lease_explains_nothing(book):
    """A freeze shorter than the lease is no excuse, because the leases were renewed in time."""
    book.published("i1").run("i1", 2, 5, worker="w1").run("i1", 4, 5, worker="w2")
    assert not book.fault("worker-freeze", 2.5, 4.5, worker="w1").verdict().passed


def test_a_slow_network_lengthens_the_outage_that_it_meets(book):
    """A slow network lengthens an outage, because workers reconnect only after it.

    Without an outage, a slow network explains nothing.
    """
    book.published("i1").run("i1", 2, 2.5).run("i1", 20, 21, worker="w2", pid=22)
    book.fault("worker-kill", 9.0, worker="w1")
    book.fault("net-delay", 4.5, 8.0, slows=0.1)
    assert not book.verdict().passed
    assert book.fault("demotion", 2.6, 3.2, outage=True).verdict().passed


@pytest.mark.parametrize(("killed", "known"), [(4.5, True), (5.5, False)])
def test_an_ack_that_a_slow_network_delayed(book, killed, known):
    """A slow network delays an ack, by the round trips of the duty before it and no longer."""
    book.published("i1").run("i1", 2, 2.5).run("i1", 9, 9.5, worker="w2", pid=22)
    book.fault("net-delay", 2, 6, slows=0.08).fault("worker-kill", killed, worker="w1")
    assert known == book.verdict().passed


def test_half_a_line_tells_nothing(tmp_path):
    """A writer that is killed during a write does not damage the lines of others."""
    path = tmp_path / "runs.ledger"
    writer = ledger.Writer(path)
    writer.write(ledger.STARTED, "i1", 0, "t", 0, "w", 1)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        writer.write(ledger.FINISHED, "i1", 0, "t", 0, "w", 1)
        events = [line.event for line in ledger.read(tmp_path)]
        # A line without its last byte, a line break, is complete.
        assert events == ["F"] if length < len(whole) - 1 else ["S", "F"]
    writer.close()


def test_a_short_outage_explains_nothing(book):
    """An outage shorter than a lease costs no lease."""
    book.published("i1").run("i1", 2, 5).run("i1", 6, 7, worker="w2")
    assert not book.fault("broker-kill", 2.5, 4.0, outage=True).verdict().passed


def test_outages_without_a_pause_are_one(book):
    """Outages without a reconnect in between count as one outage, which is longer than a lease."""
    book.published("i1").run("i1", 2, 9).run("i1", 8, 9, worker="w2")
    book.fault("broker-kill", 2.5, 4.0, outage=True)
    assert book.fault("demotion", 5.0, 6.0, outage=True).verdict().passed


def test_sigterm_excuses_nothing(book):
    """A worker that ended in an orderly way loses nothing, so it excuses nothing."""
    book.published("i1").run("i1", 2, 3).run("i1", 5, 6, worker="w2")
    book.exits.append(Exit("w1", 2.5, 3.2))
    assert not book.verdict().passed


def test_sigterm_while_the_broker_is_away(book):
    """A worker stopped during an outage could not send its acks, which excuses a repeated run."""
    book.published("i1").run("i1", 2, 3).run("i1", 5, 6, worker="w2")
    book.exits.append(Exit("w1", 2.5, 3.2))
    assert book.fault("broker-kill", 2.9, 3.9, outage=True).verdict().passed


def test_a_message_that_was_stored_twice(book):
    """No death explains one publish with two tags."""
    book.published("i1").run("i1", 2, tag="t1").run("i1", 3, 4, tag="t2")
    verdict = book.fault("worker-kill", 2.5, worker="w1").verdict()
    assert ["i1: stored 2 times, not 1 (retry 0)"] == verdict.findings


def test_a_retry_is_stored_once_for_each_run_that_asked(book):
    """A task that died after it had published its retry publishes it again in its next run."""
    book.published("r1").run("r1", 2, 2.1, end="R", tag="a").run("r1", 4, 4.1, end="R", tag="a")
    book.run("r1", 5, 5.1, retries=1, tag="b").run("r1", 6, 6.1, retries=1, tag="c")
    assert book.fault("worker-kill", 2.2, worker="w1").verdict().passed
    book.run("r1", 7, 7.1, retries=1, tag="d")
    assert ["r1: stored 3 times, not 2 (retry 1)"] == book.verdict().findings


def test_a_publish_that_was_retried_at_another_broker(book):
    """With two brokers, a publish during an outage may have been stored at both."""
    book.write("P", 1, "i1", 0).write("C", 4, "i1")
    book.run("i1", 5, 6, tag="a").run("i1", 7, 8, worker="w2", tag="b")
    book.fault("url-failover", 0.5, 8, outage=True)
    two = replace(LIMITS, two_brokers=True)
    assert ["i1: stored 2 times, not 1 (retry 0)"] == book.verdict().findings
    assert book.verdict(two, one_tag=False).passed


def test_a_retry_without_tags_to_tell_it_by(book):
    """If tags may change, a task that requested its retry twice may run it twice."""
    book.published("r1").run("r1", 2, 2.1, end="R", tag="a").run("r1", 4, 4.1, end="R", tag="c")
    book.run("r1", 5, 5.1, retries=1, tag="b").run("r1", 6, 6.1, retries=1, tag="d")
    book.fault("worker-kill", 2.2, worker="w1")
    assert Counter({"worker-kill": 1, "stored twice": 1}) == (
        book.verdict(one_tag=False).duplicates
    )


def test_recovery_from_a_death(book):
    """Recovery lasts from the kill to the next run of the interrupted task, not of others."""
    book.published("i1").run("i1", 2).run("i1", 4, 5, worker="w2")
    book.published("i2").run("i2", 1, 2, tag="t2").run("i2", 6, 7, worker="w2", tag="t2")
    book.fault("worker-kill", 2.5, worker="w1")
    assert {"worker-kill": [1.5]} == book.recovery()


def test_recovery_from_a_broker_that_was_away(book):
    """Recovery lasts from the broker's return to each worker's first run of a new task."""
    for number, (start, worker) in enumerate([(1.0, "w1"), (3.5, "w1"), (1.0, "w2"), (1.0, "w3")]):
        book.published(f"i{number}", at=0.5).run(f"i{number}", start, start, worker=worker)
    book.published("i7", at=2.5).run("i7", 3.75, 4, worker="w1", tag="t7")
    book.published("i8", at=2.5).run("i8", 5.0, 6, worker="w2", tag="t8")
    book.published("l9", at=0.5).run("l9", 1.5, 9, worker="w3", tag="t9")  # w3 was full
    book.published("i9", at=2.5).run("i9", 9.5, 9.6, worker="w3", tag="t10")
    book.fault("broker-kill", 2, 3, lifted=3.0)
    assert {"broker-kill": [0.75, 2.0]} == book.recovery()


def test_percentiles_of_few_samples():
    """The percentiles of few samples always include the maximum."""
    assert {} == percentiles([])
    assert {"p50": 2.0, "p95": 3.0, "p99": 3.0, "max": 3.0} == percentiles([3.0, 1.0, 2.0])


def test_a_task_that_ran_before_its_time(book):
    """A task with a countdown of 3 s must not run after 1 s."""
    verdict = book.published("d1", at=1, countdown=3).run("d1", 2, 3).verdict()
    assert ["d1: ran 2.00 s before its time"] == verdict.findings


def test_poison_belongs_in_the_dead_letters(book):
    """Each poison task is a dead letter once, because of its limit, and no other task is one."""
    verdict = book.published("x1").run("x1", 2).published("x2").run("x2", 2).verdict()
    check_dead(verdict, [("x1", "delivery_limit"), ("x2", "delivery_limit")])
    assert verdict.passed
    check_dead(verdict, [("x1", "rejected"), ("i1", "delivery_limit"), ("x1", "rejected")])
    assert [
        "x1: 2 times in the dead letters",
        "x1: dead because 'rejected', not 'delivery_limit'",
        "i1: innocent, and in the dead letters (delivery_limit)",
        "x1: dead because 'rejected', not 'delivery_limit'",
        "x2: poison, and not in the dead letters",
    ] == verdict.findings


def test_an_innocent_whose_last_delivery_a_fault_ended_is_dead_and_not_lost(book):
    """A task whose last delivery a kill ended is dead, not lost, unless poison was beside it."""
    book.published("l1").run("l1", 2).fault("worker-kill", 3.0, worker="w1")
    verdict = book.verdict()
    assert ["l1"] == verdict.lost
    check_dead(verdict, [("l1", "delivery_limit")])
    assert verdict.passed
    assert {"worker-kill": 1} == verdict.dead_by
    verdict = book.published("x1").run("x1", 2.5).verdict()
    check_dead(verdict, [("l1", "delivery_limit"), ("x1", "delivery_limit")])
    assert ["l1"] == verdict.lost


def test_an_innocent_that_had_finished_may_be_dead_by_a_fault(book):
    """A task that finished without an ack may be killed in its last delivery, and is then dead."""
    book.published("l1").run("l1", 2, 2.5).fault("worker-kill", 2.6, worker="w1")
    book.run("l1", 9, worker="w2")
    verdict = book.verdict()
    check_dead(verdict, [("l1", "delivery_limit")])
    assert any("innocent" in text for text in verdict.findings)
    verdict = book.fault("worker-kill", 10.0, worker="w2").verdict()
    check_dead(verdict, [("l1", "delivery_limit")])
    assert verdict.passed
    assert {"worker-kill": 1} == verdict.dead_by


def test_poison_that_was_not_confirmed_may_be_dead_or_nowhere(book):
    """Unconfirmed poison may be dead or missing, because its publish gives no guarantee."""
    verdict = book.write("P", 1, "x1", 0).write("E", 2, "x1", "OSError").verdict()
    check_dead(verdict, [("x1", "delivery_limit")])
    check_dead(verdict, [])
    assert verdict.passed


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ({"messages"}, "in no place"),
        ({"ready"}, "not in messages"),
        ({"messages", "ready", "delayed"}, "in ready and in delayed"),
        ({"messages", "unacked", "unacked_index"}, "nobody is left"),
        ({"messages", "unacked_index", "ready"}, "not unacked"),
        ({"messages", "dead"}, "without a reason"),
        ({"dead_info"}, "what is not dead"),
        ({"deliveries"}, "delivery count of a message that is gone"),
        ({"expiry"}, "what does not wait"),
        ({"moves"}, "for ever"),
    ],
)
def test_a_tag_out_of_place(place, word):
    """Every wrong place of a tag is reported."""
    wrong = misplaced("q", Contents(**{part: {b"tag"} for part in place}))
    assert any(word in text for text in wrong), wrong


def test_tags_in_their_places():
    """An idle queue may hold ready, delayed or dead messages."""
    tags = Contents(
        messages={b"1", b"2", b"3"},
        ready={b"1"},
        delayed={b"2"},
        dead={b"3"},
        dead_info={b"3"},
        deliveries={b"1", b"3"},
        expiry={b"1"},
    )
    assert [] == misplaced("q", tags)


def test_a_promotion_that_went_back(book):
    """A loss names its promotion, which also excuses repeated runs since the promotion's offset."""
    samples = [Sample(t, 1, 1000 * t, 1000 * t - 10, "ab") for t in range(1, 10)]
    log = time.strftime(
        "7:M %d %b %Y %H:%M:%S.250 # Setting secondary replication ID to ab, valid up to offset: "
        "4101. New replication ID is cd\n"
    )
    (promoted,) = promotions(log, 2)
    assert (2, 4100, "ab") == promoted[1:]
    assert abs(promoted.at - time.monotonic()) < 2
    kill = Fault("sentinel-kill", 9.5, 16, outage=True, master=True)
    (back,) = judge([promoted._replace(at=12.0)], samples, [kill])
    assert (WENT_BACK, 4, 12, True) == (back.kind, back.at, back.until, back.master)
    assert "2 was promoted at offset 4,100; the master 1 had written 9,000" in back.note
    assert "a replica confirmed 8,990" in back.note
    book.faults += [kill, back]
    book.published("i1", 7)
    book.published("i2", 1).run("i2", 1.5, 6, tag="t2").run("i2", 14, 15, worker="w2", tag="t2")
    verdict = book.verdict()
    assert {back.note: 1} == verdict.lost_by
    assert [] == verdict.findings
    (apart,) = judge([Promotion(12.0, 2, 9500, "xy")], samples, [kill])
    assert (WENT_BACK, 0, True) == (apart.kind, apart.at, "of another history" in apart.note)
    assert {"": 1} == Book().published("i1").verdict().lost_by


def test_a_promotion_in_step_is_none_of_it():
    """A promotion after a kill is no event; one without a fault is recorded as a slow master."""
    samples = [Sample(t, 1, 1000 * t, 1000 * t - 10) for t in range(1, 10)]
    one = Promotion(12.0, 2, 9000)
    kill = Fault("sentinel-kill", 9.5, 16, master=True)
    assert [] == judge([one], samples, [kill])
    (twice,) = judge([one, Promotion(13.0, 3, 9100)], [*samples, Sample(12.5, 2, 9100, 0)], [kill])
    assert (PROMOTION, 12.5, 13) == (twice.kind, twice.at, twice.until)
    (found,) = judge([one], samples, [Fault("worker-kill", 9.5, 16, worker="w1")])
    assert (PROMOTION, 9, 12, True, True) == (
        found.kind, found.at, found.until, found.outage, found.master
    )  # fmt: skip


def test_stops_that_leave_no_time_to_renew_are_one(book):
    """Stops without time to renew in between count as one, and excuse a repeated run."""
    book.published("i1").run("i1", 2, 8.5).run("i1", 7, 8, worker="w2")
    book.fault("starve", 3, 5, worker="w1").fault("starve", 5.5, 7.5, worker="w1")
    assert {"starve": 1} == book.verdict().duplicates
    book.faults[1].at = 6.1
    assert not book.verdict().passed

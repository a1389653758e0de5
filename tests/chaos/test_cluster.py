"""A cluster as the broker of a run: reports of its nodes, causes of losses, and a short run."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from reliq.message.queue_names import partition_names
from tests.chaos import cluster_faults
from tests.chaos.cluster_broker import (
    ANCHOR,
    ClusterBroker,
    elections,
    layout,
    owner_of,
    promotions,
    read_claim,
    slot,
)
from tests.chaos.faults import FAULTS, kinds
from tests.chaos.kind import FaultKind
from tests.chaos.model import Fault, Strike
from tests.chaos.nemesis import Nemesis
from tests.chaos.reconnects import reconnects, without_a_cause
from tests.chaos.run import carry_out
from tests.chaos.scorecard import summary
from tests.chaos.settings import Settings
from tests.chaos.test_chaos import told
from tests.chaos.test_checker import LIMITS, Book
from tests.support.waiting import wait_until

NODES = """\
aa 127.0.0.1:1@2 myself,master - 0 17 7 connected 0-5460 5462 [5461->-bb]
bb 127.0.0.1:3@4 master - 0 17 5 connected 5463-16383
cc 127.0.0.1:5@6 slave aa 0 17 7 connected
"""


@pytest.fixture
def book():
    """Return an empty ledger."""
    return Book()


# -- reports of nodes


def test_what_a_node_says_of_itself():
    """A node reports its own slots, and whether a slot is moving."""
    claim = read_claim("node", NODES)
    assert (True, 7, True) == (claim.master, claim.epoch, claim.open)
    assert ((0, 5460), (5462, 5462)) == claim.ranges
    assert [True, False, True, False] == [claim.has(number) for number in (0, 5461, 5462, 5463)]


def test_a_replica_has_no_slots():
    """A replica has no slots, even if its master has some."""
    lines = NODES.replace("myself,", "").replace("slave aa", "myself,slave aa")
    assert not read_claim("node", lines).has(0)


def test_nodes_agree_whatever_is_open():
    """The owners of slots are the same whether or not a slot is moving."""
    assert {"aa": ("0-5460", "5462"), "bb": ("5463-16383",)} == layout(NODES)
    assert layout(NODES) == layout(NODES.replace(" [5461->-bb]", ""))


def test_who_was_elected_last_has_a_slot():
    """The last elected master owns a slot; a frozen one does not know that it was replaced."""
    old = read_claim("old", NODES)
    new = read_claim("new", NODES.replace("17 7 connected", "17 8 connected"))
    assert "new" == owner_of([new, old], 1) == owner_of([old, new], 1)
    assert owner_of([old, new], 5461) is None


def test_an_election_that_nobody_asked_for():
    """An election without a fault, as on a busy machine, explains the loss of acks."""
    now = time.time()
    said = time.strftime("%d %b %Y %H:%M:%S", time.localtime(now))
    (at,) = elections(f"12:S {said}.250 * Failover election won: I'm the new master.\n")
    assert abs(at - time.monotonic()) < 2
    kill = Fault("node-kill", at - 4, at + 2, master=True, queues=frozenset({"chaos"}))
    death = Fault("worker-kill", at - 4, at + 2, worker="w1")
    assert [] == promotions([at], [kill, death])
    (found,) = promotions([at], [death])
    assert ("promotion", True, True) == (found.kind, found.master, found.hit("chaos"))


# -- causes


def lost_ack(book, *, queue="chaos", finish=3.0):
    """Record a task that finished, and ran again."""
    book.write("P", 1, "i1", 0, queue).write("C", 1.1, "i1")
    return book.run("i1", finish - 0.1, finish).run("i1", 8, 9, worker="w2")


def killed(book, at=3.2, queues=("chaos",), **known):
    """Record the kill of a master with those queues."""
    known = {"outage": True, "master": True, "served": at + 3.5, **known}
    return book.fault("node-kill", at, at + 8, queues=frozenset(queues), **known)


def test_the_last_acks_are_lost_with_the_master_of_their_queue(book):
    """The death of a queue's master explains repeated runs: its replicas may lack the last acks."""
    assert Counter({"node-kill": 1}) == killed(lost_ack(book)).verdict().duplicates


def test_another_master_has_lost_nothing_of_the_queue(book):
    """The death of another master explains no repeated run of the queue."""
    verdict = killed(lost_ack(book), queues=["chaos.second", "%"]).verdict()
    assert Counter(unexplained=1) == verdict.duplicates


@pytest.mark.parametrize("tag", ["t1", "t1j"])
def test_the_ack_of_a_job_waits_for_the_node_of_its_batch(book, tag):
    """The ack of a job waits for its batch's node, so it may be lost with the worker meanwhile."""
    book.write("P", 1, "i1", 0, "chaos").write("C", 1.1, "i1")
    book.run("i1", 2.9, 3.0, tag=tag).run("i1", 12, 13, worker="w2", tag=tag)
    book.fault("worker-kill", 5, worker="w1")
    assert killed(book, at=2.5, queues=["%"]).verdict().passed == (tag == "t1j")


@pytest.mark.parametrize("finish", [1.5, 5.0, 7.5])
def test_what_was_done_long_before_or_while_it_was_replaced(book, finish):
    """A master's death explains no lost ack of long before it or of the takeover.

    An old ack was replicated. During the takeover, an ack without a reply is sent again.
    """
    assert not killed(lost_ack(book, finish=finish)).verdict().passed


def test_a_run_that_outlasts_the_master_is_acked_at_its_heir(book):
    """A run that outlasts its master keeps its lease, which has not expired at the takeover."""
    book.write("P", 0, "l1", 0, "chaos").write("C", 0.1, "l1")
    book.run("l1", 1, 9).run("l1", 7, 8, worker="w2")
    assert not killed(book).verdict().passed


def test_a_lease_that_was_lost_with_the_master(book):
    """A message reserved right before the death may run again: the successor lacks its lease."""
    book.write("P", 0, "l1", 0, "chaos").write("C", 0.1, "l1")
    book.run("l1", 2.9, 9).run("l1", 7, 8, worker="w2")
    assert Counter({"node-kill": 1}) == killed(book).verdict().duplicates


def test_a_master_that_is_back_with_all_it_had_has_lost_nothing(book):
    """A master that restarts before its replacement has lost nothing, and excuses nothing."""
    assert not killed(lost_ack(book), master=False, served=0.0).verdict().passed


def test_an_outage_is_that_of_a_queue_and_over_when_it_is_served(book):
    """A worker's death long after the takeover, or after one of another queue, is no excuse."""
    killed(lost_ack(book, finish=4.6))
    book.fault("worker-kill", 6.5, worker="w1")
    assert book.verdict().passed
    later = killed(lost_ack(Book(), finish=4.6)).fault("worker-kill", 13.0, worker="w1")
    assert not later.verdict().passed
    other = killed(lost_ack(Book(), finish=4.6, queue="chaos.second"))
    assert not other.fault("worker-kill", 6.5, worker="w1").verdict().passed


def test_a_partition_is_of_its_queue(book):
    """The death of any partition's node explains a run, as the message's partition is not known."""
    name = partition_names("chaos", 2)[1]
    verdict = killed(lost_ack(book), queues=[name]).verdict()
    assert Counter({"node-kill": 1}) == verdict.duplicates


def test_recovery_is_that_of_the_queues_that_were_hit(book):
    """Runs from other queues are no samples of the recovery."""
    book.write("P", 1, "i0", 0, "chaos").write("C", 1, "i0").run("i0", 1.5, 1.5, tag="t0")
    book.write("P", 3.3, "i1", 0, "chaos.second").write("C", 3.4, "i1").run("i1", 3.5, 3.5)
    book.write("P", 3.3, "i2", 0, "chaos").write("C", 6.8, "i2").run("i2", 7.0, 7.1, tag="t2")
    killed(book, at=3.0)
    assert {"node-kill": [4.0]} == book.recovery()


def test_a_connection_that_was_lost_without_a_cause(tmp_path):
    """Closing all connections explains a lost connection for a while; a node's death does not."""
    path = tmp_path / "threads1.2.log"
    said = time.strftime("%Y-%m-%d %H:%M:%S")
    line = f"[{said},001: WARNING/MainProcess] consumer: Connection to broker lost. Tr\n"
    path.write_text(f"{line}[2000-01-01 00:00:00,001: INFO/MainProcess] it is ready.\n{line}")
    ((worker, at),) = reconnects(tmp_path)
    assert "threads1.2" == worker
    assert abs(time.monotonic() - at) < 3
    kill = Fault("node-kill", at - 1, at + 5, outage=True, queues=frozenset({"chaos"}))
    assert 1 == len(without_a_cause([(worker, at)], [kill], LIMITS))
    cut = Fault("client-kill", at - 2, at - 2, cuts=True)
    assert [] == without_a_cause([(worker, at)], [kill, cut], LIMITS)
    assert 1 == len(without_a_cause([(worker, at + 30)], [kill, cut], LIMITS))


# -- the nemesis


class Slow(FaultKind):
    """A fault that cannot be undone at its due time, and has not ended when it is undone."""

    name, about = "slow", "takes its time"
    of_broker = True

    def apply(self):
        """Record the call."""
        self.stage.append("apply")
        return self._fault()

    def watch(self, fault):
        """Record the call."""
        self.stage.append("watch")

    def ready(self):
        """Return whether it was watched often enough."""
        return self.stage.count("watch") > 3

    def undo(self):
        """Record the call."""
        self.stage.append("undo")

    def left(self, fault):
        """Record the call; return a remainder until it was called often enough."""
        self.stage.append("left")
        return "something" if self.stage.count("left") % 3 else ""


def test_a_fault_is_watched_until_it_can_be_undone_and_the_next_waits_until_it_is_over(monkeypatch):
    """The nemesis watches a fault until it can be undone, and applies the next after its end.

    It never blocks, so that the run can supervise workers meanwhile.
    """
    monkeypatch.setitem(FAULTS, "slow", Slow)
    monkeypatch.setattr(Nemesis, "_AGAIN_S", 0.001)
    did = []
    strikes = [Strike(0.0, "slow", 0.001, 0.5)] * 2
    nemesis = Nemesis(did, strikes, time.monotonic())
    while not nemesis.done:
        nemesis.step()
        time.sleep(0.002)
    assert ["apply", *["watch"] * 4, "undo", "left", "left", "left", "apply"] == did[:10]
    assert ["undo", "left", "left", "left"] == did[-4:]


def test_a_fault_of_a_worker_waits_for_none_of_the_broker(monkeypatch):
    """A worker fault does not wait for a broker fault.

    Otherwise, all due faults would be applied at once when the broker is complete again.
    """
    monkeypatch.setitem(FAULTS, "slow", Slow)
    monkeypatch.setitem(FAULTS, "quick", type("Quick", (Slow,), {"of_broker": False}))
    kinds_due = ("slow", "slow", "quick")
    strikes = [Strike(0.0, kind, 60.0, 0.5) for kind in kinds_due]
    nemesis = Nemesis([], strikes, time.monotonic() - 1)
    assert [True, True, False] == [nemesis.step() is not None for _ in kinds_due]
    assert not nemesis.done


def test_a_fault_that_is_never_over_is_told(monkeypatch):
    """A fault that never ends fails the run, which would otherwise last forever."""
    monkeypatch.setitem(FAULTS, "slow", Slow)
    monkeypatch.setattr(Nemesis, "_LONGEST_S", -1.0)
    nemesis = Nemesis([], [Strike(0.0, "slow", 0.001, 0.5)], time.monotonic())
    nemesis.step()
    time.sleep(0.002)
    with pytest.raises(AssertionError, match=r"slow: .* after it was undone: something"):
        nemesis.step()


def test_the_faults_of_a_cluster_are_for_a_cluster():
    """The faults of a cluster apply to no other broker."""
    ours = {"slot-move", "reshard", "node-kill", "node-freeze", "target-kill", "anchor-flap"}
    assert ours <= set(kinds("cluster"))
    assert {"worker-kill", "child-kill", "script-flush"} <= set(kinds("cluster"))
    assert "broker-kill" not in kinds("cluster")
    for brokers in ("one", "two", "sentinels"):
        assert not ours & set(kinds(brokers))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_cluster_whose_nodes_disagree_for_ever_is_mended(monkeypatch):
    """A slot that only its owner gives to nobody gets its owner back, and the fault says so."""
    monkeypatch.setattr(cluster_faults, "_DISAGREES_S", 0.0)
    with ClusterBroker() as broker:
        wait_until(lambda: not broker.missing(), timeout_s=30, what=broker.missing)
        owner = broker.owner(ANCHOR)
        assert owner is not None
        broker.ask(owner, "CLUSTER", "DELSLOTS", slot(ANCHOR))
        assert broker.missing()
        act = FAULTS["node-failover"](
            SimpleNamespace(broker=broker), Strike(0.0, "node-failover", 0.1, 0.5)
        )
        fault = Fault("node-failover", time.monotonic(), time.monotonic())
        wait_until(lambda: not act.left(fault), timeout_s=60, what=broker.missing)
        assert fault.note == f"; given back to their owners: [{slot(ANCHOR)}]"
        assert broker.owner(ANCHOR) is owner


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_over_a_cluster(tmp_path):
    """A cluster run in which nodes and workers die, freeze and move slots has no finding."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    outcome = carry_out(
        Settings(
            directory=tmp_path,
            seed=seed,
            duration_s=30,
            kinds=kinds("cluster"),
            fault_every_s=2.5,
            poison_every_s=20,
            rate=50,
            workers=3,
            pools=["prefork", "threads", "gevent"],
            brokers="cluster",
        )
    )
    card = summary(outcome, "pytest", {})
    print(json.dumps({key: card[key] for key in ("tasks", "faults", "duplicates", "recovery_s")}))
    assert outcome.verdict.passed, told(outcome)
    assert 6 <= card["faults"]["total"]
    assert 0 < card["poison"]["confirmed"]

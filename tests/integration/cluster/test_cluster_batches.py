"""Operators' view of a cluster's batches, with all nodes and with one node lost."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from click.testing import CliRunner
from kombu import Connection

from reliq import BrokerUnavailable
from reliq.admin import Inspector
from reliq.cli import main
from reliq.cli.batch_watch import readings
from reliq.cli.target import Target
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import batch_keys
from reliq.store.cluster import reads
from reliq.store.urls import connect
from tests.contract.jobs import begin, end, enter
from tests.integration.cluster.test_node_lost import frozen, killed
from tests.integration.features.test_metrics import collect
from tests.integration.kombu_client import declare
from tests.support.cluster import ANCHOR, RedisCluster

BATCHES = [f"b{n}" for n in range(12)]
# The timeout for a lost node is a second or two; the machine may be busy.
SOON_S = 12


@pytest.fixture(scope="module")
def running():
    """Return a cluster of three persistent nodes that serves the remaining slots after a loss."""
    extra = ("--cluster-require-full-coverage", "no")
    with RedisCluster(3, appendonly=True, extra=extra) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    """Return the cluster with batches at every node, each with four jobs, one of them failed."""
    running.flush()
    with Connection(running.url()) as connection:
        for queue in ("celery", "red", "green"):  # at three nodes
            declare(connection, queue)
    with closing(connect(running.url(), {}, "owner/1")) as store:
        for batch in BATCHES:
            store.batches.open_batch(batch, "import", {})
            store.batches.change(batch, [enter(f"j{n}") for n in range(4)])
            store.batches.change(batch, [begin("j0"), end("failed", "j0", why="no")])
    return running


def owner(cluster, batch):
    """Return the node of a batch."""
    return cluster.owner(slot_of(batch_keys("", batch).batch))


def victim_and_its(cluster):
    """Return a node that has batches but not their list, and its batches."""
    anchor = cluster.owner(ANCHOR)
    victim = next(node for node in cluster.masters if node is not anchor)
    return victim, [batch for batch in BATCHES if owner(cluster, batch) is victim]


def run(cluster, *arguments, code=0):
    """Run a command in this process; return its result. Fail if it takes too long."""
    began = time.monotonic()
    done = CliRunner().invoke(main, arguments, env={"RELIQ_URL": cluster.url(), "COLUMNS": "220"})
    assert code == done.exit_code, done.output
    assert time.monotonic() - began < SOON_S
    return done


def test_all_of_it(cluster):
    """Batches of all nodes are listed, shown, sealed, cancelled, audited and measured alike."""
    assert 3 == len({owner(cluster, batch) for batch in BATCHES})
    with Inspector(cluster.url()) as inspector:
        assert set(BATCHES) == {item.id for item in inspector.batches()}
        for batch in BATCHES[:6]:
            assert (4, 1) == (inspector.batch(batch).total, inspector.batch(batch).bad)
            assert ["j0"] == [item.job for item in inspector.job_failures(batch)]
            assert 3 == len(inspector.jobs(batch, "waiting"))
            assert inspector.seal_batch(batch)
            assert inspector.cancel_batch(batch)
        assert [] == [item for item in inspector.audit_batches() if not item.balanced]
        (finding,) = [item for item in inspector.doctor() if item.check == "batches"]
        assert "ok" == finding.severity
        with owner(cluster, "b7").client() as client:
            client.hincrby(batch_keys("", "b7").batch, "waiting", -1)
        assert ["b7"] == [item.batch for item in inspector.audit_batches() if not item.balanced]
    found = collect(cluster.url())
    assert {"sealed": 6, "open": 6, "ended": 0} == found.by("stage", "reliq_batches")
    assert 0 == found.of("reliq_batches_untold")


@pytest.mark.parametrize("lose", [killed, pytest.param(frozen, marks=pytest.mark.slow)])
def test_the_node_of_some_batches_is_lost(cluster, lose, monkeypatch):
    """With one node lost, its batches are named without a long wait, and the others are shown."""
    victim, lost = victim_and_its(cluster)
    assert 0 < len(lost) < len(BATCHES)
    others = set(BATCHES) - set(lost)
    at = f"127.0.0.1:{victim.port}"
    with lose(cluster, victim):
        # Unreadable batches on a page do not end the list.
        with monkeypatch.context() as patch, Inspector(cluster.url()) as inspector:
            patch.setattr("reliq.admin.batches.MOST", 5)
            found = inspector.audit_batches()
            untold = found.unreachable
        assert others == {item.batch for item in found}
        assert set(lost) == {name for item in untold for name in item.batches}
        for command in ("list", "audit"):
            words = ("batch", "list") if command == "list" else ("audit",)
            done = run(cluster, *words, code=2)
            assert at in done.stderr
            assert set(lost) == {batch for batch in BATCHES if f"'{batch}'" in done.stderr}
            assert all(f" {batch} " in done.stdout for batch in others)
        for words in (("show",), ("watch",), ("seal",), ("cancel", "--yes")):
            assert at in run(cluster, "batch", *words, lost[0], code=2).stderr
        assert "failed job" in run(cluster, "batch", "show", min(others)).stdout
        found = collect(cluster.url())
        assert 1 == found.of("reliq_up")
        assert len(others) == found.by("stage", "reliq_batches")["open"]
        assert len(lost) == found.of("reliq_batches_untold")
        with Inspector(cluster.url()) as inspector:
            (finding,) = [i for i in inspector.doctor() if i.check == "batches"]
            assert ("error", True) == (finding.severity, at in finding.message)
            with pytest.raises(BrokerUnavailable, match=at):
                inspector.batches().whole()


@pytest.mark.slow
def test_the_node_of_their_list_is_lost(cluster):
    """With the list of batches lost, commands report it, and a batch is still shown by its id."""
    anchor = cluster.owner(ANCHOR)
    there = next(batch for batch in BATCHES if owner(cluster, batch) is not anchor)
    with killed(cluster, anchor):
        for words in (("batch", "list"), ("audit",)):
            done = run(cluster, *words, code=2)
            assert "the list of batches is unreadable" in done.stderr
            assert f"127.0.0.1:{anchor.port}" in done.stderr
        assert "failed job" in run(cluster, "batch", "show", there).stdout
        assert {} == collect(cluster.url()).by("stage", "reliq_batches")


@pytest.mark.slow
def test_a_watch_goes_on_when_its_node_is_back(cluster):
    """A watch names its lost node and continues after the node's return."""
    victim, (batch, *_) = victim_and_its(cluster)
    named = []

    def away(error):
        named.append(error)
        if not victim.running:
            victim.start()

    looking = readings(Target((cluster.url(),)), batch, 0.1, 60.0, away)
    next(looking)
    victim.kill()
    try:
        assert 4 == next(looking)["total"]
    finally:
        if not victim.running:
            victim.start()
        cluster.wait_whole()
    assert f"127.0.0.1:{victim.port}" in named[0]


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_node_that_freezes_while_it_is_asked(cluster, place, monkeypatch):
    """Batches of a node that freezes during a query are errors naming it; the others are read."""
    victim = cluster.masters[place]
    lost = {batch for batch in BATCHES if owner(cluster, batch) is victim}
    with closing(connect(cluster.url(), {}, "owner/1")) as store:
        answering = reads.answering

        def then_freeze(wire):
            found = answering(wire)
            victim.freeze()
            return found

        monkeypatch.setattr(reads, "answering", then_freeze)
        try:
            found = store.batches.records(BATCHES)
        finally:
            victim.thaw()
            cluster.wait_whole()
    assert lost == {name for item in found.unreachable for name in item.batches}
    assert all(f"127.0.0.1:{victim.port}" in item.error for item in found.unreachable)
    assert dict.fromkeys(set(BATCHES) - lost, 4) == {one.id: one.total for one in found}

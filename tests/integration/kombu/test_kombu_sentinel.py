"""reliq-sentinel:// with a real group: the master is found, followed and checked."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress

import celery.app.trace  # noqa: F401 - as each worker does
import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import Connection

from reliq import Batch, BrokerUnavailable, ConfigurationError, NotConfirmed
from reliq.admin import Inspector
from reliq.batches.jobs import Change
from reliq.cli import main
from reliq.integrations.job_runs import run_job
from reliq.values.job_headers import BATCH
from tests.support.audits import assert_balanced, wait_settled
from tests.support.sentinels import MASTER_NAME, SentinelGroup, role_of
from tests.support.site import close_app
from tests.support.waiting import wait_until

from ..kombu_client import FAST, Taker, get, publish
from .test_kombu_faults import take_anyhow

OPTIONS = {**FAST, "visibility_timeout": 30, "socket_timeout": 2, "socket_connect_timeout": 1}
RETRY = {
    "retry": True,
    "retry_policy": {
        "max_retries": 100,
        "interval_start": 0.1,
        "interval_step": 0.1,
        "interval_max": 0.5,
    },
}


@pytest.fixture
def groups():
    """Return a function that starts a Sentinel group; it takes the arguments of SentinelGroup."""
    started = []

    def start(**options):
        group = SentinelGroup(**options)
        started.append(group)
        return group.start()

    yield start
    for group in started:
        group.destroy()


def connect(group, **options):
    """Return a connection through the Sentinels of *group*."""
    return Connection(group.url(), transport_options={**OPTIONS, **group.options, **options})


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_failover_keeps_leases_and_acks(groups, fault):
    """Leases continue at the new master, and acks from before the failover arrive there."""
    group = groups(down_after_ms=2000)
    with connect(group) as connection, connect(group, client_name="publisher") as publisher:
        taker = Taker(connection, "q", prefetch_count=2)
        publish(publisher, "q", "x", "y", "z")
        x, y = taker.take(2)
        old = group.master()
        replicas = [server for server in group.servers if server is not old]
        wait_until(
            lambda: {s.client().zcard("reliq:{q}:unacked_index") for s in replicas} == {2},
            what="replicas that know of the leases",
        )
        old.kill() if fault == "killed" else old.freeze()
        x.ack()
        publisher.Producer().publish("late", exchange="", routing_key="q", **RETRY)
        group.wait_failover(old)
        group.wait_for_replies()
        # Without a renewal at the new master, y would be delivered again.
        (z,) = take_anyhow(connection, taker)
        y.ack()
        z.ack()
        (late,) = take_anyhow(connection, taker)
        late.ack()
        old.thaw()
        options = {**OPTIONS, **group.options}

        def settled():
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            with Inspector(group.url(), options) as inspector:
                seen.append(inspector.status("q"))
            return seen[-1].unacked == 0

        seen = []
        wait_until(settled, what=lambda: f"acks at the new master; have {seen[-1]}")
        assert ["x", "y", "z", "late"] == [message.payload for message in taker.messages]
    wait_settled(group.url(), "q", transport_options=options)


@pytest.mark.slow
def test_a_silent_and_a_dead_sentinel_are_passed_by(groups):
    """A client skips a dead Sentinel at once, a frozen one after a second, and asks the third."""
    group = groups(replicas=0)
    group.kill_sentinel(0)
    group.freeze_sentinel(1)
    with connect(group) as connection:
        publish(connection, "q", "x")
        assert "x" == get(connection, "q", no_ack=True).payload
    assert_balanced(group.url(), group.options)


def test_what_a_sentinel_says_is_checked(groups):
    """A client refuses a named master that reports itself as a replica."""
    group = groups(replicas=1, sentinels=1, down_after_ms=60_000)
    named, other = group.servers
    other.promote()
    named.follow(other)
    wait_until(lambda: role_of(named) == "slave")
    with closing(connect(group)) as connection:
        with pytest.raises(BrokerUnavailable, match=f"{named.port}/0 is named .*but is a slave"):
            connection.transport.establish_connection()
        named.promote()
        connection.connect()
        publish(connection, "q", "x")
        assert "x" == get(connection, "q", no_ack=True).payload


def test_logins_of_sentinels_and_master(groups):
    """The URL holds the master's password, an option the Sentinels'; no error shows either."""
    group = groups(replicas=0, sentinels=1, password="of:the@master", sentinel_password="theirs")
    with connect(group) as connection:
        publish(connection, "q", "x")
        assert "x" == get(connection, "q", no_ack=True).payload
    for wrong in ({"sentinel_password": None}, {"sentinel_password": "guessed"}):
        with closing(connect(group, **wrong)) as connection:
            with pytest.raises(BrokerUnavailable) as caught:
                connection.transport.establish_connection()
            assert "theirs" not in str(caught.value)
            assert "guessed" not in repr(connection.transport.options)
    with Inspector(group.url(), group.options) as inspector:
        assert ["q"] == inspector.queues()


def test_a_master_that_no_sentinel_knows(groups):
    """The error for an unknown master names the option ``master_name``."""
    group = groups(replicas=0, sentinels=1)
    with (
        closing(connect(group, master_name="other")) as connection,
        pytest.raises(BrokerUnavailable, match=r"no master 'other' .*master_name"),
    ):
        connection.transport.establish_connection()


def test_urls_that_contradict_each_other():
    """Contradictory or incomplete Sentinel URLs are refused, with the reason, before connecting."""
    named = {"master_name": MASTER_NAME}
    for url, options, words in (
        ("reliq-sentinel://a/0", {}, "master_name"),
        ("reliq-sentinel://a/0;reliq-sentinel://b/1", named, "database"),
        ("reliq-sentinel://:x@a/0;reliq-sentinel://:y@b/0", named, "password"),
        ("reliq-sentinel://a/zero", named, "'zero'"),
        ("reliq-sentinel://a,b:1,c/0", named, "';'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Inspector(url, options)
        if "," in url:
            continue  # Kombu itself cannot read it
        with pytest.raises(ConfigurationError, match=words) as caught:
            _ = Connection(url, transport_options=options).transport
        assert ":x@" not in str(caught.value)


def test_one_url_may_say_it_for_all():
    """One URL may give database and password for all, and the order does not change the broker."""
    urls = ("reliq-sentinel://:x@a:1/2", "reliq-sentinel://b")
    named = {"master_name": MASTER_NAME}
    first, second = (
        Connection(";".join(order), transport_options=named).transport.address
        for order in (urls, urls[::-1])
    )
    assert first.identity == second.identity
    assert (2, "x") == (first.master.db, first.master.password)
    assert [("a", 1), ("b", 26379)] == [(s.host, s.port) for s in first.sentinels]
    assert "x" not in repr(first.master) + str(first)


@pytest.mark.slow
@pytest.mark.parametrize("confirm", ["accepted", "replicated"])
def test_what_only_the_dead_master_had(groups, confirm):
    """With the default, a failover loses messages confirmed without a connected replica.

    With confirm="replicated", the publisher receives NotConfirmed for such a message instead.
    """
    group = groups(password="secret")
    options = {"confirm": confirm, "confirm_timeout": 0.3}
    confirmed = []

    def publish_as_many_as_possible(connection, numbers):
        for number in numbers:
            with suppress(NotConfirmed):
                publish(connection, "q", number)
                confirmed.append(number)

    with connect(group, **options) as connection:
        publish_as_many_as_possible(connection, range(10))
        old = group.master()
        replicas = [server for server in group.servers if server is not old]
        wait_until(lambda: {s.client().zcard("reliq:{q}:ready") for s in replicas} == {10})
        for server in replicas:
            server.client().config_set("masterauth", "wrong")
        old.client().client_kill_filter(_type="replica")
        publish_as_many_as_possible(connection, range(10, 20))
        old.kill()
        for server in replicas:
            server.client().config_set("masterauth", "secret")
        group.wait_failover(old)
    with connect(group) as connection:
        found = []
        while message := get(connection, "q", no_ack=True):
            found.append(message.payload)
    lost = set(confirmed) - set(found)
    print(f"{confirm}: {len(confirmed)} of 20 confirmed, {len(lost)} of them lost")
    expected = set(range(10, 20)) if confirm == "accepted" else set()
    assert expected == lost
    assert set(range(10)) <= set(found)
    assert_balanced(group.url(), group.options)


CONFIGURED = ("min-replicas-to-write", "replica-priority")


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["not", *CONFIGURED])
def test_a_replica_that_is_promoted_in_its_synchronisation(groups, configured):
    """A replica that restarted with its old dump is promoted if the other servers are dead.

    Messages confirmed since that dump are then lost, with any `confirm`. They are not lost if
    every write needs both replicas, or if only a synchronised replica may be promoted.
    """
    by_count, by_priority = (configured == name for name in CONFIGURED)
    group = groups(appendonly=by_priority)
    master = group.master()
    other, old = (server for server in group.servers if server is not master)
    wait_until(lambda: int(master.client().info("replication")["connected_slaves"]) == 2)
    options = {"confirm": "replicated", "confirm_timeout": 1.0, "confirm_replicas": 1 + by_count}
    confirmed = []

    def publish_all(connection, numbers):
        for number in numbers:
            with suppress(NotConfirmed, BrokerUnavailable):
                publish(connection, "q", number)
                confirmed.append(number)

    with connect(group, **options) as connection:
        publish_all(connection, range(3))
        before = old.client().info("replication")["slave_repl_offset"]
        old.client().save()
        old.kill()
        # The backlog no longer has the missed writes: the replica needs a full copy, which is
        # delayed.
        master.client().config_set("repl-backlog-size", 16384)
        master.client().config_set("repl-diskless-sync-delay", 600)
        master.client().set("filler", "x" * 100_000)
        master.client().config_set("min-replicas-to-write", 2 * by_count)
        if by_priority:
            old.extra = ["--replica-priority", "0"]
        old.start()
        publish_all(connection, range(3, 6))
        assert "down" == old.client().info("replication")["master_link_status"]
        other.kill()
        master.kill()
        if by_priority:
            time.sleep(3)  # a failover takes two
            assert "slave" == role_of(old)
            master.start()
        else:
            assert old is group.wait_failover(master)
            promoted = old.client().info("replication")["second_repl_offset"] - 1
            print(f"{configured}: promoted at {promoted}, saved at {before}")
    with connect(group) as connection:
        found = []
        while message := get(connection, "q", no_ack=True):
            found.append(message.payload)
    lost = set(confirmed) - set(found)
    print(f"{configured}: {len(confirmed)} of 6 confirmed, {len(lost)} of them lost")
    expected = {"not": (6, {3, 4, 5}), CONFIGURED[0]: (3, set()), CONFIGURED[1]: (6, set())}
    assert expected[configured] == (len(confirmed), lost)


def test_the_doctor_names_a_group_that_can_lose_what_it_confirmed(groups):
    """The doctor reports a group whose failover can lose confirmed messages.

    It reads INFO of the master. It reports nothing if INFO is denied, or for a single server.
    """
    group = groups(replicas=1, sentinels=1)

    def found(url, **options):
        with Inspector(url, options) as inspector:
            return [item for item in inspector.doctor() if item.check == "failover"]

    (finding,) = found(group.url(), **group.options)
    assert "warning" == finding.severity
    assert "min-replicas-to-write is 0" in finding.message
    assert "1 of 2 replicas" in finding.message
    assert "appendonly is no" in finding.message
    assert "min-replicas-to-write 1" in finding.remedy
    admin = group.master().client()
    admin.config_set("min-replicas-to-write", 1)
    admin.config_set("appendonly", "yes")
    (finding,) = found(group.url(), **group.options)
    assert (
        "a failover can lose confirmed messages: 1 of 2 replicas are connected" == finding.message
    )
    assert [] == found(group.master().url())
    admin.execute_command("ACL", "SETUSER", "default", "-info")
    assert [] == found(group.url(), **group.options)


def test_the_commands_find_the_master(groups):
    """The commands take URLs and the master's name from options or from the environment."""
    group = groups(replicas=0, sentinels=1)
    with connect(group) as connection:
        publish(connection, "q", "x")
    named = ["--url", group.url(), "--master-name", MASTER_NAME]
    for arguments, environment in (
        (["audit", *named], {}),
        (["status"], {"RELIQ_URL": group.url(), "RELIQ_MASTER_NAME": MASTER_NAME}),
    ):
        result = CliRunner().invoke(main, [*arguments, "--json"], env=environment)
        assert 0 == result.exit_code, result.output
        assert '"q"' in result.output
    result = CliRunner().invoke(main, ["audit", "--url", group.url()])
    assert 2 == result.exit_code
    assert "master_name" in result.output


def test_a_queue_is_moved_to_a_group(groups, fresh_redis):
    """`reliq move` finds the master of a side that has Sentinels."""
    group = groups(replicas=0, sentinels=1)
    with Connection(fresh_redis.url()) as connection:
        publish(connection, "q", "x")
    urls = ["--from", fresh_redis.url(), "--to", group.url()]
    result = CliRunner().invoke(main, ["move", "q", *urls, "--master-name", MASTER_NAME, "--json"])
    assert (0, {"q": 1}) == (result.exit_code, json.loads(result.stdout)), result.output
    with connect(group) as connection:
        assert ["x"] == Taker(connection, "q").take_bodies(1)
    assert_balanced(group.url(), group.options)


@pytest.mark.slow
def test_a_job_asks_no_former_master(groups):
    """A connection that was idle during a failover does not let a cancelled job run."""
    group = groups(down_after_ms=1000)
    app = Celery("jobs", broker=group.url())
    app.conf.broker_transport_options = {**OPTIONS, **group.options}
    ran = []

    def traced(name, task_id, request):
        ran.append(task_id)
        return 0, None, 0.1

    def run(batch, job):
        return run_job(traced, "task", job, {"id": job, BATCH: batch.id, "retries": 0})

    def opened(job):
        with Batch("jobs", app=app) as batch:
            batch._connected().batches.change(batch.id, (Change("enter", job, "waiting"),))
        return batch

    old = group.master()
    with closing(opened("first")) as first:
        run(first, "first")
    old.freeze()
    group.wait_failover(old)
    with closing(opened("second")) as second:
        second.cancel()
        old.thaw()
        assert "master" == role_of(old)
        run(second, "second")
        assert ["first"] == ran
        assert 1 == second.status().counts["cancelled"]
    close_app(app)

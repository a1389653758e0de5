from tests.contract.steps import message
from tests.support.waiting import wait_until

# -- who consumes what


def test_consumers_come_and_go(store):
    """Each is listed while it has a subscription."""
    store.declare()
    assert store.store.attach("q", "host:1", 1)
    assert store.store.attach("q", "host:1", 2)
    assert store.store.attach("q", "host:2", 1)
    assert ["host:1", "host:2"] == store.store.consumers_of("q")
    assert store.store.attach("q", "host:1", 1)
    assert ["host:1", "host:2"] == store.store.consumers_of("q")
    assert store.store.attach("q", "host:1", 0)
    assert ["host:2"] == store.store.consumers_of("q")
    assert [] == store.store.consumers_of("unknown")


def test_leaving_a_queue_keeps_what_is_held(store):
    """Leases do not depend on a subscription."""
    store.publish(message())
    store.store.attach("q", "s/1", 1)
    (held,) = store.take()
    store.store.attach("q", "s/1", 0)
    assert [] == store.renew(held)


def test_auto_delete_with_the_last_consumer(store):
    """The queue goes, with all in it, when the last one leaves, not before."""
    store.declare(auto_delete="1")
    store.publish(message())
    store.store.attach("q", "host:1", 1)
    store.store.attach("q", "host:2", 1)
    assert store.store.attach("q", "host:1", 0)
    assert {"ready": 1} == store.places()
    assert not store.store.attach("q", "host:2", 0)
    assert store.store.status("q") is None
    assert [] == store.store.queues()


def test_auto_delete_waits_for_the_first_consumer(store):
    """A queue that nobody consumed yet stays; one who was not there cannot leave it."""
    store.declare(auto_delete="1")
    assert store.store.attach("q", "stranger", 0)
    assert ["q"] == store.store.queues()


def test_without_auto_delete_a_queue_stays(store):
    """The last consumer leaves it as it is."""
    store.declare()
    store.publish(message())
    store.store.attach("q", "host:1", 1)
    assert store.store.attach("q", "host:1", 0)
    assert {"ready": 1} == store.places()


def test_leaving_a_queue_that_is_gone(store):
    """It is as if it had been left before."""
    assert store.store.attach("q", "host:1", 0)
    assert store.store.status("q") is None


# -- x-expires


def test_a_queue_without_x_expires_never_expires(store):
    """if_idle refuses for ever: there is no time to wait for."""
    store.declare()
    assert ("not_idle", -1) == store.delete(if_idle=True)


def test_an_idle_queue_expires(store):
    """After so many ms without consumer or use it may go, with all in it."""
    store.declare(expires="30")
    store.publish(message())
    outcomes = []
    wait_until(
        lambda: outcomes.append(store.delete(if_idle=True)) or outcomes[-1][0] == "deleted",
        interval_s=0.005,
    )
    assert all(outcome == "not_idle" and 0 < left <= 30 for outcome, left in outcomes[:-1])
    assert store.store.status("q") is None


def test_a_consumer_keeps_a_queue(store):
    """While one is there the time does not even begin."""
    store.declare(expires="30")
    store.declare("clock", expires="60")
    store.store.attach("q", "host:1", 1)
    wait_until(lambda: store.delete("clock", if_idle=True)[0] == "deleted", interval_s=0.005)
    assert ("not_idle", 30) == store.delete(if_idle=True)
    store.store.attach("q", "host:1", 0)
    assert "not_idle" == store.delete(if_idle=True)[0]
    wait_until(lambda: store.delete(if_idle=True)[0] == "deleted", interval_s=0.005)


def test_use_keeps_a_queue(store):
    """To declare it again or to look for a message is use; publishing to it is not."""
    store.declare(expires="60000")
    lefts = []
    for use in (store.declare, store.reserve):
        wait_until(lambda: store.delete(if_idle=True)[1] < 59_500, interval_s=0.02)
        use()
        lefts.append(store.delete(if_idle=True)[1])
    wait_until(lambda: store.delete(if_idle=True)[1] < 59_500, interval_s=0.02)
    store.publish(message())
    assert 59_500 > store.delete(if_idle=True)[1]
    assert all(59_500 <= left <= 60_000 for left in lefts)


def test_a_queue_is_looked_at_by_one(store):
    """Who is told of a queue is to look; if that one does not, another is told, later."""
    store.declare("short", expires="1")
    wait_until(lambda: store.heartbeat("host:1", 1000) == ["short"], interval_s=0.002)
    assert [] == store.heartbeat("host:2", 1000)
    wait_until(lambda: store.heartbeat("host:2", 1000) == ["short"], interval_s=0.01)


def test_a_heartbeat_names_queues_whose_time_may_be_up(store):
    """Those whose x-expires is to be looked at now; a look that comes too soon asks for another."""
    store.declare("plain")
    store.declare("long", expires="60000")
    assert [] == store.heartbeat("host:1")
    store.declare("short", expires="20")
    wait_until(lambda: store.heartbeat("host:1") == ["short"], interval_s=0.005)
    store.store.attach("short", "host:1", 1)
    assert ("not_idle", 20) == store.delete("short", if_idle=True)
    wait_until(lambda: store.heartbeat("host:1") == ["short"], interval_s=0.005)
    store.delete("short")
    assert [] == store.heartbeat("host:1")


# -- who lives


def record(store):
    """Return what a consumer that is connected as *store* says of itself."""
    client_id, run_id = store.store.server()
    return {"client_id": client_id, "run_id": run_id}


def test_liveness_of_a_connected_consumer(store, other):
    """Its queues, its connection and the server's run are known, to others too."""
    mine = record(store)
    store.heartbeat("host:1", **mine, queues="q\nr")
    known = other.store.liveness(["host:1"])["host:1"]
    assert (mine["client_id"], mine["run_id"], ("q", "r"), True) == known


def test_liveness_of_a_consumer_whose_connection_is_gone(store, connect):
    """Its record says that it lived; that it is connected no longer is seen at once."""
    dying = connect("s/2")
    dying.heartbeat("host:1", **record(dying))
    assert store.store.liveness(["host:1"])["host:1"].connected
    dying.store.close()
    wait_until(lambda: not store.store.liveness(["host:1"])["host:1"].connected, interval_s=0.01)


def test_liveness_of_another_run_of_the_server(store):
    """A connection of before a restart says nothing: it is not taken for gone."""
    store.heartbeat("host:1", client_id="999999", run_id="of before")
    assert store.store.liveness(["host:1"])["host:1"].connected


def test_liveness_of_one_that_never_came(store):
    """Nothing is known of it; of several, each has its own answer."""
    store.heartbeat("host:1", **record(store))
    known = store.store.liveness(["host:1", "host:2"])
    assert ["host:1", "host:2"] == sorted(known)
    assert known["host:1"].connected
    assert known["host:2"] is None
    assert {"host:2": None} == store.store.liveness(["host:2"])


def test_a_forgotten_consumer_is_not_known(store):
    """Who says goodbye leaves nothing in the register."""
    store.heartbeat("host:1", **record(store))
    store.store.forget_consumer("host:1")
    store.store.forget_consumer("host:2")
    assert {"host:1": None} == store.store.liveness(["host:1"])


def test_a_record_lapses_without_heartbeats(store):
    """After its ttl nothing is known of a consumer, and a heartbeat brings it back."""
    store.heartbeat("host:1", 30, **record(store))
    wait_until(lambda: store.store.liveness(["host:1"])["host:1"] is None, interval_s=0.01)
    store.heartbeat("host:1", **record(store))
    assert store.store.liveness(["host:1"])["host:1"].connected


# -- for operators


def test_the_register_can_be_read(store):
    """Who consumes: host, process, version, queues, since when, last seen, how much it holds."""
    before = store.store.now_ms()
    mine = record(store)
    given = {"host": "h", "pid": "7", "version": "1", "started_ms": "5", "held": "3"}
    store.heartbeat("h:7:b", **mine, **given, queues="q\nr")
    store.heartbeat("h:7:a", **mine, **given)
    first, second = store.store.consumers()
    assert ("h:7:a", ()) == (first.id, first.queues)
    assert ("h:7:b", "h", 7, "1", ("q", "r")) == (
        second.id,
        second.host,
        second.pid,
        second.version,
        second.queues,
    )
    assert (5, 3, True) == (second.started_ms, second.held, second.connected)
    assert before <= second.seen_ms <= store.store.now_ms()


def test_the_register_names_no_ghosts(store):
    """Neither who said goodbye is in it nor whose heartbeats have stopped."""
    assert [] == store.store.consumers()
    mine = record(store)
    store.heartbeat("h:1", 30, **mine, host="h", pid="1", version="1")
    store.heartbeat("h:2", **mine, host="h", pid="2", version="1")
    assert "h:2" in [consumer.id for consumer in store.store.consumers()]
    store.store.forget_consumer("h:2")
    wait_until(lambda: [] == store.store.consumers(), interval_s=0.01)

import pytest

from tests.contract.steps import message
from tests.support.waiting import wait_until

# -- consumers of queues


@pytest.mark.slow
def test_consumers_come_and_go(store):
    """A consumer is listed for a queue while it has a subscription."""
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
    """The end of a subscription does not end the leases of its consumer."""
    store.publish(message())
    store.store.attach("q", "s/1", 1)
    (held,) = store.take()
    store.store.attach("q", "s/1", 0)
    assert [] == store.renew(held)


def test_auto_delete_with_the_last_consumer(store):
    """An auto_delete queue is deleted with its messages when the last consumer leaves."""
    store.declare(auto_delete="1")
    store.publish(message())
    store.store.attach("q", "host:1", 1)
    store.store.attach("q", "host:2", 1)
    assert store.store.attach("q", "host:1", 0)
    assert {"ready": 1} == store.places()
    assert not store.store.attach("q", "host:2", 0)
    assert store.store.reads.status("q") is None
    assert [] == store.store.queues()


def test_auto_delete_waits_for_the_first_consumer(store):
    """An auto_delete queue without a first consumer stays, even if a stranger leaves it."""
    store.declare(auto_delete="1")
    assert store.store.attach("q", "stranger", 0)
    assert ["q"] == store.store.queues()


def test_without_auto_delete_a_queue_stays(store):
    """A queue without auto_delete stays unchanged when its last consumer leaves."""
    store.declare()
    store.publish(message())
    store.store.attach("q", "host:1", 1)
    assert store.store.attach("q", "host:1", 0)
    assert {"ready": 1} == store.places()


def test_leaving_a_queue_that_is_gone(store):
    """A consumer may leave a missing queue, as if it had left before."""
    assert store.store.attach("q", "host:1", 0)
    assert store.store.reads.status("q") is None


# -- x-expires


def test_a_queue_without_x_expires_never_expires(store):
    """A queue without x-expires never expires: if_idle always refuses."""
    store.declare()
    assert ("not_idle", -1) == store.delete(if_idle=True)


def test_an_idle_queue_expires(store):
    """An idle queue may be deleted with its messages after its x-expires."""
    store.declare(expires="30")
    store.publish(message())
    outcomes = []
    wait_until(
        lambda: outcomes.append(store.delete(if_idle=True)) or outcomes[-1][0] == "deleted",
        interval_s=0.005,
    )
    assert all(outcome == "not_idle" and 0 < left <= 30 for outcome, left in outcomes[:-1])
    assert store.store.reads.status("q") is None


@pytest.mark.slow
def test_a_consumer_keeps_a_queue(store):
    """While a queue has a consumer, its x-expires does not begin."""
    store.declare(expires="500")
    store.declare("clock", expires="1000")
    store.store.attach("q", "host:1", 1)
    wait_until(lambda: store.delete("clock", if_idle=True)[0] == "deleted", interval_s=0.005)
    assert ("not_idle", 500) == store.delete(if_idle=True)
    store.store.attach("q", "host:1", 0)
    assert "not_idle" == store.delete(if_idle=True)[0]
    wait_until(lambda: store.delete(if_idle=True)[0] == "deleted", interval_s=0.005)


@pytest.mark.slow
def test_use_keeps_a_queue(store):
    """A declaration or a reserve counts as use of a queue; a publish does not."""
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
    """A queue in need of a check is given to one consumer, and to another one a while later."""
    store.declare("q")
    assert ["q"] == store.heartbeat("host:1", again_ms=100)
    assert [] == store.heartbeat("host:2", again_ms=100)
    wait_until(lambda: store.heartbeat("host:2", again_ms=100) == ["q"], interval_s=0.01)


def test_every_queue_is_looked_at(store):
    """Every queue is checked, also one without arguments: messages may expire in it."""
    store.declare("declared", expires="60000")
    store.store.publish([message("made")])
    store.store.list_queue("made")
    assert ["declared", "made"] == sorted(store.heartbeat("host:1"))
    store.delete("made")
    assert [] == store.heartbeat("host:1")


@pytest.mark.slow
def test_very_many_queues_are_looked_at_in_turn(store):
    """A heartbeat returns some hundred queues to check, and whether there are more."""
    for number in range(600):
        store.store.create_queue(f"q{number}")
    told = []
    for more in (True, False):
        duties = store.duties("host:1", again_ms=1)
        told += duties.due
        assert more == duties.more
    assert 600 == len(set(told)) == len(told)
    # 500 per second, whatever was requested: all of them again after 1.2 s.
    wait_until(lambda: store.duties("host:2", again_ms=1).due)


# -- living consumers


def record(store):
    """Return the record of a consumer that is connected as *store*."""
    client_id, run_id = store.store.server()
    return {"client_id": client_id, "run_id": run_id}


def test_liveness_of_a_connected_consumer(store, other):
    """The liveness of a consumer shows its queues, its connection and the run of the server."""
    mine = record(store)
    store.heartbeat("host:1", **mine, queues="q\nr")
    known = other.store.liveness(["host:1"])["host:1"]
    assert (mine["client_id"], mine["run_id"], ("q", "r"), True) == known[:4]
    assert not known.lapsed


def test_liveness_of_a_consumer_whose_connection_is_gone(store, connect):
    """The liveness of a consumer shows at once that its connection was closed."""
    dying = connect("s/2")
    dying.heartbeat("host:1", **record(dying))
    assert store.store.liveness(["host:1"])["host:1"].connected
    dying.store.close()
    wait_until(lambda: not store.store.liveness(["host:1"])["host:1"].connected, interval_s=0.01)


def test_liveness_of_another_run_of_the_server(store):
    """A connection from before a restart of the server counts as connected: it proves nothing."""
    store.heartbeat("host:1", client_id="999999", run_id="of before")
    assert store.store.liveness(["host:1"])["host:1"].connected


def test_liveness_of_one_that_never_came(store):
    """The liveness of an unknown consumer is None, independent of the others in the query."""
    store.heartbeat("host:1", **record(store))
    known = store.store.liveness(["host:1", "host:2"])
    assert ["host:1", "host:2"] == sorted(known)
    assert known["host:1"].connected
    assert known["host:2"] is None
    assert {"host:2": None} == store.store.liveness(["host:2"])


def test_a_forgotten_consumer_is_not_known(store):
    """A consumer that leaves the register is unknown afterwards."""
    store.heartbeat("host:1", **record(store))
    store.store.forget_consumer("host:1")
    store.store.forget_consumer("host:2")
    assert {"host:1": None} == store.store.liveness(["host:1"])


def test_a_record_lapses_without_heartbeats(store):
    """The record of a silent consumer lapses after its ttl, until the next heartbeat."""
    given = {**record(store), "host": "h", "pid": "7", "queues": "q"}
    store.heartbeat("host:1", 30, **given)
    wait_until(lambda: store.store.liveness(["host:1"])["host:1"].lapsed, interval_s=0.01)
    known = store.store.liveness(["host:1"])["host:1"]
    assert ("h", 7, ("q",), 30) == (known.host, known.pid, known.queues, known.ttl_ms)
    assert known.silent_ms >= 30
    store.heartbeat("host:1", **given)
    assert not store.store.liveness(["host:1"])["host:1"].lapsed


# -- dead consumers


def dropped(store, consumer, silent_ms=0, mark=None):
    """Remove a dead consumer from q like its finder; return whether q still exists."""
    mark = store.store.attached("q").marks.get(consumer, "none") if mark is None else mark
    return store.store.drop_consumer("q", consumer, mark, silent_ms)


def test_the_dead_are_taken_off_a_queue(store):
    """The removal of a dead consumer keeps the others; the last one ends an auto_delete queue."""
    store.declare(auto_delete="1")
    for consumer in ("host:1", "host:2"):
        store.store.attach("q", consumer, 1)
    assert dropped(store, "host:1")
    assert ["host:2"] == store.store.consumers_of("q")
    assert not dropped(store, "host:2")
    assert store.store.reads.status("q") is None


def test_one_that_has_come_back_is_not_dead(store, connect):
    """A consumer that has reconnected since it was found dead is not removed."""
    store.declare(auto_delete="1")
    store.store.attach("q", "host:1", 1)
    mark = store.store.attached("q").marks["host:1"]
    connect("s/2").store.attach("q", "host:1", 1)
    assert mark != store.store.attached("q").marks["host:1"]
    assert dropped(store, "host:1", mark=mark)
    assert ["host:1"] == store.store.consumers_of("q")
    assert dropped(store, "host:3", mark="")  # nor one that was not there


def test_a_dead_consumer_used_its_queue_as_long_as_it_was_heard_of(store):
    """A removed consumer's x-expires counts from its last heartbeat, not from its removal."""
    store.declare(expires="60000")
    store.store.attach("q", "host:1", 1)
    assert dropped(store, "host:1", silent_ms=59_000)
    outcome, left = store.delete(if_idle=True)
    assert "not_idle" == outcome
    assert left > 59_000  # its declaration just now is a use too


def test_which_queues_go_by_themselves(store):
    """Temporary queues are those with auto_delete or x-expires."""
    store.declare("plain")
    store.declare("brief", expires="60000")
    store.declare(auto_delete="1")
    found = {queue: store.store.attached(queue) for queue in ("plain", "brief", "q", "none")}
    assert [False, True, True, False] == [item.temporary for item in found.values()]
    assert [{}] * 4 == [item.marks for item in found.values()]


def test_one_at_a_time_looks_after_all(store):
    """One consumer at a time checks the others, the longest silent first.

    The others get an empty list until its duty lapses.
    """
    found = []

    def look(consumer, hold_ms=60_000):
        store.store.post_elect(consumer, hold_ms, found.append)
        store.store.wait_for_replies()
        return found[-1]

    for consumer in ("host:3", "host:1", "host:2"):
        store.heartbeat(consumer)
        store.pass_time(2)
    assert ["host:3", "host:1", "host:2"] == look("host:1")
    assert [] == look("host:2")
    assert ["host:3", "host:1", "host:2"] == look("host:1", 20)
    wait_until(lambda: look("host:2") != [], interval_s=0.005)
    assert [] == look("host:1")


def test_who_is_new_in_the_register_is_told(store):
    """The first heartbeat of a consumer reports it as new, also after its removal."""
    duties = []
    for forget in (False, False, True):
        if forget:
            store.store.forget_consumer("host:1")
        store.store.post_heartbeat("host:1", 1000, 1000, {"queues": ""}, duties.append)
        store.store.wait_for_replies()
    assert [True, False, True] == [item.new for item in duties]


# -- for operators


def test_the_register_can_be_read(store):
    """The register lists each consumer with host, process, version, queues and held messages."""
    before = store.store.now_ms()
    mine = record(store)
    given = {"host": "h", "pid": "7", "version": "1", "started_ms": "5", "held": "3"}
    store.heartbeat("h:7:b", **mine, **given, queues="q\nr")
    store.heartbeat("h:7:a", **mine, **given)
    first, second = store.store.reads.consumers()
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
    """The register lists neither consumers that left nor those without heartbeats."""
    assert [] == store.store.reads.consumers()
    mine = record(store)
    store.heartbeat("h:1", 30, **mine, host="h", pid="1", version="1")
    store.heartbeat("h:2", **mine, host="h", pid="2", version="1")
    assert "h:2" in [consumer.id for consumer in store.store.reads.consumers()]
    store.store.forget_consumer("h:2")
    wait_until(lambda: [] == store.store.reads.consumers(), interval_s=0.01)


def test_what_a_worker_runs_is_in_the_register(store):
    """The register shows the latest report of running tasks until the consumer leaves."""
    told = []

    def say(number, **running):
        store.store.post_running("h:1", number, running, told.append)
        store.store.wait_for_replies()

    say(1, q=1)
    assert [] == store.store.reads.consumers()
    given = {**record(store), "host": "h", "pid": "1", "version": "1", "processes": "8"}
    store.heartbeat("h:1", **given)
    (mine,) = store.store.reads.consumers()
    assert ({}, 8) == (mine.running, mine.processes)
    say(3, q=2, r=1)
    say(2)  # came over a slower connection
    store.heartbeat("h:1", **given)
    (mine,) = store.store.reads.consumers()
    assert {"q": 2, "r": 1} == mine.running
    say(4)
    (mine,) = store.store.reads.consumers()
    assert {} == mine.running
    store.store.forget_consumer("h:1")
    say(5, q=1)
    assert [] == store.store.reads.consumers()
    assert [False, True, True, True, False] == told

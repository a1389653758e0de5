import time
from datetime import datetime, timezone

import pytest
from kombu import Exchange, Queue

from reliq import ConfigurationError, NotFound, QueueFull
from reliq.message.queue_arguments import INSTANT_MS
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.waiting import wait_until


def reject_all(connection, queue, count, **arguments):
    """Take and reject *count* messages."""
    taker = Taker(connection, queue, auto_declare=False, **arguments)
    for message in taker.take(count):
        message.reject()
    taker.consumer.cancel()


@pytest.fixture
def connection(client):
    """Return a connection to a broker with a queue of three dead letters."""
    connection = client.connect()
    declare(connection, "q")
    for number, task in enumerate(["shop.pay", "shop.pay", "shop.mail"]):
        publish(connection, "q", number, headers={"task": task, "id": f"id-{number}"})
    reject_all(connection, "q", 3)
    return connection


# -- the inspector


def test_listed_with_what_is_known_of_them(client, connection):
    """Each dead letter is listed with task, id, reason, times and consumer, oldest first."""
    dead_letters = client.dead_letters("q")
    assert [("shop.pay", "id-0"), ("shop.pay", "id-1"), ("shop.mail", "id-2")] == [
        (dead_letter.task, dead_letter.id) for dead_letter in dead_letters
    ]
    assert {("rejected", 0, "")} == {(item.reason, item.count, item.error) for item in dead_letters}
    assert all(dead_letter.published_ms <= dead_letter.died_ms for dead_letter in dead_letters)
    assert all(dead_letter.consumer for dead_letter in dead_letters)
    assert b"0" == dead_letters[0].message.body.encode()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"task": "shop.pay"}, ["id-0", "id-1"]),
        ({"task": "shop.pa"}, []),
        ({"reason": "rejected"}, ["id-0", "id-1", "id-2"]),
        ({"reason": "expired"}, []),
        ({"older_than_s": 3600}, []),
        ({"newer_than_s": 3600}, ["id-0", "id-1", "id-2"]),
        ({"limit": 2}, ["id-0", "id-1"]),
        ({"limit": None}, ["id-0", "id-1", "id-2"]),
        ({"limit": 1, "task": "shop.mail"}, ["id-2"]),
    ],
)
def test_chosen_by_what_they_are(client, connection, chosen, expected):
    """A filter applies to all dead letters, and the limit counts the matching ones."""
    with client.inspector() as inspector:
        assert expected == [dead_letter.id for dead_letter in inspector.dead_letters("q", **chosen)]


def test_one_of_them(client, connection):
    """A delivery tag returns one dead letter; an unknown tag is an error."""
    dead_letter = client.dead_letters("q")[1]
    with client.inspector() as inspector:
        assert dead_letter == inspector.dead_letter("q", dead_letter.tag)
        with pytest.raises(NotFound, match="no dead letter 'x' in 'q'"):
            inspector.dead_letter("q", "x")


def test_replayed_by_task(client, connection):
    """A replay by task makes the matching dead letters ready; the others stay dead."""
    with client.inspector() as inspector:
        assert 2 == inspector.replay("q", task="shop.pay")
    assert [0, 1] == Taker(connection, "q", auto_declare=False).take_bodies(2)
    assert ["id-2"] == [dead_letter.id for dead_letter in client.dead_letters("q")]


def test_replayed_by_tag_and_with_a_count_of_none(client, connection):
    """A replay by tag affects one dead letter, and its next delivery is not a redelivery."""
    dead_letter = client.dead_letters("q")[2]
    with client.inspector() as inspector:
        assert 1 == inspector.replay("q", [dead_letter.tag])
        assert 0 == inspector.replay("q", [dead_letter.tag])
    (message,) = Taker(connection, "q", auto_declare=False).take()
    assert (2, None) == (message.payload, message.headers.get("x-delivery-count"))
    message.ack()


def test_replaying_all_comes_to_an_end(client, connection):
    """A replay of all ends: messages that die again meanwhile wait for the next replay."""
    taker = Taker(connection, "q", auto_declare=False)
    with client.inspector() as inspector:
        assert 3 == inspector.replay("q")
        for message in taker.take(3):
            message.reject()
        assert 3 == len(inspector.dead_letters("q"))


def test_replayed_into_another_queue(client, connection):
    """A replay to another queue moves each dead letter once, in order, and counts it as moved."""
    declare(connection, "other")
    with client.inspector() as inspector:
        assert 3 == inspector.replay("q", to="other")
        assert 0 == inspector.replay("q", to="other")
    assert [0, 1, 2] == Taker(connection, "other").take_bodies(3)
    assert 3 == client.status("q").ledger["moved"]


def test_replay_into_nowhere_is_refused(client, connection):
    """A replay to a missing queue moves nothing and does not create the queue."""
    with client.inspector() as inspector, pytest.raises(NotFound, match=r"'othre'.*'q'"):
        inspector.replay("q", to="othre")
    assert 3 == client.status("q").dead
    assert client.status("othre") is None


def test_replay_into_a_full_queue_keeps_the_rest(client, connection):
    """A replay to a full queue keeps the remaining dead letters for a later replay."""
    declare(connection, "small", max_length=2, queue_arguments={"x-overflow": "reject-publish"})
    with client.inspector() as inspector:
        assert 2 == inspector.replay("q", to="small")
        with pytest.raises(QueueFull, match="'small' is full"):
            inspector.replay("q", to="small")
        assert 1 == client.status("q").dead
        assert [0, 1] == Taker(connection, "small", auto_declare=False).take_bodies(2)
        wait_until(lambda: client.settled("small"))
        assert 1 == inspector.replay("q", to="small")


def test_purged_by_filter(client, connection):
    """Purged dead letters are deleted and counted."""
    with client.inspector() as inspector:
        assert 1 == inspector.purge_dead_letters("q", task="shop.mail")
        assert 2 == inspector.purge_dead_letters("q")
    assert (0, 3) == (client.status("q").dead, client.status("q").ledger["purged"])


def test_a_filter_that_could_never_fit(client, connection):
    """An invalid filter is an error; for a misspelt reason, the error lists the reasons."""
    with client.inspector() as inspector:
        with pytest.raises(ConfigurationError, match=r"one of rejected, .*got: 'reject'"):
            inspector.dead_letters("q", reason="reject")
        with pytest.raises(ConfigurationError, match="older_than_s to be at least 0"):
            inspector.replay("q", older_than_s=-1)
        with pytest.raises(NotFound, match="no queue 'nothing'"):
            inspector.replay("nothing")


def test_more_than_a_page(client):
    """Hundreds of dead letters are listed, replayed and moved, each once."""
    connection = client.connect()
    declare(connection, "q")
    declare(connection, "other")
    publish(connection, "q", *range(350))
    reject_all(connection, "q", 350)
    with client.inspector() as inspector:
        assert 350 == len(inspector.dead_letters("q", None))
        assert 350 == inspector.replay("q")
        reject_all(connection, "q", 350)
        assert 350 == inspector.replay("q", to="other")
    assert list(range(350)) == Taker(connection, "other").take_bodies(350)


# -- routed on (x-death)


def bind_graveyard(connection, name="grave", exchange_type="direct", key="q"):
    """Declare a dead-letter exchange and a queue bound to it."""
    queue = Queue(name, Exchange("dlx", exchange_type), routing_key=key)
    queue(connection.default_channel).declare()


DLX = {"x-dead-letter-exchange": "dlx"}


def test_a_rejected_message_is_routed_on(client):
    """A rejected message is routed under its routing key, with RabbitMQ's headers for deaths."""
    connection = client.connect()
    bind_graveyard(connection)
    declare(connection, "q", queue_arguments=DLX)
    publish(connection, "q", "x", headers={"mine": 1}, expiration=50)
    before = datetime.now(timezone.utc)
    reject_all(connection, "q", 1)
    (message,) = Taker(connection, "grave").take()
    assert "x" == message.payload
    headers = message.headers
    (death,) = headers["x-death"]
    assert abs((death.pop("time") - before).total_seconds()) < 60
    assert {
        "queue": "q",
        "reason": "rejected",
        "count": 1,
        "exchange": "",
        "routing-keys": ["q"],
        "original-expiration": "50000",
    } == death
    assert ("rejected", "q", "", 1) == (
        headers["x-first-death-reason"],
        headers["x-first-death-queue"],
        headers["x-first-death-exchange"],
        headers["mine"],
    )
    assert ("dlx", "q") == (
        message.delivery_info["exchange"],
        message.delivery_info["routing_key"],
    )
    assert "expiration" not in message.properties
    message.ack()
    wait_until(lambda: client.status("q").dead == 0)
    assert 1 == client.status("q").ledger["moved"]


def test_under_another_routing_key(client):
    """x-dead-letter-routing-key replaces the routing key of the message."""
    connection = client.connect()
    bind_graveyard(connection, key="failed")
    arguments = {**DLX, "x-dead-letter-routing-key": "failed"}
    declare(connection, "q", queue_arguments=arguments)
    publish(connection, "q", "x")
    reject_all(connection, "q", 1)
    assert ["x"] == Taker(connection, "grave").take_bodies(1)


def test_to_every_bound_queue(client):
    """A fanout exchange routes a copy of a dead letter to each of its queues."""
    connection = client.connect()
    for name in ("one", "two"):
        bind_graveyard(connection, name, "fanout")
    declare(connection, "q", queue_arguments=DLX)
    publish(connection, "q", "x")
    reject_all(connection, "q", 1)
    assert ["x"] == Taker(connection, "one").take_bodies(1)
    assert ["x"] == Taker(connection, "two").take_bodies(1)


def test_the_anonymous_exchange_routes_to_a_queue(client):
    """With an empty exchange name, the dead-letter routing key names the target queue."""
    connection = client.connect()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    declare(connection, "q", queue_arguments=arguments)
    publish(connection, "q", "x")
    reject_all(connection, "q", 1)
    assert ["x"] == Taker(connection, "grave").take_bodies(1)


def test_a_delay_made_of_a_ttl(client):
    """A queue without consumers, with a TTL, expires its messages into another queue.

    This is RabbitMQ's pattern for delays.
    """
    connection = client.connect()
    waiting = {
        "x-message-ttl": 200,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "work",
    }
    declare(connection, "wait", queue_arguments=waiting)
    taker = Taker(connection, "work")
    publish(connection, "wait", "x")
    (message,) = taker.take()
    assert "expired" == message.headers["x-first-death-reason"]
    message.ack()


def test_retried_in_a_circle(client):
    """A message that cycles between two queues has a rising count of deaths for each."""
    connection = client.connect()
    declare(
        connection,
        "work",
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"},
    )
    declare(
        connection,
        "wait",
        queue_arguments={
            "x-message-ttl": 50,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "work",
        },
    )
    publish(connection, "work", "x")
    taker = Taker(connection, "work", auto_declare=False)
    for _ in range(2):
        taker.take()[0].reject()
    (message,) = taker.take()
    assert [("wait", "expired", 2), ("work", "rejected", 2)] == [
        (death["queue"], death["reason"], death["count"]) for death in message.headers["x-death"]
    ]
    message.ack()


def test_a_circle_without_a_reject_ends(client):
    """A message that expires in a cycle becomes a dead letter, where RabbitMQ drops it."""
    connection = client.connect()
    arguments = {
        "x-message-ttl": 30,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "wait",
    }
    declare(connection, "wait", queue_arguments=arguments)
    publish(connection, "wait", "x")
    taker = Taker(connection, "busy")

    def is_round():
        assert taker.gets_nothing(0.05)
        status = client.status("wait")
        return (1, 1) == (status.dead, status.ledger.get("moved"))

    wait_until(is_round)


def test_without_a_bound_queue_it_stays(client):
    """A message that no bound queue can take stays a dead letter instead of being dropped."""
    connection = client.connect()
    Exchange("dlx", "direct")(connection.default_channel).declare()
    declare(connection, "q", queue_arguments=DLX)
    publish(connection, "q", "x")
    reject_all(connection, "q", 1)
    taker = Taker(connection, "q", auto_declare=False)
    assert taker.gets_nothing(1.5)
    assert ["rejected"] == [dead_letter.reason for dead_letter in client.dead_letters("q")]


@pytest.mark.slow
def test_what_cannot_be_routed_is_not_read_again_and_again(client):
    """A pass does not read the bodies of dead letters that have no target queue."""
    connection = client.connect()
    Exchange("dlx", "direct")(connection.default_channel).declare()
    declare(connection, "q", queue_arguments=DLX)
    publish(connection, "q", *("x" * 50_000 for _ in range(40)))
    reject_all(connection, "q", 40)
    taker = Taker(connection, "q", auto_declare=False)
    assert taker.gets_nothing(1)
    before = client.raw.info("stats")["total_net_output_bytes"]
    assert taker.gets_nothing(2)
    assert client.raw.info("stats")["total_net_output_bytes"] - before < 500_000
    assert 40 == client.status("q").dead


def test_what_could_not_be_routed_goes_as_soon_as_a_queue_is_bound(client):
    """A new binding routes all waiting dead letters at once, without the pause of a minute."""
    connection = client.connect()
    Exchange("dlx", "direct")(connection.default_channel).declare()
    declare(connection, "q", queue_arguments=DLX)
    publish(connection, "q", "early")
    reject_all(connection, "q", 1)
    taker = Taker(connection, "q", auto_declare=False)
    assert taker.gets_nothing(1)
    publish(connection, "q", "late")
    taker.take()[0].reject()
    assert taker.gets_nothing(0.5)
    assert 2 == client.status("q").dead
    bind_graveyard(client.connect())
    wait_until(lambda: client.status("grave").ready == 2)


def test_dropped_by_length_and_routed_on(client):
    """A message dropped by a length limit is sent to the dead-letter exchange."""
    connection = client.connect()
    bind_graveyard(connection)
    declare(connection, "q", max_length=1, queue_arguments=DLX)
    publish(connection, "q", "old", "new")
    (message,) = Taker(connection, "grave").take()
    assert ("old", "maxlen") == (message.payload, message.headers["x-last-death-reason"])
    message.ack()


def test_expired_and_kept(client):
    """x-dead-letter-expired keeps expired messages without routing them."""
    connection = client.connect()
    declare(connection, "q", queue_arguments={"x-dead-letter-expired": True})
    publish(connection, "q", "x", expiration=0)
    time.sleep(2 * INSTANT_MS / 1000)  # a waiting consumer could receive it until then
    assert Taker(connection, "q", auto_declare=False).gets_nothing()
    assert ["expired"] == [dead_letter.reason for dead_letter in client.dead_letters("q")]


# -- abandoned moves


def an_old_move(client, queue, tag, target):
    """Record a move that began two days ago and did not end."""
    long_ago_us = int((datetime.now(timezone.utc).timestamp() - 2 * 86_400) * 1e6)
    client.raw.hset(f"reliq:{{{queue}}}:moves", tag, f"{long_ago_us}|{target}")


@pytest.mark.parametrize("verb", ["replay", "purge", "replay elsewhere"])
def test_a_move_that_began_long_ago_binds_nobody(client, connection, verb):
    """A dead letter whose move began over a day ago can be replayed, purged or moved again.

    The target of the old move may be full or deleted.
    """
    declare(connection, "other")
    dead_letter = client.dead_letters("q")[0]
    an_old_move(client, "q", dead_letter.tag, "queue:gone")
    with client.inspector() as inspector:
        if verb == "replay":
            assert 1 == inspector.replay("q", [dead_letter.tag])
            assert (1, 2) == (client.status("q").ready, client.status("q").dead)
        elif verb == "purge":
            assert 1 == inspector.purge_dead_letters("q", [dead_letter.tag])
        else:
            assert 1 == inspector.replay("q", [dead_letter.tag], to="other")
            assert 1 == client.status("other").ready
    assert not client.raw.exists("reliq:{q}:moves")

"""Each signal is sent by the real program at the right moment, with the documented arguments."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kombu import Exchange, Queue
from kombu.exceptions import DecodeError

from reliq import signals
from reliq.store.store import RedisStore
from tests.support.proxy import Proxy
from tests.support.waiting import stays_true, wait_until

from ..kombu_client import Taker, declare, get, publish

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "signals.md"
# A message is no longer renewed after consumer_timeout, so its lease really ends.
LAPSING = {"visibility_timeout": 0.4, "consumer_timeout": 0.4}


def documented(name):
    """Return the arguments that docs/signals.md lists for a signal."""
    section = DOCUMENT.read_text("utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    table = section.split("| argument | type | |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {argument for row in rows for argument in re.findall(r"`(\w+)`", row)}


class Heard:
    """A receiver that records every signal in order, with its name."""

    def __init__(self):
        self._stack = ExitStack()
        self.calls = []

    def listen(self, *names):
        """Connect to these signals."""
        for name in names:

            def receiver(broker, _name=name, **arguments):
                assert documented(_name) == set(arguments)
                self.calls.append((_name, broker, threading.current_thread(), arguments))

            signal = getattr(signals, name)
            self._stack.enter_context(signal.connected_to(receiver))
        return self

    def of(self, name):
        """Return the arguments of every signal of this name."""
        return [arguments for known, _, _, arguments in self.calls if known == name]

    def close(self):
        """Disconnect."""
        self._stack.close()


@pytest.fixture
def heard():
    """Return a Heard; an error of a receiver fails the test through its log."""
    heard = Heard()
    yield heard
    heard.close()


@pytest.fixture(autouse=True)
def no_receiver_failed(caplog):
    """Fail if a receiver raised an error, which only the log shows.

    An error of a receiver must not break anything else.
    """
    yield
    assert "a receiver of the signal" not in caplog.text


def test_a_publish_is_announced_when_it_is_stored(client, heard):
    """message_published is sent by the publishing thread with the queue, the tag and the id."""
    heard.listen("message_published")
    connection = client.connect()
    declare(connection, "q")
    headers = {"id": "7", "x-delay": 50}
    publish(connection, "q", "x", headers=headers, expiration=60)
    ((_, broker, thread, arguments),) = heard.calls
    assert (client.url, threading.current_thread()) == (broker, thread)
    (held,) = Taker(connection, "q").take()
    assert {
        "queue": "q",
        "tag": held.delivery_tag,
        "task_id": "7",
        "headers": {"id": "7", "x-delayed": 50},
        "exchange": "",
        "routing_key": "q",
        "delay_s": 0.05,
        "ttl_s": 60.0,
    } == arguments
    held.ack()


def test_no_name_of_a_broker_is_secret(redis_factory, heard):
    """The sender contains neither user nor password."""
    from kombu import Connection

    heard.listen("message_published")
    server = redis_factory()
    server.client().execute_command("ACL", "SETUSER", "me", "on", ">secret", "~*", "&*", "+@all")
    url = server.url("reliq").replace("://", "://me:secret@")
    with Connection(url) as connection:
        publish(connection, "q", "x")
    assert [server.url("reliq")] == [broker for _, broker, _, _ in heard.calls]


def test_a_publish_is_announced_once_for_each_queue(client, heard):
    """message_published is sent once per bound queue with a tag, and not without a queue."""
    heard.listen("message_published")
    connection = client.connect()
    fan = Exchange("fan", "fanout")
    queues = [Queue(name, fan)(connection.default_channel) for name in ("a", "b", "c")]
    for queue in queues:
        queue.declare()
    connection.Producer().publish("x", exchange="fan", routing_key="key")
    told = heard.of("message_published")
    assert ["a", "b", "c"] == sorted(arguments["queue"] for arguments in told)
    assert 3 == len({arguments["tag"] for arguments in told})
    assert {("fan", "key")} == {(item["exchange"], item["routing_key"]) for item in told}
    fan(connection.default_channel).declare()
    connection.Producer().publish("x", exchange="nowhere", routing_key="key")
    assert 3 == len(heard.calls)
    for queue in queues:
        queue.purge()


@pytest.mark.parametrize("exchange", ["", "direct"])
def test_a_publish_that_is_retried_is_announced_once(client, heard, monkeypatch, exchange):
    """message_published of a publish with a lost reply is sent once, after its retry."""
    from reliq import BrokerUnavailable

    heard.listen("message_published")
    connection = client.connect()
    channel = connection.default_channel
    Queue("q", Exchange(exchange), "q")(channel).declare()
    store, tries = channel.transport.link.store, []
    stored = store.publish

    def lose_the_first_reply(items):
        tries.append(items)
        outcomes = stored(items)
        if len(tries) == 1:
            assert [] == heard.calls
            raise BrokerUnavailable("the reply was lost")
        return outcomes

    monkeypatch.setattr(store, "publish", lose_the_first_reply)
    message = channel.prepare_message("x", headers={"id": "7"})
    with pytest.raises(BrokerUnavailable):
        channel.basic_publish(message, exchange, "q")
    assert [] == heard.calls
    channel.basic_publish(message, exchange, "q")
    (told,) = heard.of("message_published")
    (held,) = Taker(connection, "q").take()
    assert held.delivery_tag == told["tag"]
    assert 1 == client.status("q").ledger["published"]
    held.ack()


def test_a_posted_publish_is_announced_when_its_reply_is_read(client, heard):
    """With confirm="none" the signal is sent when the reply is read, at the latest at the close."""
    heard.listen("message_published")
    connection = client.connect(confirm="none")
    declare(connection, "q")
    publish(connection, "q", "x", headers={"id": "7"})
    assert [] == heard.calls
    connection.release()
    assert ["7"] == [arguments["task_id"] for arguments in heard.of("message_published")]


def lose(client, holder):
    """Take a message with *holder*, which then renews too late; return the message."""
    declare(holder, "q")
    publish(holder, "q", "x", headers={"id": "7"})
    return get(holder, "q")


def test_consumer_timeout_is_told(client, heard):
    """A message held beyond consumer_timeout is no longer renewed, and lease_lost is sent once."""
    heard.listen("lease_lost")
    holder = client.connect(**LAPSING)
    held = lose(client, holder)
    wait_until(lambda: heard.calls)
    ((_, broker, thread, arguments),) = heard.calls
    assert (client.url, "reliq-background") == (broker, thread.name)
    assert ("q", held.delivery_tag, "7") == tuple(
        arguments[name] for name in ("queue", "tag", "task_id")
    )
    assert held.headers == arguments["headers"]
    assert "consumer_timeout" == arguments["reason"]
    assert 0.4 < arguments["held_s"] < 20
    stays_true(lambda: len(heard.calls) == 1, for_s=0.5)
    held.ack()


@pytest.mark.parametrize("ending", ["returned", "gone"])
def test_a_lost_lease_is_told(client, heard, caplog, ending):
    """lease_lost has the reason: the message was returned, or it is gone."""
    heard.listen("lease_lost")
    holder, other = client.connect(), client.connect(client_name="other")
    held = lose(client, holder)
    session = held.channel.transport.link.session
    store = other.default_channel.transport.link.store

    def returned():
        leases = store.leases_of("q", f"{session.id}/")
        store.post_end_leases("q", leases, lambda _result: None)
        store.post_restore("q", 1000, lambda _result: None, force=True)
        store.wait_for_replies()
        return client.status("q").ready == 1

    # As if this process had been frozen: others end its lease.
    wait_until(returned)
    again = get(other, "q") if ending == "gone" else None
    with caplog.at_level("INFO", logger="reliq"):
        if again is not None:
            again.ack()
            wait_until(lambda: client.settled("q"))
        wait_until(lambda: heard.calls)
    (arguments,) = heard.of("lease_lost")
    assert (ending, held.delivery_tag, "7") == tuple(
        arguments[name] for name in ("reason", "tag", "task_id")
    )
    levels = {record.levelname for record in caplog.records if held.delivery_tag in record.message}
    assert {"WARNING"} == levels
    held.ack()
    wait_until(lambda: client.settled("q"))


def test_a_restored_message_is_told(client, heard):
    """The background loop sends message_restored with the count, the consumer and the headers."""
    heard.listen("message_restored", "message_dead")
    holder, other = client.connect(**LAPSING), client.connect(client_name="other")
    headers = {"id": "7", "task": "ship"}
    declare(holder, "q")
    publish(holder, "q", "x", headers=headers)
    held = get(holder, "q")
    (again,) = Taker(other, "q", prefetch_count=1).take()
    wait_until(lambda: heard.calls)
    ((name, broker, thread, arguments),) = heard.calls
    assert ("message_restored", client.url, "reliq-background") == (name, broker, thread.name)
    assert {
        "queue": "q",
        "tag": held.delivery_tag,
        "task_id": "7",
        "headers": headers,
        "count": 1,
        "consumer": held.channel.transport.link.store.consumer,
    } == arguments
    again.ack()
    wait_until(lambda: client.settled("q"))


@pytest.mark.parametrize("listening", [True, False])
def test_messages_are_listed_only_for_a_receiver(client, heard, monkeypatch, listening):
    """A pass lists the returned messages only if message_restored has a receiver."""
    answers = []
    post = RedisStore.post_restore

    def noting(store, queue, lease_ms, on_result, *flags):
        def note(result):
            if getattr(result, "by_consumer", None):
                answers.append(result)
            on_result(result)

        post(store, queue, lease_ms, note, *flags)

    monkeypatch.setattr(RedisStore, "post_restore", noting)
    if listening:
        heard.listen("message_restored")
    holder, other = client.connect(**LAPSING), client.connect(client_name="other")
    lose(client, holder)
    (again,) = Taker(other, "q", prefetch_count=1).take()
    (report,) = wait_until(lambda: answers)
    assert [1] == list(report.by_consumer.values())
    assert listening == bool(report.restored and report.restored[0].envelope)
    again.ack()


def test_a_message_at_its_limit_is_told(client, heard):
    """A message at its limit after an isolated delivery is dead, and not reported as restored."""
    heard.listen("message_restored", "message_dead")
    holder = client.connect(**LAPSING, delivery_limit=1)
    held = lose(client, holder)
    other = client.connect(client_name="other", delivery_limit=1)
    assert Taker(other, "q").gets_nothing(for_s=0.1)
    wait_until(lambda: client.status("q").dead and heard.calls)
    (dead,) = heard.of("message_dead")
    assert [dead] == [arguments for *_, arguments in heard.calls]
    assert {
        "queue": "q",
        "tag": held.delivery_tag,
        "task_id": "7",
        "headers": {"id": "7"},
        "count": 1,
        "consumer": held.channel.transport.link.store.consumer,
        "reason": "delivery_limit",
        "error": "lease ended",
    } == dead


def test_a_requeue_that_reaches_the_limit_is_told(client, heard):
    """A requeue that reaches the limit sends message_dead from its thread; earlier ones do not."""
    heard.listen("message_restored", "message_dead")
    connection = client.connect(delivery_limit=2)
    held = lose(client, connection)
    held.requeue()
    assert [] == heard.calls
    again = get(connection, "q")
    again.requeue()
    ((_, broker, thread, dead),) = heard.calls
    assert (client.url, threading.current_thread()) == (broker, thread)
    wanted = ("delivery_limit", "nacked", 2, "7", again.headers)
    assert wanted == tuple(
        dead[name] for name in ("reason", "error", "count", "task_id", "headers")
    )
    assert 1 == client.status("q").dead


def test_a_requeue_that_was_owed_is_told_too(client, heard):
    """A requeue that a lost connection has delayed sends message_dead when it reaches the limit."""
    heard.listen("message_dead")
    with closing(Proxy(client.server)) as proxy:
        connection = client.connect(proxy.url(), delivery_limit=1, visibility_timeout=60)
        held = lose(client, connection)
        # Cut at the command itself, because a connection known as lost is replaced before it.
        proxy.cut_at(held.delivery_tag.encode())
        with pytest.raises(connection.connection_errors):
            held.requeue()
        connection.collect()
        connection.connect()
        wait_until(lambda: client.status("q").dead)
        (dead,) = wait_until(lambda: heard.of("message_dead"))
        assert (held.delivery_tag, "nacked") == (dead["tag"], dead["error"])
        connection.release()


def test_a_rejected_message_is_told(client, heard):
    """message_dead of a rejected message has its count and its received headers."""
    heard.listen("message_dead")
    connection = client.connect()
    lose(client, connection).requeue()
    held = get(connection, "q")
    held.reject()
    (dead,) = heard.of("message_dead")
    assert {
        "queue": "q",
        "tag": held.delivery_tag,
        "task_id": "7",
        "headers": held.headers,
        "count": 1,
        "consumer": held.channel.transport.link.store.consumer,
        "reason": "rejected",
        "error": "",
    } == dead


def test_an_undecodable_message_is_told(client, heard):
    """message_dead has the headers of an undecodable body, and none of an undecodable envelope."""
    heard.listen("message_dead")
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "{", headers={"id": "7"}, content_type="application/json")
    held = get(connection, "q")
    with pytest.raises(DecodeError):
        held.decode()
    held.ack()
    publish(connection, "q", "x", headers={"id": "8"})
    (tag,) = client.raw.zrange("reliq:{q}:ready", 0, 0)
    client.raw.hset("reliq:{q}:messages", tag, b"\xc1")
    assert get(connection, "q") is None
    body, envelope = heard.of("message_dead")
    assert ("undecodable", "7") == (body["reason"], body["task_id"])
    assert "Decode" in body["error"] or "JSON" in body["error"]
    assert ("undecodable", None, {}, tag.decode()) == tuple(
        envelope[name] for name in ("reason", "task_id", "headers", "tag")
    )
    assert 2 == client.status("q").dead


def test_a_refused_reject_is_not_told(client, heard):
    """A reject after a lost lease sends no signal, because another consumer has the message."""
    heard.listen("message_dead")
    holder, other = client.connect(**LAPSING), client.connect(client_name="other")
    held = lose(client, holder)
    (again,) = Taker(other, "q", prefetch_count=1).take()
    held.reject()
    assert [] == heard.calls
    again.ack()
    wait_until(lambda: client.settled("q"))


def test_a_receiver_that_raises_stops_neither_background_loop_nor_delivery(client, heard, caplog):
    """Errors of receivers stop neither restores, renewals, publishes nor acks."""

    def bad(_broker, **_arguments):
        raise ValueError("as told")

    with ExitStack() as stack:
        for name in signals.__all__:
            stack.enter_context(getattr(signals, name).connected_to(bad))
        holder = client.connect(**LAPSING)
        other = client.connect(client_name="other", visibility_timeout=0.6)
        lose(client, holder)
        (again,) = Taker(other, "q", prefetch_count=1).take()
        watching = Taker(client.connect(client_name="third"), "q")
        assert watching.gets_nothing(for_s=1.5)
        again.ack()
        wait_until(lambda: client.settled("q"))
    failed = {r.getMessage().split(" failed")[0] for r in caplog.records if r.exc_info}
    sent = ("message_published", "message_restored", "lease_lost")
    assert {f"a receiver of the signal {name}" for name in sent} <= failed
    caplog.clear()

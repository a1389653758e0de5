"""Each signal is sent by the real thing, at the right moment, with what its document says."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from kombu import Exchange, Queue

from reliq import signals
from tests.support.waiting import stays_true, wait_until

from .kombu_client import Taker, declare, get, publish

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "signals.md"
# A message is no longer renewed after consumer_timeout, so its lease really ends.
LAPSING = {"visibility_timeout": 0.4, "consumer_timeout": 0.4}


def documented(name):
    """Return the arguments that docs/signals.md lists for a signal."""
    section = DOCUMENT.read_text("utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    table = section.split("| argument | type | |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {argument for row in rows for argument in re.findall(r"`(\w+)`", row)}


class Heard:
    """Every signal that was sent while it listened, in order, by name."""

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
    """Return a Heard; what a receiver raised fails the test through its log."""
    heard = Heard()
    yield heard
    heard.close()


@pytest.fixture(autouse=True)
def no_receiver_failed(caplog):
    """Fail where a receiver raised: it may not break anything, so only the log tells."""
    yield
    assert "a receiver of the signal" not in caplog.text


def test_a_publish_is_announced_when_it_is_stored(client, heard):
    """By the thread that publishes, with the queue, the tag and the identity it was given."""
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
        "headers": headers,
        "exchange": "",
        "routing_key": "q",
        "delay_s": 0.05,
        "ttl_s": 60.0,
    } == arguments
    held.ack()


def test_no_name_of_a_broker_is_secret(redis_factory, heard):
    """The sender shows neither user nor password."""
    from kombu import Connection

    heard.listen("message_published")
    server = redis_factory()
    server.client().execute_command("ACL", "SETUSER", "me", "on", ">secret", "~*", "&*", "+@all")
    url = server.url("reliq").replace("://", "://me:secret@")
    with Connection(url) as connection:
        publish(connection, "q", "x")
    assert [server.url("reliq")] == [broker for _, broker, _, _ in heard.calls]


def test_a_publish_is_announced_once_for_each_queue(client, heard):
    """Three bound queues: three signals with three tags; no queue: none."""
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


def test_a_publish_that_is_retried_is_announced_once(client, heard, monkeypatch):
    """The reply to the first try is lost: the signal comes with the second, and only then."""
    from reliq import BrokerUnavailable

    heard.listen("message_published")
    connection = client.connect()
    declare(connection, "q")
    channel = connection.default_channel
    store, tries = channel.store, []
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
        channel.basic_publish(message, "", "q")
    assert [] == heard.calls
    channel.basic_publish(message, "", "q")
    (told,) = heard.of("message_published")
    (held,) = Taker(connection, "q").take()
    assert held.delivery_tag == told["tag"]
    assert 1 == client.status("q").ledger["published"]
    held.ack()


def test_a_posted_publish_is_announced_when_its_reply_is_read(client, heard):
    """confirm="none": not when it is sent; at the latest when the connection is closed."""
    heard.listen("message_published")
    connection = client.connect(confirm="none")
    declare(connection, "q")
    publish(connection, "q", "x", headers={"id": "7"})
    assert [] == heard.calls
    connection.release()
    assert ["7"] == [arguments["task_id"] for arguments in heard.of("message_published")]


def lose(client, holder):
    """Take a message with *holder*, which then renews too late; return it as it was taken."""
    declare(holder, "q")
    publish(holder, "q", "x", headers={"id": "7"})
    return get(holder, "q")


def test_consumer_timeout_is_told(client, heard):
    """What is held for too long is renewed no more: the application is told, once."""
    heard.listen("lease_lost")
    holder = client.connect(**LAPSING)
    held = lose(client, holder)
    wait_until(lambda: heard.calls)
    ((_, broker, thread, arguments),) = heard.calls
    assert (client.url, "reliq-keeper") == (broker, thread.name)
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
    """Another consumer has the message, or has finished it: which of the two is said."""
    heard.listen("lease_lost")
    holder, other = client.connect(), client.connect(client_name="other")
    held = lose(client, holder)
    session = held.channel.session
    store = other.default_channel.store

    def returned():
        store.post_renew("q", 0, store.leases_of("q", session.id + "/"), lambda _result: None)
        store.post_restore("q", 1000, lambda _result: None, hurry=True)
        store.settle()
        return client.status("q").ready == 1

    # As if this process had stood still: its lease is ended by others.
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
    assert {"returned": {"WARNING"}, "gone": {"INFO"}}[ending] == levels
    held.ack()
    wait_until(lambda: client.settled("q"))

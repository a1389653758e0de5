"""Limits of a queue in its declarations, and those that an operator sets instead."""

import re
import shlex

import pytest
from kombu import Queue

from reliq import ConfigurationError, PreconditionFailed
from tests.integration.kombu_client import declare, publish
from tests.integration.spool.test_spool import away  # noqa: F401 - a fixture
from tests.support.commands import data, run


def limited(client, **arguments):
    """Declare the queue q with limits over a connection of its own."""
    queue_arguments = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    declare(client.connect(), "q", queue_arguments=queue_arguments)


def held(client):
    """Return the settings of q."""
    with client.inspector() as inspector:
        return inspector.settings("q")


def logged(caplog):
    """Return the lines about limits since the last call."""
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line for line in lines if "reliq limit" in line]


def test_a_declaration_changes_limits(client, caplog):
    """A declaration with other limits replaces the stored ones at once, and logs each."""
    limited(client, concurrency=20)
    assert [] == logged(caplog)
    limited(client, concurrency=30, rate="5/s")
    assert {"x-concurrency": 30, "x-rate": "5/s"} == held(client)
    concurrency, rate = logged(caplog)
    assert "queue 'q' was declared with x-concurrency 30, which replaces 20" in concurrency
    assert "queue 'q' was declared with x-rate 5/s, which replaces none" in rate
    limited(client, concurrency=30, rate="5/s")
    assert [] == logged(caplog)
    limited(client, concurrency=-1, rate="none")
    assert {} == held(client)
    assert 2 == len(logged(caplog))
    with client.inspector() as inspector:
        assert {"x-concurrency": -1, "x-rate": "none"} == inspector.status("q").arguments


def test_a_declaration_without_limits_changes_none(client, caplog):
    """A declaration that names no limit, or one of two, leaves the others as they are."""
    limited(client, concurrency=20, rate="5/s")
    limited(client)
    assert {"x-concurrency": 20, "x-rate": "5/s"} == held(client)
    limited(client, rate="6/s")
    assert {"x-concurrency": 20, "x-rate": "6/s"} == held(client)
    assert 1 == len(logged(caplog))


def test_limits_of_a_queue_without_any(client, caplog):
    """A queue that a publish or a declaration without limits created gets those declared later."""
    publish(client.connect(), "q", 1)
    limited(client, concurrency=2)
    assert {"x-concurrency": 2} == held(client)
    declare(client.connect(), "other")
    caplog.clear()
    declare(client.connect(), "other", queue_arguments={"x-rate": "5/s"})
    with client.inspector() as inspector:
        assert {"x-rate": "5/s"} == inspector.settings("other")
    assert ["'other'" in line for line in logged(caplog)] == [True]


def test_other_arguments_are_still_compared(client):
    """Other limits do not excuse another difference; then nothing changes."""
    limited(client, concurrency=2, message_ttl=5000)
    with pytest.raises(PreconditionFailed, match="x-message-ttl"):
        limited(client, concurrency=3, message_ttl=6000)
    assert {"x-concurrency": 2, "x-message-ttl": 5000} == held(client)


@pytest.mark.parametrize(
    ("setting", "kept"),
    [(("--concurrency", "7"), "has set 7"), (("--concurrency", "none"), "has set none")],
)
def test_a_limit_that_an_operator_has_set_stays(client, caplog, setting, kept):
    """Declarations keep an operator's limit, and log the command that applies them; it works."""
    limited(client, concurrency=20)
    data(client.url, "limit", "set", "q", *setting)
    before = held(client)
    limited(client, concurrency=30)
    assert before == held(client)
    (line,) = logged(caplog)
    assert "declared with x-concurrency 30, but an operator" in line
    assert kept in line
    command = shlex.split(re.search("run `reliq (.*)`", line)[1])
    (row,) = data(client.url, *command)
    assert (30, 30) == (row["concurrency"], row["declared_concurrency"])
    limited(client, concurrency=30)
    assert [] == logged(caplog)
    limited(client, concurrency=40)
    assert {"x-concurrency": 40} == held(client)


def test_limits_survive_a_restart_of_the_application(client):
    """A limit of an operator holds after its application has declared the queue anew."""
    limited(client, concurrency=20, rate="5/s")
    data(client.url, "limit", "set", "q", "--rate", "1/m burst 3")
    limited(client, concurrency=20, rate="5/s")
    assert {"x-concurrency": 20, "x-rate": "1/m burst 3"} == held(client)


def test_queue_set_changes_limits(client):
    """`reliq queue set` changes the same limits: -1 and none are no limit, nothing the declared."""
    limited(client, concurrency=20)
    for setting, expected in (
        ("concurrency=7", {"x-concurrency": 7}),
        ("x-rate=100/m burst 10", {"x-concurrency": 7, "x-rate": "100/m burst 10"}),
        ("concurrency=-1", {"x-rate": "100/m burst 10"}),
        ("rate=none", {}),
        ("concurrency=", {"x-concurrency": 20}),
    ):
        (row,) = data(client.url, "queue", "set", "q", setting)
        assert expected == row["settings"]
    done = run(client.url, "queue", "set", "q", "rate=5/d", "concurrency=3")
    assert (2, True) == (done.returncode, "such as '500/s'" in done.stderr)
    assert {"x-concurrency": 20} == held(client)


@pytest.mark.parametrize("value", [0, -2, 1.5, "5", True, "none", 2**53])
def test_a_wrong_concurrency_is_refused(client, value):
    """A wrong concurrency is refused with the queue, the value and an example."""
    words = rf"'q': expected x-concurrency .*such as 200.* got: {re.escape(repr(value))}"
    with pytest.raises(ConfigurationError, match=words):
        limited(client, concurrency=value)
    assert client.status("q") is None


@pytest.mark.parametrize(
    "value", [5, "", "5", "0/s", "5/d", "-1/s", "5 /s", "5/s burst 0", "5/s burst", "5/s\n"]
)
def test_a_wrong_rate_is_refused(client, value):
    """A wrong rate is refused with the queue, the value and an example."""
    words = rf"'q': expected x-rate .*such as '500/s'.* got: {re.escape(repr(value))}"
    with pytest.raises(ConfigurationError, match=words):
        limited(client, rate=value)
    assert client.status("q") is None


def test_limits_and_partitions_exclude_each_other(client):
    """A declaration of both, or of limits for a divided queue, is refused; nothing is stored."""
    for arguments in ({"concurrency": 5}, {"rate": "5/s"}):
        with pytest.raises(ConfigurationError, match=r"'q': x-\w+ is not possible.*partitions"):
            limited(client, partitions=2, **arguments)
        assert client.status("q") is None
    limited(client, partitions=2)
    with pytest.raises(ConfigurationError, match=r"'q': x-rate is not possible.*partitions"):
        limited(client, rate="5/s")
    assert {"x-partitions": 2} == held(client)
    limited(client, concurrency=-1)  # no limit


def test_the_option_partitions_divides_no_queue_with_limits(client):
    """The option divides new queues without x-partitions, except those with limits."""
    connection = client.connect(partitions=4)
    declare(connection, "q", queue_arguments={"x-concurrency": 5})
    declare(connection, "other")
    with client.inspector() as inspector:
        assert {"x-concurrency": 5} == inspector.settings("q")
        assert {"x-partitions": 4} == inspector.settings("other")


@pytest.mark.slow
def test_a_spool_keeps_declared_limits(away):  # noqa: F811
    """A broker that returns empty gets the limits declared meanwhile, and keeps others."""
    limits, others = ({"x-concurrency": n, "x-rate": f"{n}/s"} for n in (5, 6))
    with away.connect() as connection:
        away.publish(connection, 0, "kept", declare=[Queue("kept", queue_arguments=limits)])
        away.server.kill()
        away.publish(connection, 1, "new", declare=[Queue("new", queue_arguments=limits)])
        away.publish(connection, 2, "kept", declare=[Queue("kept", queue_arguments=others)])
        away.back()
        for queue in ("new", "kept"):
            (row,) = data(away.home, "limit", "show", queue)
            assert (5, "5/s", 5) == (row["concurrency"], row["rate"], row["declared_concurrency"])

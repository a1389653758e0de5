"""Every client refuses another storage format when it connects, and leaves the data unchanged."""

import pytest
from kombu import Connection, Queue

from reliq.admin import Inspector
from reliq.errors import ConfigurationError
from tests.support.commands import run
from tests.support.contents import contents

FORMAT = "reliq:{%}:stored_format"
NEWER = "stored in format 99"
OLDER = "the layout of an older reliq"
REMEDY = "DEL reliq:queues reliq:exchanges"


def older(client):
    """Store a queue, an exchange, a binding and a message as e72f2c3 did."""
    client.zadd("reliq:queues", {"archive": 0})
    client.hset("reliq:exchanges", "arch", b"\x93\xa5topic\xc3\xc2")
    client.hset(
        "reliq:bindings:{arch}", mapping={b"\x93\xa3a.#\xa0\xa7archive": "", "version": "1.2"}
    )
    client.hset("reliq:{archive}:meta", mapping={"exists": "1", "arguments": b"\x80"})
    client.hset("reliq:{archive}:messages", "0000018f-1", b"envelope")
    client.zadd("reliq:{archive}:ready", {"0000018f-1": 1})
    client.hset("reliq:{archive}:stats", mapping={"published": 1})
    client.lpush("reliq:{archive}:bell", "1")


def newer(client):
    """Mark the data as stored in an unknown newer format."""
    client.hset(FORMAT, "version", "99")
    client.zadd("reliq:{%}:queues", {"archive": 0})


@pytest.mark.parametrize(("write", "words"), [(older, OLDER), (newer, NEWER)])
def test_another_layout_is_refused(redis_server, redis_url, write, words):
    """Publishers and inspectors get an error with a remedy; data is kept; other prefixes work."""
    client = redis_server.client()
    write(client)
    before = contents(client)
    with Connection(redis_url) as connection, pytest.raises(ConfigurationError, match=words) as met:
        connection.Producer().publish("x", routing_key="archive", declare=[Queue("archive")])
    assert "global_keyprefix" in str(met.value)
    assert (REMEDY in str(met.value)) == (write is older)
    with pytest.raises(ConfigurationError, match=words):
        Inspector(redis_url)
    assert before == contents(client)
    with Connection(redis_url, transport_options={"global_keyprefix": "other:"}) as connection:
        connection.Producer().publish("x", routing_key="q", declare=[Queue("q")])
    assert {b"version": b"1"} == client.hgetall(f"other:{FORMAT}")


def test_workers_and_commands_refuse_the_older_layout(redis_server, redis_url, site_factory):
    """A worker ends with the remedy in its log; a command ends with exit code 2."""
    client = redis_server.client()
    older(client)
    before = contents(client)
    worker = site_factory(redis_server).worker(ready=False, pool="solo")
    for command in ("status", "audit"):
        done = run(redis_url, command)
        assert (2, True) == (done.returncode, REMEDY in done.stderr), done
    assert 0 != worker.wait(40)
    assert REMEDY in worker.log()
    assert before == contents(client)


def test_the_format_is_written_by_who_writes_first(redis_server, redis_url):
    """The first write stores the format, also after FLUSHALL or on a full Redis; reads do not."""
    client = redis_server.client()
    with Inspector(redis_url) as inspector:
        assert ([], []) == (inspector.queues(), client.keys())
        with Connection(redis_url, heartbeat=0) as connection:
            queue = Queue("q")(connection.default_channel)
            for lose in (lambda: None, client.flushall, lambda: client.delete(FORMAT)):
                lose()
                client.config_set("maxmemory", 1 if client.exists("reliq:{%}:queues") else 0)
                queue.declare()
                client.config_set("maxmemory", 0)
                assert {b"version": b"1"} == client.hgetall(FORMAT)
        assert ["q"] == inspector.queues()


def test_a_user_who_may_not_read_the_format_goes_on(redis_server, redis_url):
    """A user that may not read the format connects, because the server decides on its rights."""
    raw = redis_server.client()
    with Connection(redis_url) as connection:
        connection.Producer().publish("x", routing_key="q", declare=[Queue("q")])
    rights = ("~reliq:{q}:*", "+@all")
    raw.execute_command("ACL", "SETUSER", "some", "reset", "on", ">secret", *rights)
    try:
        with Connection(redis_url.replace("://", "://some:secret@")) as connection:
            connection.Producer().publish("y", routing_key="q")
    finally:
        raw.execute_command("ACL", "DELUSER", "some")
    with Inspector(redis_url) as inspector:
        assert 2 == inspector.status("q").ready

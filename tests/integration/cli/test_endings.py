"""The end of commands after an interrupt, a refused question or a typo; unusual queue names."""

import signal
import subprocess

import pytest
from kombu import Connection

from tests.integration.cli.test_migrate import LAYOUT
from tests.integration.cli.test_queue import answer
from tests.integration.kombu_client import declare, publish
from tests.support.commands import RELIQ, environment, run
from tests.support.processes import INTERRUPTED
from tests.support.waiting import wait_until

ODD = "a[/b]\x1b[31m"


def interrupted(url, *arguments, until):
    """Start a command and send Ctrl-C when *until* is true; return its exit code and output."""
    process = subprocess.Popen(
        [*RELIQ, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(url),
    )
    try:
        wait_until(until)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert "Traceback" not in err, err
    code = 130 if process.returncode in INTERRUPTED else process.returncode
    return code, out, err


def connected(raw):
    """Return a function: whether a client has connected since this call."""
    before = raw.info("stats")["total_connections_received"]
    return lambda: raw.info("stats")["total_connections_received"] > before


@pytest.mark.slow
def test_ctrl_c_is_no_fault_found(client, fresh_redis):
    """An interrupted command exits with 130, not with 1, which reports a finding."""
    url, raw = fresh_redis.url(), fresh_redis.client()  # without other clients
    with Connection(url) as connection:
        declare(connection, "orders")
    code, _, err = interrupted(url, "status", "--interval", "60", until=connected(raw))
    assert (130, True) == (code, "interrupted" in err), err
    publish(client.connect(), "orders", 1)
    # At a question, the end of input acts as Ctrl-C.
    assert 130 == answer(client.url, "\x04", "queue", "purge", "orders")[0]
    assert 1 == client.status("orders").ready


@pytest.mark.slow
def test_a_migration_that_is_interrupted_says_how_far_it_came(client, redis_server):
    """An interrupted migration prints the moved count, and a second run continues."""
    raw = redis_server.client()
    for start in range(0, 20_000, 5_000):
        raw.lpush("q", *range(start, start + 5_000))
    arguments = ("migrate", redis_server.url("redis"), client.url, "q")
    some = lambda: (client.raw.hlen("reliq:{q}:messages") or 0) > 0  # noqa: E731
    code, out, err = interrupted(None, *arguments, until=some)
    assert (130, True) == (code, "run the command again to continue" in err), err
    assert out.startswith("q: ")
    assert 0 < raw.llen("q") < 20_000
    assert 0 == run(None, *arguments).returncode
    assert (0, 20_000) == (raw.llen("q"), client.status("q").dead)


def test_each_of_several_brokers_is_asked_about(client, redis_factory):
    """After yes for one broker and no for another, the output states what was done at each."""
    other = redis_factory()
    urls = (client.url, other.url())
    for url in urls:
        with Connection(url) as connection:
            declare(connection, "orders")
            publish(connection, "orders", 1, 2)
    code, said = answer(list(urls), "y\nn\n", "queue", "purge", "orders")
    assert 2 == code
    assert f"orders at {client.url}: 2 removed" in said
    assert f"nothing was changed at {other.url()}" in said
    assert 0 == client.status("orders").ready


def test_only_what_was_asked_about_is_removed(client):
    """A purge keeps a letter that died while the confirmation was open."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1, 2)
    channel = connection.default_channel
    channel.basic_get("orders").reject()
    with client.inspector() as inspector:
        agreed = inspector.count_dead_letters("orders")
        channel.basic_get("orders").reject()
        assert 1 == sum(inspector.purging_dead_letters("orders", limit=agreed))
        assert 1 == inspector.status("orders").dead


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("peek",), ("dead", "list"), ("queue", "pause"), ("dead", "replay")],
    ids=" ".join,
)
def test_the_name_of_a_queue_is_text(client, words):
    """A queue name is printed without markup and without control characters."""
    declare(client.connect(), ODD)
    done = run(client.url, *words, ODD)
    assert 0 == done.returncode, done.stderr
    assert "a[/b]\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_the_name_of_a_queue_is_text_where_it_moves(client, redis_factory):
    """`move` and `migrate` print a queue name without markup and without control characters."""
    other = redis_factory()
    declare(client.connect(), ODD)
    for arguments in (
        ("move", ODD, "--from", client.url, "--to", other.url()),
        ("migrate", client.url, other.url("redis"), ODD, "--dry-run"),
        ("migrate", client.url, other.url("redis"), ODD, *LAYOUT),
    ):
        done = run(None, *arguments)
        assert 0 == done.returncode, done.stderr
        assert "a[/b]\\x1b[31m" in done.stdout
        assert "" == done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "set", "orders", "delivery-limit=--5"),
        ("queue", "set", "orders", "max-length=\N{SUPERSCRIPT TWO}"),
        ("queue", "set", "orders", "max-length=99999999999999999999"),
        ("migrate", "redis://127.0.0.1:1/0", "reliq://127.0.0.1:1/0", "--sep", r"\x0"),
    ],
)
def test_a_value_that_is_none(client, arguments):
    """An invalid value is an error that names it, without a traceback."""
    declare(client.connect(), "orders")
    done = run(client.url, *arguments)
    assert (2, False) == (done.returncode, "Traceback" in done.stderr), done.stderr
    assert "rror" in done.stderr

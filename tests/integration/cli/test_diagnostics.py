"""`reliq status`, `consumers`, `peek` and `audit`, as an operator runs them."""

import json
import re

import pytest
from click.testing import CliRunner

from reliq import ConfigurationError, NotFound
from reliq.admin import Inspector
from reliq.cli import main
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.commands import data, run
from tests.support.waiting import wait_until

NOBODY = "reliq://127.0.0.1:1/0"
TASK = {"task": "shop.ship", "id": "id-1", "argsrepr": "(7,)", "kwargsrepr": "{'by': 'sea'}"}


def only(rows):
    """Return the only row."""
    (row,) = rows
    return row


def queue_row(found, name="orders"):
    """Return the row of a queue from `status --json`."""
    return only(row for row in found["queues"] if row["queue"] == name)


# -- status


@pytest.mark.slow
def test_each_column_of_a_queue(client):
    """A row has counts by state, consumers, the age of the oldest message, and the pause."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1, 2, 3, 4)
    publish(connection, "orders", 5, headers={"x-delay": 60_000})
    taker = Taker(connection, "orders", prefetch_count=3)
    taker.take(3)[0].reject()
    wait_until(lambda: client.status("orders").dead == 1)
    with client.inspector() as inspector:
        inspector.pause("orders")
    row = queue_row(data(client.url, "status", "--interval", 0))
    assert (1, 1, 2, 1) == (row["ready"], row["delayed"], row["unacked"], row["dead"])
    assert (1, True) == (row["consumers"], row["paused"])
    assert 0 <= row["oldest_age_s"] < 60
    assert [None, None] == [row["rate_in"], row["rate_out"]]
    assert 5 == row["ledger"]["published"]
    shown = run(client.url, "status", "--interval", 0).stdout
    assert re.search(r"orders PAUSED *│ *1 │ *1 │ *2 │ *1 │ *1 │", shown), shown


def test_temporary_queues_are_only_counted(client):
    """`status` and `consumers` hide temporary queues unless --all is set; --json has them all."""
    connection = client.connect()
    channel = connection.default_channel
    channel.queue_declare("orders")
    channel.queue_declare("reply", auto_delete=True, arguments={"x-expires": 60_000})
    takers = [Taker(connection, name, auto_declare=False) for name in ("orders", "reply")]
    shown = run(client.url, "status", "--interval", 0).stdout
    assert "reply" not in shown
    assert "1 temporary queue(s) not shown: use --all" in shown
    shown = run(client.url, "status", "--interval", 0, "--all").stdout
    assert "reply" in shown
    assert "not shown" not in shown
    found = data(client.url, "status", "--interval", 0)["queues"]
    assert ["orders", "reply"] == sorted(row["queue"] for row in found)
    assert "reply" not in run(client.url, "consumers").stdout
    assert "orders, reply" in run(client.url, "consumers", "--all").stdout
    for taker in takers:
        taker.consumer.cancel()


def test_an_empty_queue_has_no_oldest(client):
    """An empty queue has no age, instead of an age of 0."""
    declare(client.connect(), "orders")
    assert queue_row(data(client.url, "status", "--interval", 0))["oldest_age_s"] is None


@pytest.mark.slow
def test_rates_are_those_of_the_interval(client):
    """Rates are published and acked messages per second between two reports."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 0)
    with client.inspector() as inspector:
        before = inspector.report()
        assert only(before.queues).rate_in is None
        publish(connection, "orders", *range(9))
        Taker(connection, "orders").take_bodies(4)
        wait_until(lambda: client.status("orders").ledger.get("acked") == 4)
        after = inspector.report(before)
    passed_s = after.at - before.at
    assert 9 == pytest.approx(only(after.queues).rate_in * passed_s)
    assert 4 == pytest.approx(only(after.queues).rate_out * passed_s)
    row = queue_row(data(client.url, "status", "--interval", 0.1))
    assert [0, 0] == [row["rate_in"], row["rate_out"]]


@pytest.mark.slow
def test_the_broker_itself(client, redis_factory):
    """`status` shows the broker's role, memory and persistence, and whether it is reachable."""
    row = only(data(client.url, "status", "--interval", 0)["brokers"])
    assert (True, None, "master", "none") == (
        row["reachable"],
        row["error"],
        row["role"],
        row["persistence"],
    )
    assert row["memory_bytes"] > 0
    kept = redis_factory(appendonly=True, extra=["--maxmemory", "100mb"])
    row = only(data(kept.url(), "status", "--interval", 0)["brokers"])
    assert ("AOF always", 100 * 2**20) == (row["persistence"], row["memory_limit_bytes"])


@pytest.mark.slow
def test_a_replica_says_that_it_is_one(redis_server, redis_factory):
    """`status` shows the role of a replica, so that an operator notices the wrong server."""
    replica = redis_factory(replica_of=redis_server)
    replica.wait_synced()
    assert "replica" == only(data(replica.url(), "status", "--interval", 0)["brokers"])["role"]


@pytest.mark.slow
def test_several_brokers_and_one_that_is_away(client, redis_factory):
    """All brokers are shown, each queue with its broker; an unreachable broker is exit code 2."""
    other = redis_factory()
    for url in (client.url, other.url()):
        declare(client.connect(url), "orders")
    found = data([client.url, NOBODY, other.url()], "status", "--interval", 0, code=2)
    assert [True, True, False] == [row["reachable"] for row in found["brokers"]]
    assert [client.url, other.url()] == [row["broker"] for row in found["queues"]]
    assert "not reachable" in found["brokers"][2]["error"]
    given = run(None, "status", "--interval", 0, "--url", client.url, "--url", other.url())
    assert 0 == given.returncode
    assert client.url in given.stdout
    assert other.url() in given.stdout


def test_no_colours_and_no_password_where_no_terminal_is(redis_factory):
    """Output for a pipe has no colours, no wrapped rows and no password."""
    server = redis_factory(password="hush")
    done = run([server.url(), "reliq://:hush@127.0.0.1:1/0"], "status", "--interval", 0)
    assert 2 == done.returncode
    assert "\x1b" not in done.stdout
    assert "hush" not in done.stdout + done.stderr


# -- consumers


@pytest.mark.slow
def test_who_consumes(client):
    """A consumer's row has host, process, queues, held messages, start, heartbeat and options."""
    connection = client.connect(delivery_limit=3)
    declare(connection, "orders")
    publish(connection, "orders", 1)
    Taker(connection, "orders").take()
    row = only(
        wait_until(lambda: [row for row in data(client.url, "consumers") if row["held"] == 1])
    )
    assert ["orders"] == row["queues"]
    assert row["host"]
    assert row["pid"] > 0
    assert ("", True, 3) == (row["pool"], row["connected"], row["options"]["delivery_limit"])
    assert 0 <= row["seen_s"] < 60
    assert 0 <= row["since_s"] < 600
    shown = run(client.url, "consumers").stdout
    assert "1 consumer(s)" in shown
    assert row["id"] in shown


@pytest.mark.slow
def test_the_pool_and_the_name_of_a_worker(redis_url, worker_factory):
    """A Celery worker reports its pool and Celery's name for it, by which it is listed."""
    worker = worker_factory(
        redis_url, pool="threads", config={"worker_enable_remote_control": False}
    )
    row = only(wait_until(lambda: [row for row in data(redis_url, "consumers") if row["pool"]]))
    assert ("thread", worker.pid, worker.name) == (row["pool"], row["pid"], row["node"])
    assert f"│ {worker.name} " in run(redis_url, "consumers").stdout
    assert 0 == worker.shut_down()


# -- peek


@pytest.fixture
def four_states(client):
    """Return a client of a broker whose queue "orders" has a message in each state."""
    connection = client.connect()
    declare(connection, "orders")
    for number in range(3):
        publish(connection, "orders", number, headers={**TASK, "id": f"id-{number}"})
    publish(connection, "orders", 3, headers={**TASK, "id": "id-3", "x-delay": 60_000})
    dying, _held = Taker(connection, "orders", prefetch_count=2).take(2)
    client.keep = _held
    with client.inspector() as inspector:
        inspector.pause("orders")
    dying.reject()
    wait_until(lambda: client.status("orders").dead == 1)
    return client


@pytest.mark.slow
def test_a_ready_message(four_states):
    """A ready message is shown with tag, age, task, id, and its arguments as Celery wrote them."""
    row = only(data(four_states.url, "peek", "orders"))
    assert ("shop.ship", "id-2", "(7,)", "{'by': 'sea'}", "2") == (
        row["task"],
        row["id"],
        row["args"],
        row["kwargs"],
        row["body"],
    )
    assert ("ready", 0, 30) == (row["state"], row["count"], len(row["tag"]))
    assert 0 <= row["age_s"] < 60
    shown = run(four_states.url, "peek", "orders").stdout
    assert re.search(r"shop\.ship *│ *id-2 *│ *\(7,\) \{'by': 'sea'\}", shown), shown


def test_a_delayed_message(four_states):
    """A delayed message is shown with its due time."""
    row = only(data(four_states.url, "peek", "orders", "--state", "delayed"))
    assert "id-3" == row["id"]
    assert 0 < row["due_ms"] - row["published_ms"] < 70_000


@pytest.mark.slow
def test_a_held_message(four_states):
    """An unacked message is shown with its consumer and the deadline of its lease."""
    row = only(data(four_states.url, "peek", "orders", "--state", "unacked"))
    holder = only(data(four_states.url, "consumers"))["id"]
    assert ("id-1", True) == (row["id"], row["consumer"].startswith(holder))
    assert row["lease_until_ms"] > row["published_ms"]


def test_a_dead_message(four_states):
    """A dead message is shown with the reason and the time."""
    row = only(data(four_states.url, "peek", "orders", "--state", "dead"))
    assert ("id-0", "rejected") == (row["id"], row["reason"])
    assert row["died_ms"] >= row["published_ms"]


@pytest.mark.slow
def test_nothing_is_unpickled_and_nothing_talks_to_the_terminal(client):
    """A pickled body is not decoded, and escape codes are shown as text."""
    connection = client.connect()
    declare(connection, "orders")
    bomb = b"cos\nsystem\n(S'touch /tmp/never'\ntR."
    publish(
        connection,
        "orders",
        bomb,
        content_type="application/x-python-serialize",
        content_encoding="binary",
        headers={"task": "\x1b]0;owned\x07", "argsrepr": "\x1b[31m", "kwargsrepr": 7},
    )
    row = only(data(client.url, "peek", "orders"))
    assert (None, None) == (row["body"], row["kwargs"])
    shown = run(client.url, "peek", "orders").stdout
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown


@pytest.mark.slow
def test_bytes_that_are_no_envelope(client):
    """An unreadable message is listed with its tag and size."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1)
    tag = only(data(client.url, "peek", "orders"))["tag"]
    client.raw.hset("reliq:{orders}:messages", tag, b"\xc1")
    row = only(data(client.url, "peek", "orders"))
    assert (tag, None, None, 1) == (row["tag"], row["task"], row["body"], row["size"])


@pytest.mark.slow
def test_some_of_many(client):
    """--limit and --skip work across the pages of a long queue."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", *range(130))
    assert list(range(110)) == [
        int(row["body"]) for row in data(client.url, "peek", "orders", "--limit", 110)
    ]
    assert [125, 126] == [
        int(row["body"]) for row in data(client.url, "peek", "orders", "--limit", 2, "--skip", 125)
    ]
    with client.inspector() as inspector:
        assert [] == inspector.peek("orders", limit=0)
        with pytest.raises(ConfigurationError, match="limit and skip"):
            inspector.peek("orders", limit=-1)
        with pytest.raises(ConfigurationError, match="state to be one of ready"):
            inspector.peek("orders", "dying")
        with pytest.raises(NotFound, match="no queue 'nothing'"):
            inspector.peek("nothing", "dead")


@pytest.mark.slow
def test_a_queue_that_one_of_two_brokers_has(client, redis_factory):
    """A queue of one of two brokers is shown; a queue of neither is an error."""
    other = redis_factory()
    declare(client.connect(), "orders")
    both = [client.url, other.url()]
    assert [] == data(both, "peek", "orders")
    done = run(both, "peek", "nothing")
    assert (2, "no queue 'nothing'") == (
        done.returncode,
        re.search("no queue '.*'", done.stderr)[0],
    )


# -- audit


def test_audit_on_a_narrow_terminal(client):
    """With 80 columns, a row is one line: it leaves out states and names them."""
    connection = client.connect()
    declare(connection, "celery@one.celery.pidbox.host:1234:0a1b2c3d")
    publish(connection, "celery@one.celery.pidbox.host:1234:0a1b2c3d", 1)
    terminal = {"RELIQ_URL": client.url, "COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "dumb"}
    lines = CliRunner().invoke(main, ["audit"], env=terminal).stdout.splitlines()
    assert 80 >= max(map(len, lines))
    row = only(line for line in lines if "celery@one.celery.pidbox.host:1234:0a1b2c3d" in line)
    assert ["1", "0", "0"] == [cell.strip() for cell in row.split("│")[2:-1]]
    hidden = "expired, purged, dropped, moved, ready, delayed, unacked, dead"
    assert f"without {hidden}: too " in lines


@pytest.mark.slow
def test_audit_of_several_brokers(client, redis_factory):
    """The audit names an unbalanced queue with its difference and broker; exit code 1."""
    other = redis_factory()
    for url in (client.url, other.url()):
        connection = client.connect(url)
        declare(connection, "orders")
        publish(connection, "orders", 1, 2)
    assert [True, True] == [row["balanced"] for row in data([client.url, other.url()], "audit")]
    other.client().zpopmin("reliq:{orders}:ready")
    found = data([client.url, other.url()], "audit", code=1)
    assert [(client.url, True), (other.url(), False)] == [
        (row["broker"], row["balanced"]) for row in found
    ]
    done = run([client.url, other.url()], "audit")
    assert (1, True) == (done.returncode, "NOT balanced: orders" in done.stdout)
    assert 2 == run([client.url, other.url(), NOBODY], "audit").returncode
    with Inspector(other.url()) as inspector:
        assert 1 == abs(only(inspector.audit()).difference)


@pytest.mark.parametrize("source", ["--url", "RELIQ_URL"])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "Missing option '--url' (env var: 'RELIQ_URL'), such as reliq://"),
        (";", "Missing option '--url' (env var: 'RELIQ_URL'), such as reliq://"),
        ("redis://localhost:7500/0", "Kombu's own transport: write reliq:// instead"),
        ("sentinel://localhost:7500", "Kombu's own transport: write reliq-sentinel:// instead"),
        ("localhost:7500", "got one without a scheme: write reliq:// before the host"),
        ("localhost", "got one without a scheme: write reliq:// before the host"),
        ("reliq://localhost:port/0", "a numeric port"),
        ("reliq://127.0.0.1:1/0;redis://localhost/0", "the database in the URL to be a number"),
    ],
)
def test_a_wrong_url_is_refused_first(monkeypatch, source, url, words):
    """A command refuses a wrong URL with a remedy, and prints nothing else."""
    if source == "RELIQ_URL":
        monkeypatch.setenv(source, url)
    given = ("--url", url) if source == "--url" else ()
    for name in ("status", "consumers", "doctor", "top", "audit"):
        done = CliRunner().invoke(main, [name, *given])
        assert (2, "") == (done.exit_code, done.stdout)
        assert words in done.stderr


@pytest.mark.slow
def test_what_is_wrong_with_a_command_is_an_error_of_its_own(client):
    """An invalid state, an invalid URL and a missing URL are errors that name the value; exit 2."""
    for arguments, words in (
        (("peek", "orders", "--state", "dying"), "'dying' is not one of"),
        (("status", "--url", "http://x"), "expected a URL of reliq://"),
        (("peek",), "Missing argument 'QUEUE'"),
    ):
        done = run(client.url, *arguments)
        assert (2, True) == (done.returncode, words in done.stderr), done.stderr
    assert "Missing option '--url'" in run(None, "status").stderr
    assert json.loads(run(None, "schema", "status").stdout)["properties"]["queues"]
    assert 2 == run(None, "schema", "nothing").returncode

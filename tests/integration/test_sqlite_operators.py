"""What operators do with a broker in a file: from Python, and by the command."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from kombu import Connection
from prometheus_client import CollectorRegistry

from reliq import ConfigurationError, NotFound
from reliq.admin import Inspector
from reliq.cli import main
from reliq.metrics import Collector
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until

FAST = {"visibility_timeout": 2, "restore_interval": 0.2, "poll_interval": 0.5}


@pytest.fixture
def url(tmp_path):
    """Return the URL of a file that there is not yet; it balances at the end."""
    url = f"reliq-sqlite:///{tmp_path}/broker.db"
    yield url
    assert_balanced(url)


@pytest.fixture
def connection(url):
    """Return a connection to it, with a queue q that holds two ready and one dead message."""
    with Connection(url, transport_options=FAST) as connection:
        declare(connection, "q", max_length=100)
        publish(connection, "q", "dead", "ready", "ready too")
        connection.default_channel.basic_get("q").reject()
        yield connection


def run(*arguments):
    """Run a command in this process; return its output."""
    result = CliRunner().invoke(main, [*arguments, "--json"], env={"RELIQ_URL": ""})
    assert 0 == result.exit_code, result.output
    return json.loads(result.stdout)


def test_status(url, connection):
    """The file, and the counts of each queue."""
    found = run("status", "--url", url)
    (broker,), (queue,) = found["brokers"], found["queues"]
    assert ("sqlite", url) == (broker["engine"], broker["broker"])
    assert ("q", 2, 1) == (queue["queue"], queue["ready"], queue["dead"])


def test_every_command_for_queues(url, connection):
    """Looked at, replayed, paused, set: as on Redis."""
    assert ["ready", "ready too"] == [item["body"] for item in run("peek", "q", "--url", url)]
    (dead_letter,) = run("dead", "list", "q", "--url", url)
    assert "rejected" == dead_letter["reason"]
    run("dead", "replay", "q", "--url", url)
    run("queue", "pause", "q", "--url", url)
    (queue,) = run("status", "--url", url)["queues"]
    assert (3, True) == (queue["ready"], queue["paused"])
    run("queue", "resume", "q", "--url", url)
    run("queue", "set", "q", "max-length=2", "--url", url)
    publish(connection, "q", "one more")
    assert 2 == run("status", "--url", url)["queues"][0]["ready"]
    taker = Taker(connection, "q", auto_declare=False)
    taker.take(2)
    (consumer,) = run("consumers", "--url", url)
    assert os.getpid() == consumer["pid"]


def test_the_doctor_looks_at_the_file(url, connection, tmp_path):
    """Its pages, its disk, its log, who may read it; what is wrong is said with its remedy."""
    path = tmp_path / "broker.db"
    checks = {"file": "ok", "disk": "ok", "log": "ok", "rights": "ok", "synchronous": "info"}
    found = {item["check"]: item for item in run("doctor", "--url", url)}
    assert checks == {name: found[name]["severity"] for name in checks}
    path.chmod(0o644)
    found = {item["check"]: item for item in run("doctor", "--url", url)}
    assert "warning" == found["rights"]["severity"]
    assert f"chmod 600 {path}" in found["rights"]["remedy"]
    path.chmod(0o600)


def test_audit(url, connection):
    """Every queue balances, while it is used."""
    (result,) = run("audit", "--url", url)
    assert ("q", True, 0) == (result["queue"], result["balanced"], result["difference"])


def test_move_and_back(url, connection, redis_url):
    """From the file to Redis and back: what waits and what is dead."""
    assert {"q": 3} == run("move", "q", "--from", url, "--to", redis_url)
    (there,) = run("status", "--url", redis_url)["queues"]
    assert (2, 1) == (there["ready"], there["dead"])
    assert {"q": 3} == run("move", "--all", "--from", redis_url, "--to", url)
    (back,) = run("status", "--url", url)["queues"]
    assert (2, 1) == (back["ready"], back["dead"])
    assert ["ready", "ready too"] == Taker(connection, "q", auto_declare=False).take_bodies(2)
    assert_balanced(redis_url)


def test_from_file_to_file(url, connection, tmp_path):
    """A file is a broker like any other; to itself nothing is moved."""
    other = f"reliq-sqlite:///{tmp_path}/other.db"
    assert {"q": 3} == run("move", "q", "--from", url, "--to", other)
    (there,) = run("status", "--url", other)["queues"]
    assert (2, 1) == (there["ready"], there["dead"])
    assert_balanced(other)
    with (
        Inspector(url) as source,
        Inspector(url) as target,
        pytest.raises(ConfigurationError, match="one broker"),
    ):
        sum(source.move("q", target))


def test_dead_letters(url, connection):
    """Listed, replayed, purged."""
    with Inspector(url) as inspector:
        (dead_letter,) = inspector.dead_letters("q", reason="rejected")
        assert dead_letter.tag == inspector.dead_letter("q", dead_letter.tag).tag
        assert 1 == inspector.replay("q")
        assert 3 == inspector.status("q").ready
        taker = Taker(connection, "q", auto_declare=False)
        for message in taker.take(3):
            message.reject()
        wait_until(lambda: 3 == inspector.status("q").dead)
        assert 3 == inspector.purge_dead_letters("q")
        assert 3 == inspector.status("q").ledger["purged"]


def test_pause(url, connection):
    """A queue accepts and keeps, and gives out again."""
    with Inspector(url) as inspector:
        inspector.pause("q")
        assert inspector.status("q").paused
        taker = Taker(connection, "q", auto_declare=False)
        assert taker.gets_nothing()
        inspector.resume("q")
        assert ["ready", "ready too"] == taker.take_bodies(2)
        with pytest.raises(NotFound):
            inspector.pause("unknown")


def test_consumers(url, connection):
    """Who consumes, from which process, and what it holds."""
    taker = Taker(connection, "q", auto_declare=False)
    taker.take(2)
    with Inspector(url) as inspector:
        (consumer,) = inspector.consumers()
        assert (os.getpid(), ("q",), True) == (consumer.pid, consumer.queues, consumer.connected)


def test_a_prefix_is_a_broker_of_its_own(url, connection):
    """In the same file; the command takes it too."""
    with Connection(url, transport_options={**FAST, "global_keyprefix": "one."}) as other:
        declare(other, "q")
        publish(other, "q", 1)
    (status,) = run("status", "--url", url, "--prefix", "one.")["queues"]
    assert 1 == status["ready"]
    assert 2 == run("status", "--url", url)["queues"][0]["ready"]


def test_the_url_is_wrong(tmp_path):
    """The command says what is, and exits with 2."""
    result = CliRunner().invoke(main, ["status", "--url", f"reliq-sqlite:///{tmp_path}/no/b.db"])
    assert 2 == result.exit_code
    assert "no directory" in result.output
    result = CliRunner().invoke(main, ["status", "--url", "reliq-sqlite://"])
    assert 2 == result.exit_code
    assert "expected a file in the URL" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--interval", "0"),
        ("peek", "q"),
        ("queue", "delete", "q", "--yes"),
        ("dead", "import", "q", "letters.jsonl"),
        ("doctor",),
        ("bench",),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("empty", [False, True], ids=["no file", "an empty file"])
def test_who_only_looks_creates_no_file(tmp_path, words, empty):
    """A misspelt path is an error that names it, and nothing is there afterwards."""
    path = tmp_path / "mistyped.db"
    if empty:
        path.touch()
    result = CliRunner().invoke(main, [*words, "--url", f"reliq-sqlite:///{path}"])
    assert 2 == result.exit_code, result.output
    assert str(path) in result.stderr
    assert "start the application" in result.stderr
    assert [0] * empty == [found.stat().st_size for found in tmp_path.iterdir()]


def test_a_scrape_creates_no_file(tmp_path):
    """The exporter says that a misspelt path is down, and finds the file once it is there."""
    url = f"reliq-sqlite:///{tmp_path}/broker.db"
    collector = Collector(url)
    registry = CollectorRegistry()
    registry.register(collector)
    broker = {"broker": url}
    assert 0 == registry.get_sample_value("reliq_up", broker)
    assert [] == list(tmp_path.iterdir())
    with Connection(url) as connection:
        declare(connection, "q")
        assert 1 == registry.get_sample_value("reliq_up", broker)
    collector.close()


def test_only_the_target_of_a_move_is_created(tmp_path, url, connection):
    """`reliq move` makes the file that it fills, and not the one that it would empty."""
    there = f"reliq-sqlite:///{tmp_path}/there.db"
    result = CliRunner().invoke(main, ["move", "--all", "--from", there, "--to", url])
    assert (2, True) == (result.exit_code, "no such file" in result.stderr)
    assert not (tmp_path / "there.db").exists()
    assert {"q": 3} == run("move", "--all", "--from", url, "--to", there)
    assert_balanced(there)

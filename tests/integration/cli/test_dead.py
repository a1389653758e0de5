"""`reliq dead`, as an operator runs it, and its end by Ctrl-C."""

import json
import re
import signal

import pytest

from reliq import ConfigurationError, NotFound
from reliq.admin import Inspector
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.commands import RELIQ, data, environment, run
from tests.support.processes import INTERRUPTED, Process
from tests.support.waiting import wait_until


def kill(connection, queue, count):
    """Reject *count* messages of *queue*."""
    taker = Taker(connection, queue, auto_declare=False)
    for message in taker.take(count):
        message.reject()
    taker.consumer.cancel()


def died(connection, *numbers, queue="orders", task="shop.pay"):
    """Publish and reject a task for each of *numbers*."""
    for number in numbers:
        headers = {"task": task, "id": f"id-{number}", "argsrepr": f"({number},)"}
        publish(connection, queue, number, headers=headers)
    kill(connection, queue, len(numbers))


@pytest.fixture
def connection(client):
    """Return a connection to a broker with dead letters 0 to 3; 3 is of another task."""
    connection = client.connect()
    declare(connection, "orders")
    died(connection, 0, 1, 2)
    died(connection, 3, task="shop.mail")
    return connection


def ids(rows):
    """Return the numbers in the ids of dead letters."""
    return [int(row["id"].removeprefix("id-")) for row in rows]


def count(rows):
    """Return the count of the only row."""
    (row,) = rows
    return row["count"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), [0, 1, 2, 3]),
        (("--task", "shop.pay", "--limit", 2), [0, 1]),
        (("--reason", "expired"), []),
        (("--older", "1h"), []),
        (("--newer", "1h30m", "--match", r"^\([23],\)$"), [2, 3]),
    ],
)
def test_listed(client, connection, filters, expected):
    """Dead letters are listed by task, reason, age, and a regular expression."""
    rows = data(client.url, "dead", "list", "orders", *filters)
    assert expected == ids(rows)
    assert {"rejected"} >= {row["reason"] for row in rows}


def test_dead_letters_of_all_queues(client, connection):
    """Without a queue, `dead list` shows the dead letters of all queues, oldest first."""
    declare(connection, "mail")
    died(connection, 4, queue="mail")
    died(connection, 5)
    rows = data(client.url, "dead", "list")
    assert [0, 1, 2, 3, 4, 5] == ids(rows)
    assert ["orders"] * 4 + ["mail", "orders"] == [row["queue"] for row in rows]
    assert [0, 1] == ids(data(client.url, "dead", "list", "--limit", 2))
    assert [3] == ids(data(client.url, "dead", "list", "--task", "shop.mail"))
    assert "6 dead letter(s) of all queues" in run(client.url, "dead", "list").stdout


@pytest.mark.slow
def test_one_of_them(client, connection):
    """`dead show` prints headers and properties; an unknown tag is an error."""
    first = data(client.url, "dead", "list", "orders", "--limit", 1)[0]
    dead_letter = data(client.url, "dead", "show", "orders", first["tag"])
    assert ("shop.pay", "(0,)", "orders") == (
        dead_letter["headers"]["task"],
        dead_letter["args"],
        dead_letter["routing_key"],
    )
    assert 2 == run(client.url, "dead", "show", "orders", "x").returncode
    listed = run(client.url, "dead", "list", "orders").stdout
    assert re.search(r"shop\.pay *│ *id-0 *│ *\(0,\).*rejected", listed), listed


@pytest.mark.slow
def test_replayed(client, connection):
    """A replay counts with --dry-run, applies filters, and can target another queue."""
    declare(connection, "other")
    assert 3 == count(data(client.url, "dead", "replay", "orders", "--match", "pay", "--dry-run"))
    assert 4 == client.status("orders").dead
    assert 2 == count(
        data(client.url, "dead", "replay", "orders", "--task", "shop.pay", "--limit", 2)
    )
    assert 2 == count(data(client.url, "dead", "replay", "orders", "--to", "other"))
    assert [0, 1] == Taker(connection, "orders", auto_declare=False).take_bodies(2)
    assert [2, 3] == Taker(connection, "other", auto_declare=False).take_bodies(2)
    done = run(client.url, "dead", "replay", "orders", "--to", "nowhere")
    assert (2, True) == (done.returncode, "nowhere" in done.stderr)


def test_a_rate_is_kept(client):
    """A replay stays below the requested rate, although each step has several letters."""
    connection = client.connect()
    declare(connection, "orders")
    died(connection, *range(30))
    began = client.raw.time()
    with client.inspector() as inspector:
        steps = list(inspector.replaying("orders", rate=20))
        ended = client.raw.time()
        with pytest.raises(ConfigurationError, match="rate to be above 0"):
            inspector.replaying("orders", rate=0)
    assert (30, 4) == (sum(steps), max(steps))
    # Every step but the first and the last waits for the rate.
    assert 1.2 <= ended[0] - began[0] + (ended[1] - began[1]) / 1e6


@pytest.mark.slow
def test_interrupted_and_run_again(client, tmp_path):
    """Ctrl-C prints the progress and exits with 130; the next run replays the rest, each once."""
    connection = client.connect()
    declare(connection, "orders")
    died(connection, *range(40))
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from reliq.cli import main; main(['dead', 'replay', 'orders', '--rate', '10'])"
    )
    process = Process(
        [RELIQ[0], "-c", script], log_path=tmp_path / "log", env=environment(client.url)
    )
    try:
        wait_until(lambda: client.status("orders").ready >= 4, what=process.tail)
        process.signal(signal.SIGINT)
        assert process.wait() in INTERRUPTED, process.tail()
    finally:
        process.kill_group()
    assert re.search(
        r"interrupted after \d+ of 40; run the command again to continue", process.log()
    )
    left = client.status("orders").dead
    assert 0 < left < 40
    assert left == count(data(client.url, "dead", "replay", "orders"))
    assert set(range(40)) == set(Taker(connection, "orders").take_bodies(40))
    assert client.settled("orders")


@pytest.mark.slow
def test_purged_after_a_question(client, connection):
    """Without --yes and without a terminal a purge removes nothing."""
    done = run(client.url, "dead", "purge", "orders")
    assert (2, True) == (done.returncode, "use --yes" in done.stderr)
    assert 4 == client.status("orders").dead
    assert 1 == count(
        data(client.url, "dead", "purge", "orders", "--task", "shop.mail", "--dry-run")
    )
    tag = data(client.url, "dead", "list", "orders")[1]["tag"]
    assert 1 == count(data(client.url, "dead", "purge", "orders", "--tag", tag, "--yes"))
    assert [0, 2, 3] == ids(data(client.url, "dead", "list", "orders"))


# -- files


@pytest.mark.slow
def test_written_and_read_elsewhere(client, connection, redis_factory, tmp_path):
    """Exported dead letters are imported at another broker once, with all their fields."""
    other, path = redis_factory(), tmp_path / "orders.jsonl"
    assert 4 == count(data(client.url, "dead", "export", "orders", path))
    assert 4 == client.status("orders").dead
    done = run(other.url(), "dead", "import", "orders", path)
    assert (2, True) == (done.returncode, "no queue 'orders'" in done.stderr)
    away = client.connect(other.url())
    declare(away, "orders")
    assert 1 == count(data(other.url(), "dead", "import", "orders", path, "--match", "mail"))
    assert 4 == count(data(other.url(), "dead", "import", "orders", path, "--dry-run"))
    assert 3 == count(data(other.url(), "dead", "import", "orders", path))
    with client.inspector() as here, Inspector(other.url()) as there:
        wanted, found = here.dead_letters("orders"), there.dead_letters("orders")
        kept = ("died_ms", "reason", "count", "consumer", "error", "envelope")
        assert [[getattr(item, name) for name in kept] for item in wanted] == [
            [getattr(item, name) for name in kept] for item in found
        ]
        assert 4 == there.replay("orders")
        assert [0] == list(there.import_dead_letters("orders", path))
        assert 4 == sum(there.import_dead_letters("orders", path, again=True))
        assert all(result.balanced for result in there.audit())


@pytest.mark.slow
def test_a_file_that_was_cut_off(client, connection, tmp_path):
    """A truncated file is not overwritten; --resume drops the partial line and adds the rest."""
    path = tmp_path / "orders.jsonl"
    run(client.url, "dead", "export", "orders", path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    done = run(client.url, "dead", "export", "orders", path)
    assert (2, True) == (done.returncode, "resume" in done.stderr)
    assert 2 == count(data(client.url, "dead", "export", "orders", path, "--resume"))
    assert whole == path.read_bytes()
    with client.inspector() as inspector:
        declare(connection, "other")
        with pytest.raises(ConfigurationError, match="of 'orders', not of 'other'"):
            inspector.export_dead_letters("other", path, resume=True)
        with pytest.raises(NotFound, match="no queue 'nothing'"):
            inspector.export_dead_letters("nothing", tmp_path / "new")
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reason": "boredom"}, "line 3: expected reason to be one of rejected"),
        ({"number": 0}, "line 3: number, count or died_ms is too small"),
        ({"tag": "x"}, "line 3: tag or consumer"),
        ({"consumer": "a|b"}, "line 3: tag or consumer"),
        ({"died_ms": "now"}, "line 3: expected died_ms to be of type int"),
        ({"envelope": "%"}, "line 3: the envelope is not base64"),
        (None, "line 3: not JSON"),
    ],
)
def test_a_file_that_is_wrong(client, connection, tmp_path, change, words):
    """An invalid file is refused with the line number before any letter is stored."""
    path = tmp_path / "orders.jsonl"
    with client.inspector() as inspector:
        assert 4 == sum(inspector.export_dead_letters("orders", path))
        lines = path.read_text().splitlines()
        lines[2] = json.dumps(json.loads(lines[2]) | change) if change else "{"
        path.write_text("\n".join(lines) + "\n")
        declare(connection, "other")
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            inspector.import_dead_letters("other", path)
        assert 0 == inspector.status("other").stored
        path.write_text("{}\n")
        with pytest.raises(ConfigurationError, match="not an export of dead letters"):
            inspector.import_dead_letters("other", path)


@pytest.mark.slow
def test_arguments_that_make_no_sense(client, connection):
    """An invalid duration, reason or pattern is an error that states the expected form."""
    for arguments, words in (
        (("--older", "soon"), "expected seconds, or for example 15m"),
        (("--reason", "boredom"), "'boredom' is not one of"),
        (("--match", "("), "match to be a regular expression"),
    ):
        done = run(client.url, "dead", "list", "orders", *arguments)
        assert (2, True) == (done.returncode, words in done.stderr), done.stderr
    done = run([client.url, "reliq://127.0.0.1:1/0"], "dead", "export", "orders", "x")
    assert (2, True) == (done.returncode, "a file belongs to one broker" in done.stderr)

"""Invalid files of dead letters, a full disk, and a clock that was ahead."""

import json
import os
import re
import resource
import stat
import subprocess

import pytest
from celery import Celery
from kombu import Connection

from reliq import ConfigurationError
from reliq.admin import Inspector
from reliq.batches import Batch
from reliq.message.delivery_tag import is_of_job
from tests.integration.kombu_client import declare, publish
from tests.support.commands import RELIQ, data, environment, run
from tests.support.site import close_app

HOUR_MS = 3_600_000


@pytest.fixture
def inspector(url):
    """Return an inspector of a broker with a queue `orders` that has two dead letters."""
    with Connection(url) as connection:
        declare(connection, "orders")
        publish(connection, "orders", 1, 2)
        for _ in range(2):
            connection.default_channel.basic_get("orders").reject()
    with Inspector(url) as inspector:
        yield inspector


def exported(inspector, path, header=(), record=()):
    """Export the letters, and change the header and the first record of the file."""
    assert 2 == sum(inspector.export_dead_letters("orders", path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0].update(header)
    lines[1].update(record)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_letter_of_a_broker_whose_clock_is_ahead(inspector, tmp_path):
    """An imported letter with a future time of death is found and replayed."""
    ahead = {"died_ms": inspector.now_ms() + HOUR_MS}
    exported(inspector, tmp_path / "letters", record=ahead)
    assert 2 == sum(inspector.import_dead_letters("orders", tmp_path / "letters"))
    assert 4 == len(inspector.dead_letters("orders"))
    assert 4 == inspector.replay("orders")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"died_ms": 10**30}, "line 2: number, count or died_ms is too large"),
        ({"count": 10**30}, "line 2: number, count or died_ms is too large"),
        ({"number": 10**30}, "line 2: number, count or died_ms is too large"),
        ({"error": "\ud800"}, "line 2: consumer or error is not text"),
    ],
)
def test_a_record_that_no_broker_can_hold(inspector, tmp_path, record, words):
    """An invalid record is refused with its line number before any letter is stored."""
    exported(inspector, tmp_path / "letters", record=record)
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        inspector.import_dead_letters("orders", tmp_path / "letters")
    assert 2 == inspector.status("orders").dead


@pytest.mark.parametrize("header", [{"id": None}, {"queue": None}])
def test_a_header_that_is_wrong(inspector, tmp_path, header):
    """An export is not resumed if the file's header lacks the id or the queue."""
    exported(inspector, tmp_path / "letters", header=header)
    with pytest.raises(ConfigurationError, match="letters"):
        inspector.export_dead_letters("orders", tmp_path / "letters", resume=True)


def test_dead_letters_of_jobs(inspector, url, tmp_path):
    """Dead letters of a batch's jobs are exported, purged, imported and replayed; none is lost."""
    path = tmp_path / "letters"
    app = Celery("client", broker=url, set_as_current=False)
    with Batch("jobs", url=url) as batch:
        for number in range(3):
            app.send_task("task", (number,), queue="orders")
    close_app(app)
    batch.close()
    with Connection(url) as connection:
        for _ in range(3):
            connection.default_channel.basic_get("orders").reject()
        assert 2 == sum(inspector.export_dead_letters("orders", path, limit=2))
        assert 3 == sum(inspector.export_dead_letters("orders", path, resume=True))
        before = {letter.tag: letter.envelope for letter in inspector.dead_letters("orders")}
        assert [False, False, True, True, True] == sorted(map(is_of_job, before))
        assert 5 == inspector.purge_dead_letters("orders")
        assert 5 == sum(inspector.import_dead_letters("orders", path))
        found = {letter.tag: letter.envelope for letter in inspector.dead_letters("orders")}
        assert sorted(before.values()) == sorted(found.values())
        assert 3 == sum(map(is_of_job, found))
        assert 5 == inspector.replay("orders")
        for _ in range(5):
            connection.default_channel.basic_get("orders").ack()


@pytest.mark.parametrize(
    ("error", "words"), [("", "was changed"), ("consumer or error is not text", "line 2")]
)
def test_an_export_is_read_back(inspector, tmp_path, error, words):
    """An export whose file an import would refuse, or which lacks a line, does not end well."""
    path = tmp_path / "letters"
    steps = inspector.export_dead_letters("orders", path)
    assert 2 == next(steps)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {**json.loads(lines[1]), "error": "\ud800"}
    path.write_bytes(lines[0] + (json.dumps(changed).encode() + b"\n" if error else b""))
    with pytest.raises(ConfigurationError, match=words):
        next(steps)


@pytest.mark.slow
def test_a_disk_that_is_full(client, tmp_path):
    """An export to a full disk fails with the reason; resumed, it has each letter once."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", *range(30))
    for _ in range(30):
        connection.default_channel.basic_get("orders").reject()
    path = tmp_path / "letters"
    done = subprocess.run(
        [*RELIQ, "dead", "export", "orders", path],
        capture_output=True,
        text=True,
        env={**environment(client.url), "PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut short
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert (2, True) == (done.returncode, "cannot write to" in done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    data(client.url, "dead", "export", "orders", path, "--resume")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(range(1, 31)) == [line["number"] for line in lines[1:]]
    assert 30 == len({line["tag"] for line in lines[1:]})


@pytest.mark.slow
def test_an_export_is_for_its_owner_alone(url, inspector, tmp_path):
    """An export has messages, so only its owner may read it, and links are refused."""
    path = tmp_path / "letters"
    umask = os.umask(0)
    try:
        data(url, "dead", "export", "orders", path)
    finally:
        os.umask(umask)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    done = run(url, "dead", "export", "orders", link)
    assert (2, True) == (done.returncode, "cannot write" in done.stderr), done.stderr
    assert not (tmp_path / "elsewhere").exists()
    link.unlink()
    link.symlink_to(path)
    done = run(url, "dead", "export", "orders", link, "--resume")
    assert (2, True) == (done.returncode, "cannot write" in done.stderr), done.stderr

"""Names and contents from other parties appear in logs and on terminals as plain text only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reliq import NotFound
from tests.support.commands import run

from ..kombu_client import Taker, declare, publish

FORGED = "2026-01-01 00:00:00 CRITICAL forged"
HOSTILE = f"x\n{FORGED}\r\x1b[2J\x1b]0;owned\x07\x9b31m\u2028\u202e$(touch pwned)"

CONSUMER = """
import logging, socket, sys
import reliq
from kombu import Connection, Queue
logging.basicConfig(filename=sys.argv[2], level=logging.DEBUG, format="%(asctime)s %(message)s")
logging.getLogger("kombu").setLevel(logging.WARNING)
seen = []
def work(message):
    try:
        seen.append(message.decode())
        message.ack()
    except Exception:
        message.reject()
options = {"visibility_timeout": 1, "restore_interval": 0.2, "delivery_limit": 2}
with Connection(sys.argv[1], transport_options=options) as connection:
    with connection.Consumer(Queue(sys.argv[3]), on_message=work, accept=["json"]):
        while ["last"] not in seen:
            connection.drain_events(timeout=20)
"""


def lines_of(text):
    """Return the lines of a log, each of which must be printable and none of which is forged."""
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith(FORGED[:10]) for line in lines)
    return lines


def test_a_log_has_no_line_that_was_not_logged(client, tmp_path):
    """Foreign names, content types and errors stay in the log line that reports them."""
    connection = client.connect()
    publish(connection, HOSTILE, "x", content_type=HOSTILE, headers={"task": HOSTILE})
    publish(connection, HOSTILE, b"x", content_type="text/plain", content_encoding=HOSTILE)
    publish(connection, HOSTILE, ["last"])
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER, client.url, log, HOSTILE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    lines = lines_of(log.read_text("utf-8"))
    assert 2 <= sum("dead-lettered" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--interval", "0"),
        ("audit",),
        ("doctor",),
        ("consumers",),
        ("peek", HOSTILE),
        ("peek", HOSTILE, "--state", "unacked"),
        ("peek", HOSTILE, "--state", "delayed"),
        ("dead", "list", HOSTILE),
        ("dead", "replay", HOSTILE, "--dry-run"),
        ("queue", "pause", HOSTILE),
        ("queue", "set", HOSTILE),
        ("peek", HOSTILE + "2"),
        ("move", HOSTILE + "2", "--from", "{url}", "--to", "{url}"),
    ],
    ids=lambda given: " ".join(given[:2]).replace(HOSTILE, "Q").replace("\n", "")[:20],
)
def test_no_command_prints_it(client, arguments):
    """Each command prints hostile text escaped, on its own line, without control characters."""
    connection = client.connect()
    declare(connection, HOSTILE)
    publish(connection, HOSTILE, *("x" * 3), headers={"task": HOSTILE, "id": HOSTILE})
    publish(connection, HOSTILE, "late", headers={"x-delay": 60_000, "argsrepr": HOSTILE})
    taker = Taker(connection, HOSTILE, prefetch_count=2)
    for message in taker.take(2)[:1]:
        message.reject()
    given = [word.format(url=client.url) if "{url}" in word else word for word in arguments]
    url = None if "move" in given else client.url
    done = run(url, *given)
    assert done.returncode in {0, 1, 2}, done
    assert "Traceback" not in done.stderr
    for line in (done.stdout + done.stderr).split("\n"):
        assert line.isprintable(), line
        assert not line.startswith(FORGED)


def test_no_error_says_it(client):
    """An error that names a queue is one printable line for any name."""
    connection = client.connect()
    with pytest.raises(NotFound) as caught:
        declare_passively(connection, HOSTILE)
    assert str(caught.value).isprintable()


def declare_passively(connection, name):
    """Declare a queue passively."""
    with connection.channel() as channel:
        channel.queue_declare(name, passive=True)

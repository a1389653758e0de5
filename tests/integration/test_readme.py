"""The documentation is tested: its examples, commands, tables and rules."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from kombu import Connection

import reliq
from reliq.admin import Inspector
from reliq.options import Options, parse
from tests.support.audits import assert_balanced
from tests.support.processes import Process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = ROOT / "examples"


def blocks(path, language):
    """Return the fenced blocks of a document in *language*."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


def environment(url):
    """Return the environment of an example, with the URL of its broker."""
    return {**os.environ, "RELIQ_URL": url, "PYTHONUNBUFFERED": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if blocks(path, "python")], ids=lambda path: path.name
)
def test_the_examples_of_a_document_run(path, redis_url, redis_server):
    """The Python blocks of one document form one program that runs without warnings."""
    program = "\n".join(blocks(path, "python"))
    here = f"127.0.0.1:{redis_server.port}"
    program = re.sub(r"(localhost|redis-[ab]):6379", here, program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(redis_url),
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert_balanced(redis_url)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Every relative link of a document names an existing file."""
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8"))
    missing = [
        target for target in targets if "://" not in target and not (path.parent / target).exists()
    ]
    assert [] == missing


CLONE = "Until `kombu-reliq` is on PyPI, [install it from a clone](../README.md#install)."


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_pages_that_install_the_package_say_until_when_a_clone_is_needed(path):
    """A page that installs kombu-reliq has the shared line about the clone."""
    text = path.read_text("utf-8")
    assert ("pip install 'kombu-reliq" in text or "pip install kombu-reliq" in text) == (
        CLONE in text
    )


def test_the_files_of_the_architecture_exist():
    """Every file named in docs/architecture.md exists."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|lua))`", text)
    assert len(named) > 30
    folders = [ROOT / "reliq", ROOT]
    assert [] == [name for name in named if not any((at / name).exists() for at in folders)]


def proven(card):
    """Return the confirmed tasks and the faults of a passed run of the chaos suite."""
    text = card.read_text("utf-8")
    assert "| verdict | passed |" in text
    assert "| lost | 0 |" in text
    tasks = re.search(r"^\| confirmed tasks \| ([\d,]+) ", text, re.MULTILINE)
    faults = re.search(r"^\| faults \| (\d+) of", text, re.MULTILINE)
    return int(tasks[1].replace(",", "")), int(faults[1])


def test_the_first_screen():
    """The README's first 40 lines have purpose, change, proof, limits and two commands."""
    screen = "\n".join(README.read_text("utf-8").splitlines()[:40])
    assert "is a message transport for Kombu and Celery" in screen
    assert '+app.conf.broker_url = "reliq://localhost:6379/0"' in screen
    cards = [proven(card) for card in (ROOT / "docs" / "chaos").glob("*/*.md")]
    tasks, faults = (sum(counts) for counts in zip(*cards, strict=True))
    assert f"{faults:,} times" in screen
    assert f"{tasks:,} confirmed tasks, none was lost" in screen
    assert "**Limits.** reliq is neither" in screen
    assert "pip install '.[demo]' && .venv/bin/reliq demo" in screen
    install, test = "pip install -e '.[test]'", "pytest -n 6 --dist worksteal -m 'not slow'"
    assert f"{install} && .venv/bin/python -m {test}" in screen


def test_the_options_table_is_complete():
    """docs/options.md lists exactly the existing options, with their defaults."""
    text = (ROOT / "docs" / "options.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| ", text, re.MULTILINE)
    listed = {name: eval(default) for name, default in rows}  # the page is trusted
    assert {field.name: field.default for field in fields(Options)} == listed
    assert parse(listed) == Options()


def test_the_table_of_kombus_options():
    """docs/migrating.md has the table made from reliq/kombu_options.py."""
    rules = runpy.run_path(str(ROOT / "docs" / "rules.py"))
    text = (ROOT / "docs" / "migrating.md").read_text("utf-8")
    assert f"redis:// -->\n{rules['options_table']()}<!-- end" in text, "run docs/rules.py"


def rule():
    """Return a worker's ACL rule of docs/operations.md as the words of a command."""
    (text,) = blocks(ROOT / "docs" / "operations.md", "acl")
    (worker,) = re.findall(r"^ACL SETUSER reliq-worker .*\n(?: .*\n)*", text, re.MULTILINE)
    return worker.replace("<password>", "secret").split()


def test_the_acl_rule_is_enough(redis_factory):
    """The documented ACL rule permits everything that consumers and publishers do."""
    server = redis_factory()
    admin = server.client(decode_responses=True)
    assert "OK" == admin.execute_command(*rule())
    url = server.url("reliq").replace("://", "://reliq-worker:secret@")
    options = {"visibility_timeout": 3, "restore_interval": 0.2, "orphan_grace": 0.2}
    with Connection(url, transport_options=options) as connection:
        exercise(connection)
        claim_twice(url)
        take_and_die(url, options)
        with connection.SimpleQueue("orders") as queue:
            message = queue.get(timeout=30)
            assert 1 == message.headers["x-delivery-count"]
            message.ack()
    with Inspector(url) as inspector:
        assert ["graveyard", "orders", "routed"] == inspector.queues()
        assert 1 == inspector.status("orders").dead
        (dead_letter,) = inspector.dead_letters("orders", 10)
        assert 1 == inspector.replay("orders", [dead_letter.tag])
        assert 1 == inspector.status("routed").ledger["moved"]
        with Connection(url) as connection, connection.SimpleQueue("orders") as queue:
            queue.get(timeout=30).reject()
        assert 1 == inspector.replay("orders", to="graveyard")
        assert 2 == inspector.status("graveyard").ready
    assert_balanced(url)
    assert [] == admin.acl_log()


def claim_twice(url):
    """Enter a claimed block twice more, during the first use and after it: both get False."""
    with reliq.once("x", ttl=60, lease=1, url=url) as first:
        assert first
        with reliq.once("x", ttl=60, url=url) as second:
            assert not second
    with reliq.once("x", ttl=60, url=url) as third:
        assert not third


def take_and_die(url, options):
    """Publish a message, and kill a consumer while it holds it."""
    script = (
        "import json, os, signal, sys, reliq, kombu\n"
        "connection = kombu.Connection(sys.argv[1], transport_options=json.loads(sys.argv[2]))\n"
        "queue = connection.SimpleQueue('orders')\n"
        "queue.put('again')\n"
        "while queue.get(timeout=5).payload != 'again': pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, url, json.dumps(options)]
    assert -9 == subprocess.run(command, timeout=60, check=False).returncode


def exercise(connection):
    """Use every operation once: declare, publish, take, ack, requeue, reject, purge, delete."""
    producer = connection.Producer()
    channel = connection.default_channel
    with connection.SimpleQueue("orders") as queue:
        for number in range(4):
            queue.put(number)
        producer.publish(5, exchange="orders", routing_key="orders", expiration=60)
        queue.get(timeout=5).ack()
        queue.get(timeout=5).requeue()
        queue.get(timeout=5).reject()
        queue.get(timeout=5).ack()
        queue.get(timeout=5)  # returned when the queue is closed
        queue.clear()
    channel.queue_declare("orders", passive=True)
    channel.exchange_declare("fan", "fanout")
    for name in ("one", "two"):
        channel.queue_declare(name, arguments={"x-expires": 60_000}, auto_delete=True)
        channel.queue_bind(name, "fan")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"}
    channel.queue_declare("routed", arguments=arguments)
    channel.queue_declare("graveyard")
    producer.publish("on", exchange="", routing_key="routed")
    with connection.SimpleQueue("orders") as queue:
        channel.basic_get("routed").reject()
        wait_until(lambda: channel.queue_declare("graveyard").message_count == 1)
        del queue
    producer.publish("hello", exchange="fan")
    channel.queue_purge("one")
    channel.queue_unbind("two", "fan")
    for name in ("one", "two"):
        channel.queue_delete(name)
    channel.exchange_delete("fan")


@pytest.mark.slow
def test_the_example_app(redis_url, tmp_path):
    """examples/orders.py ships five orders, as its comment states."""
    worker = Process(
        [sys.executable, "-m", "celery", "-A", "orders", "worker", "--concurrency", "2"],
        log_path=tmp_path / "worker.log",
        env=environment(redis_url),
        cwd=EXAMPLES,
    )
    try:
        done = subprocess.run(
            [sys.executable, "orders.py"],
            cwd=EXAMPLES,
            env=environment(redis_url),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (0, "published 5 orders\n") == (done.returncode, done.stdout), done.stderr
        for number in range(5):
            wait_until(
                lambda text=f"shipped order {number}": text in worker.log(),
                timeout_s=40,
                what=worker.tail,
            )
        worker.signal(15)
        assert 0 == worker.wait(30)
    finally:
        worker.kill_group()
    assert_balanced(redis_url)


def test_the_plain_kombu_example(redis_url):
    """examples/plain_kombu.py receives its messages in order."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "plain_kombu.py"],
        env=environment(redis_url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = [f"reliq {reliq.__version__}"]
    expected += [f"received {name}" for name in ("one", "two", "three")]
    assert ([*expected, "no more messages"], "") == (done.stdout.splitlines(), done.stderr)
    assert_balanced(redis_url)


def test_the_changelog_knows_this_version():
    """The version of the package has a heading in CHANGELOG.md."""
    assert f"\n## [{reliq.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")

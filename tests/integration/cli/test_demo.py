"""`reliq demo`, `audit` and `status`, as a user starts them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kombu import Connection

import reliq  # noqa: F401 - registers the scheme with plain Kombu
from tests.support.audits import assert_balanced
from tests.support.processes import INTERRUPTED, Process
from tests.support.waiting import wait_until

RELIQ = (sys.executable, "-m", "reliq.cli")


def reliq_command(*arguments, **environment):
    """Run a command to its end."""
    return subprocess.run(
        [*RELIQ, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )


def processes_of_demo(folder):
    """Return the pids of the demo's processes whose working directory is in *folder*."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cwd").readlink()
        except OSError:  # it has ended, or is not ours
            continue
        if where.is_relative_to(folder):
            found.append(int(process.name))
    return found


def alive(pid):
    """Return whether a process exists and has not ended."""
    try:
        return "Z" != Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def assert_nothing_lost(run, tasks):
    """Fail unless every task ran and finished once."""
    assert (tasks, tasks, 0, 0) == (
        run["published"],
        run["ran"],
        run["lost"],
        run["finished_twice"],
    )


@pytest.mark.slow
def test_the_demo_loses_nothing_and_doubles_nothing(redis_url, redis_server, tmp_path):
    """After the kill of a worker, each task runs; only its running tasks run again, and soon.

    The demo deletes its queue on a given broker and keeps all other data.
    """
    client = redis_server.client()
    client.set("theirs", "kept")
    done = reliq_command(
        "demo", "--tasks", "160", "--json", "--url", redis_url, TMPDIR=str(tmp_path)
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert_nothing_lost(run, 160)
    assert run["ok"]
    assert run["audit"]["balanced"]
    assert 2 == run["running_at_kill"] == run["ran_again"]
    assert 2 <= run["held_at_kill"] <= 8
    # visibility_timeout is 60 s, so the tasks returned by the faster detection of dead consumers.
    assert 0 < run["first_recovered_s"] <= run["all_recovered_s"] < 30
    left = {key for key in client.keys("*") if client.ttl(key) == -1}
    # The register of consumers belongs to the broker: a killed consumer leaves it later.
    assert {b"theirs"} == left - {b"reliq:{%}:consumers", b"reliq:{%}:stored_format"}
    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_demo_needs_no_server(tmp_path):
    """Without a URL the demo runs on its own broker, loses no task and leaves no files."""
    done = reliq_command("demo", "--tasks", "160", "--json", TMPDIR=str(tmp_path), PATH="")
    assert 0 == done.returncode, done.stdout + done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert "reliq-embedded" == run["name"]
    assert_nothing_lost(run, 160)
    assert run["ok"]
    assert 2 == run["running_at_kill"] == run["ran_again"]
    # visibility_timeout is 60 s, so the tasks returned because the dead worker's lock was free.
    assert 0 < run["first_recovered_s"] <= run["all_recovered_s"] < 30
    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "broker"),
        (signal.SIGINT, "first worker runs"),
        (signal.SIGINT, "second worker runs"),
        pytest.param(signal.SIGINT, "broker", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "first worker runs", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "second worker runs", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_demo_leaves_nothing(tmp_path, number, moment):
    """Ctrl-C or SIGTERM at any time ends the demo's broker and workers and removes its files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from reliq.cli import main; main(['demo', '--tasks', '100'])"
    )
    demo = Process(
        [sys.executable, "-u", "-c", script],
        log_path=tmp_path / "demo.log",
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        wait_until(lambda: moment in demo.log(), timeout_s=60, what=demo.tail)
        assert processes_of_demo(folder)
        demo.signal(number)
        assert demo.wait(30) in INTERRUPTED, demo.tail()
        assert "interrupted" in demo.log()
        wait_until(lambda: not processes_of_demo(folder), what="the end of its processes")
        assert [] == list(folder.iterdir())
    finally:
        demo.kill_group()


INTERRUPTED_AS_IT_STARTS = """
import os, signal, subprocess
signal.signal(signal.SIGINT, signal.default_int_handler)

class Popen(subprocess.Popen):
    def __init__(self, args, **options):
        super().__init__(args, **options)
        if {part!r} in str(args):
            print("started", self.pid)
            os.kill(os.getpid(), {number})

subprocess.Popen = Popen
from reliq.cli import main
main(["demo", "--tasks", "100"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "part"),
    [
        (signal.SIGTERM, "worker"),
        (signal.SIGINT, "'reliq.cli.demo.app']"),
        pytest.param(signal.SIGINT, "worker", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "'reliq.cli.demo.app']", marks=pytest.mark.long),
    ],
)
def test_what_is_just_being_started_is_ended_too(tmp_path, number, part):
    """An interrupt also ends a process that the demo has just started and does not know yet."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    script = INTERRUPTED_AS_IT_STARTS.format(part=part, number=int(number))
    demo = Process(
        [sys.executable, "-u", "-c", script],
        log_path=tmp_path / "demo.log",
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        assert demo.wait(60) in INTERRUPTED, demo.tail()
        pid = int(re.search(r"started (\d+)", demo.log()).group(1))
        assert not alive(pid)
        assert [] == list(folder.iterdir())
    finally:
        demo.kill_group()


@pytest.mark.slow
def test_the_comparison_shows_both(tmp_path):
    """--compare also runs the load over Kombu's transport, and a long task over both.

    The long task runs once over reliq, and again over Kombu's transport with the same timeout.
    """
    done = reliq_command("demo", "--compare", "--tasks", "100", TMPDIR=str(tmp_path), COLUMNS="120")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "come back after an hour" in done.stderr + done.stdout
    for text in ("a temporary folder", "SIGKILL to the first worker", "recovery"):
        assert text in done.stdout
    names = "published|ran|lost|one more task, of 10 s: times run"
    found = re.finditer(rf"^\W*({names})\s{{2,}}(.*)$", done.stdout, re.MULTILINE)
    rows = {row[1]: re.findall(r"\d+", row[2]) for row in found}
    assert ["100", "100"] == rows["published"]
    assert ("100", "0") == (rows["ran"][0], rows["lost"][0])
    once, often = map(int, rows["one more task, of 10 s: times run"])
    assert once == 1 < often
    assert "reliq-embedded audit: published 100 = acked 100: balanced" in done.stdout
    assert "Kombu redis+socket audit: this transport keeps no ledger" in done.stdout


def test_audit_of_a_queue_that_balances(redis_url):
    """`reliq audit` lists each queue's ledger and exits with 0."""
    with Connection(redis_url) as connection, connection.SimpleQueue("orders") as queue:
        for number in range(3):
            queue.put(number)
        queue.get(timeout=5).ack()
    done = reliq_command("audit", RELIQ_URL=redis_url, COLUMNS="140")
    assert 0 == done.returncode, done.stderr
    assert "all balanced" in done.stdout
    (result,) = json.loads(reliq_command("audit", "--json", "--url", redis_url).stdout)
    assert ("orders", True, 0) == (result["queue"], result["balanced"], result["difference"])
    assert (3, 1) == (result["ledger"]["published"], result["ledger"]["acked"])
    assert_balanced(redis_url)


@pytest.mark.slow
def test_audit_of_a_queue_that_does_not_balance(redis_url, redis_server):
    """A vanished message appears as the difference, and the exit code is 1."""
    with Connection(redis_url) as connection, connection.SimpleQueue("orders") as queue:
        for number in range(3):
            queue.put(number)
    redis_server.client().zpopmin("reliq:{orders}:ready")
    done = reliq_command("audit", "--url", redis_url, COLUMNS="140")
    assert 1 == done.returncode
    assert "NOT balanced: orders" in done.stdout
    (result,) = json.loads(reliq_command("audit", "--json", "--url", redis_url).stdout)
    assert (False, 1) == (result["balanced"], abs(result["difference"]))


@pytest.mark.slow
def test_status_counts_each_state(redis_url):
    """`reliq status` counts ready and unacked messages."""
    with Connection(redis_url) as connection, connection.SimpleQueue("orders") as queue:
        queue.consumer.qos(prefetch_count=1)
        for number in range(3):
            queue.put(number)
        message = queue.get(timeout=5)
        wait_until(lambda: held_and_ready(redis_url) == (1, 2), what="one message held, two ready")
        message.ack()
    assert "orders" in reliq_command("status", "--url", redis_url).stdout
    assert_balanced(redis_url)


def held_and_ready(url):
    """Return the counts of `reliq status` for the only queue."""
    done = reliq_command("status", "--json", "--interval", "0", "--url", url)
    (status,) = json.loads(done.stdout)["queues"]
    return status["unacked"], status["ready"]


@pytest.mark.slow
def test_a_prefix_selects_its_own_queues(redis_url):
    """--prefix is the global_keyprefix: other queues on the same Redis are not shown."""
    options = {"global_keyprefix": "shop:"}
    with (
        Connection(redis_url, transport_options=options) as connection,
        connection.SimpleQueue("orders") as queue,
    ):
        queue.put(1)
    seen = json.loads(
        reliq_command("audit", "--json", "--url", redis_url, "--prefix", "shop:").stdout
    )
    assert ["orders"] == [result["queue"] for result in seen]
    assert [] == json.loads(reliq_command("audit", "--json", "--url", redis_url).stdout)
    assert_balanced(redis_url, options)

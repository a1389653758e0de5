"""`reliq top` on a terminal, shell completion, and `celery -A proj reliq`."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from reliq.cli.schema import SCHEMAS
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.commands import RELIQ, environment, run
from tests.support.waiting import wait_until


class Terminal:
    """A command on a pseudo-terminal: its output, and keys for it."""

    def __init__(self, url, *arguments):
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # the child: its three streams are the terminal
            signal.signal(signal.SIGINT, signal.default_int_handler)
            env = environment(url, TERM="xterm-256color", COLUMNS="200", LINES="50")
            os.execvpe(RELIQ[0], [*RELIQ, *arguments], env)
        os.set_blocking(self._fd, False)
        self._said = b""
        self._code = None

    def said(self):
        """Return the whole output so far."""
        try:
            while part := os.read(self._fd, 65536):
                self._said += part
        except OSError:  # no output now, or the command has ended
            pass
        return self._said.decode("utf-8", "replace")

    def type(self, keys):
        """Send keys."""
        os.write(self._fd, keys)

    def ended(self):
        """Return (exit code,) after the end of the command, else None."""
        self.said()
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return None if self._code is None else (self._code,)

    def close(self):
        """Kill the command if it still runs."""
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def terminal():
    """Return a function that starts a command on a terminal; the test's end kills it."""
    started = []

    def start(*arguments):
        started.append(Terminal(*arguments))
        return started[-1]

    yield start
    for item in started:
        item.close()


def ready_of(text):
    """Return the counts of ready messages that the screen has shown, in order."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    return [int(number) for number in re.findall(r"│ orders *│ *(\d+) ", plain)]


def test_top_is_live(client, terminal):
    """The screen follows the counts; Ctrl-C ends the command and restores the terminal."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", 1)
    top = terminal(client.url, "top", "--interval", "0.2")
    wait_until(lambda: ready_of(top.said())[-1:] == [1], what=top.said)
    publish(connection, "orders", 2, 3)
    wait_until(lambda: ready_of(top.said())[-1:] == [3], what=top.said)
    assert "\x1b[?1049h" in top.said()  # the alternate screen
    assert "Ctrl-C" in top.said()
    top.type(b"\x03")
    assert (0,) == wait_until(top.ended, what=top.said)
    after = top.said().rpartition("^C")[2]
    assert {"\x1b[?25h", "\x1b[?1049l"} == set(re.findall(r"\x1b\[\?\w+", after))  # restored
    assert "Traceback" not in top.said()


def test_top_outlives_its_broker(redis_factory, client, terminal):
    """`top` shows that its broker is unreachable, and continues after its return."""
    server = redis_factory(appendonly=True)
    declare(client.connect(server.url()), "orders")
    client.close()
    top = terminal(server.url(), "top", "--interval", "0.2")
    wait_until(lambda: ready_of(top.said()), what=top.said)
    server.kill()
    wait_until(lambda: "NO" in top.said() and "not reachable" in top.said(), what=top.said)
    looks = len(ready_of(top.said()))
    server.start()
    wait_until(lambda: len(ready_of(top.said())) > looks, what=top.said)


@pytest.mark.slow
def test_colours_on_a_terminal_and_none_elsewhere(client, terminal):
    """Output has colours on a terminal and none in a pipe."""
    declare(client.connect(), "orders")
    shown = terminal(client.url, "status", "--interval", "0")
    assert (0,) == wait_until(shown.ended, what=shown.said)
    assert "\x1b[" in shown.said()
    assert "\x1b[" not in run(client.url, "status", "--interval", "0").stdout


@pytest.mark.slow
def test_a_long_replay_shows_how_far_it_is(client, terminal):
    """A long replay shows a progress bar with counts on a terminal only."""
    connection = client.connect()
    declare(connection, "orders")
    publish(connection, "orders", *range(20))
    taker = Taker(connection, "orders", auto_declare=False)
    for message in taker.take(20):
        message.reject()
    taker.consumer.cancel()
    replay = terminal(client.url, "dead", "replay", "orders", "--rate", "10", "--limit", "15")
    wait_until(lambda: re.search(r"\b[1-9]\d?/15\b", replay.said()), what=replay.said)
    assert (0,) == wait_until(replay.ended, what=replay.said)
    assert "15 replayed" in replay.said()
    done = run(client.url, "dead", "replay", "orders")
    assert ("", True) == (done.stderr, "5 replayed" in done.stdout)


@pytest.mark.slow
def test_top_without_a_terminal(client):
    """Without a terminal, `top` names --json, which prints one line per query."""
    declare(client.connect(), "orders")
    done = run(client.url, "top")
    assert (2, True) == (done.returncode, "top needs a terminal: use --json" in done.stderr)
    done = run(client.url, "top", "--json", "--interval", 0.1, "--count", 2)
    first, second = map(json.loads, done.stdout.splitlines())
    for look in (first, second):
        jsonschema.validate(look, SCHEMAS["top"])
    assert [None, 0.0] == [look["queues"][0]["rate_in"] for look in (first, second)]


# -- completion


def completed(url, words):
    """Return the words that bash is offered for the last word."""
    done = subprocess.run(
        [sys.executable, "-c", "from reliq.cli import main; main(prog_name='reliq')"],
        env=environment(
            url,
            _RELIQ_COMPLETE="bash_complete",
            COMP_WORDS=" ".join(words),
            COMP_CWORD=str(len(words) - 1),
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [line.partition(",")[2] for line in done.stdout.split()]


@pytest.mark.slow
def test_words_are_completed(client):
    """Commands, options, choices and queue names are completed; without a broker, no names."""
    connection = client.connect()
    for name in ("orders", "other", "mail"):
        declare(connection, name)
    assert ["peek"] == completed(None, ["reliq", "pe"])
    assert ["replay"] == completed(None, ["reliq", "dead", "rep"])
    assert ["unacked"] == completed(None, ["reliq", "peek", "orders", "--state", "u"])
    assert ["orders", "other"] == completed(client.url, ["reliq", "peek", "o"])
    assert ["orders"] == completed(client.url, ["reliq", "dead", "list", "or"])
    assert [] == completed(None, ["reliq", "peek", "o"])
    assert [] == completed("reliq://127.0.0.1:1/0", ["reliq", "peek", "o"])


HOSTILE = (
    "pay$(touch${IFS}pwned)",
    "pay`touch\tpwned`",
    "pay;touch${IFS}pwned",
    "pay\ntouch pwned",
    "pay|touch${IFS}pwned",
    "-pay",
    "pay\x1b[2J",
    "pay*",
)


@pytest.mark.slow
def test_names_that_a_shell_would_run_are_not_offered(client):
    """Completion offers only queue names that are harmless in a shell."""
    connection = client.connect()
    for name in (*HOSTILE, "pay.good-1"):
        declare(connection, name)
    assert ["pay.good-1"] == completed(client.url, ["reliq", "peek", "pay"])
    assert [] == completed(client.url, ["reliq", "peek", "--", "-p"])


@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE[:3:2])
def test_tab_and_enter_in_a_real_shell_run_nothing(client, tmp_path, hostile):
    """Bash on a terminal completes a harmless name and runs nothing for a hostile one."""
    connection = client.connect()
    declare(connection, hostile)
    declare(connection, "good")
    tools = str(Path(sys.executable).parent)
    env = environment(
        client.url, TERM="dumb", PS1="", PATH=f"{tools}:{os.environ['PATH']}", HOME=str(tmp_path)
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
    said = b""
    try:
        os.write(terminal, b'eval "$(reliq completion bash)"; echo re""ady\n')
        for sent, until in (
            (b"", b"ready"),
            (b"reliq peek pay\t", b"peek pay"),
            (b"\nreliq peek go\t\n", b"message(s) of good"),
            (b"echo do''ne\n", b"done"),
        ):
            os.write(terminal, sent)
            while until not in said.split(b"\0")[-1]:
                said += os.read(terminal, 65536)
            said += b"\0"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell):
    """The completion script of each shell is printed and runs the command for the words."""
    done = run(None, "completion", shell)
    assert (0, True) == (done.returncode, f"_RELIQ_COMPLETE={shell}_complete" in done.stdout)


# -- celery -A proj reliq


APP = """
from celery import Celery

app = Celery("proj", broker={broker!r})
app.conf.broker_transport_options = {options!r}
"""


def celery(folder, *arguments, **more):
    """Run `celery -A proj` with *arguments*."""
    root = Path(__file__).resolve().parents[3]
    env = {**environment(**more), "PYTHONPATH": f"{root}{os.pathsep}{folder}"}
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "proj", *arguments],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_the_brokers_of_an_application(client, tmp_path, redis_factory):
    """URL, password and prefix are the application's; --url overrides them, RELIQ_URL does not."""
    server, second = redis_factory(password="hush/1"), redis_factory()
    options = {"global_keyprefix": "shop:"}
    for url in (server.url(), second.url()):
        declare(client.connect(url, **options), "orders")
    app = tmp_path / "proj.py"
    app.write_text(APP.format(broker=server.url(), options=options))
    done = celery(tmp_path, "reliq", "status", "--json", "--interval", "0", url=client.url)
    assert 0 == done.returncode, done.stderr
    (row,) = json.loads(done.stdout)["queues"]
    assert ("orders", server.url().replace(":hush%2F1@", "")) == (row["queue"], row["broker"])
    done = celery(tmp_path, "reliq", "audit", "--url", second.url())
    assert (0, True) == (done.returncode, "orders" in done.stdout), done.stderr
    app.write_text(APP.format(broker=[server.url(), second.url()], options=options))
    done = celery(tmp_path, "reliq", "status", "--json", "--interval", "0")
    assert 2 == len(json.loads(done.stdout)["brokers"]), done.stderr
    assert "hush" not in done.stdout


@pytest.mark.slow
def test_the_exporter_of_an_application(client, tmp_path):
    """The exporter uses the application's URL; semicolons separate several URLs in RELIQ_URL."""
    (tmp_path / "proj.py").write_text(APP.format(broker=client.url, options={}))
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    try:
        done = celery(tmp_path, "reliq", "exporter", "--port", port)
        assert (2, True) == (done.returncode, "cannot listen" in done.stderr), done.stderr
        done = run([client.url, client.url], "exporter", "--port", port)
        assert (2, True) == (done.returncode, "cannot listen" in done.stderr), done.stderr
    finally:
        taken.close()


@pytest.mark.slow
def test_an_application_of_another_broker(tmp_path):
    """An application with another transport is refused; loading the command imports no engine."""
    (tmp_path / "proj.py").write_text(APP.format(broker="redis://127.0.0.1:1/0", options={}))
    done = celery(tmp_path, "reliq", "status")
    assert (2, True) == (done.returncode, "is redis://, not reliq://" in done.stderr)
    assert "dead" in celery(tmp_path, "reliq", "--help").stdout
    script = (
        "import sys\nfrom importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='celery.commands', name='reliq')\n"
        "found.load()\n"
        "assert 'rich' not in sys.modules and 'reliq.store' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (0, "") == (done.returncode, done.stderr)

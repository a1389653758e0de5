import importlib.util
import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from reliq import __version__
from reliq.cli import main
from reliq.cli.commands import COMMANDS
from reliq.cli.demo.command import kombu_side, reliq_side
from reliq.cli.demo.run import Outcome, audit_line
from reliq.cli.endings import Group
from reliq.embedded import server as embedded_server
from reliq.embedded.folder import Folder
from reliq.errors import ConfigurationError


def run(*arguments, env=None):
    """Run a command in this process."""
    return CliRunner().invoke(main, arguments, env={"RELIQ_URL": "", **(env or {})})


def outcome(**changes):
    """Return the outcome of a good run with *changes* applied."""
    values = {
        "name": "reliq",
        "published": 40,
        "ran": 40,
        "lost": 0,
        "finished_twice": 0,
        "held_at_kill": 8,
        "running_at_kill": 2,
        "ran_again": 2,
        "first_recovered_s": 6.0,
        "all_recovered_s": 6.5,
        "total_s": 12.0,
        "audit": None,
    }
    return Outcome(**{**values, **changes})


def test_version():
    """`reliq --version` names the program and the package's version."""
    assert f"reliq, version {__version__}\n" == run("--version").output


def test_help_names_every_command():
    """The help of the group lists its commands."""
    output = run("--help").output
    assert {"audit", "demo", "exporter", "migrate", "status"} <= set(output.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    """The group's line about each command equals the command's own short help.

    The group has its own lines so that its help and completion load no command.
    """
    with click.Context(main) as context:
        _, command, _ = main.resolve_command(context, [name])
        assert command.get_short_help_str(1000) == main.get_command(context, name).help


START = """
import atexit, sys
atexit.register(lambda: print(len(sys.modules), file=sys.stderr))
from reliq.cli import main
main(prog_name="reliq")
"""


@pytest.mark.parametrize(
    "words", ["--help", "--version", "dead list --help", "st", "dead li", "peek orders --state u"]
)
def test_the_command_starts_quickly(words):
    """Help and completion of words load at most 300 modules; all commands together load 700."""
    count = len(words.split())
    complete = {} if "--" in words.split()[-1] else {"_RELIQ_COMPLETE": "bash_complete"}
    started = subprocess.run(
        [sys.executable, "-c", START, *(() if complete else words.split())],
        capture_output=True,
        text=True,
        env={**complete, "COMP_WORDS": f"reliq {words}", "COMP_CWORD": str(count)},
        check=True,
        timeout=60,
    )
    assert started.stdout
    assert int(started.stderr) <= 300


@pytest.mark.parametrize("command", ["audit", "status"])
def test_url_is_required(command):
    """Without --url and RELIQ_URL, the error names both."""
    result = run(command)
    assert 2 == result.exit_code
    assert "--url" in result.output
    assert "RELIQ_URL" in result.output


@pytest.mark.parametrize("command", ["audit", "status"])
def test_unreachable_broker(command):
    """An unreachable broker leads to exit code 2 and a message without a traceback."""
    result = run(command, "--url", "reliq://:hush@127.0.0.1:1/0")
    before = run("--url", "reliq://:hush@127.0.0.1:1/0", command)
    assert result.output == before.output
    assert 2 == result.exit_code == before.exit_code
    assert "127.0.0.1:1" in result.output
    assert "hush" not in result.output


@pytest.mark.parametrize("command", ["audit", "status"])
def test_foreign_url(command):
    """A URL of another transport is refused."""
    result = run(command, "--url", "amqp://localhost//")
    assert 2 == result.exit_code
    assert "amqp" in result.output


def test_demo_refuses_a_foreign_url():
    """The demo accepts only reliq's schemes and Kombu's Redis."""
    result = run("demo", "--url", "amqp://localhost//")
    assert 2 == result.exit_code
    assert "reliq://" in result.output


def test_demo_without_celery_says_what_to_install(monkeypatch):
    """Without Celery, the demo names the extra to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = run("demo")
    assert 2 == result.exit_code
    assert "pip install 'kombu-reliq[demo]'" in result.output


def test_the_comparison_without_redis_py_says_what_to_install(monkeypatch):
    """Without a package of Kombu's transport, no run begins, and the extra is named."""
    find = importlib.util.find_spec
    for missing in ("redis", "packaging"):
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, no=missing: None if name == no else find(name)
        )
        for arguments in (("--compare",), ("--url", "redis://127.0.0.1:1/0")):
            result = run("demo", *arguments)
            assert 2 == result.exit_code
            assert f"the demo needs {missing}: pip install 'kombu-reliq[demo]'" in result.output


def test_the_exporter_without_its_extra_says_what_to_install(monkeypatch):
    """Without prometheus-client, the exporter names the extra to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = run("exporter", "--url", "reliq://127.0.0.1:1/0")
    assert 2 == result.exit_code
    assert "pip install 'kombu-reliq[metrics]'" in result.output


def test_a_server_from_a_wheel_is_found(monkeypatch, tmp_path):
    """Without a server on PATH, the one of an installed wheel is used."""
    package = tmp_path / "serverwheel"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('must not be imported')")
    server = package / "bin" / "redis-server"
    server.write_text("#!/bin/sh\necho 'Redis server v=7.2.5 sha=0 bits=64'\n")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(embedded_server, "_WHEELS", (("serverwheel", "bin/redis-server"),))
    assert (str(server), "redis", (7, 2, 5)) == embedded_server.find(Folder(str(tmp_path)))


def test_an_old_server_is_passed_over(monkeypatch, tmp_path):
    """A server older than 6.2 is ignored, and the error names the package to install."""
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=0 bits=64'\n")
    server.chmod(0o755)
    monkeypatch.setattr(embedded_server, "_WHEELS", ())
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    with pytest.raises(ConfigurationError, match=r"6\.2 .*kombu-reliq\[embedded\]'"):
        embedded_server.find(Folder(str(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, True), ({"lost": 1}, False), ({"finished_twice": 1}, False)],
)
def test_an_outcome_is_ok_when_nothing_is_lost_or_done_twice(changes, expected):
    """A lost task alone, or a task that finished twice alone, makes the demo fail."""
    assert expected == outcome(**changes).ok


def test_an_outcome_is_plain_data():
    """The JSON output contains the counts and the verdict."""
    data = json.loads(json.dumps(outcome(lost=3).as_json()))
    assert (3, False) == (data["lost"], data["ok"])


def test_no_ledger_is_said():
    """The audit line of a transport without a ledger states that it keeps none."""
    assert "Kombu redis audit: this transport keeps no ledger" == audit_line(
        outcome(name="Kombu redis")
    )


def test_sides_share_the_server_and_no_key():
    """The two runs of --compare share one server; Kombu's shared keys get their own prefix."""
    ours = reliq_side("reliqs://:p@host:1/2", "q", compare=True)
    theirs = kombu_side("reliqs://:p@host:1/2", "q-kombu", compare=True)
    assert "rediss://:p@host:1/2" == theirs.url
    timeouts = {side.transport_options["visibility_timeout"] for side in (ours, theirs)}
    assert 1 == len(timeouts)
    assert {} == reliq_side("reliq://host", "q", compare=False).transport_options
    assert theirs.transport_options["global_keyprefix"] == "q-kombu:"


class _Interrupts:
    """A class attribute that simulates Ctrl-C during the creation of its class."""

    def __set_name__(self, owner, name):
        raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["interrupt", "class"])
def test_an_interrupt_ends_a_command_with_130(how):
    """An interrupt ends with 130, also one that Python wraps while it creates a class.

    This can happen in a late import.
    """

    @click.group(cls=Group)
    def main():
        """Have a command."""

    @main.command()
    def work():
        """Be interrupted."""
        if how == "interrupt":
            raise KeyboardInterrupt
        type("Made", (), {"member": _Interrupts()})

    result = CliRunner().invoke(main, ["work"])
    assert (130, "interrupted") == (result.exit_code, result.output.strip())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["10.0.0.5:6379"], "expected HOST:PORT=HOST:PORT, got '10.0.0.5:6379'"),
        (["10.0.0.5=a:1"], "a mapping of host:port to host:port"),
        (["a:1=b:1;a:1=c:1"], "a:1 is given twice: b:1, c:1"),
    ],
)
def test_an_address_map_that_is_none(given, said):
    """An invalid address map, of an option or the environment, is refused before any connection."""
    options = [word for pair in given for word in ("--address-map", pair)]
    for result in (
        run("status", "--url", "reliq-cluster://127.0.0.1:1", *options),
        run("status", "--url", "reliq-cluster://127.0.0.1:1", env={"RELIQ_ADDRESS_MAP": given[0]}),
    ):
        assert (2, True) == (result.exit_code, said in result.output), result.output

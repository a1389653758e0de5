"""The examples of docs/cli.md and --help run, and the pictures are drawn."""

import contextlib
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reliq.batches.jobs import Change
from reliq.cli import main
from reliq.cli.schema import SCHEMAS
from reliq.store.urls import connect
from tests.contract.jobs import begin, end, enter
from tests.integration.kombu_client import Taker, declare, publish
from tests.support.commands import run

ROOT = Path(__file__).resolve().parents[3]


def commands(group=main, names=()):
    """Yield (words, command) of every command that is not a group."""
    for name in group.commands:
        _, command, _ = group.resolve_command(click.Context(group), [name])
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))
        else:
            yield (*names, name), command


def groups():
    """Return the words of every group except the main one."""
    return sorted({words[:-1] for words, _ in commands() if len(words) > 1})


def examples(command):
    """Return the command lines in a command's help."""
    return re.findall(r"^ +(?:eval \"\$\()?(reliq .*?)(?:\)\")?$", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_has_examples_that_parse(words):
    """The help of every command has examples, and the command accepts each of them."""
    command = dict(commands())[words]
    shown = examples(command)
    assert shown
    for line in shown:
        context, group = click.Context(main, info_name="reliq"), main
        _, *arguments = shlex.split(line.partition(" > ")[0])
        while isinstance(group, click.Group):
            name, *arguments = arguments
            _, group, _ = group.resolve_command(context, [name])
            if isinstance(group, click.Group):
                context = click.Context(group, parent=context, info_name=name)
        assert group is command, line
        group.make_context(words[-1], arguments, parent=context)


@pytest.mark.parametrize(
    "words", [(), *groups(), *(words for words, _ in commands())], ids=" ".join
)
def test_help_is_text(words):
    """Examples in --help keep their lines and contain no formatting marks."""
    done = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    assert 0 == done.exit_code
    assert "\\b" not in done.output
    assert "\b" not in done.output
    assert not re.search("Examples?: .*reliq", done.output)  # wrapped into one paragraph


def test_every_command_with_json_has_a_schema():
    """Each command with --json has a schema, and each schema has a command."""
    with_json = {
        " ".join(words)
        for words, command in commands()
        if any("--json" in option.opts for option in command.params)
    }
    without = {"demo"}  # its output is the application's own
    assert with_json - without == set(SCHEMAS)


def test_the_commands_of_the_document_run(client, tmp_path, monkeypatch):
    """The sh blocks of docs/cli.md run in order on a queue with messages in each state.

    The commands run in this process: other tests start processes, and thirty starts are slow.
    """
    monkeypatch.chdir(tmp_path)
    connection = client.connect()
    declare(connection, "orders")
    for number in range(8):
        headers = {"task": "shop.ship", "id": f"id-{number}", "argsrepr": f"({number},)"}
        publish(connection, "orders", number, headers=headers)
    publish(connection, "orders", 9, headers={"x-delay": 60_000})
    taker = Taker(connection, "orders", auto_declare=False, prefetch_count=5)
    for message in taker.take(4):
        message.reject()
    taker.consumer.cancel()
    with contextlib.closing(connect(client.url, {}, "owner/1")) as store:
        for batch in ("5f0c6c1d", "7b21aa40"):
            store.batches.open_batch(batch, "import", {"ttl_ms": "600000"})
        store.batches.change("5f0c6c1d", [enter(f"j{n}") for n in range(7)])
        store.batches.change("7b21aa40", [enter(), begin(), end("succeeded"), Change("seal")])
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    lines = [
        line.partition("#")[0].strip()
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert 25 < len(lines)
    for line in lines:
        done = CliRunner().invoke(main, shlex.split(line)[1:], env={"RELIQ_URL": client.url})
        assert (0, "") == (done.exit_code, done.stderr), (line, done.output)
    assert client.status("orders") is None


@pytest.mark.slow
def test_the_pictures_are_drawn(tmp_path):
    """The script draws the commands' output; the pictures load nothing and contain no address."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "pictures" / "make.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    for name in ("status", "top", "dead-list"):
        for path in (tmp_path, ROOT / "docs" / "pictures"):
            svg = (path / f"{name}.svg").read_text("utf-8")
            ET.fromstring(svg)
            assert "url(http" not in svg
            assert "127.0.0.1" not in svg
    assert "PAUSED" in (tmp_path / "status.svg").read_text("utf-8")
    assert "shop.notify" in (tmp_path / "dead-list.svg").read_text("utf-8")


@pytest.mark.slow
def test_a_schema_is_one():
    """`reliq schema` prints valid JSON Schema, for one command and for all."""
    import jsonschema

    for words in ((), ("status",), ("dead", "show")):
        found = json.loads(run(None, "schema", *words).stdout)
        jsonschema.Draft202012Validator.check_schema(found)

"""The ``reliq`` command: the group of all commands, each in its own module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from reliq._version import __version__

from .endings import Group

COMMANDS = {
    "acl": "Print the Redis command that creates a user with the least permissions for ROLE.",
    "audit": "Check that the ledger of each queue and the counters of each batch balance.",
    "batch": "List, show, watch, seal and cancel batches of jobs.",
    "completion": "Print the script for shell completion in SHELL.",
    "consumers": "Show the consumers: worker, queues, held messages, last heartbeat.",
    "dead": "List, show, replay, purge, export and import dead letters.",
    "demo": "Kill a Celery worker during its work, and count lost and repeated tasks.",
    "doctor": "Find problems of brokers, permissions, consumers and queues, with their remedies.",
    "embedded": "Inspect, run, stop, repair or copy an embedded broker (reliq-embedded:////FOLDER).",
    "exporter": "Serve metrics for Prometheus on http://HOST:PORT/metrics.",
    "limit": "Set, show or clear the limits of a queue: messages in hand, and starts in a time.",
    "migrate": "Move messages from Kombu's Redis transport to reliq, or back.",
    "move": "Move ready, delayed and dead messages of QUEUE, or of all queues, to another broker.",
    "peek": "Show messages of QUEUE without reserving them.",
    "queue": "Pause, resume, purge or delete a queue, or change its settings.",
    "schema": "Print the JSON Schema of the --json output of COMMAND, or of all commands.",
    "spool": "Inspect or forward a spool: messages published while no broker answered.",
    "status": "Show all brokers and queues.",
    "top": "Show the status live, until Ctrl-C.",
    "web": "Serve the web page on http://HOST:PORT.",
}
"""The help line of each command."""

_ELSEWHERE = {
    "audit": "diagnostics",
    "batch": "batches",
    "consumers": "diagnostics",
    "demo": "demo.command",
    "doctor": "diagnostics",
    "move": "migrate",
    "peek": "queues",
    "queue": "queues",
    "top": "status",
}
"""Command -> its module, if the names differ."""


class Commands(Group):
    """The commands by name. The module of a command is imported when it runs or shows its help.

    Loading all modules takes half a second, and completion and ``--help`` do not need them.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        for name, line in COMMANDS.items():
            self.add_command(click.Command(name, help=line))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with, from its module."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            module = f".{_ELSEWHERE.get(name, name)}"
            command = getattr(import_module(module, __package__), name)
        return name, command, rest


class Main(Commands):
    """The commands, which also accept ``--url`` before their name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move each --url before the command to the end of the arguments."""
        urls: list[str] = []
        while args and args[0].partition("=")[0] == "--url":
            count = 1 if "=" in args[0] else 2
            urls, args = urls + args[:count], args[count:]
        return super().parse_args(ctx, [*args, *urls] if args else urls)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reliq")
def main() -> None:
    """Inspect and repair the queues of reliq. For a demonstration, run reliq demo.

    --url or RELIQ_URL names the broker; --url may stand before or after the command. --json
    prints JSON.
    Exit codes: 0: success. 1: success, but with a problem found (audit, doctor, batch watch,
    demo). 2: wrong usage, a refusal, or a broker that did not answer. 130: interrupted.

    \b
    Examples:
      export RELIQ_URL=reliq://localhost:6379/0
      reliq status
      reliq peek orders --state unacked
      reliq dead list orders --newer 1h
    """

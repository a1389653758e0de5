"""The ``reliq`` command: the group that all commands belong to, each in a module of its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from reliq._version import __version__

from .endings import Group

COMMANDS = {
    "acl": "Print the Redis command that makes a user with the least that ROLE needs.",
    "audit": "Check each queue's ledger, and each batch's counters: everything is accounted for.",
    "batch": "Batches of jobs: list, show, watch, cancel, seal.",
    "bench": "Measure the broker from here: answers, publishes and consumes a second, one process.",
    "completion": "Print the script that completes commands, options and queues in SHELL.",
    "consumers": "Show who consumes: process, pool, queues, how much it holds, its last heartbeat.",
    "dead": "Dead letters: find, look at, replay, remove, write to a file, read from one.",
    "demo": "Kill a Celery worker half way and count what is lost or done twice.",
    "doctor": "Look for what is wrong with brokers, rights, consumers and queues; name the remedy.",
    "embedded": "Look at, run, stop, mend or copy the broker in a folder (reliq-embedded:////FOLDER).",
    "exporter": "Serve metrics for Prometheus on http://HOST:PORT/metrics until it is stopped.",
    "migrate": "Move messages from Kombu's Redis transport to reliq, or back, each once.",
    "move": "Move ready, delayed and dead messages of QUEUE, or of all, to another broker.",
    "peek": "Show messages of QUEUE without taking them.",
    "queue": "Pause, resume, purge, delete a queue, or change its settings.",
    "schema": "Print the JSON Schema of what a COMMAND prints with --json; without one, of all.",
    "spool": "Inspect and forward a spool: what was published while no broker answered.",
    "status": "Show every queue, and the brokers they are on.",
    "top": "Show the status again and again; Ctrl-C ends it.",
    "web": "Serve a page to look at on http://HOST:PORT until it is stopped.",
}
"""Each command's line in the help."""

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
"""The module of a command where that has another name."""


class Commands(Group):
    """The commands by their names. A module is imported when its command is run or asked for help.

    Loading all of them takes half a second, which a completion and ``--help`` do not need.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        for name, line in COMMANDS.items():
            self.add_command(click.Command(name, help=line))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with, as its module has it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            module = f".{_ELSEWHERE.get(name, name)}"
            command = getattr(import_module(module, __package__), name)
        return name, command, rest


class Main(Commands):
    """The commands, which take what names a broker before them, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put each --url that comes before the command behind all others."""
        urls: list[str] = []
        while args and args[0].partition("=")[0] == "--url":
            count = 1 if "=" in args[0] else 2
            urls, args = urls + args[:count], args[count:]
        return super().parse_args(ctx, [*args, *urls] if args else urls)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reliq")
def main() -> None:
    """Look at the queues that reliq keeps, and put them right; or see it work: reliq demo.

    Every command takes the broker from RELIQ_URL or --url, before the command or after it,
    and prints JSON with --json.
    Exit codes: 0 done; 1 done, and a fault was found (audit, doctor, demo); 2 not done:
    wrong usage, refused, or a broker did not answer; 130 interrupted.

    \b
    Examples:
      export RELIQ_URL=reliq://localhost:6379/0
      reliq status
      reliq peek orders --state unacked
      reliq dead list orders --newer 1h
    """

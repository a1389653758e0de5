"""``reliq web``: serve the web page."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .endings import Refused
from .options import broker_options, interval_option, listening

if TYPE_CHECKING:
    from .target import Target

_NEEDED = ("jinja2", "starlette", "uvicorn")


def _print_hash(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    _require_installed()
    from reliq.web.settings import hashed  # noqa: PLC0415 - its package needs the extra

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise Refused("expected a password on standard input, got none")
    click.echo(hashed(password))
    context.exit()


def _require_installed() -> None:
    if not all(map(importlib.util.find_spec, _NEEDED)):
        raise Refused.for_extra("the page needs Starlette, Jinja2 and uvicorn", "web")


@click.command()
@broker_options
@listening(5580, "The address to listen on. An address other than loopback requires users.")
@click.option("--allow-actions", is_flag=True, help="Let operators pause, purge, replay and more.")
@click.option(
    "--users",
    type=click.Path(dir_okay=False),
    help="A file with lines NAME viewer|operator HASH. Default: the text in RELIQ_WEB_USERS.",
)
@click.option("--user-header", default="", help="The header in which a proxy names the user.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="An address whose header is trusted (repeatable).  [default: this machine]",
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    help="With --user-header: the name of an operator (repeatable).",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Without users: another host name of this machine besides localhost (repeatable).",
)
@click.option(
    "--redact",
    multiple=True,
    metavar="KEY",
    help="Hide the values of matching keys in messages, for example '*token*' (repeatable).",
)
@click.option("--root-path", default="", help="The path under which a proxy serves the pages.")
@interval_option(0.2, 60, 2.0, "Seconds between updates of an open page.")
@click.option(
    "--action-log", type=click.Path(dir_okay=False), help="Also append each action to this file."
)
@click.option(
    "--hash-password",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_hash,
    help="Ask for a password, print its hash for --users, and exit.",
)
def web(
    target: Target, host: str, port: int, users: str | None, action_log: str | None, **given: Any
) -> None:
    """Serve the web page on http://HOST:PORT.

    It shows queues, messages, dead letters, consumers, batches and the doctor's findings.
    Without --allow-actions, it is read-only. Without users, it answers only this machine.

    Exits with 0 on SIGTERM or Ctrl-C, and with 2 if it cannot start.

    \b
    Examples:
      reliq web --url reliq://localhost:6379/0
      celery -A proj reliq web --allow-actions
      reliq web --host 0.0.0.0 --users users.txt --redact password --redact '*token*'
    """
    _require_installed()
    from .web_server import serve  # noqa: PLC0415 - its imports are an extra

    given["interval_s"] = given.pop("interval")
    given["action_log"] = None if action_log is None else Path(action_log)
    if users is None:
        given["users"] = os.environ.get("RELIQ_WEB_USERS", "")
    else:
        given["users_file"] = users
    if not given["proxies"]:
        del given["proxies"]
    serve(target.urls, target.options, host, port, given)

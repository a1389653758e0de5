"""``reliq web``: the page to look at, served until it is stopped."""

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
    from .web_server import hashed  # noqa: PLC0415 - what it imports is an extra

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
        raise Refused(
            "the page needs Starlette, Jinja2 and uvicorn: pip install 'kombu-reliq[web]'"
        )


@click.command()
@broker_options
@listening(5580, "The address to listen on; another than this machine's own needs users.")
@click.option("--allow-actions", is_flag=True, help="Let operators pause, purge, replay ...")
@click.option(
    "--users",
    type=click.Path(dir_okay=False),
    help="A file of lines NAME viewer|operator HASH; or RELIQ_WEB_USERS, with that text.",
)
@click.option("--user-header", default="", help="The header in which a proxy names the user.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="From where that header is believed; several: again.  [default: this machine]",
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    help="Whom of those the proxy names is an operator; several: again.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Without users: a name of this machine beside localhost; several: again.",
)
@click.option(
    "--redact",
    multiple=True,
    metavar="KEY",
    help="Hide what stands under this key in messages, as '*token*'; several: again.",
)
@click.option("--root-path", default="", help="The path of a proxy under which the pages are.")
@interval_option(0.2, 60, 2.0, "Seconds after which a page that somebody looks at is read anew.")
@click.option(
    "--action-log", type=click.Path(dir_okay=False), help="Append each action to this file, too."
)
@click.option(
    "--hash-password",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_hash,
    help="Ask for a password, print the hash of it for --users, and exit.",
)
def web(
    target: Target, host: str, port: int, users: str | None, action_log: str | None, **given: Any
) -> None:
    """Serve a page to look at on http://HOST:PORT until it is stopped.

    Queues and their messages, dead letters, consumers, batches, what the doctor finds. Nothing
    can be changed without --allow-actions. Without users only this machine is answered.

    Exits with 0 on SIGTERM or Ctrl-C, with 2 where it cannot begin.

    \b
    Examples:
      reliq web --url reliq://localhost:6379/0
      celery -A proj reliq web --allow-actions
      reliq web --host 0.0.0.0 --users users.txt --redact password --redact '*token*'
    """
    _require_installed()
    from .web_server import serve  # noqa: PLC0415 - what it imports is an extra

    given["interval_s"] = given.pop("interval")
    given["action_log"] = None if action_log is None else Path(action_log)
    if users is None:
        given["users"] = os.environ.get("RELIQ_WEB_USERS", "")
    else:
        given["users_file"] = users
    if not given["proxies"]:
        del given["proxies"]
    serve(target.urls, target.options, host, port, given)

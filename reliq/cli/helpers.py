"""Commands that need no broker: acl and completion."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

from reliq.admin import ROLES, acl_rule
from reliq.errors import ConfigurationError
from reliq.options import CONFIRMS

from . import console as out
from .console import Refused
from .target import json_option, prefix_option

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("role", type=click.Choice(ROLES), required=False)
@click.option("--user", help="Its name; without it reliq-ROLE.")
@click.option(
    "--confirm",
    type=click.Choice(CONFIRMS),
    default="accepted",
    show_default=True,
    help="The strongest transport option or property of that name that producers use.",
)
@click.option(
    "--config",
    is_flag=True,
    help="Let the operator read the server's configuration, passwords in it included: then "
    "status and doctor say more of persistence and timeouts.",
)
@click.option("--sentinels", is_flag=True, help="The URLs are reliq-sentinel://.")
@prefix_option
@json_option
def acl(
    role: str | None,
    user: str | None,
    confirm: str,
    config: bool,
    sentinels: bool,
    prefix: str,
    as_json: bool,
) -> None:
    """Print the Redis command that makes a user with the least that ROLE needs.

    producer publishes and declares; worker also consumes (and runs what Celery's remote
    control, reliq.once and reliq bench need); operator does what the reliq command does;
    exporter serves metrics; migration is for reliq migrate; sentinel is a user at the
    Sentinels themselves. The user is made anew, whatever it was. Put a password in place
    of <password>. docs/operations.md says what each can do to the queues of its prefix.

    \b
    Examples:
      reliq acl
      reliq acl worker --user celery --prefix shop:
      reliq acl producer --confirm replicated
      reliq acl operator --config
    """
    roles = ROLES if role is None else (role,)
    said: dict[str, Any] = {"confirm": confirm, "config": config, "sentinels": sentinels}
    try:
        rules = {name: acl_rule(name, user, prefix, **said) for name in roles}
    except ConfigurationError as error:
        raise Refused(str(error)) from error
    if as_json:
        out.dump(rules)
        return
    for rule in rules.values():
        click.echo(rule)


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and queues in SHELL.

    \b
    Examples:
      eval "$(reliq completion bash)"
      reliq completion fish > ~/.config/fish/completions/reliq.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise Refused(f"click knows no completion for {shell}")
    root = context.find_root().command
    click.echo(made(root, {}, "reliq", "_RELIQ_COMPLETE").source())

"""Commands that need no broker: acl and completion."""

from __future__ import annotations

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
@click.option("--confirm", type=click.Choice(CONFIRMS), default="accepted", show_default=True)
@prefix_option
@json_option
def acl(role: str | None, user: str | None, confirm: str, prefix: str, as_json: bool) -> None:
    """Print the Redis command that makes a user with the least that ROLE needs.

    producer publishes and declares; worker also consumes (and runs what Celery's remote
    control and reliq.once need); operator does what the reliq command does. The user is
    made anew, whatever it was. Put a password in place of <password>.

    \b
    Examples:
      reliq acl
      reliq acl worker --user celery --prefix shop:
      reliq acl producer --confirm replicated
    """
    roles = ROLES if role is None else (role,)
    try:
        rules = {name: acl_rule(name, user, prefix, confirm=confirm) for name in roles}
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

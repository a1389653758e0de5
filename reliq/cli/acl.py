"""``reliq acl``: what a Redis user needs."""

from __future__ import annotations

from typing import Any

import click

from reliq import admin
from reliq.admin.names import ROLES
from reliq.options import CONFIRMS

from . import console as out
from .options import json_option, prefix_option


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
@click.option(
    "--cluster",
    is_flag=True,
    help="The URLs are reliq-cluster://. Send what is printed to every node, replicas too: "
    "they do not tell each other of users.",
)
@prefix_option
@json_option
def acl(
    role: str | None,
    user: str | None,
    prefix: str,
    as_json: bool,
    **said: Any,
) -> None:
    """Print the Redis command that makes a user with the least that ROLE needs.

    producer publishes and declares; worker also consumes (and runs what Celery's remote
    control, reliq.once and reliq bench need); operator does what the reliq command does;
    exporter serves metrics; viewer looks at everything and changes nothing; migration is
    for reliq migrate; sentinel is a user at the Sentinels themselves. The user is made anew,
    whatever it was. Put a password in place of <password>. docs/operations.md says what each
    can do to the queues of its prefix.

    \b
    Examples:
      reliq acl
      reliq acl worker --user celery --prefix shop:
      reliq acl producer --confirm replicated
      reliq acl operator --config
      reliq acl worker --cluster
    """
    roles = ROLES if role is None else (role,)
    rules = {name: admin.acl_rule(name, user, prefix, **said) for name in roles}
    out.answer(rules, as_json, dict.values)

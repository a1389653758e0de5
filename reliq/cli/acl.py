"""``reliq acl``: the permissions of Redis users."""

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
@click.option("--user", help="Name of the user. Default: reliq-ROLE.")
@click.option(
    "--confirm",
    type=click.Choice(CONFIRMS),
    default="accepted",
    show_default=True,
    help="The strictest confirm that producers use, as a transport option or message property.",
)
@click.option(
    "--config",
    is_flag=True,
    help="Let the operator read the server's configuration, including its passwords. status and "
    "doctor then report more about persistence and timeouts.",
)
@click.option("--sentinels", is_flag=True, help="The URLs are reliq-sentinel://.")
@click.option(
    "--cluster",
    is_flag=True,
    help="The URLs are reliq-cluster://. Send the command to every node, including replicas, "
    "because nodes do not share users.",
)
@prefix_option
@json_option
def acl(
    role: str | None,
    user: str | None,
    prefix: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the Redis command that creates a user with the least permissions for ROLE.

    Without ROLE, print one command for each role. producer publishes and declares. worker also
    consumes, and may use Celery's remote control and reliq.once. operator may run all commands
    of reliq. exporter serves metrics. viewer reads everything and changes nothing.
    migration is for reliq migrate. sentinel is a user of the Sentinels. The command replaces an
    existing user. Replace <password>. docs/operations.md lists the access of each role.

    \b
    Examples:
      reliq acl
      reliq acl worker --user celery --prefix shop:
      reliq acl producer --confirm replicated
      reliq acl operator --config
      reliq acl worker --cluster
    """
    roles = ROLES if role is None else (role,)
    rules = {name: admin.acl_rule(name, user, prefix, **options) for name in roles}
    out.answer(rules, as_json, dict.values)

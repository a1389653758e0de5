"""``celery -A proj reliq ...``: the same commands, about the application's own brokers.

Celery loads this module with every command of its own (entry point ``celery.commands``),
so the commands are loaded when one of ours is run.
"""

from __future__ import annotations

import click

from .application import Application
from .endings import Group


def _main() -> click.Group:
    from .commands import main  # noqa: PLC0415 - see above

    return main


class Commands(Group):
    """The commands of ``reliq``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return _main().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one of them."""
        return _main().get_command(ctx, cmd_name)


@click.group(cls=Commands)
@click.pass_context
def reliq(context: click.Context) -> None:
    """Look at the queues that reliq keeps, and put them right.

    The brokers and the transport options are those of the application.

    \b
    Examples:
      celery -A proj reliq status
      celery -A proj reliq dead list orders --newer 1h
    """
    context.obj = Application(context.obj.app)

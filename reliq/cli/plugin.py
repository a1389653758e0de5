"""``celery -A proj reliq ...``: the same commands, about the application's own brokers.

Celery loads this module with every command of its own (entry point ``celery.commands``).
"""

from __future__ import annotations

import click

from .application import Application
from .commands import Commands


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

"""``celery -A proj reliq ...``: the same commands, for the application's brokers.

Celery loads this module in each of its own commands (entry point ``celery.commands``).
"""

from __future__ import annotations

import click

from .application import Application
from .commands import Commands


@click.group(cls=Commands)
@click.pass_context
def reliq(context: click.Context) -> None:
    """Inspect and repair the queues of reliq.

    The application provides the brokers and the transport options.

    \b
    Examples:
      celery -A proj reliq status
      celery -A proj reliq dead list orders --newer 1h
    """
    context.obj = Application(context.obj.app)

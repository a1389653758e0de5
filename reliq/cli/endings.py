"""How commands end at Ctrl-C. Imports nothing that takes time: Celery loads it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED = 130


@contextmanager
def interruptible(context: click.Context) -> Iterator[None]:
    """End the command with 130 at Ctrl-C: click's 1 says that a fault was found."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):  # the latter: at a question
        click.echo("\ninterrupted", err=True)
        context.exit(INTERRUPTED)


class Group(click.Group):
    """A group whose commands end so."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one of them."""
        with interruptible(ctx):
            return super().invoke(ctx)

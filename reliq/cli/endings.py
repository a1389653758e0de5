"""How commands end at Ctrl-C. Imports nothing that takes time: Celery loads it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


INTERRUPTED = 130
"""The code with which a command ends at Ctrl-C."""


def is_interrupt(error: BaseException) -> bool:
    """Whether *error* is Ctrl-C, or what Python has made of it.

    Before 3.12 it makes RuntimeError of what it meets while a class is made, in a late import.
    """
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


@contextmanager
def interruptible(context: click.Context) -> Iterator[None]:
    """End the command with 130 at Ctrl-C: click's 1 says that a fault was found."""
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as error:
        if not (is_interrupt(error) or isinstance(error, click.Abort)):  # the latter: at a question
            raise
        click.echo("\ninterrupted", err=True)
        context.exit(INTERRUPTED)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block has ended, which must be short.

    For a process that is started: until it is noted who ends it, an interrupt would leave it
    behind. Main thread only.
    """
    came: list[int] = []
    handlers: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, lambda signum, _frame: came.append(signum))
        yield
    finally:
        for caught, handler in handlers.items():
            signal.signal(caught, handler)
    if came:
        signal.raise_signal(came[0])


class Group(click.Group):
    """A group whose commands end so."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one of them."""
        with interruptible(ctx):
            return super().invoke(ctx)

"""How commands end at Ctrl-C and with a refusal. Imports nothing slow: Celery loads it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from reliq.errors import ReliqError
from reliq.printable import plain

from .interrupts import INTERRUPTED, is_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator


class Refused(click.ClickException):
    """The command could not do its work; the text says why."""

    exit_code = 2  # 1 says that it did, and found a fault

    def format_message(self) -> str:
        """Return the text, in as many lines as it was made of."""
        return "\n".join(map(plain, super().format_message().split("\n")))


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
    """A group whose commands end so; an error of reliq is a refusal."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one of them."""
        with interruptible(ctx):
            try:
                return super().invoke(ctx)
            except ReliqError as error:
                raise Refused(str(error)) from error

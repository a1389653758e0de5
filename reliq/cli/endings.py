"""How commands end at Ctrl-C and with a refusal. Imports nothing slow: Celery loads it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from reliq.errors import ReliqError
from reliq.printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterator


INTERRUPTED = 130
"""The code with which a command ends at Ctrl-C."""


class Refused(click.ClickException):
    """The command could not do its work; the text says why."""

    exit_code = 2  # 1 says that it did, and found a fault

    def format_message(self) -> str:
        """Return the text, in as many lines as it was made of."""
        return "\n".join(map(plain, super().format_message().split("\n")))


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
    """A group whose commands end with 130 at Ctrl-C; an error of reliq is a refusal."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one of them."""
        try:
            return super().invoke(ctx)
        except ReliqError as error:
            raise Refused(str(error)) from error
        except (KeyboardInterrupt, RuntimeError) as error:
            # click makes Abort of Ctrl-C at a question, and Python before 3.12 a RuntimeError of
            # one that it meets while a class is made, in a late import.
            interrupts = (KeyboardInterrupt, click.Abort)
            if not (isinstance(error, interrupts) or isinstance(error.__cause__, interrupts)):
                raise
            click.echo("\ninterrupted", err=True)
            ctx.exit(INTERRUPTED)

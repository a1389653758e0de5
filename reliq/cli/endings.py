"""Exits of commands after interrupts and refusals. Imports no slow module: Celery loads it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from reliq.errors import ReliqError
from reliq.printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterator


INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class Refused(click.ClickException):
    """The command failed; the text gives the reason."""

    exit_code = 2  # 1 means success with a problem found

    def format_message(self) -> str:
        """Return the escaped text; it keeps its lines."""
        return "\n".join(map(plain, super().format_message().split("\n")))

    @classmethod
    def for_extra(cls, needs: str, extra: str) -> Refused:
        """Return a command's refusal without its *extra*; *needs* names the missing part."""
        return cls(f"{needs}: pip install 'kombu-reliq[{extra}]', or '.[{extra}]' in a clone")


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the end of the block, which must be short.

    Use it to start a process. Otherwise, an interrupt could leave the process running before its
    cleanup is registered. Main thread only.
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


def stop_event() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets from now on. Main thread only."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


class Group(click.Group):
    """A group whose commands exit with 130 at Ctrl-C, and with 2 for an error of reliq."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command of the group."""
        try:
            return super().invoke(ctx)
        except ReliqError as error:
            raise Refused(str(error)) from error
        except (KeyboardInterrupt, RuntimeError) as error:
            # Ctrl-C at a prompt becomes click's Abort. Before Python 3.12, Ctrl-C during the
            # creation of a class (in a late import) becomes a RuntimeError.
            interrupts = (KeyboardInterrupt, click.Abort)
            if not (isinstance(error, interrupts) or isinstance(error.__cause__, interrupts)):
                raise
            click.echo("\ninterrupted", err=True)
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command; long ones are wrapped, click would cut them."""
        every = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(1000)) for name, command in every if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

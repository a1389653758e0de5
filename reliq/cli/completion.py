"""``reliq completion``, and the names of queues that a shell completes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from .endings import Refused
from .target import target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.admin import Inspector

_BATCHES = 500
_SHELLS = ("bash", "zsh", "fish")
# A shell puts a completion into the line as it is, and Enter runs the line: a name that
# a shell would read as anything but itself is not offered. Nor is one like an option.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+,-]*")


def queue_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the queues that begin so, for a shell's completion; none where nobody answers.

    Only those whose names are safe in the line of a shell.
    """
    return _completed(context, incomplete, lambda inspector: inspector.queues())


def batch_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of batches that begin so, of those opened last, as :func:`queue_names`."""
    return _completed(
        context, incomplete, lambda inspector: [item.id for item in inspector.batches(_BATCHES)]
    )


def _completed(
    context: click.Context, incomplete: str, look: Callable[[Inspector], list[str]]
) -> list[str]:
    try:
        with context:
            given = context.params
            target = target_of(
                tuple(given.get("urls") or ()),
                given.get("prefix") or "",
                given.get("master_name"),
                given.get("address_map"),
            )
    except click.UsageError:
        return []
    found = target.gather(look).found
    names = {name for there in found for name in there if name.startswith(incomplete)}
    return sorted(filter(_SAFE.fullmatch, names))


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and queues in SHELL.

    \b
    Examples:
      eval "$(reliq completion bash)"
      reliq completion fish > ~/.config/fish/completions/reliq.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise Refused(f"click knows no completion for {shell}")
    root = context.find_root().command
    click.echo(made(root, {}, "reliq", "_RELIQ_COMPLETE").source())

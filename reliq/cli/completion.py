"""``reliq completion``, and the names of queues that a shell completes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
from click.shell_completion import shell_complete

from .target import target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.admin import Inspector

_BATCHES = 500
_SHELLS = ("bash", "zsh", "fish")
# A shell puts a completion into the line as it is, and Enter runs the line: a name that
# a shell would read as anything but itself is not offered. Nor is one like an option.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+,-]*")


def _completing(look: Callable[[Inspector], list[str]]) -> Callable[..., list[str]]:
    """Return a completion for a shell: the names of *look* that begin like the typed word.

    Only those that are safe in the line of a shell; none where nobody answers.
    """

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        known = target_of.__annotations__.keys()
        given = {name: value for name, value in context.params.items() if value and name in known}
        try:
            with context:
                target = target_of(**given)
        except click.UsageError:
            return []
        names = {name for there in target.gather(look).found for name in there}
        return sorted(name for name in names if name.startswith(begun) and _SAFE.fullmatch(name))

    return complete


queue_names = _completing(lambda inspector: inspector.queues())
batch_ids = _completing(lambda inspector: [item.id for item in inspector.batches(_BATCHES)])


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
    root = context.find_root().command
    shell_complete(root, {}, "reliq", "_RELIQ_COMPLETE", f"{shell}_source")

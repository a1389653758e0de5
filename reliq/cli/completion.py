"""``reliq completion``, and the completion of queue names and batch ids."""

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
# A shell inserts a completion unquoted, and Enter runs the line. Therefore, offer only names
# without characters that are special to a shell, and none that look like an option.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+,-]*")


def _completing(query: Callable[[Inspector], list[str]]) -> Callable[..., list[str]]:
    """Return a shell completion: the names of *look* that start with the typed word.

    It offers only names that are safe on a command line, and none if no broker answers.
    """

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        known = target_of.__annotations__.keys()
        given = {name: value for name, value in context.params.items() if value and name in known}
        try:
            with context:
                target = target_of(**given)
        except click.UsageError:
            return []
        names = {name for there in target.gather(query).answers for name in there}
        return sorted(name for name in names if name.startswith(begun) and _SAFE.fullmatch(name))

    return complete


queue_names = _completing(lambda inspector: inspector.queues())
batch_ids = _completing(lambda inspector: [item.id for item in inspector.batches(_BATCHES)])


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script for shell completion in SHELL.

    It completes commands, options, queue names and batch ids.

    \b
    Examples:
      eval "$(reliq completion bash)"
      reliq completion fish > ~/.config/fish/completions/reliq.fish
    """
    root = context.find_root().command
    shell_complete(root, {}, "reliq", "_RELIQ_COMPLETE", f"{shell}_source")

"""``reliq completion``, and the names of queues that a shell completes."""

from __future__ import annotations

import re

import click
from click.shell_completion import get_completion_class

from .console import Refused
from .target import target_of

_SHELLS = ("bash", "zsh", "fish")
# A shell puts a completion into the line as it is, and Enter runs the line: a name that
# a shell would read as anything but itself is not offered. Nor is one like an option.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+,-]*")


def queue_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the queues that begin so, for a shell's completion; none where nobody answers.

    Only those whose names are safe in the line of a shell.
    """
    try:
        with context:
            target = target_of(
                tuple(context.params.get("urls") or ()),
                context.params.get("prefix") or "",
                context.params.get("master_name"),
                context.params.get("address_map"),
            )
    except click.UsageError:
        return []
    found = target.gather(lambda inspector: inspector.queues()).found
    return sorted({name for names in found for name in names if _offered(name, incomplete)})


def _offered(name: str, incomplete: str) -> bool:
    return name.startswith(incomplete) and _SAFE.fullmatch(name) is not None


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

"""Confirmation and output for all commands.

It also exports the names of :mod:`.tables`, and imports that module at their first use.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from reliq.errors import ReliqError

from .endings import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tables import *  # noqa: F403 - see __getattr__


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # every import looks up such names
        raise AttributeError(name)
    return getattr(import_module(".tables", __package__), name)


def counted(done: str) -> Callable[[dict[str, Any]], str]:
    """Return a function that describes a row: how many messages are, or would be, *done*."""
    return lambda row: f"{row['count']} {'would be ' if row['dry_run'] else ''}{done}"


def of_broker(broker: str, item: Any) -> dict[str, Any]:
    """Return a result as in the JSON output: its broker and its fields."""
    return {"broker": broker, **(item if isinstance(item, dict) else asdict(item))}


class Declined(ReliqError):
    """The operator did not confirm."""


def confirmed(question: str, broker: str, yes: bool) -> None:
    """Ask for confirmation before an irreversible change at a broker.

    Raises Declined, so that the command continues with the other brokers. Raises Refused
    without a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} There is no terminal to confirm: use --yes.")
    if not click.confirm(question, err=True):
        raise Declined(f"nothing was changed at {broker}")

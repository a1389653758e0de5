"""What the commands share: how they refuse, ask and print.

And all of :mod:`.tables`, which is imported when something is drawn.
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
    if name.startswith("__"):  # asked for by every import
        raise AttributeError(name)
    return getattr(import_module(".tables", __package__), name)


def counted(done: str) -> Callable[[dict[str, Any]], str]:
    """Return how a row tells of its count of messages: that they are, or would be, *done*."""
    return lambda row: f"{row['count']} {'would be ' if row['dry_run'] else ''}{done}"


def of_broker(broker: str, item: Any) -> dict[str, Any]:
    """Return a result as JSON has it: which broker it is of, and its fields."""
    return {"broker": broker, **(item if isinstance(item, dict) else asdict(item))}


class Declined(ReliqError):
    """An operator said no."""


def confirmed(question: str, broker: str, yes: bool) -> None:
    """Ask before something is destroyed at a broker.

    Raises Declined, so that other brokers are asked about too, and Refused where nobody
    can answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} Nobody is there to answer: give --yes.")
    if not click.confirm(question, err=True):
        raise Declined(f"nothing was done at {broker}")

"""The options that choose dead letters: what they died of, of which task, how many, how fast."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reliq.admin.names import REASONS

from .options import Duration, Number, dry_run_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reliq.admin.dead_letter_choice import Filters, Part

F = TypeVar("F", bound="Callable[..., Any]")

_FILTERS = (
    click.option("--task", help="Those of this Celery task."),
    click.option("--reason", type=click.Choice(REASONS), help="Those that died of it."),
    click.option("--older", type=Duration(), help="Those that died longer ago: 90, 15m, 2d."),
    click.option("--newer", type=Duration(), help="Those that died since then."),
    click.option("--match", help="A regular expression in task, id, error or arguments."),
)
_CHOICE = (
    click.option("--tag", "tags", multiple=True, help="This one; several: again."),
    click.option("--limit", type=click.IntRange(1), help="No more than so many."),
    click.option("--rate", type=Number(0, min_open=True), help="No more than so many a second."),
    dry_run_option,
)


@dataclass(frozen=True)
class Chosen:
    """The dead letters that a command is to change, and how."""

    filters: Filters
    tags: Sequence[str] | None
    limit: int | None
    rate: float | None
    dry_run: bool

    @property
    def part(self) -> Part:
        """What the Inspector's methods take."""
        return {"limit": self.limit, "rate": self.rate, **self.filters}


def filtered(command: F) -> F:
    """Add the filters; the command gets them as *filters*."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, older: float | None, newer: float | None, task: str | None,
        reason: str | None, match: str | None, **given: Any,
    ) -> Any:  # fmt: skip
        filters: Filters = {
            "task": task,
            "reason": reason,
            "older_than_s": older,
            "newer_than_s": newer,
            "match": match,
        }
        return command(*args, filters=filters, **given)

    for option in reversed(_FILTERS):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def choosing(command: F) -> F:
    """Add the filters, and which of those that fit; the command gets all that as *chosen*."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, filters: Filters, tags: tuple[str, ...], limit: int | None,
        rate: float | None, dry_run: bool, **given: Any,
    ) -> Any:  # fmt: skip
        chosen = Chosen(filters, tags or None, limit, rate, dry_run)
        return command(*args, chosen=chosen, **given)

    for option in reversed(_CHOICE):
        wrapper = option(wrapper)
    return filtered(wrapper)  # type: ignore[return-value]

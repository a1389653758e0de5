"""What an operator may do, each as one function: the only place from which anything is changed.

An action says first what it would do, then does it, and says what came of it. Those that may take
long are operations: they go on by themselves, step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..admin import Inspector
    from .asked import Asked

    Steps: TypeAlias = Callable[[Inspector], Iterator[int]]


class Action(NamedTuple):
    """One thing that can be done."""

    target: Callable[[Asked], str]
    """Returns what it is done to, for the log."""
    back: Callable[[Asked], str]
    """Returns the URL of the page to go to then."""
    do: Callable[[Inspector, Asked], str] | None = None
    """Does it, and returns what came of it; None of an operation."""
    steps: Callable[[Asked], Steps] | None = None
    """Of an operation: returns what does it step by step."""
    about: Callable[[Inspector, Asked], int] | None = None
    """Returns how many messages it would be about now."""
    warning: str = ""
    """What is said before it is confirmed; "" where nobody has to confirm it."""
    dangerous: bool = True
    """Whether it cannot be taken back."""


def _queue(asked: Asked) -> str:
    return asked.text("queue")


def _queue_page(asked: Asked) -> str:
    return asked.link("/queue", queue=_queue(asked))


def _pause(inspector: Inspector, asked: Asked) -> str:
    inspector.pause(_queue(asked))
    return "paused"


def _resume(inspector: Inspector, asked: Asked) -> str:
    inspector.resume(_queue(asked))
    return "resumed"


def _purge(inspector: Inspector, asked: Asked) -> str:
    return f"{inspector.purge(_queue(asked)):,} messages removed"


def _waiting(inspector: Inspector, asked: Asked) -> int:
    status = inspector.status(_queue(asked))
    return status.ready + status.delayed


def _set(inspector: Inspector, asked: Asked) -> str:
    name, text = asked.text("name"), asked.text("value").strip()
    value = None if not text else int(text) if text.lstrip("-").isdecimal() else text
    inspector.configure(_queue(asked), {name: value})
    return f"{name} is as declared" if value is None else f"{name} is {value}"


def _batch(asked: Asked) -> str:
    return asked.text("id")


def _batch_page(asked: Asked) -> str:
    return asked.link("/batch", id=_batch(asked))


def _seal(inspector: Inspector, asked: Asked) -> str:
    return "sealed" if inspector.seal_batch(_batch(asked)) else "was sealed already"


def _cancel(inspector: Inspector, asked: Asked) -> str:
    if inspector.cancel_batch(_batch(asked)):
        return "cancelled"
    return "was cancelled already, or has ended"


ACTIONS: dict[str, Action] = {
    "pause": Action(_queue, _queue_page, _pause),
    "resume": Action(_queue, _queue_page, _resume),
    "set": Action(_queue, _queue_page, _set),
    "purge": Action(
        _queue, _queue_page, _purge, about=_waiting,
        warning="What waits in this queue, ready and delayed, is removed for good. What consumers "
        "hold and what is dead stays.",
    ),
    "seal batch": Action(
        _batch, _batch_page, _seal,
        warning="No more jobs can be added to this batch, but by its own.", dangerous=False,
    ),
    "cancel batch": Action(
        _batch, _batch_page, _cancel,
        warning="What waits of this batch is dropped when it would begin; what runs goes on. It "
        "cannot be taken back.",
    ),
}  # fmt: skip


def action_of(name: str) -> Action:
    """Return an action; raises NotFound."""
    found = ACTIONS.get(name)
    if found is None:
        raise NotFound(f"no action {name!r}")
    return found


def rate_of(asked: Asked) -> float | None:
    """Return how many messages a second an operation may handle; raises ConfigurationError."""
    text = asked.text("rate").strip()
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigurationError(f"expected rate to be above 0 messages a second, got: {text!r}")
    return found

"""What an operator may do, each as one function: the only place from which anything is changed.

An action says first what it would do, then does it, and says what came of it. Those that may take
long are operations: they go on by themselves, step by step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..admin import Inspector
    from .asked import Asked
    from .views.look import Look

    Steps: TypeAlias = Callable[[Inspector], Iterator[int]]


_NUMBER = re.compile(r"-?[0-9]{1,20}")
# Messages a second: an operation that was told to stop does so after the message it waits for.
_SLOWEST = 0.1


class About(NamedTuple):
    """How many messages an action would be about."""

    number: int
    counted: bool = True
    """Whether all were counted; else there may be more."""


class Action(NamedTuple):
    """One thing that can be done."""

    target: Callable[[Asked], str]
    """Returns what it is done to, for the log."""
    back: Callable[[Asked], str]
    """Returns the URL of the page to go to then."""
    do: Callable[[Look], str] | None = None
    """Does it, and returns what came of it; None of an operation."""
    steps: Callable[[Asked, str], Steps] | None = None
    """Of an operation: returns what does it step by step, to the file of that name."""
    about: Callable[[Look], About] | None = None
    """Returns how many messages it would be about now."""
    warning: str = ""
    """What is said before it is confirmed; "" where nobody has to confirm it."""
    dangerous: bool = True
    """Whether it cannot be taken back."""
    changes: bool = True
    """Whether it changes anything; else a viewer may do it."""
    paced: bool = False
    """Whether it can be told how many messages a second."""
    exports: bool = False
    """Whether it writes a file, to be fetched then."""


def _queue(asked: Asked) -> str:
    return asked.text("queue")


def _queue_page(asked: Asked) -> str:
    return asked.link("/queue", queue=_queue(asked))


def _pause(look: Look) -> str:
    look.inspector.pause(look.queue)
    return "paused"


def _resume(look: Look) -> str:
    look.inspector.resume(look.queue)
    return "resumed"


def _purge(look: Look) -> str:
    return f"{look.inspector.purge(look.queue):,} messages removed"


def _waiting(look: Look) -> About:
    status = look.inspector.status(look.queue)
    return About(status.ready + status.delayed)


def _set(look: Look) -> str:
    name, text = look.asked.text("name"), look.asked.text("value").strip()
    value = None if not text else int(text) if _NUMBER.fullmatch(text) else text
    look.inspector.configure(look.queue, {name: value})
    return f"{name} is as declared" if value is None else f"{name} is {value}"


# -- dead letters: those that were ticked, else those of a group, else all of a queue


def _ticked(asked: Asked) -> list[str]:
    """Return the tags that were ticked; none where it is about all.

    Raises ConfigurationError where some were to be ticked, and none was.
    """
    tags = asked.texts("tag")
    if asked.text("chosen") and not tags:
        raise ConfigurationError("no dead letter was chosen: tick those that are meant")
    return tags


def _letters(asked: Asked) -> str:
    tags, group = _ticked(asked), asked.text("group")
    if tags:
        return f"{len(tags)} of {_queue(asked)}: {', '.join(tags)}"
    return f"{_queue(asked)}, group {group}" if group else _queue(asked)


def _letters_page(asked: Asked) -> str:
    group = asked.text("group")
    if group:
        return asked.link("/dead/group", queue=_queue(asked), group=group)
    return asked.link("/queue", queue=_queue(asked), state="dead")


def _dead(look: Look) -> About:
    tags, group = _ticked(look.asked), look.asked.text("group")
    if tags:
        return About(len(tags))
    if not group:
        return About(look.inspector.status(look.queue).dead)
    found = look.watch.counting.groups(look.inspector, look.queue)
    number = next((one.count for one in found.groups if one.fingerprint == group), 0)
    return About(number, found.cursor is None)


def _replaying(asked: Asked, _file: str) -> Steps:
    queue, tags, rate = _queue(asked), _ticked(asked) or None, rate_of(asked)
    group = asked.text("group") if not tags else ""
    return lambda inspector: inspector.replaying(queue, tags, rate=rate, fingerprint=group or None)


def _purging(asked: Asked, _file: str) -> Steps:
    queue, tags, rate = _queue(asked), _ticked(asked) or None, rate_of(asked)
    group = asked.text("group") if not tags else ""
    return lambda inspector: inspector.purging_dead_letters(
        queue, tags, rate=rate, fingerprint=group or None
    )


def _exporting(asked: Asked, file: str) -> Steps:
    queue, group = _queue(asked), asked.text("group")
    return lambda inspector: inspector.export_dead_letters(queue, file, fingerprint=group or None)


# -- batches


def _batch(asked: Asked) -> str:
    return asked.text("id")


def _batch_page(asked: Asked) -> str:
    return asked.link("/batch", id=_batch(asked))


def _seal(look: Look) -> str:
    sealed = look.inspector.seal_batch(_batch(look.asked))
    return "sealed" if sealed else "was sealed already"


def _cancel(look: Look) -> str:
    if look.inspector.cancel_batch(_batch(look.asked)):
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
    "replay": Action(
        _letters, _letters_page, steps=_replaying, about=_dead, paced=True, dangerous=False,
        warning="They are put back into their queue and delivered again, their failed deliveries "
        "counted anew. Those that die meanwhile stay.",
    ),
    "purge dead": Action(
        _letters, _letters_page, steps=_purging, about=_dead, paced=True,
        warning="These dead letters are removed for good.",
    ),
    "export": Action(
        _letters, _letters_page, steps=_exporting, about=_dead, dangerous=False, changes=False,
        exports=True,
        warning="They are written to a file, one JSON object a line, and stay in the queue.",
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
    if not _SLOWEST <= found < float("inf"):
        raise ConfigurationError(
            f"expected rate to be at least {_SLOWEST} messages a second, got: {text!r}"
        )
    return found

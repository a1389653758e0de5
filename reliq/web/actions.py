"""The actions of operators. No other module of the page changes data.

Each action checks permission, asks for confirmation where needed, runs, and logs its outcome. Long
actions are operations: they run in steps in the background.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from starlette.exceptions import HTTPException

from ..errors import ConfigurationError, NotFound, ReliqError
from .action_log import Operation
from .page_request import link
from .pages import broker_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .action_log import Entry, Steps
    from .brokers import Broker
    from .page_request import PageRequest, Source
    from .pages import Site

READ_ONLY = "This page is read-only: reliq web was started without --allow-actions."
HIDES = (
    "An export contains whole messages, including the values hidden here by --redact. Use the "
    "command line: reliq dead export."
)
VIEWER = "You are a viewer. Only operators can use actions."
# If the count grew by more than this since it was shown, the action asks again.
_MUCH, _MORE = 1.1, 10
_NUMBER = re.compile(r"-?[0-9]{1,20}")
# Messages a second. A stopped operation ends after its current message, so a lower rate is refused.
_SLOWEST = 0.1


class About(NamedTuple):
    """The number of messages that an action affects."""

    number: int
    counted: bool = True
    """Whether the count is complete; otherwise there may be more."""


class Action(NamedTuple):
    """One action."""

    subject: Callable[[PageRequest], tuple[str, str]]
    """Returns the target, for the log, and the URL of the page to open afterwards."""
    do: Callable[[Source], str] | None = None
    """Runs the action and returns its outcome; None for an operation."""
    steps: Callable[[PageRequest, str], Steps] | None = None
    """For an operation: returns its steps, which may write the file of that name."""
    about: Callable[[Source], About] | None = None
    """Returns the number of messages that it would affect now."""
    warning: str = ""
    """The text of the confirmation page; "" for actions without confirmation."""
    dangerous: bool = True
    """Whether it is irreversible."""
    changes: bool = True
    """Whether it changes data; otherwise viewers may use it."""
    paced: bool = False
    """Whether it accepts a rate limit."""
    exports: bool = False
    """Whether it writes a file for download."""


def _queue(request: PageRequest) -> tuple[str, str]:
    name = request.text("queue")
    return name, request.link("/queue", queue=name)


def _pause(source: Source) -> str:
    source.inspector.pause(source.queue)
    return "paused"


def _resume(source: Source) -> str:
    source.inspector.resume(source.queue)
    return "resumed"


def _waiting(source: Source) -> About:
    status = source.inspector.status(source.queue)
    return About(status.ready + status.delayed)


def _set(source: Source) -> str:
    name, text = source.request.text("name"), source.request.text("value").strip()
    value = None if not text else int(text) if _NUMBER.fullmatch(text) else text
    source.inspector.configure(source.queue, {name: value})
    return f"{name} is as declared" if value is None else f"{name} is {value}"


# -- dead letters: the ticked ones, else a group, else all of a queue


def _ticked(request: PageRequest) -> list[str]:
    """Return the ticked tags, empty for all; raise ConfigurationError if a selection is empty."""
    tags = request.texts("tag")
    if request.text("chosen") and not tags:
        raise ConfigurationError("no dead letter selected: tick at least one")
    return tags


def _letters(request: PageRequest) -> tuple[str, str]:
    tags, group, queue = _ticked(request), request.text("group"), request.text("queue")
    target, back = queue, request.link("/queue", queue=queue, state="dead")
    if group:
        target = f"{queue}, group {group}"
        back = request.link("/dead/group", queue=queue, group=group)
    return f"{len(tags)} of {queue}: {', '.join(tags)}" if tags else target, back


def _dead(source: Source) -> About:
    tags, group = _ticked(source.request), source.request.text("group")
    if tags:
        return About(len(tags))
    if not group:
        return About(source.inspector.status(source.queue).dead)
    counted = source.watch.counting.groups(source.inspector, source.queue)
    number = next((entry.count for entry in counted.groups if entry.fingerprint == group), 0)
    return About(number, counted.cursor is None)


def _taking(method: str) -> Callable[[PageRequest, str], Steps]:
    """Return a function that runs an Inspector method over the selected dead letters, in steps."""

    def begin(request: PageRequest, _file: str) -> Steps:
        queue, tags, rate = request.text("queue"), _ticked(request) or None, _rate_of(request)
        group = None if tags else request.text("group") or None
        return lambda inspector: getattr(inspector, method)(
            queue, tags, rate=rate, fingerprint=group
        )

    return begin


def _exporting(request: PageRequest, file: str) -> Steps:
    queue, group = request.text("queue"), request.text("group")
    return lambda inspector: inspector.export_dead_letters(queue, file, fingerprint=group or None)


# -- batches


def _batch(request: PageRequest) -> tuple[str, str]:
    name = request.text("id")
    return name, request.link("/batch", id=name)


def _seal(source: Source) -> str:
    sealed = source.inspector.seal_batch(source.request.text("id"))
    return "sealed" if sealed else "was already sealed"


def _cancel(source: Source) -> str:
    cancelled = source.inspector.cancel_batch(source.request.text("id"))
    return "cancelled" if cancelled else "was already cancelled, or has ended"


ACTIONS: dict[str, Action] = {
    "pause": Action(_queue, _pause),
    "resume": Action(_queue, _resume),
    "set": Action(_queue, _set),
    "purge": Action(
        _queue, lambda source: f"{source.inspector.purge(source.queue):,} messages removed",
        about=_waiting,
        warning="Ready and delayed messages of this queue are permanently removed. Messages in "
        "flight and dead letters stay.",
    ),
    "replay": Action(
        _letters, steps=_taking("replaying"), about=_dead, paced=True, dangerous=False,
        warning="These dead letters return to their queue and are delivered again. Their count of "
        "failed deliveries starts at zero. Messages that die meanwhile stay dead letters.",
    ),
    "purge dead": Action(
        _letters, steps=_taking("purging_dead_letters"), about=_dead, paced=True,
        warning="These dead letters are permanently removed.",
    ),
    "export": Action(
        _letters, steps=_exporting, about=_dead, dangerous=False, changes=False, exports=True,
        warning="The dead letters are written to a file, one JSON object per line. They stay in "
        "the queue.",
    ),
    "seal batch": Action(
        _batch, _seal,
        warning="Only jobs of this batch can then add further jobs.", dangerous=False,
    ),
    "cancel batch": Action(
        _batch, _cancel,
        warning="Waiting jobs of this batch are skipped. Running jobs finish. You cannot undo the "
        "cancellation.",
    ),
}  # fmt: skip


def question(site: Site, request: PageRequest) -> dict[str, Any]:
    """Return the values of an action's confirmation page. Changes nothing; raises ReliqError."""
    name = request.text("action")
    action = _action_of(name)
    query = [(key, value) for key, value in request.query if key not in {"action", "seen"}]
    target, back = action.subject(request)
    asks = {
        "name": name,
        "action": action,
        "target": target,
        "about": _about(site, request, action),
        "do": request.again("/actions/" + name.replace(" ", "-"), query),
        "back": back,
        "forbidden": _forbidden(site, request, action),
        "seen": request.text("seen"),  # the count that was shown before
    }
    return {"question": asks}


def perform(site: Site, request: PageRequest, name: str) -> str:
    """Run an action; return the URL of the page that shows its outcome.

    Raises HTTPException for a forbidden action, NotFound for an unknown action or broker, and
    ConfigurationError for an empty selection.
    """
    action, broker = _action_of(name), broker_of(site, request)
    why = _forbidden(site, request, action)
    if why:
        raise HTTPException(403, why)
    target, back = action.subject(request)
    user = request.user.name
    note: Callable[..., Entry] = partial(site.log.note, user, name, broker.name, target)
    try:
        if action.dangerous and request.text("seen"):
            about = _about(site, request, action)
            if about is not None and about.number > _MUCH * request.number("seen") + _MORE:
                return request.again("/confirm", (*request.query, ("action", name)))
        if action.steps is not None:
            return _begin(site, request, name, action, broker)
        with site.source(request, broker) as source:
            outcome = action.do(source) if action.do is not None else ""
        entry = note(outcome)
    except ReliqError as exc:
        entry = note(str(exc), failed=True)
    except Exception:
        note("failed, perhaps done in part: see the log of reliq web for the cause", failed=True)
        raise
    finally:
        site.watches[broker.number].forget(request.text("queue"))
    return f"{back}{'&' if '?' in back else '?'}said={entry.number}"


def _action_of(name: str) -> Action:
    if name not in ACTIONS:
        raise NotFound(f"no action {name!r}")
    return ACTIONS[name]


def _forbidden(site: Site, request: PageRequest, action: Action) -> str:
    """Return the reason why an action is forbidden; "" if it is allowed."""
    if action.exports and site.redaction:
        return HIDES
    if not action.changes:
        return ""
    if not site.settings.allow_actions:
        return READ_ONLY
    return "" if request.may_act else VIEWER


def _about(site: Site, request: PageRequest, action: Action) -> About | None:
    if action.about is None:
        return None
    with site.source(request, broker_of(site, request)) as source:
        return action.about(source)


def _begin(site: Site, request: PageRequest, name: str, action: Action, broker: Broker) -> str:
    make = cast("Callable[[PageRequest, str], Steps]", action.steps)
    about = _about(site, request, action)
    file = site.operations.new_file() if action.exports else ""
    target, back = action.subject(request)
    total = 0 if about is None else about.number
    made = Operation(request.user.name, name, broker.name, target, total, back, file)
    site.operations.begin(made, broker, make(request, file))
    return link(request.root_path, "/operation", {"id": made.id})


def _rate_of(request: PageRequest) -> float | None:
    text = request.text("rate").strip()
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not _SLOWEST <= rate < float("inf"):
        raise ConfigurationError(
            f"expected rate to be at least {_SLOWEST} messages a second, got: {text!r}"
        )
    return rate

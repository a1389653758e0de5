"""Carrying actions out: who may, the question before, the log after, and where to go then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..errors import ReliqError
from .actions import action_of
from .names import link
from .operations import BusyError, Operation
from .pages import broker_of
from .views.look import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from .action_log import Entry
    from .actions import About, Action, Steps
    from .asked import Asked
    from .brokers import Broker
    from .site import Site

READ_ONLY = "reliq web was started without --allow-actions: nothing can be changed here."
HIDES = (
    "An export has whole messages, also what is hidden here (--redact). Use the command line: "
    "reliq dead export."
)
# So much more than was seen before it was confirmed is asked about again.
_MUCH, _MORE = 1.1, 10
VIEWER = "You are a viewer: only an operator may change anything."


class ForbiddenError(Exception):
    """The action may not be done; the text says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody is asked before an action."""

    name: str
    action: Action
    target: str
    about: About | None
    """How many messages it would be about."""
    do: str
    """The URL that does it."""
    back: str
    forbidden: str
    """Why it may not be done; "" where it may."""
    seen: str
    """How many it was about when it was asked for before; "" where it was not."""


def forbidden(site: Site, asked: Asked, action: Action) -> str:
    """Return why an action may not be done; "" where it may."""
    if action.exports and site.redaction:
        return HIDES
    if not action.changes:
        return ""
    if not site.settings.allow_actions:
        return READ_ONLY
    return "" if asked.may_act else VIEWER


def question(site: Site, asked: Asked) -> Question:
    """Return what is asked before an action, which is looked at and not done; raises ReliqError."""
    name = asked.text("action")
    action = action_of(name)
    path = "/actions/" + name.replace(" ", "-")
    query = [(key, value) for key, value in asked.query if key not in {"action", "seen"}]
    return Question(
        name,
        action,
        action.target(asked),
        _about(site, asked, action),
        asked.again(path, query),
        action.back(asked),
        forbidden(site, asked, action),
        asked.text("seen"),
    )


def perform(site: Site, asked: Asked, name: str) -> str:
    """Do an action; return the URL to go to, where it is said what came of it.

    Raises ForbiddenError, NotFound where there is no such action, or broker, and
    ConfigurationError where it does not say what it is about.
    """
    action = action_of(name)
    broker = broker_of(site, asked)
    why = forbidden(site, asked, action)
    if why:
        raise ForbiddenError(why)
    target = action.target(asked)
    watch = site.watches[broker.number]
    try:
        if action.dangerous and asked.text("seen"):
            about = _about(site, asked, action)
            if about is not None and about.number > _MUCH * asked.number("seen") + _MORE:
                return asked.again("/confirm", (*asked.query, ("action", name)))
        if action.steps is not None:
            return _begin(site, asked, name, action, broker)
        with broker.inspector() as inspector:
            look = Look(inspector, asked, watch, site.redaction)
            outcome = action.do(look) if action.do is not None else ""
        entry = site.log.note(asked.user.name, name, broker.name, target, outcome)
    except ReliqError as exc:
        entry = site.log.note(asked.user.name, name, broker.name, target, str(exc), failed=True)
    except BusyError:
        text = "not begun: as many operations run as may; wait for one to end"
        entry = site.log.note(asked.user.name, name, broker.name, target, text, failed=True)
    except Exception:
        text = "failed, perhaps when it was done in part: the log of reliq web says why"
        site.log.note(asked.user.name, name, broker.name, target, text, failed=True)
        raise
    finally:
        watch.forget(asked.text("queue"))
    return said(action.back(asked), entry)


def _about(site: Site, asked: Asked, action: Action) -> About | None:
    if action.about is None:
        return None
    broker = broker_of(site, asked)
    with broker.inspector() as inspector:
        look = Look(inspector, asked, site.watches[broker.number], site.redaction)
        return action.about(look)


def _begin(site: Site, asked: Asked, name: str, action: Action, broker: Broker) -> str:
    """Begin an operation; return the URL of its page."""
    make = cast("Callable[[Asked, str], Steps]", action.steps)
    about = _about(site, asked, action)
    file = site.operations.new_file() if action.exports else ""
    begun = site.operations.begin(
        Operation(
            user=asked.user.name,
            action=name,
            broker=broker.name,
            target=action.target(asked),
            total=0 if about is None else about.number,
            back=action.back(asked),
            file=file,
        ),
        broker,
        make(asked, file),
    )
    return link(asked.root_path, "/operation", {"id": begun.id})


def said(url: str, entry: Entry) -> str:
    """Return the URL of a page that says what came of an action."""
    return f"{url}{'&' if '?' in url else '?'}said={entry.number}"

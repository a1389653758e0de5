"""Carrying actions out: who may, the question before, the log after, and where to go then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ReliqError
from .actions import action_of
from .names import link
from .operations import BusyError
from .pages import broker_of

if TYPE_CHECKING:
    from .action_log import Entry
    from .actions import Action
    from .asked import Asked
    from .site import Site

READ_ONLY = "reliq web was started without --allow-actions: nothing can be changed here."
VIEWER = "You are a viewer: only an operator may change anything."


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody is asked before an action."""

    name: str
    action: Action
    target: str
    count: int | None
    """How many messages it would be about."""
    do: str
    """The URL that does it."""
    back: str


def forbidden(site: Site, asked: Asked) -> str:
    """Return why nothing may be changed; "" where it may."""
    if not site.settings.allow_actions:
        return READ_ONLY
    return "" if asked.may_act else VIEWER


def question(site: Site, asked: Asked) -> Question:
    """Return what is asked before an action, which is looked at and not done; raises ReliqError."""
    name = asked.text("action")
    action = action_of(name)
    count = None
    if action.about is not None:
        with broker_of(site, asked).inspector() as inspector:
            count = action.about(inspector, asked)
    path = "/actions/" + name.replace(" ", "-")
    query = [(key, value) for key, value in asked.query if key != "action"]
    return Question(
        name, action, action.target(asked), count, asked.again(path, query), action.back(asked)
    )


def perform(site: Site, asked: Asked, name: str) -> str:
    """Do an action; return the URL to go to, where it is said what came of it."""
    action = action_of(name)
    broker = broker_of(site, asked)
    target = action.target(asked)
    try:
        if action.steps is not None:
            return _begin(site, asked, name, action)
        if action.do is None:
            raise AssertionError(name)
        with broker.inspector() as inspector:
            outcome = action.do(inspector, asked)
        site.watches[broker.number].changed()
        entry = site.log.note(asked.user.name, name, broker.name, target, outcome)
    except ReliqError as exc:
        entry = site.log.note(asked.user.name, name, broker.name, target, str(exc), failed=True)
    return said(action.back(asked), entry)


def _begin(site: Site, asked: Asked, name: str, action: Action) -> str:
    broker = broker_of(site, asked)
    if action.steps is None:
        raise AssertionError(name)
    total = 0
    if action.about is not None:
        with broker.inspector() as inspector:
            total = action.about(inspector, asked)
    back, target = action.back(asked), action.target(asked)
    try:
        begun = site.operations.begin(
            asked.user, name, broker, target, total, back, action.steps(asked)
        )
    except BusyError:
        text = "not begun: as many operations run as may; wait for one to end"
        entry = site.log.note(asked.user.name, name, broker.name, target, text, failed=True)
        return said(back, entry)
    return link(asked.root_path, "/operation", {"id": begun.id})


def said(url: str, entry: Entry) -> str:
    """Return the URL of a page that says what came of an action."""
    return f"{url}{'&' if '?' in url else '?'}said={entry.number}"

"""The Lua scripts, loaded from the package: their text, their digests, and their keys.

A rule that several scripts apply stands once, in ``lua/shared/<name>.lua``. A script names
what it shares in a line ``-- use: <names>``: behind the locals of its keys, or in the branch
that needs it, since whatever a script defines costs time in each call. That line becomes
the code of those rules, all in the one line, so that the line of an error is that of the file.
A name in capitals is a number of :mod:`reliq.store.limits`.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ...store import limits
from .keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = resources.files("reliq.engines.redis") / "lua"
# 1+8n: the first of eight keys that are sent for each of several queues.
_KEY = re.compile(r"^-- KEYS\[\d+(?:\+\d+n)?\] (\w+) ", re.MULTILINE)
_USE = re.compile(r"^ *-- use: (.+)$", re.MULTILINE)


class Script(NamedTuple):
    """One script: what EVAL sends, and the digest that EVALSHA sends instead."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    """The names of its KEYS, in the order of its header."""
    of: Callable[[QueueKeys], tuple[str, ...]]
    """Returns its KEYS for one queue, where all of them are the queue's own."""

    def named(self, **keys: str) -> tuple[str, ...]:
        """Return its KEYS, each given by its name; others may be among them."""
        return tuple(keys[name] for name in self.keys)

    def with_text(self, text: str) -> Script:
        """Return this script with another text, and its digest."""
        return self._replace(text=text, sha=_digest(text))


def _digest(text: str) -> str:
    # SHA1 names a script in Redis's cache; it protects nothing here.
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _of_queue(names: tuple[str, ...]) -> Callable[[QueueKeys], tuple[str, ...]]:
    """Return what takes the keys of these *names* out of a queue's."""
    if not set(names) <= set(QueueKeys._fields):

        def refuse(queue: QueueKeys) -> tuple[str, ...]:
            raise TypeError(f"{names} are not all keys of a queue: {queue[0]}")

        return refuse
    places = [QueueKeys._fields.index(name) for name in names]
    if len(places) == 1:
        place = places[0]
        return lambda queue: (queue[place],)
    return itemgetter(*places)


def shared(names: str, seen: set[str]) -> str:
    """Return the code of what is shared under these *names*, but for what was *seen*."""
    parts = []
    for name in names.split(", "):
        if name in seen:
            continue
        seen.add(name)
        if name.isupper():
            parts.append(f"local {name} = {getattr(limits, name)}")
            continue
        text = (_FOLDER / "shared" / f"{name}.lua").read_text("utf-8")
        parts += [shared(more, seen) for more in _USE.findall(text)]
        lines = (line.strip() for line in text.splitlines())
        parts += [line for line in lines if line and not line.startswith("--")]
    return " ".join(filter(None, parts))


def load(name: str) -> Script:
    """Return the script in ``lua/<name>.lua``."""
    text = (_FOLDER / f"{name}.lua").read_text("utf-8")
    keys = tuple(_KEY.findall(text))
    text = _USE.sub(lambda use: shared(use[1], set()), text)
    return Script(name, text, _digest(text), keys, _of_queue(keys))


ACCEPT = load("accept")
ACK = load("ack")
ATTACH = load("attach")
BIND = load("bind")
BROWSE = load("browse")
CONFIGURE = load("configure")
DEAD_LETTER = load("dead_letter")
DECLARE = load("declare")
DELETE_QUEUE = load("delete_queue")
EXPIRE = load("expire")
HAND_BACK = load("hand_back")
HEARTBEAT = load("heartbeat")
KOMBU_ACCEPT = load("kombu_accept")
KOMBU_TAKE = load("kombu_take")
KOMBU_TAKE_UNACKED = load("kombu_take_unacked")
LEASES_OF = load("leases_of")
LIST_QUEUE = load("list_queue")
LOOK = load("look")
MEASURE = load("measure")
MOVE = load("move")
MOVED = load("moved")
MOVE_OUT = load("move_out")
ONCE = load("once")
PAUSE = load("pause")
PUBLISH = load("publish")
PURGE = load("purge")
PURGE_DEAD = load("purge_dead")
RELEASE = load("release")
RENEW = load("renew")
REPLAY = load("replay")
RESERVE = load("reserve")
RESTORE_VISIBLE = load("restore_visible")
SURVEY = load("survey")
TELL_RUNNING = load("tell_running")
UNBOUND = load("unbound")

"""The Lua scripts, loaded from the package: their text, their digests, and their keys.

Each is one file, sent as it is but for one line: ``-- limits: BATCH, RANK`` behind its header
becomes locals with these numbers of :mod:`reliq.store.limits`. It stays one line, so that the
line of an error is that of the file. A rule that several scripts apply is repeated in each, word
by word; a test compares them.
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
# 1+9n: the first of nine keys that are sent for each of several queues.
_KEY = re.compile(r"^-- KEYS\[\d+(?:\+\d+n)?\] (\w+) ", re.MULTILINE)
_LIMITS = re.compile(r"^-- limits: (.+)$", re.MULTILINE)


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


def _locals(names: str) -> str:
    """Return the code that gives a script the limits of these *names*."""
    return " ".join(f"local {name} = {getattr(limits, name)}" for name in names.split(", "))


def load(name: str) -> Script:
    """Return the script in ``lua/<name>.lua``."""
    text = (_FOLDER / f"{name}.lua").read_text("utf-8")
    keys = tuple(_KEY.findall(text))
    text = _LIMITS.sub(lambda line: _locals(line[1]), text)
    return Script(name, text, _digest(text), keys, _of_queue(keys))


ACCEPT = load("accept")
ACK = load("ack")
ATTACH = load("attach")
BIND = load("bind")
BROWSE = load("browse")
CHANGE_JOBS = load("change_jobs")
CONFIGURE = load("configure")
DEAD_LETTER = load("dead_letter")
DECLARE = load("declare")
DECLARE_EXCHANGE = load("declare_exchange")
DELETE_QUEUE = load("delete_queue")
END_LEASES = load("end_leases")
EXPIRE = load("expire")
HAND_BACK = load("hand_back")
HEARTBEAT = load("heartbeat")
KOMBU_ACCEPT = load("kombu_accept")
KOMBU_TAKE = load("kombu_take")
KOMBU_TAKE_UNACKED = load("kombu_take_unacked")
LAYOUT = load("layout")
LEASES_OF = load("leases_of")
LIST_BATCH = load("list_batch")
LIST_QUEUE = load("list_queue")
LOOK = load("look")
LOOK_UP = load("look_up")
MEASURE = load("measure")
MOVE = load("move")
MOVED = load("moved")
MOVE_OUT = load("move_out")
NEXT_BATCHES = load("next_batches")
NOTE_BOUND = load("note_bound")
NOTE_JOB = load("note_job")
ONCE = load("once")
OPEN_BATCH = load("open_batch")
PAUSE = load("pause")
PROMOTE = load("promote")
PUBLISH = load("publish")
PURGE = load("purge")
PURGE_DEAD = load("purge_dead")
RELEASE = load("release")
RENEW = load("renew")
REPLAY = load("replay")
RESERVE = load("reserve")
RESTORE_VISIBLE = load("restore_visible")
SAID = load("said")
SCAN = load("scan")
SNAPSHOT = load("snapshot")
SURVEY = load("survey")
TELL_RUNNING = load("tell_running")
UNBOUND = load("unbound")
WAKE = load("wake")
WHEREABOUTS = load("whereabouts")

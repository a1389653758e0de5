"""The Lua scripts of the package: their text, their digests, and their keys.

Each is one file of ``lua/``, read when it is first sent. Two kinds of comment become code:
``-- limits: BATCH, RANK`` becomes locals with these numbers of :mod:`reliq.store.limits`, and
``-- use: add, whole`` becomes these functions of ``lua/shared/``, in the place of that line. A
digest, and the line that an error names, are those of the expanded text.
"""

from __future__ import annotations

import hashlib
import re
from operator import itemgetter
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from ...store import limits
from .keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = Path(__file__).with_name("lua")
# 1+9n: the first of nine keys that are sent for each of several queues.
_KEY = re.compile(r"^-- KEYS\[\d+(?:\+\d+n)?\] (\w+) ", re.MULTILINE)
_LIMITS = re.compile(r"^-- limits: (.+)$", re.MULTILINE)
_USE = re.compile(r"^( *)-- use: (.+)$", re.MULTILINE)


class Script:
    """One script: what EVAL sends, and the digest that EVALSHA sends instead."""

    text: str
    """The file, expanded."""
    sha: str
    keys: tuple[str, ...]
    """The names of its KEYS, in the order of its header."""
    of: Callable[[QueueKeys], tuple[str, ...]]
    """Returns its KEYS for one queue, where all of them are the queue's own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, wanted: str) -> Any:
        """Read the file for the first of these; no lock, which a fork could leave held."""
        if wanted not in {"text", "sha", "keys", "of"}:
            raise AttributeError(wanted)
        written = (_FOLDER / f"{self.name}.lua").read_text("utf-8")
        self._take(_LIMITS.sub(_locals, _USE.sub(_functions, written)))
        return vars(self)[wanted]

    def _take(self, text: str) -> None:
        self.text = text
        # SHA1 names a script in Redis's cache; it protects nothing here.
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.keys = tuple(_KEY.findall(text))
        self.of = _of_queue(self.keys)

    def named(self, **keys: str) -> tuple[str, ...]:
        """Return its KEYS, each given by its name; others may be among them."""
        return tuple(keys[name] for name in self.keys)

    def with_text(self, text: str) -> Script:
        """Return this script with another text."""
        other = Script(self.name)
        other._take(text)
        return other


def _locals(line: re.Match[str]) -> str:
    """Return the code that gives a script the limits of a line."""
    return " ".join(f"local {name} = {getattr(limits, name)}" for name in line[1].split(", "))


def _functions(line: re.Match[str]) -> str:
    """Return the shared functions of a line, as far to the right as it stands."""
    files = [_FOLDER / "shared" / f"{name}.lua" for name in line[2].split(", ")]
    return "\n".join(indent(file.read_text("utf-8"), line[1]) for file in files).rstrip()


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


ACCEPT = Script("accept")
ACK = Script("ack")
ATTACH = Script("attach")
BIND = Script("bind")
CHANGE_JOBS = Script("change_jobs")
CONFIGURE = Script("configure")
DEAD_LETTER = Script("dead_letter")
DECLARE = Script("declare")
DECLARE_EXCHANGE = Script("declare_exchange")
DELETE_QUEUE = Script("delete_queue")
END_LEASES = Script("end_leases")
EXPIRE = Script("expire")
HAND_BACK = Script("hand_back")
HEARTBEAT = Script("heartbeat")
KOMBU_ACCEPT = Script("kombu_accept")
KOMBU_TAKE = Script("kombu_take")
KOMBU_TAKE_UNACKED = Script("kombu_take_unacked")
LAYOUT = Script("layout")
LEASES_OF = Script("leases_of")
LIST_BATCH = Script("list_batch")
LIST_QUEUE = Script("list_queue")
LOOK = Script("look")
LOOK_UP = Script("look_up")
MEASURE = Script("measure")
MOVE = Script("move")
MOVED = Script("moved")
MOVE_OUT = Script("move_out")
NEXT_BATCHES = Script("next_batches")
NOTE_BOUND = Script("note_bound")
NOTE_JOB = Script("note_job")
ONCE = Script("once")
OPEN_BATCH = Script("open_batch")
PAUSE = Script("pause")
PROMOTE = Script("promote")
PUBLISH = Script("publish")
PURGE = Script("purge")
PURGE_DEAD = Script("purge_dead")
RELEASE = Script("release")
RENEW = Script("renew")
REPLAY = Script("replay")
RESERVE = Script("reserve")
RESTORE_VISIBLE = Script("restore_visible")
SAID = Script("said")
SCAN = Script("scan")
SNAPSHOT = Script("snapshot")
SURVEY = Script("survey")
TELL_RUNNING = Script("tell_running")
UNBOUND = Script("unbound")
WAKE = Script("wake")
WHEREABOUTS = Script("whereabouts")

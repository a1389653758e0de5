"""The Lua scripts of the package: their text, their digests, and their keys.

Each script is one file of ``lua/``, read when it is first sent. Five kinds of comment become code
on their line. ``-- keys: meta, ready`` becomes locals with these KEYS, whose types are in
:mod:`.keys`; ``-- keys of each: meta`` those of one queue of many, from ``n`` on. ``-- limits:
BATCH, RANK`` becomes locals with these numbers of :mod:`reliq.store.limits`, and ``-- use: add,
whole`` these functions of ``lua/shared/``. ``-- begin: HDEL meta`` is a first write that needs no
memory: it lets the rest run when memory is full. ``-- clock: now`` is the server's time, in ms. A
digest, and the line number in an error, refer to the expanded text.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from operator import attrgetter
from pkgutil import get_data
from textwrap import indent
from typing import TYPE_CHECKING, Any, NamedTuple

from ...store import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .stream import Command

_KEYS = re.compile(r"^( *)-- keys( of each)?: (.+)$", re.MULTILINE)
_LIMITS = re.compile(r"^-- limits: (.+)$", re.MULTILINE)
_USE = re.compile(r"^( *)-- use: (.+)$", re.MULTILINE)
_BEGIN = re.compile(r"-- begin: (\w+) (\w+)$", re.MULTILINE)
_CLOCK = re.compile(r"^( *)-- clock: now$", re.MULTILINE)
_NOW = r"""\1local clock = redis.call('TIME')
\1local now = clock[1] * 1000 + math.floor(clock[2] / 1000)"""


class Script:
    """One script: its text for EVAL, and its digest for EVALSHA."""

    text: str
    """The file, expanded."""
    sha: str
    keys: tuple[str, ...]
    """The names of its KEYS, in their order."""
    of: Callable[[NamedTuple], tuple[str, ...]]
    """Returns its KEYS, if all belong to one queue, to one batch, or to the broker."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, wanted: str) -> Any:
        """Read the file at the first use; takes no lock, which a fork could leave held."""
        if wanted not in {"text", "sha", "keys", "of"}:
            raise AttributeError(wanted)
        written = _read(self.name)
        keys = tuple(name for line in _KEYS.finditer(written) for name in line[3].split(", "))
        written = _KEYS.sub(partial(_key_locals, keys), written)
        written = _CLOCK.sub(_NOW, _BEGIN.sub(r"redis.call('\1', \2, '')", written))
        self._take(_LIMITS.sub(_locals, _USE.sub(_functions, written)), keys)
        return object.__getattribute__(self, wanted)

    def _take(self, text: str, keys: tuple[str, ...]) -> None:
        self.text = text
        # SHA1 names a script in Redis's cache; it does not protect anything here.
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.keys, self.of = keys, attrgetter(*keys)
        if len(keys) == 1:
            self.of = lambda others: (getattr(others, keys[0]),)

    def named(self, others: NamedTuple | None = None, /, **keys: str) -> tuple[str, ...]:
        """Return its KEYS: *keys* by name, the others from *others*."""
        return tuple(keys.get(name) or getattr(others, name) for name in self.keys)

    def over(
        self, others: NamedTuple | None, args: Sequence[Any], /, **keys: str
    ) -> tuple[Command, Script]:
        """Return the command that runs it with these keys, and the script, as wires expect them."""
        names = self.named(others, **keys) if keys or others is None else self.of(others)
        return ("EVALSHA", self.sha, len(names), *names, *args), self


def _read(name: str) -> str:
    """Return a file of ``lua/`` through the package's loader, which also reads a zip."""
    return str(get_data(__name__, f"lua/{name}.lua"), "utf-8")  # type: ignore[arg-type]


def _key_locals(keys: Sequence[str], line: re.Match[str]) -> str:
    """Return the code that assigns the KEYS of a line to locals; the guard is never read."""
    names = [name for name in line[3].split(", ") if name != "guard"]
    if not names:
        return ""
    before = "n + " if line[2] else ""
    values = (f"KEYS[{before}{keys.index(name) + 1}]" for name in names)
    return f"{line[1]}local {', '.join(names)} = {', '.join(values)}"


def _locals(line: re.Match[str]) -> str:
    """Return the code that assigns the limits of a line to locals."""
    return " ".join(f"local {name} = {getattr(limits, name)}" for name in line[1].split(", "))


def _functions(line: re.Match[str]) -> str:
    """Return the shared functions of a line, with its indentation."""
    texts = [_read(f"shared/{name}") for name in line[2].split(", ")]
    return "\n".join(indent(text, line[1]) for text in texts).rstrip()


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
LOG = Script("log")
LOOK = Script("look")
LOOK_UP = Script("look_up")
MEASURE = Script("measure")
MOVE = Script("move")
MOVE_OUT = Script("move_out")
MOVED = Script("moved")
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
READ_LOG = Script("read_log")
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

"""The Lua scripts of the package: their text, their digests, and their keys.

Each script is one file of this folder, read when it is first sent. Five kinds of comment become
code. ``-- keys: meta, ready`` becomes locals with these KEYS, whose types are in :mod:`.keys`; ``--
keys of each: meta`` those of one queue of many, from ``n`` on. ``-- use: add, whole`` becomes these
functions of ``lua/shared/``, after those that they use themselves; each is defined once where it
is visible, and a script gets their keys too. The names of ``-- limits: BATCH, RANK`` become these
numbers of :mod:`reliq.values.limits`. ``-- begin: HDEL meta`` is a first write that needs no
memory: it lets the rest run when memory is full. ``-- clock: now`` is the server's time, in ms. A
digest, and the line number in an error, refer to the expanded text.
"""

from __future__ import annotations

import hashlib
import re
from operator import attrgetter
from pkgutil import get_data
from textwrap import indent
from typing import TYPE_CHECKING, Any, NamedTuple

from ..values import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..client.stream import Command

_KEYS = re.compile(r"^( *)-- keys( of each)?: (.+)\n", re.MULTILINE)
_LIMITS = re.compile(r"^-- limits: (.+)\n", re.MULTILINE)
_USE = re.compile(r"^ *-- use: (.+)\n", re.MULTILINE)
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
        text = _expanded(self.name)
        lines = _KEYS.findall(text)
        keys = tuple(dict.fromkeys(name for *_, names in lines for name in names.split(", ")))
        if lines:
            text = _KEYS.sub(_key_locals(keys, *lines[0][:2]), text, count=1)
        text = _CLOCK.sub(_NOW, _BEGIN.sub(r"redis.call('\1', \2, '')", _KEYS.sub("", text)))
        self._take(text, keys)
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
    """Return a file of ``lua/``, which may be in a zip, with the numbers of its limits."""
    text = str(get_data(__name__, f"{name}.lua"), "utf-8")  # type: ignore[arg-type]
    for line in _LIMITS.findall(text):
        for limit in line.split(", "):
            text = re.sub(rf"\b{limit}\b", str(getattr(limits, limit)), text)
    return _LIMITS.sub("", text)


def _expanded(name: str) -> str:
    """Return a script with the functions that it uses."""
    lines: list[str] = []
    visible: dict[str, int] = {}  # functions, and the depth of the block that defines them
    for line in _read(name).splitlines(keepends=True):
        depth = len(line) - len(line.lstrip(" "))
        if line != "\n":
            visible = {name: at for name, at in visible.items() if at <= depth}
        lines += _functions(line, depth, visible) if _USE.match(line) else [line]
    return "".join(lines)


def _functions(text: str, depth: int, visible: dict[str, int]) -> Iterator[str]:
    """Yield the functions that *text* uses and that are not *visible* yet, in order."""
    for name in (name for names in _USE.findall(text) for name in names.split(", ")):
        if name not in visible:
            function = _read(f"shared/{name}")
            yield from _functions(function, depth, visible)
            visible[name] = depth
            yield indent(_USE.sub("", function), " " * depth)


def _key_locals(keys: Sequence[str], depth: str, of_each: str) -> str:
    """Return the code that assigns the KEYS to locals."""
    values = f"KEYS, n + 1, n + {len(keys)}" if of_each else "KEYS"
    return f"{depth}local {', '.join(keys)} = unpack({values})\n"


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
ELECT = Script("elect")
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
LOCATE = Script("locate")
LOG = Script("log")
MEASURE = Script("measure")
MOVE = Script("move")
MOVED = Script("moved")
MOVE_OUT = Script("move_out")
NEXT_BATCHES = Script("next_batches")
NOTE_BOUND = Script("note_bound")
NOTE_CALLBACK = Script("note_callback")
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
REPORT_RUNNING = Script("report_running")
RESERVE = Script("reserve")
RESTORE_VISIBLE = Script("restore_visible")
SCAN = Script("scan")
SNAPSHOT = Script("snapshot")
SURVEY = Script("survey")
UNBOUND = Script("unbound")
WAKE = Script("wake")
WHEREABOUTS = Script("whereabouts")

"""The Lua scripts, loaded from the package: their text, their digests, and their keys.

Each is one file, sent as it is but for one line: ``-- limits: BATCH, RANK`` behind its header
becomes locals with these numbers of :mod:`reliq.store.limits`. It stays one line, so that the
line of an error is that of the file. A rule that several scripts apply is repeated in each, word
by word; a test compares them.
"""

from __future__ import annotations

import hashlib
import re
import sys
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...store import limits
from .keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = Path(__file__).with_name("lua")
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


def __getattr__(name: str) -> Script:
    """Return the script whose file has that *name*, in capitals; it is read when it is needed."""
    if not (name.isupper() and (_FOLDER / f"{name.lower()}.lua").is_file()):
        raise AttributeError(f"no script {name!r}")
    script = globals()[name] = load(name.lower())
    return script


def every() -> list[Script]:
    """Return all scripts."""
    return [getattr(sys.modules[__name__], file.stem.upper()) for file in _FOLDER.glob("*.lua")]

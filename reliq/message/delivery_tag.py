"""Delivery tags: the identity of one message in one queue.

A tag is ``pp`` + ``tttttttttttt`` + ``rrrrrrrrrr`` + ``cccccc``, all lower-case
hexadecimal: the rank of its priority (0 is served first; scripts put a message back
by it without opening the envelope), the publisher's clock in ms (for people: nothing
is decided by it), forty random bits that a process draws once, and a counter. It is a
quarter shorter than a uuid7, which counts twice in the memory of every waiting message.
That of a job ends in a ``j``: scripts know it by that.
"""

from __future__ import annotations

import os
import time
from itertools import count

from ..forks import PROCESS, Part, here, register

_JOB = "j"

_process = os.urandom(5).hex()
_counter = count(int.from_bytes(os.urandom(2), "big"))


def new_tag(rank: int, *, job: bool = False) -> str:
    """Return a tag no other process and no other call returns; *rank* is 0 to 255.

    *job*: of a message that is a job of a batch.
    """
    if not PROCESS[0]:
        here()  # else a child forked without hooks would go on with its parent's random bits
    number = next(_counter) & 0xFFFFFF
    mark = _JOB if job else ""
    return f"{rank:02x}{int(time.time() * 1000):012x}{_process}{number:06x}{mark}"


def is_of_job(tag: str) -> bool:
    """Whether *tag* is that of a job of a batch."""
    return tag.endswith(_JOB)


def published_ms(tag: str) -> int:
    """Return when *tag* was made, in ms since the epoch, by its publisher's clock.

    0 for one that is not ours.
    """
    return _hexadecimal(tag[2:14])


def rank_of(tag: str) -> int:
    """Return the rank recorded in *tag*; 0 for one that is not ours."""
    return _hexadecimal(tag[:2])


def _hexadecimal(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return 0


def _forget() -> None:
    global _process  # noqa: PLW0603 - the one piece of state a fork must not share
    _process = os.urandom(5).hex()


register(Part("tags", forget=_forget))


def rename() -> None:
    """Go on under another name: whether what was published last is stored is not known."""
    _forget()

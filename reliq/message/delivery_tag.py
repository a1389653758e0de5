"""Delivery tags: the identity of one message in one queue.

A tag is ``pp`` + ``tttttttttttt`` + ``rrrrrrrrrr`` + ``cccccc``, in lower-case hexadecimal:
the rank of the priority, the publisher's clock in ms, forty random bits of the process, and a
counter. Rank 0 is served first; scripts use it to return a message without opening the envelope.
The clock is informative only. A tag is a quarter shorter than a uuid7, and each waiting message
stores it twice. The tag of a job ends in ``j``, by which scripts recognise jobs.
"""

from __future__ import annotations

import os
import re
import time
from hashlib import blake2b
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..forks import PROCESS, Part, here, register

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH = "reliq-batch"
"""The header that names the batch of a task."""
JOB = "j"
"""The last character of a job's tag; no other tag ends with it."""
RANK = slice(0, 2)
"""The place of the rank in a tag."""
TIME = slice(2, 14)
"""The place of the publisher's clock in a tag."""
PUBLISHER = slice(14, 24)
"""The place of the publisher's random bits in a tag."""
_TAG = re.compile(rf"[0-9a-f]{{30}}{JOB}?")

_process = os.urandom(5).hex()
_counter = count(int.from_bytes(os.urandom(2), "big"))


def new_tag(rank: int, headers: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a unique tag for a message with *rank*, 0 to 255, and *headers*.

    Every tag of a new message is composed here; that of a copy, in the next two functions.
    """
    if not PROCESS[0]:
        here()  # otherwise a child forked without hooks would reuse its parent's random bits
    number = next(_counter) & 0xFFFFFF
    mark = JOB if BATCH in headers else ""
    return f"{rank:02x}{int(time.time() * 1000):012x}{_process}{number:06x}{mark}"


def tag_like(tag: str) -> str:
    """Return a unique tag for a copy of the message with *tag*."""
    return new_tag(rank_of(tag), {BATCH: ""} if is_of_job(tag) else {})


def derived_tag(tag: str, about: str) -> str:
    """Return the tag of the copy *about* of a job with *tag*: the same one in each process."""
    digest = blake2b(about.encode("utf-8", "surrogateescape"), digest_size=8)
    return tag[:-17] + digest.hexdigest() + JOB  # instead of the process and its counter


def is_tag(text: str) -> bool:
    """Whether *text* is a delivery tag of reliq."""
    return _TAG.fullmatch(text) is not None


def is_of_job(tag: str) -> bool:
    """Whether *tag* belongs to a job of a batch."""
    return tag.endswith(JOB)


def published_ms(tag: str) -> int:
    """Return the creation time of *tag* in ms since the epoch, by its publisher's clock.

    Returns 0 for a foreign tag.
    """
    return _hexadecimal(tag[TIME])


def rank_of(tag: str) -> int:
    """Return the rank recorded in *tag*; 0 for a foreign tag."""
    return _hexadecimal(tag[RANK])


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
    """Change the random bits, because the last publish may or may not be stored."""
    _forget()

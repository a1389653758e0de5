"""Queue names: how one stands in a key, and those of the partitions of a queue.

A partitioned queue is several to the broker, each in a hash slot of its own.
Partition 0 has the queue's name; the others have names that no queue may be given:
``celery%p5.12`` is partition 5. The number behind the dot puts it in a slot that is far from those
of the others, so that any number of them is spread over any number of nodes. All clients come
to the same names. Pure functions.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from functools import lru_cache
from hashlib import blake2b
from itertools import count

SLOTS = 16384
"""How many hash slots a Redis Cluster has."""
MOST_PARTITIONS = 64

_PARTITION = re.compile(r"(.*)%p([1-9]\d?)\.(\d+)", re.DOTALL)
# A partition's slot is one of so many that follow the point where it should be.
_WINDOW = SLOTS // MOST_PARTITIONS


def escape(name: str) -> str:
    """Return *name* without braces, reversibly. An empty one would be no hash tag.

    What marks a partition stays: nothing else can come to it, as each other % becomes %25.
    """
    found = _PARTITION.fullmatch(name)
    base, mark = (found[1], name[len(found[1]) :]) if found else (name, "")
    return (base.replace("%", "%25").replace("{", "%7B").replace("}", "%7D") or "%0") + mark


def queue_of(name: str) -> str:
    """Return the queue that *name* is a partition of; itself where it is none."""
    if "%p" not in name:
        return name
    found = _PARTITION.fullmatch(name)
    return found[1] if found else name


def number_of(name: str) -> int:
    """Return which partition *name* is; 0 for a queue."""
    if "%p" not in name:
        return 0
    found = _PARTITION.fullmatch(name)
    return int(found[2]) if found else 0


def partition_name(queue: str, number: int) -> str:
    """Return the name of one of the partitions of *queue*."""
    return _name(queue, number) if number else queue


def partition_names(queue: str, end: int) -> tuple[str, ...]:
    """Return the names of the partitions of *queue* below *end*, *queue* itself first."""
    return (queue, *[_name(queue, number) for number in range(1, min(end, MOST_PARTITIONS))])


# One takes some 50 us. As many as a process may publish to in turn: a cache that is too small for
# that forgets each before it is asked for again.
@lru_cache(maxsize=16384)
def _name(queue: str, number: int) -> str:
    if number >= MOST_PARTITIONS:
        raise IndexError(f"no queue has a partition {number}")
    return f"{queue}%p{number}.{_suffix(_crc(escape(queue)), number)}"


def _suffix(queue_tag: int, number: int) -> int:
    """Return the first number with which the slot of partition *number* is in its window.

    The windows begin at the points of van der Corput's sequence (0, 1/2, 1/4, 3/4, 1/8 ...), of
    which each beginning is spread evenly.
    """
    bits = MOST_PARTITIONS.bit_length() - 1
    window = queue_tag % SLOTS + int(format(number, f"0{bits}b")[::-1], 2) * _WINDOW
    tag = _crc(f"%p{number}.", queue_tag)
    return next(n for n in count() if (_crc(str(n), tag) - window) % SLOTS < _WINDOW)


def _crc(text: str, before: int = 0) -> int:
    """Return the CRC16 of *text* after what came to *before*; modulo SLOTS it is the slot."""
    return crc_hqx(text.encode("utf-8", "surrogateescape"), before)


def partition_of_key(key: str, partitions: int) -> int:
    """Return the number of the partition that *key* belongs to, of so many.

    With more partitions, or fewer, only those keys get another one that have to: it is the
    jump hash of Lamping and Veach (https://arxiv.org/abs/1406.2294).
    """
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    state = int.from_bytes(digest, "big")
    bucket, jump = -1, 0
    while jump < partitions:
        bucket = jump
        state = (state * 2862933555777941757 + 1) % (1 << 64)
        jump = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket

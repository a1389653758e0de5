"""Queue names: their form in keys, and the names of partitions.

The broker treats the partitions of a queue as separate queues, each in its own hash slot.
Partition 0 has the queue's name. The others have names that applications cannot use:
``celery%p5.12`` is partition 5. The number after the dot selects a slot far from those of the
other partitions, so that any number of partitions is spread over any number of nodes. All clients
derive the same names. Pure functions.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from functools import lru_cache
from hashlib import blake2b
from itertools import count

SLOTS = 16384
"""The number of hash slots of a Redis Cluster."""
MOST_PARTITIONS = 64

_PARTITION = re.compile(r"(.*)%p([1-9]\d?)\.(\d+)", re.DOTALL)
# The slot of a partition is one of the next _WINDOW slots after its ideal point.
_WINDOW = SLOTS // MOST_PARTITIONS


def escape(name: str) -> str:
    """Return *name* without braces, reversibly. An empty name would not be a hash tag.

    The mark of a partition stays. It is unambiguous, because any other % becomes %25.
    """
    matched = _PARTITION.fullmatch(name)
    base, mark = (matched[1], name[len(matched[1]) :]) if matched else (name, "")
    return (base.replace("%", "%25").replace("{", "%7B").replace("}", "%7D") or "%0") + mark


def queue_of(name: str) -> str:
    """Return the queue of partition *name*; *name* itself if it is not a partition."""
    if "%p" not in name:
        return name
    matched = _PARTITION.fullmatch(name)
    return matched[1] if matched else name


def number_of(name: str) -> int:
    """Return the number of partition *name*; 0 for a queue."""
    if "%p" not in name:
        return 0
    matched = _PARTITION.fullmatch(name)
    return int(matched[2]) if matched else 0


def partition_name(queue: str, number: int) -> str:
    """Return the name of partition *number* of *queue*."""
    return _name(queue, number) if number else queue


def partition_names(queue: str, end: int) -> tuple[str, ...]:
    """Return the names of the partitions of *queue* below *end*, *queue* itself first."""
    return (queue, *[_name(queue, number) for number in range(1, min(end, MOST_PARTITIONS))])


# One call takes about 50 us. The size is the number of names that a process may publish to in
# turn: a smaller cache would evict each name before its next use.
@lru_cache(maxsize=16384)
def _name(queue: str, number: int) -> str:
    if number >= MOST_PARTITIONS:
        raise IndexError(f"no queue has a partition {number}")
    return f"{queue}%p{number}.{_suffix(_crc(escape(queue)), number)}"


def _suffix(queue_tag: int, number: int) -> int:
    """Return the first number that puts the slot of partition *number* into its window.

    The windows start at the points of van der Corput's sequence (0, 1/2, 1/4, 3/4, 1/8 ...). Any
    number of its first points is spread evenly.
    """
    bits = MOST_PARTITIONS.bit_length() - 1
    window = queue_tag % SLOTS + int(format(number, f"0{bits}b")[::-1], 2) * _WINDOW
    tag = _crc(f"%p{number}.", queue_tag)
    return next(n for n in count() if (_crc(str(n), tag) - window) % SLOTS < _WINDOW)


def _crc(text: str, before: int = 0) -> int:
    """Return the CRC16 of *text* continued from *before*; modulo SLOTS it is the slot."""
    return crc_hqx(text.encode("utf-8", "surrogateescape"), before)


def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition of *key* among *partitions*, by number.

    If the number of partitions changes, as few keys as possible move: this is the jump hash of
    Lamping and Veach (https://arxiv.org/abs/1406.2294).
    """
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    state = int.from_bytes(digest, "big")
    bucket, jump = -1, 0
    while jump < partitions:
        bucket = jump
        state = (state * 2862933555777941757 + 1) % (1 << 64)
        jump = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket

"""One sample of a run: the resource use of processes and server, and the kinds of keys."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.model import Process, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024
_NAMED = re.compile(r"\{[^{}]*\}")
_ONE_OF_MANY = re.compile(r"(:publisher(?=:)|:consumer(?=:)|:[a-z_]*@).*")


def family(pid: int) -> list[int]:
    """Return the process and its living children."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return [pid]
    return [pid, *map(int, text.split())]


def used(pid: int) -> Process:
    """Return the resource use of the process and its children, including ended children."""
    rss_kb = cpu_s = 0.0
    for number, one in enumerate(family(pid)):
        try:
            stat = Path(f"/proc/{one}/stat").read_text(encoding="ascii")
        except OSError:
            continue
        words = stat.rpartition(")")[2].split()
        rss_kb += int(words[21]) * _PAGE_KB
        # Each process adds its own user and system time. The parent also adds that of ended
        # children.
        cpu_s += sum(map(int, words[11:13] if number else words[11:15])) / TICKS
    return Process(rss_kb, cpu_s)


def kinds(client: redis.Redis) -> dict[str, int]:
    """Return the number of keys of each kind, without the names in them."""
    found = Counter(_kind(key.decode()) for key in client.scan_iter(count=1000))
    return dict(sorted(found.items()))


def _kind(key: str) -> str:
    return _ONE_OF_MANY.sub(r"\1", _NAMED.sub("{}", key))


def look(at: float, finished: int, pids: Mapping[str, int], client: redis.Redis) -> Sample:
    """Take one sample."""
    server = client.info()
    return Sample(
        at,
        finished,
        {name: used(pid) for name, pid in pids.items()},
        server["used_memory"] / 1024,
        server["total_commands_processed"],
        kinds(client),
    )

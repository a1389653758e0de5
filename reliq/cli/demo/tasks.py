"""What the tasks of the demo do, apart from Celery: count the words of reliq's own files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = "RELIQ_DEMO"
SHORTEST_MS, LONGEST_MS = 8, 20
PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process of the demo has to know; it travels in one environment variable."""

    process: str
    broker_url: str
    transport_options: Mapping[str, Any]
    queue: str
    record: str
    tasks: int

    def to_environment(self) -> dict[str, str]:
        """Return the variable to add to a process's environment."""
        return {SETTINGS: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Settings:
        """Return the settings of this process."""
        return cls(**json.loads(os.environ[SETTINGS]))


def texts() -> list[str]:
    """Return the names of the files to count, relative to the installed package."""
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for pattern in ("*.py", "*.lua")
        for path in PACKAGE.rglob(pattern)
    )


def count_words(name: str) -> int:
    """Return how many words the file *name* of the package has."""
    return len(re.findall(r"\w+", (PACKAGE / name).read_text(encoding="utf-8")))


def words_of(tasks: int) -> int:
    """Return how many words that many tasks count."""
    counts = [count_words(name) for name in texts()]
    return sum(counts[number % len(counts)] for number in range(tasks))


def lasts_ms(number: int) -> int:
    """Return how long task *number* takes at least; the same in every run."""
    return SHORTEST_MS + number * 7 % (LONGEST_MS - SHORTEST_MS + 1)

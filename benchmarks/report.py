"""Writes a run as JSON and as the Markdown page in docs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.summary import as_json, cells, header, shortfalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.model import Outcome

INTRODUCTION = """\
# Benchmarks

reliq beside Kombu's own Redis transport, measured by one command on one machine in one run.
Each cell is the median of the rounds, with the least and the greatest in parentheses;
a ratio is reliq divided by Kombu, pair by pair. This page is written by

```
{command}
```

{rounds}
"""

METHOD = """\
## How it is measured

- Each transport has a redis-server of its own, a fresh one for the run, without persistence;
  both run on this machine and are reached over loopback. A server is emptied before each sample.
- Samples alternate: reliq, Kombu, reliq, Kombu. Figures that are rates begin with one small pair
  that is thrown away. Nothing else of the run is going on while a sample is taken.
- Every measured program is a fresh Python process, the same code for both transports, only the URL
  differs; the garbage collector is left as Python sets it, the transports' options as they
  come, except the visibility timeout where restoring is measured.
- Publish: a `Producer.publish` loop, 300-byte bodies, one process; each call returns when the
  message is stored. Consume and ack: a `Consumer` with a callback that acks, and a
  `drain_events` loop; the queue is filled beforehand; the connection is closed inside the
  measured time, so that the last ack counts.
- Celery: a real worker with Celery's defaults (concurrency: the number of cores; gossip, mingle
  and heartbeat on; acks early; results ignored). All tasks are published before it starts; the
  time is taken inside the worker, from the first task that ran to the last, in shared memory,
  so neither start-up nor a log line nor a result counts. The run fails unless every task runs
  exactly once.
- Restore: a consumer reserves every message and is killed with SIGKILL. When its leases have
  lapsed, another consumer starts; the time goes from the first message seen restored to the
  last, watched from outside. reliq restores 100,000 messages, Kombu 2,000, as it would take
  minutes; rates per message are compared. The longest call is the longest single command, a
  script's included, in Redis's own log (`SLOWLOG`, from 0.1 ms) meanwhile.
- Idle: the commands that clients send within 60 s as `MONITOR` shows them, those that a script
  runs inside Redis left out. The consumer is a plain `drain_events(timeout=1)` loop; the worker
  runs `--without-gossip --without-mingle --without-heartbeat`. One round: it hardly varies.
- Memory: growth of `used_memory` over 20,000 waiting no-op messages. Two rounds, same reason.
"""


@dataclass(frozen=True)
class Run:
    """A finished run: what was asked, where it ran, and what came out."""

    command: str
    rounds: int
    scale: float
    names: tuple[str, str]
    surroundings: Mapping[str, str]
    outcomes: Sequence[Outcome]
    failures: Sequence[str]


def write_json(run: Run, path: Path) -> None:
    """Write every sample and the surroundings."""
    content = {
        "command": run.command,
        "rounds": run.rounds,
        "scale": run.scale,
        "names": list(run.names),
        "surroundings": dict(run.surroundings),
        "failures": list(run.failures),
        "figures": {outcome.row.key: as_json(outcome) for outcome in run.outcomes},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_markdown(run: Run, path: Path) -> None:
    """Write the page: the table, what falls short and why, the method, the machine."""
    rounds = f"Rounds: {run.rounds}."
    if run.scale != 1:
        rounds += (
            f" Sizes are {run.scale:g} of the full ones, so each sample is shorter and varies more."
        )
    parts = [INTRODUCTION.format(command=run.command, rounds=rounds)]
    parts.append("\n".join([_line(header(*run.names)), _line(["---"] * 6)]))
    parts[-1] += "".join("\n" + _line(cells(outcome)) for outcome in run.outcomes) + "\n"
    parts.append("## What falls short\n")
    missed = [*run.failures, *shortfalls(run.outcomes)]
    parts.append("\n".join(f"- {text}" for text in missed) if missed else "Nothing.")
    parts.append("\n" + METHOD)
    parts.append("## Machine and versions\n")
    parts.append("\n".join(f"- {name}: {value}" for name, value in run.surroundings.items()))
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"

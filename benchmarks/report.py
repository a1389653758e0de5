"""Write a run as the Markdown page in docs, and as the table in the README."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import summary
from benchmarks.method import INTRODUCTION, METHOD
from benchmarks.peers import CLASSIC, KOMBU

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.model import Outcome
    from benchmarks.results import Run

# The figures that matter to users, in their words; the page has all figures.
HEADLINES = {
    "web-delay": "`task.delay()` in one thread, tasks/s",
    "celery-prefork": "no-op tasks in a prefork worker, tasks/s",
    "latency-idle-p50": "latency from publish to an idle consumer's callback, p50, ms",
    "restore-10000": "restore of 10,000 messages with expired leases, messages/s",
}
CAPTIONS = {
    "ratios": "Rates relative to Kombu's Redis transport, with their targets",
    "growth": "Rates by backlog, by number of consumers and by number of queues",
    "latency": "Latencies of each transport, idle and at half load",
    "profile-kombu": "CPU profile of a prefork worker with Kombu's Redis transport",
    "profile-reliq": "CPU profile of a prefork worker with reliq",
}
SERVERS = {
    "redis-of-kombu": "redis for Kombu",
    "redis-replicated": "redis with one replica",
    "redis-synced": "server with appendfsync always",
    "file-of-kombu": "Kombu `sqla+sqlite://`",
    "folder": "Kombu `filesystem://`",
}
MARK, END_MARK = "<!-- benchmark table -->", "<!-- end of the benchmark table -->"


def write_page(run: Run, path: Path, beside: Sequence[Path]) -> None:
    """Write the page: missed targets, tables, method, machine.

    `beside` are files that belong to the page: pictures are shown, and others are linked.
    """
    links = [(file.stem, file.relative_to(path.parent).as_posix()) for file in beside]
    parts = [INTRODUCTION.format(command=run.command, commit=run.commit, sizes=_sizes(run))]
    missed = [*summary.shortfalls(run.outcomes, run.labels), *run.failures]
    parts.append("## Missed targets\n\n" + _list(missed or ["None."]))
    parts.append("## Not measured\n\n" + _list(run.left_out or ["None."]))
    for name, outcomes in run.sections.items():
        if not outcomes:
            continue
        parts.append(f"## {name}\n\n" + _markdown(summary.table(outcomes, run.labels)))
        limits = summary.table(outcomes, run.labels, limits=True)
        if limits:
            parts.append(
                "Raw limits: the same round trips, without a transport:\n\n" + _markdown(limits)
            )
    if links:
        parts.append("## Charts and profiles")
    for stem, link in links:
        mark = "!" if link.endswith((".png", ".svg")) else ""
        parts.append(f"{mark}[{CAPTIONS.get(stem, stem)}]({link})")
    parts.append(METHOD)
    about = [f"{SERVERS.get(name, name)}: {value}" for name, value in run.surroundings.items()]
    parts.append("## Machine, versions and settings\n\n" + _list(about))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")


def write_readme(run: Run, path: Path) -> None:
    """Replace the README's table, between its two marks, by the figures that matter to users."""
    text = path.read_text(encoding="utf-8")
    before, mark, rest = text.partition(MARK)
    _, end, after = rest.partition(END_MARK)
    if not mark or not end:
        raise ValueError(f"{path} has no {MARK} and {END_MARK}")
    by_key = {outcome.row.key: outcome for outcome in run.outcomes}
    lines = [["", "reliq", "Kombu `redis://`", "ratio", "RabbitMQ, classic queue"]]
    for key, words in HEADLINES.items():
        if key in by_key:
            lines.append([words, *_headline(by_key[key])])
    about = (
        f"In each round, all transports ran in turn on one machine, at commit {run.commit}.\n"
        "Figures are medians of all rounds. Ratios are computed separately for each round,\n"
        "and the table shows the median:"
    )
    table = f"{about}\n\n{_markdown(lines)}"
    path.write_text(f"{before}{MARK}\n{table}\n{END_MARK}{after}", encoding="utf-8")


def _headline(outcome: Outcome) -> list[str]:
    digits = outcome.row.digits
    return [
        summary.middle(outcome.ours, digits),
        summary.middle(outcome.samples.get(KOMBU, ()), digits),
        summary.middle(outcome.ratios(KOMBU), 2, "x"),
        summary.middle(outcome.samples.get(CLASSIC, ()), digits),
    ]


def _sizes(run: Run) -> str:
    text = (
        f"Each figure was measured in {run.rounds} rounds, or in fewer if it takes a long time or "
        "hardly varies."
    )
    if run.scale != 1:
        text += (
            f" Sample sizes are scaled by {run.scale:g}, except those in the name of a figure."
            " Shorter samples vary more."
        )
    return text


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rest)
    )

"""``reliq batch``: list, show, watch, cancel and seal batches of jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reliq.batches.jobs import STAGES, STATES
from reliq.printable import plain
from reliq.units import duration

from . import console as out
from .batch_watch import stage_of, watch
from .endings import Group
from .options import batch_argument, limit_option, on_brokers, skip_option, yes_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reliq.admin import Inspector

    from .target import Target


@click.group(cls=Group)
def batch() -> None:
    """List, show, watch, seal and cancel batches of jobs.

    \b
    Examples:
      reliq batch list --stage open
      reliq batch watch 5f0c6c1d
    """


# -- list


@batch.command("list")
@click.option("--name", help="Only batches with this name.")
@click.option("--stage", type=click.Choice(STAGES), help="Only batches in this stage.")
@limit_option(20)
@skip_option
@on_brokers
def list_command(
    target: Target, name: str | None, stage: str | None, limit: int, skip: int
) -> None:
    """Show batches, the most recently opened first.

    A batch is open until its producer has added its last job. It is then sealed, and ended when
    all its jobs have ended. Only the 5,000 most recent batches are read.

    \b
    Examples:
      reliq batch list
      reliq batch list --stage open --json
      reliq batch list --name import --limit 5
    """
    columns: dict[str, Any] = {
        "batch": "id",
        "name": "name",
        "stage": stage_of,
        ">jobs": lambda row: out.count(row["total"]),
        ">done": lambda row: f"{row['percent']:g} %",
        ">failed": lambda row: out.count(row["counts"]["failed"], "red"),
        ">error": lambda row: out.count(row["counts"]["error"], "red"),
        ">cancelled": lambda row: out.count(row["counts"]["cancelled"], "yellow"),
        ">age": lambda row: duration(row["age_s"]),
    }
    target.answer(
        lambda inspector: inspector.batches(limit, skip, name=name, stage=stage),
        lambda rows: (out.listing(rows, columns), f"{len(rows)} batch(es)"),
    )


# -- show


@batch.command()
@batch_argument
@click.option("--state", type=click.Choice(STATES), help="List jobs in this state instead.")
@limit_option(20)
@skip_option
@on_brokers
def show(target: Target, batch: str, state: str | None, limit: int, skip: int) -> None:
    """Show one batch: jobs by state, and the failures with their reasons.

    --limit and --skip apply to the failures, newest first. With --state, they apply to the jobs
    in that state, which are unordered.

    \b
    Examples:
      reliq batch show 5f0c6c1d
      reliq batch show 5f0c6c1d --limit 50 --skip 50
      reliq batch show 5f0c6c1d --state working --json
    """

    def find(inspector: Inspector) -> list[dict[str, Any]]:
        info = inspector.batch(inspector.batch_id(batch))
        jobs = [] if state is None else inspector.jobs(info.id, state, limit, skip)
        failures = inspector.job_failures(info.id, limit, skip) if state is None else []
        listed = {
            "failures": [item._asdict() for item in failures],
            "jobs": list(map(asdict, jobs)),
        }
        return [asdict(info) | listed]

    target.answer(find, lambda rows: [part for row in rows for part in _shown(row, state)])


def _shown(row: dict[str, Any], state: str | None) -> Sequence[Any]:
    facts = {
        "batch": row["id"],
        "name": row["name"],
        "broker": row["broker"],
        "stage": stage_of(row),
        "opened": f"{duration(row['age_s'])} ago",
        "jobs": f"{row['total']:,}, {row['done']:,} done ({row['percent']:g} %)",
        **{name: f"{count:,}" for name, count in row["counts"].items() if count},
        "callbacks": "pending: {}; published: {}".format(
            *(", ".join(row[name]) or "none" for name in ("due", "published"))
        ),
    }
    if state is not None:
        jobs: dict[str, Any] = {
            "job": "id",
            "state": "state",
            ">for": lambda job: duration(job["since_s"]),
            ">try": lambda job: job["retries"] + 1,
            "queue": lambda job: job["queue"] or "-",
            "tag": lambda job: job["tag"] or "-",
            "worker": lambda job: job["worker"] or "-",
        }
        return out.fields(facts), out.listing(row["jobs"], jobs)
    if not row["failures"]:
        return (out.fields(facts),)
    failures: dict[str, Any] = {
        "failed job": "job",
        ">after": lambda item: duration(max(item["at_ms"] - row["created_ms"], 0) / 1000),
        "reason": "reason",
    }
    return out.fields(facts), out.listing(row["failures"], failures)


# -- change


@batch.command()
@batch_argument
@yes_option
@on_brokers
def cancel(target: Target, batch: str, yes: bool) -> None:
    """Cancel a batch, after confirmation: waiting jobs are dropped when they would begin.

    Running jobs continue; a job can check reliq.cancelled() and end early. This cannot be
    undone. It has no effect on a batch that has ended or is already cancelled.

    \b
    Example:
      reliq batch cancel 5f0c6c1d --yes
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        info = inspector.batch(inspector.batch_id(batch))
        if not (info.ended_ms or info.cancelled_ms):
            left = info.total - info.done
            out.confirmed(
                f"Cancel batch {plain(info.id)} ({plain(info.name)}) at {inspector.broker}, with "
                f"{left} of {info.total} jobs not yet ended?",
                inspector.broker,
                yes,
            )
        return {"cancelled": inspector.cancel_batch(info.id)}

    target.change("batch", batch, work, _done("cancelled"))


@batch.command()
@batch_argument
@on_brokers
def seal(target: Target, batch: str) -> None:
    """Seal a batch whose producer has died, so that it ends with its present jobs.

    Afterwards, only its own running jobs can add jobs. It has no effect on a sealed batch.

    \b
    Example:
      reliq batch seal 5f0c6c1d
    """
    target.change(
        "batch",
        batch,
        lambda inspector: {"sealed": inspector.seal_batch(inspector.batch_id(batch))},
        _done("sealed"),
    )


def _done(what: str) -> Any:
    return lambda row: what if row[what] else f"nothing to do: already {what}, or ended"


batch.add_command(watch)

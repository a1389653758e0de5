"""What becomes of a task that fails, by Celery's settings: the table of docs/failures.md."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

PAGE = Path(__file__).resolve().parents[3] / "docs/failures.md"
SETTINGS = ("task_acks_late", "task_reject_on_worker_lost", "task_acks_on_failure_or_timeout")
VALUES = list(itertools.product((False, True), repeat=len(SETTINGS)))
ENDINGS = ("raises", "times out", "is killed", "kills its worker")


def documented():
    """Return the outcomes in the table of the page, by the values of the settings."""
    found = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(SETTINGS) + len(ENDINGS) and cells[0] in {"True", "False"}:
            key = tuple(cell == "True" for cell in cells[: len(SETTINGS)])
            found[key] = dict(zip(ENDINGS, cells[len(SETTINGS) :], strict=True))
    return found


def outcome(site, how, late, go):
    """Let a worker run a task that ends in one of the ways; return what becomes of it."""
    worker = site.worker(pool="prefork", concurrency=1)
    limits = {"time_limit": 2} if how == "times out" else {}
    task = site.send("end_first", how, str(go), **limits)
    site.journal.wait_started(task.id)
    site.wait_counts(ready=0, unacked=int(late))  # an early ack follows the start
    go.touch()
    if how == "kills its worker":
        assert worker.wait() < 0
        worker.kill_group()
        worker = site.worker(pool="prefork", concurrency=1)

    def settled():
        counts = site.counts()
        return counts["ready"] == counts["delayed"] == counts["unacked"] == 0

    wait_until(settled, what=site.counts)
    dead = site.counts()["dead"]
    # A task that was acknowledged at its start may still run.
    assert worker.shut_down() == 0
    again = site.journal.finished()[task.id]
    site.settled(dead=dead)
    assert again + dead <= 1
    return "dead letter" if dead else "runs again" if again else "acknowledged"


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("values", VALUES)
def test_the_table(site_factory, redis_factory, tmp_path, values, how):
    """A task of each ending has the outcome in the table, for each combination of the settings."""
    site = site_factory(redis_factory(), **dict(zip(SETTINGS, values, strict=True)))
    assert documented()[values][how] == outcome(site, how, values[0], tmp_path / "go")


def test_the_table_is_complete():
    """The table has one row for each combination of the settings."""
    assert set(VALUES) == set(documented())

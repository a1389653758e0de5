"""Jobs of a batch on a disk that is full: new ones are refused, how others end is noted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reliq.engines.urls import connect
from reliq.errors import BrokerRefused
from reliq.store.jobs import DONE, Change
from tests.integration.apps.filling import fill

JOBS = [f"job {number}" for number in range(3000)]


def main(directory: str) -> None:
    """Enter jobs, fill the disk to the last byte, and say what becomes of them."""
    store = connect(f"reliq-sqlite:///{Path(directory, 'broker.db')}", {}, "s/1")
    batches = store.batches
    batches.open_batch("b", "enrol", {})
    batches.change("b", [Change("enter", job, "waiting") for job in JOBS])
    fill(Path(directory, "something else"))
    changes = [Change("begin", job, token=1, text="s/1") for job in JOBS]
    changes += [Change("end", job, "succeeded", token=1) for job in JOBS[:1000]]
    outcomes = set(batches.change("b", changes).outcomes)
    refused = ""
    try:
        batches.change("b", [Change("enter", "new", "waiting")])
    except BrokerRefused as exc:
        refused = str(exc)
    counts = {state: count for state, count in batches.batch("b").counts.items() if count}
    listed = sum(len(some) for some in batches.jobs("b"))
    print(json.dumps([outcomes == {DONE}, refused, counts, listed]))
    store.close()


main(*sys.argv[1:])

"""The verdict on synthetic runs: a good one passes, and each fault of a bad one is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.soak import report, verdict
from tests.soak.cli import main
from tests.soak.model import Probe, Process, Sample, Seen, Visit
from tests.soak.settings import Bounds, Settings

BOUNDS = Bounds(slack_kb=500, slack_keys=5)
COUNT = 100


def run(of_sample=lambda number, sample: sample):
    """Return the observations of a good run, with each sample changed by *of_sample*."""
    samples = []
    for number in range(COUNT):
        cpu_s = 0.002 * 600 * number
        processes = {name: Process(60_000, cpu_s) for name in ("w", "server")}
        sample = Sample(
            10.0 * number, 600 * number, processes, 3_000, 900 * number, {"meta": 9, "ready": 90}
        )
        samples.append(of_sample(number, sample))
    return Seen(
        {"w": 8},
        samples,
        [Probe(10.0 * number, {"w": 8}) for number in range(9)],
        [
            Visit(1, 2, "reply"),
            Visit(3, 4, "control", prefetch={"w": 8}),
            Visit(99, 130, "reply", error="it was cut off"),
        ],
        [100.0],
    )


def found(seen):
    """Return the findings of the verdict."""
    return verdict.findings(seen, BOUNDS)


def test_a_good_run_passes():
    """A good run passes, and a visit cut off by a lost connection is no finding."""
    assert [] == found(run())


def test_what_the_ledger_says_is_a_finding():
    """The findings of the ledger, such as a lost task, are findings of the verdict."""
    seen = run()
    seen.findings = ["lost: i1"]
    assert ["lost: i1"] == found(seen)


def test_few_samples_are_not_judged():
    """A run with too few samples has this as its only finding."""
    seen = run()
    del seen.samples[9:]
    assert ["only 9 samples: too few to judge by"] == found(seen)


@pytest.mark.parametrize("held", [7, 9])
def test_a_prefetch_that_drifts(held):
    """A worker that holds more or less than its limit while enough is ready is a finding."""
    seen = run()
    seen.probes[4] = replace(seen.probes[4], held={"w": held})
    assert [f"w held {held} at 40 s, its limit is 8"] == found(seen)


def test_a_worker_that_was_not_seen_holding_anything():
    """A worker that holds nothing is a finding, because it may have lost its subscription."""
    seen = run()
    seen.probes[8] = replace(seen.probes[8], held={})
    assert ["w held 0 at 80 s, its limit is 8"] == found(seen)


def test_a_prefetch_count_that_is_told():
    """A wrong prefetch count in the reply to `celery inspect stats` is a finding."""
    seen = run()
    seen.visits.append(Visit(50, 51, "control", prefetch={"w": 9}))
    assert ["w named 9 as its prefetch count at 50 s, not 8"] == found(seen)


def test_nobody_looked_at_the_prefetch():
    """A run without probes, or without a reported prefetch count, is a finding."""
    seen = run()
    seen.probes = []
    seen.visits = [Visit(1, 2, "reply")]
    assert ["no worker was filled to its limit", "no worker was asked for its prefetch count"] == (
        found(seen)
    )


def test_a_visit_that_failed_for_no_reason():
    """A visit that failed while no connection was lost is a finding."""
    seen = run()
    seen.visits.append(Visit(200, 201, "events", error="no event"))
    seen.visits.append(Visit(99, 100, "events"))
    assert ["events at 200 s: no event"] == found(seen)


def test_a_kind_of_visit_that_never_succeeds():
    """A kind of visit that never succeeds is a finding, even if each failure is excused."""
    seen = run()
    seen.visits.append(Visit(99, 130, "events", error="no event"))
    assert ["events: none was done"] == found(seen)


def growing(field):
    """Return a run in which one value grows steadily to twice its size."""

    def grown(number, sample):
        share = 1 + number / COUNT
        if field == "rss":
            more = replace(sample.processes["w"], rss_kb=60_000 * share)
            return replace(sample, processes={**sample.processes, "w": more})
        if field == "keys":
            return replace(sample, keys={"meta": 9, "ready": int(90 * share)})
        return replace(sample, server_kb=3_000 * share)

    return run(grown)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("rss", "memory of w, KB: 89,700 halfway, 113,700 at the end"),
        ("used", "used_memory of the server, KB: 4,485 halfway, 5,685 at the end"),
        ("keys", "keys: 144 halfway, 180 at the end"),
    ],
)
def test_what_grows_for_ever(field, told):
    """Memory and keys that grow steadily are found by a comparison of the end with halfway."""
    assert [told] == found(growing(field))


def test_what_grows_at_first_only():
    """Memory that grows only at first, as caches and pools do, is no finding."""

    def warming(number, sample):
        more = Process(30_000 + 1_000 * min(number, 30), sample.processes["w"].cpu_s)
        return replace(sample, processes={**sample.processes, "w": more})

    assert [] == found(run(warming))


def test_a_throughput_that_falls():
    """A throughput that falls by a fifth from the first tenth to the last is a finding."""
    seen = run(lambda number, s: replace(s, finished=int(600 * (number - number**2 / 800))))
    throughput = [text for text in found(seen) if text.startswith("throughput")]
    assert ["throughput: 59.3 tasks a second in the first tenth, 45.8 in the last"] == throughput


def test_a_task_that_costs_more_and_more():
    """Growing processor time per task is a finding even if the machine keeps up the rate."""

    def slowing(number, sample):
        more = Process(60_000, 1.2 * number + 0.01 * number**2)
        return replace(sample, processes={**sample.processes, "server": more})

    assert ["processor time of server: 2.15 ms a task in the first tenth, 5.15 ms in the last"] == (
        found(run(slowing))
    )


def test_the_summary_has_what_was_compared(tmp_path):
    """The summary has both values of each compared figure, and whether the run passed."""
    settings = Settings(directory=tmp_path, duration_s=990)
    card = report.summary(run(), settings, [], "command", {})
    assert card["passed"]
    assert (60.0, 60.0) == card["figures"]["tasks a second"]
    assert (99, 99) == card["figures"]["keys"]
    assert not report.summary(run(), settings, ["one"], "command", {})["passed"]


def test_a_folder_of_another_run_is_refused(tmp_path):
    """A folder with another run is refused, because its ledger would count for the new run."""
    (tmp_path / "runs.ledger").touch()
    result = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert isinstance(result.exception, FileExistsError)

"""The check of a queue with limits, with handmade runs: what it must detect, and must accept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.checker import Blame
from tests.chaos.model import Fault, Limits, Run
from tests.chaos.overlaps import LimitsInForce, check_overlaps

LIMITS = Limits(lease=4.0, renewed_every=4.0 / 3)


def run(number, start, finish=None, worker="w1", pid=11):
    """Return one run of its own task."""
    return Run(f"i{number}", 0, f"t{number}", 0, worker, pid, start, finish, queue="q", ended="F")


def at_once(number, start=10.0, **known):
    """Return runs that overlap."""
    return [run(each, start + each / 100, start + 1.0, **known) for each in range(number)]


def judged(runs, *faults, first=3):
    """Return the verdict on runs of a queue that was declared with the limit *first*."""
    in_force = LimitsInForce(first, faults, LIMITS.in_flight)
    return check_overlaps(runs, in_force, Blame(faults, [], [], LIMITS))


def limit(at, value):
    """Return the change of the limit at a time."""
    return Fault("limit-change", at, at + 0.01, limit=value)


def test_as_many_as_the_limit_pass():
    """Three at once are the limit, however many follow."""
    found = judged(at_once(3) + at_once(3, 12.0))
    assert ([], 3, 6, 0) == (found.findings, found.highest, found.runs, found.explained)


def test_a_limit_that_is_not_enforced_is_found():
    """One more than the limit is a finding that names the runs and the limit."""
    found = judged(at_once(4))
    (finding,) = found.findings
    assert finding.startswith("4 at once, and the limit was 3: i0 (w1")
    assert 4 == found.highest


def test_a_run_that_ends_as_another_starts_is_none_at_once():
    """The end of a run frees its slot for a start at the same time."""
    assert not judged([*at_once(3), run(9, 11.0, 12.0)]).findings


def test_a_lowered_limit_stops_nothing_that_runs():
    """Runs from before the change continue, and a start above the new limit is found."""
    before = [run(each, 10.0, 20.0) for each in range(3)]
    assert not judged(before, limit(12.0, 1)).findings
    assert judged([run(1, 15.0, 20.0), run(2, 15.1, 20.0)], limit(12.0, 1)).findings


def test_a_raised_limit_counts_from_its_change():
    """Five are found before the limit is raised to five, and accepted after it."""
    assert judged(at_once(5, 10.0), limit(12.0, 5)).findings
    assert not judged(at_once(5, 12.5), limit(12.0, 5)).findings


def test_a_change_that_is_still_on_its_way():
    """A change that may have been applied counts as both limits meanwhile."""
    slow = Fault("limit-change", 10.0, 14.0, limit=1)
    assert not judged(at_once(3, 12.0), slow).findings
    assert judged(at_once(2, 16.0), slow).findings


@pytest.mark.parametrize(("length", "explained"), [(5.0, True), (1.0, False)])
def test_a_freeze_explains_an_overlap_if_a_lease_ended_in_it(length, explained):
    """A worker that was stopped for longer than its lease ran beside the next ones."""
    frozen = run(0, 10.0, 10.5 + length, worker="w2")
    others = at_once(3, 10.4 + length)
    fault = Fault("worker-freeze", 10.2, 10.2 + length, worker="w2")
    found = judged([frozen, *others], fault)
    assert explained == (not found.findings)
    assert explained == bool(found.explained)


@pytest.mark.parametrize(("length", "explained"), [(5.0, True), (1.0, False)])
def test_an_outage_explains_an_overlap_if_a_lease_ended_in_it(length, explained):
    """Without a broker for longer than a lease, a lease may be over as the broker is back."""
    held = run(0, 10.0, 11.5 + length)
    others = at_once(3, 11.0 + length)
    fault = Fault("broker-kill", 10.2, 10.2 + length, outage=True)
    assert explained == (not judged([held, *others], fault).findings)


def test_a_fault_explains_as_many_as_it_hit():
    """A freeze of a worker with one run does not explain two runs above the limit."""
    frozen = run(0, 10.0, 15.5, worker="w2")
    fault = Fault("worker-freeze", 10.2, 15.2, worker="w2")
    (finding,) = judged([frozen, *at_once(4, 15.4)], fault).findings
    assert finding.startswith("4 at once")


def test_a_killed_process_ends_its_runs():
    """A run that never finished ends with its process, which explains the next ones."""
    killed = run(0, 10.0, worker="w2")
    fault = Fault("worker-kill", 10.5, 10.5, worker="w2")
    found = judged([killed, *at_once(3, 15.0)], fault)
    assert ([], 3) == (found.findings, found.highest)


def test_a_child_may_outlive_its_killed_main_process():
    """The child ends its task after the lease of its worker has ended."""
    orphan = run(0, 10.0, 18.0, worker="w2", pid=22)
    fault = Fault("main-kill", 10.5, 10.5, worker="w2")
    assert not judged([orphan, *at_once(3, 16.0)], fault).findings
    assert judged([orphan, *at_once(3, 16.0)]).findings


def test_a_promoted_replica_may_lack_a_change():
    """After the loss of a master, an earlier limit may be in force again, and no other one."""
    faults = [limit(5.0, 5), limit(8.0, 1), Fault("node-kill", 9.0, 9.5, master=True)]
    assert not judged(at_once(5, 20.0), *faults).findings
    assert judged(at_once(6, 20.0), *faults).findings
    assert judged(at_once(5, 20.0), *faults[:2]).findings


def test_a_change_without_effect_counts_as_none():
    """A change that could not be applied leaves the limit as it was."""
    failed = replace(limit(5.0, 5), applied=False)
    assert judged(at_once(4), failed).findings

"""Runs the machine for a number of examples, repeatably."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.jobs_machine import jobs_machine_for
from tests.model.machine import machine_for

if TYPE_CHECKING:
    from tests.model.brokers import Broker

MACHINES = {"queues": machine_for, "batches": jobs_machine_for}


def run(
    broker: Broker,
    *,
    examples: int,
    steps: int = 20,
    seeded: int = 0,
    shrink: bool = True,
    machine: str = "queues",
) -> None:
    """Run so many examples of so many steps; raises what the first failing one raised.

    The same seed gives the same examples, in one version of Hypothesis. A failure is
    printed as the shortest trace that was found; without *shrink*, as it came.
    """
    driven = seed(seeded)(MACHINES[machine](broker))
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,  # it would want a test of its own to be put on.
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(driven, settings=how)

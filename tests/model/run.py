"""Repeatable runs of a state machine with a number of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.jobs_machine import jobs_machine_for
from tests.model.machine import limited_machine_for, machine_for

if TYPE_CHECKING:
    from tests.model.brokers import Broker

MACHINES = {
    "queues": machine_for,
    "limits": limited_machine_for,
    "batches": jobs_machine_for,
}


def run(
    broker: Broker,
    *,
    examples: int,
    steps: int = 20,
    seeded: int = 0,
    shrink: bool = True,
    machine: str = "queues",
) -> None:
    """Run examples of at most *steps* steps; raise the exception of the first failing one.

    In one version of Hypothesis, the same seed gives the same examples. A failure is printed as the
    shortest trace found, or unchanged without *shrink*.
    """
    driven = seed(seeded)(MACHINES[machine](broker))
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,  # it would need a test to be set on
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(driven, settings=how)

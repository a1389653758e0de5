"""Short runs with all faults, and runs in which the checker detects broken transports."""

from __future__ import annotations

import json
import random

import pytest

from tests.chaos.faults import kinds
from tests.chaos.picture import draw
from tests.chaos.run import carry_out
from tests.chaos.scorecard import summary, write_json, write_markdown
from tests.chaos.settings import KOMBU, Settings

pytestmark = pytest.mark.slow


def told(outcome):
    """Return the findings as the message of a failed assertion."""
    verdict = outcome.verdict
    found = [f"seed {outcome.settings.seed}", *(f"lost: {one}" for one in verdict.lost)]
    return "\n".join([*found, *verdict.findings])


def test_nothing_is_lost_and_nothing_runs_twice_without_a_cause(tmp_path):
    """A run with 15 or more faults of 6 or more kinds has no finding in ledger, broker or keys."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    outcome = carry_out(
        Settings(
            directory=tmp_path,
            seed=seed,
            duration_s=45,
            kinds=kinds("one"),
            fault_every_s=2.2,
            poison_every_s=20,
            rate=75,
        )
    )
    card = summary(outcome, "pytest", {})
    write_json(card, tmp_path / "scorecard.json")
    write_markdown(card, tmp_path / "scorecard.md")
    draw(outcome, tmp_path / "timeline.svg")
    print(json.dumps({key: card[key] for key in ("tasks", "faults", "duplicates", "recovery_s")}))
    assert outcome.verdict.passed, told(outcome)
    assert 15 <= card["faults"]["total"]
    assert 6 <= card["faults"]["kinds"]
    assert 0 < card["poison"]["confirmed"]
    assert "<svg" in (tmp_path / "timeline.svg").read_text(encoding="utf-8")


def short(directory, scheme, **known):
    """Return the outcome of a short run over a broken transport."""
    settings = {
        "seed": 1,
        "duration_s": 15,
        "kinds": ["worker-kill"],
        "fault_every_s": 4,
        "workers": 2,
        "pools": ["threads", "prefork"],
        "rate": 100,
        "poison_every_s": 0,
        "drain_s": 10,
    }
    return carry_out(Settings(directory=directory, scheme=scheme, **{**settings, **known})).verdict


def test_a_transport_that_acks_before_it_runs_is_caught(tmp_path):
    """A transport that acks before the run loses the messages of a killed worker."""
    verdict = short(tmp_path, "reliq-early", longest_s=3.0, fault_every_s=2.5, duration_s=20)
    assert verdict.lost
    assert not verdict.passed


@pytest.mark.long
def test_a_transport_that_drops_a_message_now_and_then_is_caught(tmp_path):
    """The checker finds the one message in 10,000 that a transport drops, and nothing else."""
    verdict = short(
        tmp_path,
        "reliq-drop",
        kinds=["script-flush"],
        duration_s=5,
        producers=1,
        rate=0,
        least_tasks=10_000,
        backlog=20_000,
        environment={"RELIQ_CHAOS_DROP": "10000"},
    )
    assert 1 <= len(verdict.lost) <= 2
    assert [] == verdict.findings


def test_batches_that_are_told_wrongly_are_caught(tmp_path):
    """A failure that counts as a success is detected, and so is a repeated callback."""
    verdict = short(
        tmp_path,
        "reliq",
        kinds=["script-flush"],
        duration_s=8,
        batches=0.9,
        environment={"RELIQ_CHAOS_BREAK_BATCHES": "1"},
    )
    assert any("is succeeded (no reason), and was to be failed" in one for one in verdict.findings)
    assert any("stored 2 times, not 1" in one for one in verdict.findings)
    assert any("messages of callbacks were published" in one for one in verdict.findings)


@pytest.mark.long
def test_kombus_own_redis_transport_is_caught(tmp_path):
    """Kombu's Redis transport redelivers a task that runs longer than its visibility timeout."""
    verdict = short(tmp_path, "redis", duration_s=20, options=dict(KOMBU))
    assert not verdict.passed

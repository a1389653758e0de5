"""A real soak of a minute and a half, with bounds that a busy machine does not exceed."""

from __future__ import annotations

import json

import pytest

from tests.soak import report, verdict
from tests.soak.picture import draw
from tests.soak.run import carry_out
from tests.soak.settings import Bounds, Settings

pytestmark = [pytest.mark.slow, pytest.mark.long]

# Rate changes within seconds come from a shared machine. Only those over hours are findings.
LOOSE = Bounds(memory=1.25, slack_kb=20_000, keys=1.5, slack_keys=60, throughput=0.2, cpu=8.0)


def test_a_short_soak_passes_and_shows_what_it_saw(tmp_path):
    """In a short soak, each reconnected worker fills to its limit, and each task runs once."""
    settings = Settings(
        directory=tmp_path,
        duration_s=80,
        rate=40,
        idle=3,
        reconnect_every_s=20,
        sample_every_s=1,
        bounds=LOOSE,
    )
    seen = carry_out(settings)
    found = verdict.findings(seen, settings.bounds)
    card = report.summary(seen, settings, found, "pytest", {})
    report.write_json(card, tmp_path / "soak.json")
    draw(seen, tmp_path / "soak.svg")
    print(json.dumps(card["figures"]))
    assert [] == found
    assert 3 <= len(seen.reconnects)
    assert [{"prefork0.1": 8, "threads1.1": 16}] * len(seen.probes) == [
        probe.held for probe in seen.probes
    ]
    kinds = {"auto_delete", "expires", "reply", "control", "delayed_and_expired", "events"}
    assert kinds == {visit.what for visit in seen.visits if not visit.error}
    # The verdict finds a leak, a drift and a slowdown that are added to the same run.
    seen.samples[-16:] = [
        _worse(sample, number) for number, sample in enumerate(seen.samples[-16:])
    ]
    seen.probes[-1].held["prefork0.1"] -= 1
    told = " ".join(verdict.findings(seen, settings.bounds))
    for what in ("memory of prefork0.1", "keys:", "throughput:", "prefork0.1 held 7"):
        assert what in told


def _worse(sample, number):
    processes = {
        name: type(used)(used.rss_kb * 2, used.cpu_s) for name, used in sample.processes.items()
    }
    finished = sample.finished if not number else 0
    return type(sample)(
        sample.at,
        finished,
        processes,
        sample.server_kb,
        sample.commands,
        {**sample.keys, "leak": 10 * sum(sample.keys.values())},
    )

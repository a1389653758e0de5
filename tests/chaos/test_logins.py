"""Logins end under load: nothing is lost, and nothing runs twice without a cause."""

from __future__ import annotations

import random

import pytest

from tests.chaos.faults import kinds
from tests.chaos.run import carry_out
from tests.chaos.settings import Settings
from tests.chaos.test_chaos import told

pytestmark = pytest.mark.slow
LOGINS = [kind for kind in kinds("logins") if kind.startswith("login-")]


def run(directory, **known):
    """Carry out a run with a random seed; check the verdict and return the faults by kind."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    settings = {"fault_every_s": 2, "poison_every_s": 30, "rate": 60, "workers": 3, **known}
    outcome = carry_out(Settings(directory=directory, seed=seed, brokers="logins", **settings))
    assert outcome.verdict.passed, told(outcome)
    return [fault for fault in outcome.faults if fault.applied]


def test_logins_end_in_each_pool(tmp_path):
    """Each kind of end in 15 seconds, with workers of three pools at the same time."""
    pools = ["prefork", "threads", "gevent"]
    faults = run(tmp_path, pools=pools, duration_s=15, kinds=LOGINS, poison_every_s=0)
    assert set(LOGINS) == {fault.kind for fault in faults}


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_logins_end_for_three_minutes(tmp_path, pool):
    """For three minutes, logins end, and workers, children and connections are killed as well."""
    faults = run(tmp_path, pools=[pool], duration_s=180, kinds=kinds("logins"))
    assert set(LOGINS) < {fault.kind for fault in faults}
    renewals = [fault for fault in faults if fault.kind == "login-renewal"]
    assert all("were not renewed" in fault.note for fault in renewals)

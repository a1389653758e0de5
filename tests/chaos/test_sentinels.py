"""A Sentinel group as the broker of a run: the next fault waits for a complete group."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.chaos.model import Strike
from tests.chaos.nemesis import Nemesis
from tests.chaos.sentinel_broker import SentinelBroker
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_no_master_is_hit_while_a_replica_is_in_its_synchronisation():
    """No master is hit while a replica synchronises, because that replica could be promoted.

    Promotions are recorded.
    """
    strikes = [Strike(0.0, "sentinel-kill", 0.1, 0.5)] * 2
    with SentinelBroker() as broker:
        for server in broker.servers:  # any new master delays the old one's synchronisation
            server.client().config_set("repl-diskless-sync-delay", 600)
        nemesis = Nemesis(SimpleNamespace(broker=broker), strikes, time.monotonic())
        first = wait_until(nemesis.step)
        assert first.applied, first.note

        def undone():
            assert nemesis.step() is None
            return first.until > first.at

        wait_until(undone, timeout_s=40)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            assert nemesis.step() is None
        assert "its link" in broker.missing()
        broker.primary.client().config_set("repl-diskless-sync-delay", 0)
        second = wait_until(nemesis.step, timeout_s=40)
        assert second.applied, second.note
        nemesis.undo_all()
        assert [] == broker.by_itself(nemesis.faults)
        (last,) = broker.by_itself(nemesis.faults[:1])
        assert ("promotion", True) == (last.kind, last.at < second.until)

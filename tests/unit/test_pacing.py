"""The waits before a process that lost its broker reconnects."""

from reliq.failover.brokers import Pace, Paces


def test_a_publisher_waits_once_after_a_loss(monkeypatch):
    """A publisher waits once after a loss; a consumer waits longer after each failed try.

    The calls of publishers are already spread over time.
    """
    waited = []
    monkeypatch.setattr("reliq.failover.brokers.sleep", waited.append)
    for once, expected in ((True, 1), (False, 3)):
        waited.clear()
        pace = Pace()
        pace.wait(once=once)
        assert [] == waited
        for _ in range(3):
            pace.trouble()
            pace.wait(once=once)
        assert expected == len(waited)


def test_a_pace_outlives_who_has_it_while_there_is_trouble(monkeypatch):
    """A pace outlives its transport for a minute of trouble: Kombu makes one transport per URL."""
    now = [1000.0]
    monkeypatch.setattr("reliq.failover.brokers.monotonic", lambda: now[0])
    paces = Paces()
    pace = paces.of("lost")
    pace.trouble()
    assert pace is paces.of("lost")
    paces.of("other")
    assert pace is paces.of("lost")
    now[0] += 61
    paces.of("other")
    assert pace is not paces.of("lost")


def test_a_pace_that_is_well_is_not_kept():
    """A pace without trouble is not kept, as any number of brokers may have answered once."""
    paces = Paces()
    pace = paces.of("one")
    paces.of("other")
    assert pace is not paces.of("one")

"""How long who lost the broker waits before it connects again."""

from reliq.pacing import Pace


def test_a_publisher_waits_once_after_a_loss(monkeypatch):
    """Its callers spread themselves; who consumes waits longer with each try that fails."""
    waited = []
    monkeypatch.setattr("reliq.pacing.time.sleep", waited.append)
    for once, expected in ((True, 1), (False, 3)):
        waited.clear()
        pace = Pace()
        pace.wait(once=once)
        assert [] == waited
        for _ in range(3):
            pace.trouble()
            pace.wait(once=once)
        assert expected == len(waited)

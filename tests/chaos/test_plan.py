"""The schedule: the seed repeats it, every kind has its turn."""

from __future__ import annotations

from collections import Counter

from tests.chaos.faults import FAULTS
from tests.chaos.ledger import CONFIRMED, FAILED, FINISHED, INTENT, STARTED, Tail, Writer, read
from tests.chaos.plan import plan

KINDS = list(FAULTS)
SPANS = {name: kind.span for name, kind in FAULTS.items()}


def test_a_seed_repeats_its_schedule():
    """The same seed gives the same strikes, another one gives others."""
    assert plan(7, KINDS, SPANS, 300, 4) == plan(7, KINDS, SPANS, 300, 4)
    assert plan(7, KINDS, SPANS, 300, 4) != plan(8, KINDS, SPANS, 300, 4)


def test_every_kind_has_its_turn():
    """No kind comes twice as often as another, and all fit into the time."""
    strikes = plan(1, KINDS, SPANS, 100 * len(KINDS), 10)
    often = Counter(strike.kind for strike in strikes)
    assert set(KINDS) == set(often)
    assert max(often.values()) - min(often.values()) <= 1
    assert max(strike.at_s for strike in strikes) < 100 * len(KINDS)
    for strike in strikes:
        low, high = SPANS[strike.kind]
        assert low <= strike.duration_s <= high


def test_the_ledger_says_what_was_written(tmp_path):
    """Every event comes back as it was written, and the tail knows what is missing."""
    tail = Tail(tmp_path)
    published, ran = Writer(tmp_path / "published.ledger"), Writer(tmp_path / "ran.ledger")
    for task_id in ("i1", "i2", "x3"):
        published.write(INTENT, task_id, 1.5, "chaos")
    for task_id in ("i1", "i2", "x3"):
        published.write(CONFIRMED, task_id)
    published.write(FAILED, "i4", "OSError")
    ran.write(STARTED, "i1", 0, "tag", 2, "w1", 11)
    tail.look()
    assert {"i1", "i2"} == tail.outstanding
    assert {"x3"} == tail.poison
    ran.write(FINISHED, "i1", 0, "tag", 2, "w1", 11)
    tail.look()
    assert {"i2"} == tail.outstanding
    published.close()
    ran.close()
    lines = list(read(tmp_path))
    assert [1.5] * 3 == [line.countdown for line in lines if line.event == INTENT]
    assert ["chaos"] * 3 == [line.queue for line in lines if line.event == INTENT]
    assert ["OSError"] == [line.error for line in lines if line.event == FAILED]
    (done,) = [line for line in lines if line.event == FINISHED]
    assert ("i1", 0, "tag", 2, "w1", 11) == (done.id, *done[5:10])

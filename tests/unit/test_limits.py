"""The number of messages that may start now under a rate, from its stored state."""

import pytest

from reliq.admin.limits import QueueLimits, limits_of
from reliq.message.queue_arguments import queue_arguments
from reliq.values.inspection import Measure, QueueStatus

NOW = 1_000_000


def limits(concurrency="", rate="", state="", **status):
    """Return the limits of a queue with 1,000 ready messages at the time NOW."""
    given = {"ready": 1000, "delayed": 0, "unacked": 0, "dead": 0, "stored": 0, "consumers": 0}
    named = QueueStatus("q", **{**given, **status})
    (found,) = limits_of([Measure(named, NOW, {}, None, 3, concurrency, rate, state)])
    return found


@pytest.mark.parametrize(
    ("rate", "state", "startable", "wait_ms"),
    [
        ("10/s", "", 1, None),
        ("500/s", "", 50, None),
        ("100/m", "", 1, None),
        ("100/m burst 10", "", 10, None),
        ("10/s", f"0.000;{NOW},7,1,1", 0, 100),
        ("10/s", f"0.000;{NOW - 100},7,1,1", 1, None),
        ("10/s", f"0.000;{NOW - 40},7,1,1", 0, 60),
        ("10/s burst 3", f"0.000;{NOW - 40},7,1,1", 2, None),
        ("10/s burst 3", f"0.000;{NOW - 40},7,2,2;{NOW - 20},8,1,1", 0, 60),
        ("10/s burst 3", f"0.000;{NOW},7,3,0", 3, None),  # all handed back
        ("10/s", f"{NOW + 50:.3f};{NOW - 1},7,1,1", 0, 150),
        ("3/s", f"0.000;{NOW},7,1,1", 0, 334),
        ("10/s", f"0.000;{NOW + 5000},7,1,1", 0, 100),  # the clock went back
        ("10/s", "nonsense", 1, None),
    ],
)
def test_starts_of_a_rate(rate, state, startable, wait_ms):
    """A start is possible as soon as the starts before it leave one within rate and burst."""
    found = limits(rate=rate, state=state)
    assert startable == found.startable
    assert (None if wait_ms is None else NOW + wait_ms) == found.next_start_ms
    assert bool(found.reached) == (startable == 0)


@pytest.mark.parametrize(
    ("status", "startable", "reached"),
    [
        ({"unacked": 3}, 2, ""),
        ({"unacked": 5}, 0, "5 of 5 in hand"),
        ({"unacked": 7}, 0, "7 of 5 in hand"),
        ({"unacked": 3, "ready": 0}, 2, ""),  # of those that are due
        ({"paused": True}, 0, ""),
    ],
)
def test_free_slots(status, startable, reached):
    """At most as many messages may start as there are free slots."""
    found = limits("5", **status)
    assert (startable, reached) == (found.startable, found.reached)


def test_no_limit():
    """Without a limit, all ready and due messages may start."""
    found = limits()
    assert (1003, False) == (found.startable, found.limited)
    assert isinstance(found, QueueLimits)


def test_a_divided_queue_has_no_limits():
    """A queue with several partitions is left out."""
    status = QueueStatus("q", 1, 0, 0, 0, 0, 0, partitions=2)
    assert [] == limits_of([Measure(status, NOW, {}, None, 0, "5")])


def test_both_limits_are_reached():
    """The reason names each reached limit, as the declared ones say."""
    limited = {"x-concurrency": 5, "x-rate": "none"}
    arguments = {"": queue_arguments("q", False, limited)[0], **limited}
    found = limits("5", "10/s", f"0.000;{NOW},7,1,1", unacked=5, arguments=arguments)
    assert "5 of 5 in hand; the next start within 10/s is possible in 100ms" == found.reached
    assert (5, None) == (found.declared_concurrency, found.declared_rate)

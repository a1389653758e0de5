"""What the inspector tells a page: history, messages, searches, over each kind of broker."""

from __future__ import annotations

from itertools import pairwise

import pytest
from kombu import Connection

from reliq import ConfigurationError, NotFound
from reliq.admin import Inspector, Snapshot
from reliq.store.history import noted, snapshots, thinned
from tests.integration.kombu_client import FAST, Taker, publish
from tests.support.files import FileBroker
from tests.support.waiting import wait_until


@pytest.fixture(params=["redis", "sqlite"])
def url(request, tmp_path):
    """Return the URL of an empty broker of each kind."""
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    found = FileBroker(tmp_path).url()
    Connection(found).ensure_connection().release()
    return found


@pytest.fixture
def connection(url):
    """Return an open connection."""
    with Connection(url, transport_options=FAST) as found:
        yield found


@pytest.fixture
def inspector(url, connection):
    """Return an inspector of the broker."""
    connection.ensure_connection()
    with Inspector(url) as found:
        yield found


# -- history


def test_a_consumer_notes_the_history(connection, inspector):
    """Whoever consumes does, of whatever it consumes from; who asks gets what there is."""
    publish(connection, "q", 1, 2)
    assert [] == inspector.history("q")
    taker = Taker(connection, "q")
    taker.take_bodies(2)
    wait_until(lambda: inspector.history("q"))
    (snapshot,) = inspector.history("q")
    assert isinstance(snapshot, Snapshot)
    assert 2 == snapshot.ready + snapshot.unacked + inspector.status("q").ledger.get("acked", 0)
    assert [] == inspector.history("q", since_ms=inspector.now_ms() + 60_000)
    with pytest.raises(NotFound):
        inspector.history("unknown")
    with pytest.raises(ConfigurationError):
        inspector.history("q", points=0)


MINUTE = 60_000


def series(counts, start=1000, every=1):
    """Return the snapshots of a queue with so many (ready, published so far) in each minute."""
    last, blocks = "", {}
    for step, (ready, published) in enumerate(counts):
        at = (start + step * every) * MINUTE
        block, records, last = noted(
            last, blocks.get(at // MINUTE // 60, b""), at, (ready, 0, 0, 0), (published, *[0] * 6)
        )
        blocks[block] = records
    return snapshots(blocks, 0, at)


def test_points_are_thinned_evenly():
    """As many as fit; what was published is in one of them, and how long it took."""
    found = thinned([series([(n, 100 * n) for n in range(120)])], 10 * MINUTE)
    assert 12 < len(found) + 1 <= 14
    assert 100 * 119 == sum(item.published for item in found)
    assert 119 * MINUTE == sum(item.span_ms for item in found)
    times = [item.at_ms for item in found]
    assert {10 * MINUTE} == {b - a for a, b in pairwise(times[:-1])}
    assert 119 == found[-1].ready


def test_partitions_are_added_up():
    """One that was not looked at for a while counts as before."""
    one = series([(5, 10), (6, 20), (7, 30)])
    other = series([(100, 0)])
    found = thinned([one, other], MINUTE)
    assert [105, 106, 107] == [item.ready for item in found]
    assert [0, 10, 10] == [item.published for item in found]


def test_a_minute_takes_few_bytes():
    """What docs/metrics.md says of it: a queue that is busy, one that is idle, one that is huge."""

    def size(counts, counters):
        last, records = "", b""
        for minute in range(60):
            _, records, last = noted(
                last, records, minute * MINUTE, counts(minute), counters(minute)
            )
        return len(records)

    idle = size(lambda _: (0, 0, 0, 0), lambda _: (9,) * 7)
    busy = size(lambda n: (100 + n, 3, 16, 2), lambda n: (n * 60_000,) * 3 + (n,) * 4)
    huge = size(lambda n: (10**6 + n, 10**6, 10**4, 10**6), lambda n: (n * 10**6,) * 7)
    assert idle == 13
    assert busy <= 60 * 23
    assert huge <= 60 * 35

"""The names of partitions: the same everywhere, distinct from queue names, and spread apart."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.crc import key_slot

from reliq import options
from reliq.lua.keys import queue_keys
from reliq.message import queue_names
from reliq.message.queue_names import (
    MOST_PARTITIONS,
    escape,
    number_of,
    partition_name,
    partition_names,
    partition_of_key,
    queue_of,
)

QUEUES = ("celery", "orders", "a", "größe {x}", "100%", "")
NAMES = st.text(st.sampled_from("{}%p1.ab:") | st.characters(codec="utf-8"), max_size=12)


def slot(name):
    """Return the hash slot of a queue's keys, as the server computes it."""
    return key_slot(queue_keys("", name).meta.encode())


@given(NAMES)
def test_a_partition_knows_its_queue(name):
    """A partition's name contains its queue and number; the first partition is the queue itself."""
    assume(queue_of(name) == name)
    names = partition_names(name, MOST_PARTITIONS)
    assert MOST_PARTITIONS == len(set(names))
    assert {name} == {queue_of(partition) for partition in names}
    assert list(range(MOST_PARTITIONS)) == [number_of(partition) for partition in names]
    assert names[5] == partition_name(name, 5)
    assert name == partition_name(name, 0)


@given(NAMES, NAMES)
def test_no_queue_has_the_key_of_a_partition(queue, other):
    """No queue has the key of a partition, whatever its name."""
    assume(queue_of(queue) == queue and queue_of(other) == other)
    keys = {escape(name) for name in partition_names(queue, 9)[1:]}
    assert escape(other) not in keys
    assert all("{" not in key and "}" not in key for key in keys)


def test_names_stay_what_they_are():
    """The names of partitions are stable: messages are stored under them by all versions."""
    assert ("celery", "celery%p1.174", "celery%p2.61", "celery%p3.46") == partition_names(
        "celery", 4
    )
    assert "reliq:{celery%p1.174}:meta" == queue_keys("", "celery%p1.174").meta


@pytest.mark.parametrize("end", [2, MOST_PARTITIONS])
def test_all_names_stay_what_they_are(end):
    """All names are stable, in any order of computation and at any number of partitions."""
    names = [name for queue in QUEUES for name in partition_names(queue, end)]
    assert names == [partition_name(queue, n) for queue in QUEUES for n in range(end)]
    if end == MOST_PARTITIONS:
        digest = blake2b("|".join(names).encode(), digest_size=8).hexdigest()
        assert "6ca78bc725b47892" == digest


def test_there_are_no_more_than_the_most():
    """The number of partitions is limited, whatever number is stored in the layout."""
    assert partition_names("q", MOST_PARTITIONS) == partition_names("q", 10**15)
    with pytest.raises(IndexError):
        partition_name("q", MOST_PARTITIONS)


def test_no_name_is_computed_twice(monkeypatch):
    """Each name is computed once, on demand, even if a process publishes to many queues in turn."""
    computed = []
    suffix = queue_names._suffix
    monkeypatch.setattr(
        queue_names,
        "_suffix",
        lambda tag, number: (computed.append(number), suffix(tag, number))[1],
    )
    queues = [f"tenant-{number} of many" for number in range(1000)]
    for _ in range(2):
        assert 1000 == len({partition_name(queue, 3) for queue in queues})
        assert 3000 == len({name for queue in queues for name in partition_names(queue, 3)})
    assert {1: 1000, 2: 1000, 3: 1000} == Counter(computed)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(("partitions", "nodes"), [(8, 3), (16, 3), (32, 12), (64, 12)])
def test_partitions_are_spread_evenly(queue, partitions, nodes):
    """No node has many more partitions than another if the slots are shared evenly."""
    found = Counter(slot(name) * nodes // 16384 for name in partition_names(queue, partitions))
    assert max(found.values()) - partitions / nodes < 2
    assert min(found[node] for node in range(nodes)) > partitions / nodes - 2


@given(st.text(max_size=20), st.integers(1, MOST_PARTITIONS - 1))
def test_a_key_keeps_its_partition(key, partitions):
    """If a partition is added, a key stays in its partition or moves to the new one."""
    before, after = (partition_of_key(key, n) for n in (partitions, partitions + 1))
    assert 0 <= before < partitions
    assert after in {before, partitions}


def test_keys_are_spread_evenly():
    """Each partition gets about the same number of keys."""
    found = Counter(partition_of_key(f"customer-{i}", 8) for i in range(8000))
    assert 8 == len(found)
    assert all(850 < count < 1150 for count in found.values())


def test_the_option_knows_the_limit():
    """The option repeats the limit of partitions, as options do not import names."""
    assert options._MOST_PARTITIONS == MOST_PARTITIONS
    assert queue_names.SLOTS % MOST_PARTITIONS == 0

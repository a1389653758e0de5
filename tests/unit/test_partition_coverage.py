"""How much of a queue was read: what operators are told of one that is divided."""

from reliq.admin.partitions import coverage
from reliq.message.queue_names import partition_names
from reliq.store.inspection import QueueStatus, Told, Untold

NAMES = partition_names("q", 4)


def status(name, partitions=1):
    """Return the status of an empty queue."""
    return QueueStatus(name, 0, 0, 0, 0, 0, 0, partitions=partitions)


def test_nothing_is_missing():
    """Each queue is as many partitions as are listed."""
    told = Told(["other", *NAMES])
    found = coverage(told, [status("other"), *map(status, NAMES)])
    assert {"other": (1, 0), "q": (4, 0)} == found


def test_what_could_not_be_read():
    """By a node that is lost, by what a partition holds: each is missing."""
    told = Told([NAMES[0], NAMES[3]], [Untold("a:1", NAMES[1:3], "lost")])
    assert {"q": (4, 3)} == coverage(told, [status("q")])


def test_all_is_lost():
    """The names tell how many there were."""
    told = Told([], [Untold("a:1", NAMES, "lost")])
    assert {"q": (4, 4)} == coverage(told, [])


def test_a_list_that_cannot_be_read():
    """Who was found says how many there are; it is not asked where the list says it."""
    found = [status("q", 4), status(NAMES[2], 2)]
    names = [item.name for item in found]
    assert {"q": (4, 2)} == coverage(Told(names, complete=False), found)
    assert {"q": (2, 0)} == coverage(Told(names), found)

"""The part of a divided queue that was read, as it is shown to operators."""

from reliq.admin.partitions import coverage
from reliq.message.queue_names import partition_names
from reliq.values.inspection import Measure, Partial, QueueStatus, Untold

NAMES = partition_names("q", 4)


def measure(name, partitions=1):
    """Return the counts of an empty queue."""
    return Measure(QueueStatus(name, 0, 0, 0, 0, 0, 0, partitions=partitions), 0, {}, None, 0)


def test_nothing_is_missing():
    """Without errors, each queue is covered by all of its listed partitions."""
    names = ["other", *NAMES]
    assert {"other": (1, 0), "q": (4, 0)} == coverage(Partial(map(measure, names), queried=names))


def test_what_could_not_be_read():
    """Partitions are missing because of a lost node or because of unreadable contents."""
    lost = [Untold("a:1", NAMES[1:3], "lost")]
    found = Partial([measure("q")], lost, queried=[NAMES[0], NAMES[3]])
    assert {"q": (4, 3)} == coverage(found)


def test_all_is_lost():
    """If all is lost, the names still show how many partitions there were."""
    assert {"q": (4, 4)} == coverage(Partial([], [Untold("a:1", NAMES, "lost")]))


def test_a_list_that_cannot_be_read():
    """If the list is unreadable, a partition that was found states the number of partitions.

    With a complete list, the number is that of the list.
    """
    found = [measure("q", 4), measure(NAMES[2], 2)]
    names = ["q", NAMES[2]]
    assert {"q": (4, 2)} == coverage(Partial(found, queried=names, complete=False))
    assert {"q": (2, 0)} == coverage(Partial(found, queried=names))

import gc
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import reliq
from reliq.message.delivery_tag import rank_of
from reliq.routing.publish_ids import Publisher, PublishTag
from reliq.store.publishing import RENEW_EVERY_S, kept_ms
from reliq.values.limits import LONG_MS, SHORT_MS


@pytest.fixture
def publisher():
    """Return the numbers of a process that has published nothing."""
    return Publisher()


def lows(publisher, queue="q", tries=500):
    """Return the distinct low-water marks that later messages carry, without 0 (none)."""
    seen = set()
    for _ in range(tries):
        tag = publisher.tag(5, {})
        seen.add(publisher.number(tag, queue).low_water)
        publisher.settle(tag)
    return seen - {0}


def test_a_retry_has_the_same_number(publisher):
    """A retry with the same tag in the same queue has the same number, however often."""
    tag = publisher.tag(5, {})
    first = publisher.number(tag, "q")
    publisher.number(publisher.tag(5, {}), "q")
    assert first == publisher.number(tag, "q")


def test_messages_have_different_numbers(publisher):
    """Each message of a queue has its own number, which is never 0, as 0 means none."""
    tags = [publisher.tag(5, {}) for _ in range(100)]
    numbers = [publisher.number(tag, "q").number for tag in tags]
    assert sorted(set(numbers)) == numbers
    assert min(numbers) > 0


def test_each_copy_has_its_own_tag(publisher):
    """A message in two queues has two delivery tags; the first is the message's own."""
    tag = publisher.tag(7, {})
    first, second = publisher.number(tag, "q"), publisher.number(tag, "r")
    assert str(tag) == first.tag
    assert first.tag != second.tag
    assert [30, 7] == [len(second.tag), rank_of(second.tag)]
    assert second == publisher.number(tag, "r")


def test_a_stored_tag_is_plain_text(publisher):
    """A stored tag is plain text, which keeps no number alive."""
    tag = publisher.tag(5, {})
    assert str is type(publisher.number(tag, "q").tag)


def test_a_tag_is_settled_when_its_publish_returned(publisher):
    """A tag is settled when its publish has returned; its properties are then a new message."""
    tag = publisher.tag(5, {})
    assert tag.settled
    publisher.number(tag, "q")
    assert not tag.settled
    publisher.settle(tag)
    assert tag.settled
    publisher.settle(tag)


def test_nothing_unsettled_is_forgotten(publisher):
    """While a message may be retried, no low-water mark exceeds its number."""
    tag = publisher.tag(5, {})
    number = publisher.number(tag, "q").number
    assert {number} == lows(publisher)
    publisher.settle(tag)
    assert min(lows(publisher)) > number


def test_the_oldest_unsettled_one_counts(publisher):
    """Settling in any order moves the low-water mark only up to the oldest unsettled number."""
    tags = [publisher.tag(5, {}) for _ in range(3)]
    numbers = [publisher.number(tag, "q").number for tag in tags]
    publisher.settle(tags[1])
    assert {numbers[0]} == lows(publisher)
    publisher.settle(tags[0])
    assert {numbers[2]} == lows(publisher)


def test_queues_are_apart(publisher):
    """A message that may be retried in one queue has no effect on another queue."""
    tag = publisher.tag(5, {})
    number = publisher.number(tag, "q").number
    assert number not in lows(publisher, "r")
    assert {number} == lows(publisher, "q")


def test_a_tag_that_is_dropped_is_settled(publisher):
    """The number of a dropped tag, which cannot be retried, is settled."""
    tag = publisher.tag(5, {})
    number = publisher.number(tag, "q").number
    del tag
    gc.collect()
    assert min(lows(publisher)) > number


def test_a_tag_in_a_circle_is_settled(publisher):
    """A tag in a reference cycle is settled once the garbage collector runs.

    A failed publish whose exception is kept forms such a cycle.
    """
    tag = publisher.tag(5, {})
    number = publisher.number(tag, "q").number
    tag.circle = [tag]
    del tag
    gc.collect()
    assert min(lows(publisher)) > number
    assert {} == publisher._watched


def test_no_destructor_is_python_code():
    """No class has a Python destructor: Python would print an interrupt in it and continue."""
    package = Path(reliq.__file__).parent
    assert [] == [path for path in package.rglob("*.py") if "def __del__" in path.read_text()]


def test_a_tag_may_be_dropped_at_any_moment(publisher):
    """A tag may be dropped at any moment, even by a collection under the publisher's lock."""
    tags = [publisher.tag(5, {})]
    publisher.number(tags[0], "q")
    with publisher._lock:
        thread = threading.Thread(target=tags.clear)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert 1 == len(publisher._dropped)


def test_settled_numbers_take_no_memory(publisher):
    """Settled messages and their queues take no memory."""
    for number in range(2000):
        tag = publisher.tag(5, {})
        publisher.number(tag, f"q{number}")
        publisher.settle(tag)
    assert {} == publisher._open


def test_a_settled_number_is_forgotten_soon(publisher):
    """Messages carry a low-water mark often enough for the broker to forget numbers soon."""
    assert len(lows(publisher)) > 5


def test_a_copy_of_properties_is_no_retry(publisher):
    """A tag that was copied over the wire or to text is plain text, and equal to the original."""
    tag = publisher.tag(5, {})
    assert PublishTag is not type(str(tag))
    assert str(tag) == tag
    assert hash(str(tag)) == hash(tag)


def test_threads_share_the_numbers(publisher):
    """Concurrent threads never get the same number."""
    numbers = []

    def publish():
        for _ in range(300):
            tag = publisher.tag(5, {})
            numbers.append(publisher.number(tag, "q").number)
            publisher.settle(tag)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1200 == len(numbers) == len(set(numbers))


def test_a_forked_child_is_another_publisher():
    """A forked child has its own publisher id, as its first number equals the parent's."""
    code = """
import os
from reliq.routing.publish_ids import PUBLISHER
reader, writer = os.pipe()
PUBLISHER._lock.acquire()  # another thread publishes at the moment of the fork
if os.fork() == 0:
    tag = PUBLISHER.tag(5, {})
    number = PUBLISHER.number(tag, "q")
    os.write(writer, PUBLISHER.id.encode())
    os._exit(0)
_, status = os.wait()
child = os.read(reader, 99).decode()
assert status == 0 and child and child != PUBLISHER.id, (status, child)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_forked_child_may_drop_what_its_parent_publishes(publisher):
    """A child that drops an inherited tag settles none of its own numbers."""
    inherited = publisher.tag(5, {})
    publisher.number(inherited, "q")
    publisher.forget()  # what a fork does
    own = publisher.tag(5, {})
    number = publisher.number(own, "q").number
    del inherited
    gc.collect()
    assert {number} == lows(publisher)


def test_many_are_settled_at_once(publisher):
    """A batch settles its messages in one step."""
    tags = [publisher.tag(5, {}) for _ in range(9)]
    numbers = [publisher.number(tag, "q").number for tag in tags]
    publisher.settle(*tags)
    assert all(tag.settled for tag in tags)
    assert min(lows(publisher)) > max(numbers)


# -- at another broker


def test_tried_elsewhere_a_message_is_in_doubt(publisher):
    """A retry at another broker is unconfirmed and keeps its number and publisher id.

    The first broker can thus report whether it has the message.
    """
    tag = publisher.tag(5, {})
    first = publisher.number(tag, "q", "a")
    assert not first.unconfirmed
    assert first == publisher.number(tag, "q", "a")
    assert replace(first, unconfirmed=True) == publisher.number(tag, "q", "b")
    assert first == publisher.number(tag, "q", "a")


def test_in_doubt_a_number_is_settled_by_nobody(publisher):
    """After a retry elsewhere, later messages have a new publisher id.

    Their low-water marks therefore never reach the unconfirmed number.
    """
    tag = publisher.tag(5, {})
    first = publisher.number(tag, "q", "a")
    publisher.number(tag, "q", "b")
    publisher.settle(tag)
    later = publisher.number(publisher.tag(5, {}), "q", "b")
    assert later.publisher == publisher.id != first.publisher


def test_one_new_name_for_all_that_is_in_doubt(publisher):
    """All messages in progress under the old publisher id get one new id together."""
    tags = [publisher.tag(5, {}) for _ in range(3)]
    for tag in tags:
        publisher.number(tag, "q", "a")
    names = set()
    for tag in tags:
        publisher.number(tag, "q", "b")
        names.add(publisher.id)
    assert 1 == len(names)


# -- finished publisher ids


def published(publisher, queue="q"):
    """Publish a message with a reply; return the publisher id of the message."""
    tag = publisher.tag(5, {})
    name = publisher.number(tag, queue).publisher
    publisher.settle(tag)
    return name


def test_a_name_is_finished_when_all_under_it_was_answered(publisher):
    """A publisher id is finished when its messages are confirmed and the process has another."""
    name = published(publisher)
    assert not publisher.finished(name)
    publisher.retire()
    assert publisher.finished(name)
    assert name != published(publisher)


def test_a_name_that_was_not_used_stays(publisher):
    """An unused publisher id is kept, so that closing idle connections creates no ids."""
    before = publisher.id
    publisher.retire()
    assert before == publisher.id


def test_a_name_is_not_finished_while_a_publish_is_under_way(publisher):
    """A publisher id is not finished while another thread has a publish in progress."""
    tag = publisher.tag(5, {})
    name = publisher.number(tag, "q").publisher
    publisher.retire()
    assert name == publisher.id
    publisher.settle(tag)
    publisher.retire()
    assert publisher.finished(name)


def test_a_name_under_which_something_was_tried_again_is_never_finished(publisher):
    """A publisher id with a retry is never finished: the first try may still arrive.

    The broker must know its number then.
    """
    tag = publisher.tag(5, {})
    name = publisher.number(tag, "q").publisher
    publisher.number(tag, "q")
    publisher.settle(tag)
    publisher.retire()
    assert not publisher.finished(name)
    after = published(publisher)
    publisher.retire()
    assert name != after
    assert publisher.finished(after)


def test_of_many_losses_few_names_are_left(publisher, monkeypatch):
    """A process that loses its connection each minute leaves one record per queue and hour."""
    now = 1000.0
    monkeypatch.setattr("reliq.routing.publish_ids.monotonic", lambda: now)
    names = {}
    for minute in range(3 * 60):
        now = 1000.0 + 60 * minute
        tag = publisher.tag(5, {})
        names[publisher.number(tag, "q").publisher] = None
        publisher.number(tag, "q")  # its reply was lost
        publisher.settle(tag)
        publisher.retire()
    assert 4 == len(names)
    assert [] == [name for name in names if publisher.finished(name)]


def test_a_name_under_which_something_was_given_up_is_never_finished(publisher):
    """A publisher id with an abandoned publish is never finished, as it may still arrive."""
    tag = publisher.tag(5, {})
    name = publisher.number(tag, "q").publisher
    del tag
    gc.collect()
    publisher.retire()
    assert not publisher.finished(name)


def test_a_name_in_doubt_is_never_finished(publisher):
    """A publisher id with an unconfirmed publish is never finished.

    The first broker is queried for its number later.
    """
    tag = publisher.tag(5, {})
    name = publisher.number(tag, "q", "a").publisher
    assert publisher.number(tag, "q", "b").unconfirmed
    publisher.settle(tag)
    publisher.retire()
    assert not publisher.finished(name)
    assert name != publisher.id


def test_finished_names_are_not_remembered_for_ever(publisher):
    """Old finished ids are forgotten, as a process may close a connection with each request."""
    names = []
    for _ in range(5000):
        names.append(published(publisher))
        publisher.retire()
    assert not publisher.finished(names[0])
    assert publisher.finished(names[-1])


def test_what_stays_unsettled_does_not_make_brokers_remember_all_after_it(publisher):
    """After some thousand messages behind an unsettled one, the publisher id changes.

    An application may keep a failed publish. Brokers would otherwise remember all later numbers.
    """
    kept = publisher.tag(5, {})
    first = publisher.number(kept, "q")
    for _ in range(5000):
        published(publisher)
    assert first.publisher != publisher.id
    assert publisher.number(kept, "q") == first
    assert min(lows(publisher)) > 4000
    publisher.settle(kept)
    name = published(publisher)
    publisher.retire()
    assert publisher.finished(name)


def test_how_long_numbers_are_kept():
    """Numbers are kept for an hour at first; for a day if the process has lasted or has a spool."""
    assert SHORT_MS == kept_ms(0.0, long=False)
    assert LONG_MS == kept_ms(RENEW_EVERY_S, long=False)
    assert LONG_MS == kept_ms(0.0, long=True)

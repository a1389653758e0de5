"""The survey: one query for the work to do in many queues."""

import pytest

from reliq.values.values import Work
from tests.contract.steps import LONG_MS, message
from tests.support.waiting import wait_until

PASS = Work(0)
EXPIRED, IDLE, GONE = (Work(-1, frozenset({flag})) for flag in ("expired", "idle", "gone"))


@pytest.mark.slow
def test_a_queue_with_nothing_to_do_is_not_named(store):
    """A queue without work is not listed: an empty queue, or one with a pending notification."""
    store.declare("empty")
    store.publish(message("ready"), message("later", delay_ms=LONG_MS, ttl_ms=LONG_MS))
    assert {} == store.survey("empty", "ready", "later")


def test_a_queue_that_is_gone_may_still_be_bound(store):
    """A missing queue is reported as gone, as its bindings may have outlived it."""
    assert {"missing": GONE} == store.survey("missing")


def test_what_is_unacked_needs_a_pass(store):
    """A queue with unacked messages needs a pass, as their leases may have ended."""
    store.publish(message())
    (held,) = store.take()
    assert {"q": PASS} == store.survey()
    store.ack(held.tag)
    assert {} == store.survey()


def test_what_waits_unheard_needs_a_pass(store):
    """Ready messages without a notification need a pass, unless the queue is paused.

    The consumer that took the notification may be dead.
    """
    store.publish(message())
    store.take_notification("q")
    assert {"q": PASS} == store.survey()
    store.pause(True)
    assert {} == store.survey()
    store.pause(False)
    store.restore()
    assert {} == store.survey()


def test_what_has_become_due_unheard_needs_a_pass(store):
    """A message that became due without a notification needs a pass.

    The consumer that knew its due time may be dead.
    """
    store.publish(message(delay_ms=400))
    store.take_notification("q")
    assert {} == store.survey()
    wait_until(lambda: {"q": PASS} == store.survey(), interval_s=0.005)


def test_the_pass_of_another_is_waited_for(connect):
    """A survey reports how long another consumer's pass is valid; the pass's holder may go on."""
    store, other = connect(restore_interval=20), connect("s/2", restore_interval=20)
    store.publish(message())
    store.take()
    assert store.restore().granted
    assert {"q": PASS} == store.survey()
    assert 0 < other.survey()["q"].pass_ms <= 20_000


def test_dead_letters_that_are_old_or_too_many_need_a_pass(connect):
    """Dead letters need a pass if they exceed the cap or are to be routed on."""
    store, few, young = connect(), connect("s/2", dead_letter_max=1), connect("s/3")
    store.publish(message(), message())
    store.dead_letter(*store.take(2))
    assert {} == store.survey()
    assert {"q": PASS} == few.survey()
    assert 1 == len(store.store.reads.dead_letters("q", 1))
    store.store.configure("q", {"dead_letter_exchange": "dlx"})
    assert {"q": PASS} == young.survey()


@pytest.mark.slow
def test_dead_letters_beyond_their_age_need_a_pass(connect):
    """Dead letters older than dead_letter_ttl need a pass."""
    store, soon = connect(), connect("s/2", dead_letter_ttl=1)
    store.publish(message())
    store.dead_letter(*store.take())
    wait_until(lambda: {"q": PASS} == soon.survey(), interval_s=0.005)
    assert {} == store.survey()


def test_what_has_expired_is_told(store):
    """A survey reports a queue with expired messages that are ready or delayed, not held."""
    store.publish(
        message(ttl_ms=10_000), message("other", ttl_ms=1), message("held", ttl_ms=LONG_MS)
    )
    store.take(queue="held")
    store.pass_time(3)
    assert {"held": PASS, "other": EXPIRED} == store.survey("q", "other", "held")
    store.expire("other")
    assert {} == store.survey("q", "other")


def test_what_has_expired_and_is_to_be_routed_needs_a_pass_too(store):
    """Expired messages that are to be routed on need a pass too."""
    store.declare(arguments=b"a", dead_letter_exchange="dlx", dead_expired="1")
    store.publish(message(ttl_ms=1))
    store.pass_time(3)
    assert {"q": Work(0, frozenset({"expired"}))} == store.survey()


def test_a_queue_whose_x_expires_has_passed_is_told(store):
    """A survey reports a queue whose x-expires has passed, and again only after that time."""
    store.declare(expires="400")
    assert {} == store.survey()
    wait_until(lambda: {"q": IDLE} == store.survey(), interval_s=0.005)
    store.store.attach("q", "s", 1)
    assert ("not_idle", 400) == store.delete(if_idle=True)
    assert {} == store.survey()
    wait_until(lambda: {"q": IDLE} == store.survey(), interval_s=0.005)


def test_x_expires_counts_from_when_an_operator_sets_it(store):
    """x-expires counts from the time at which an operator sets it.

    The use of the queue was not recorded before.
    """
    store.declare()
    store.pass_time(310)
    store.store.configure("q", {"expires": "300"})
    assert {} == store.survey()
    wait_until(lambda: {"q": IDLE} == store.survey(), interval_s=0.005)


@pytest.mark.slow
def test_hundreds_of_queues_are_surveyed(store):
    """Hundreds of queues are surveyed in as many commands as necessary."""
    names = [f"q{number}" for number in range(450)]
    store.publish(*(message(queue=name) for name in names))
    for name in names[::50]:
        store.take(queue=name)
    assert dict.fromkeys(names[::50], PASS) == store.survey(*names)


def test_company_is_told_where_each_node_is_asked_by_itself(connect):
    """A survey over several nodes reports queues that other consumers subscribe to."""
    mine, other = connect("mine/1"), connect("other/1")
    mine.declare()
    mine.store.attach("q", "mine", 1)
    assert {} == mine.survey()
    other.store.attach("q", "other", 1)
    told = {"q": Work(-1)} if mine.store.has_nodes else {}
    assert told == mine.survey()
    other.store.attach("q", "other", 0)
    assert {} == mine.survey()

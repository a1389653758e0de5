import pytest

from reliq.message.envelope import pack
from reliq.values.values import CREATED, NO_QUEUE
from tests.contract.steps import LONG_MS, message

# -- queues


def test_a_declaration_creates_a_queue_once(store):
    """The first declaration creates a queue, and the same one again finds it."""
    assert ("created", 0, 0, b"args") == store.declare(arguments=b"args")
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"args")
    assert ["q"] == store.store.queues()
    assert {} == store.places()


def test_a_declaration_with_other_arguments_is_told_what_there_is(store):
    """A declaration with other arguments changes nothing and returns the stored arguments."""
    store.declare(arguments=b"old", lease="5000")
    assert ("differs", 0, 0, b"old") == store.declare(arguments=b"new", lease="7000")
    assert 5000 == store.reserve().lease_ms
    assert ("existed", 0, 0, b"old") == store.declare(arguments=b"old")


def test_a_queue_without_arguments_takes_those_of_its_first_declaration(store):
    """A queue that was created without arguments takes those of its first declaration."""
    for _ in range(2):
        store.store.create_queue("q")
    assert (["q"], {}) == (store.store.queues(), store.places())
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"args", lease="5000")
    store.store.create_queue("q")
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"args")
    assert 5000 == store.reserve().lease_ms


def test_a_passive_declaration_only_looks(store):
    """A passive declaration returns the stored arguments and creates nothing."""
    assert "missing" == store.declare(passive=True)[0]
    assert store.store.reads.status("q") is None
    assert [] == store.store.queues()
    store.declare(arguments=b"args")
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"", passive=True)


def test_a_declaration_counts_what_waits_and_who_consumes(store):
    """A declaration returns the counts of waiting messages and of consumers."""
    store.publish(*(message() for _ in range(4)), message(delay_ms=LONG_MS))
    store.dead_letter(store.take(2)[0])
    store.store.attach("q", "host:1", 2)
    assert ("existed", 3, 1) == store.declare(passive=True)[:3]


def test_a_queue_that_a_publish_created_takes_the_first_arguments(store):
    """A queue that a publish created takes the arguments of its first declaration."""
    assert [CREATED] == store.publish(message())
    assert ("existed", 1, 0, b"args") == store.declare(arguments=b"args", lease="5000")
    assert 5000 == store.reserve().lease_ms
    assert "differs" == store.declare(arguments=b"other")[0]
    assert ["q"] == store.store.queues()


def test_status_of_a_queue(store):
    """A status reads all counts at one moment; it is None for a missing queue."""
    assert store.store.reads.status("q") is None
    store.declare(arguments=b"args")
    store.publish(*(message() for _ in range(5)), message(delay_ms=LONG_MS))
    _, dead, _ = store.take(3)
    store.dead_letter(dead)
    store.store.attach("q", "host:1", 1)
    status = store.store.reads.status("q")
    assert ("q", 2, 1, 2, 1, 6, 1) == (
        status.name,
        status.ready,
        status.delayed,
        status.unacked,
        status.dead,
        status.stored,
        status.consumers,
    )
    assert 6 == status.ledger["published"]


def test_a_purge_removes_what_waits(store):
    """A purge removes and counts ready and delayed messages, not held or dead ones."""
    store.publish(*(message() for _ in range(5)), message(delay_ms=LONG_MS))
    held, dead = store.take(2)
    store.dead_letter(dead)
    assert 4 == store.purge()
    assert {"unacked": 1, "dead": 1} == store.places()
    assert 4 == store.ledger("purged")
    assert 0 == store.purge()
    assert 0 == store.purge("unknown")
    assert [] == store.release("nacked", held)


def test_a_purge_removes_hundreds(store):
    """A purge removes and counts all of hundreds of messages."""
    store.publish(*(message() for _ in range(450)))
    store.publish(*(message(delay_ms=LONG_MS) for _ in range(450)))
    assert 900 == store.purge()
    assert {} == store.places()


def test_the_failures_of_a_purged_message_are_forgotten(store):
    """A purged message leaves no failure count for a message of the same tag."""
    sent = message()
    store.publish(sent)
    store.release("nacked", *store.take())
    store.purge()
    store.publish(sent)
    assert -1 == store.take()[0].failed


def test_deleting_a_queue_takes_everything_in_it(store):
    """A queue is deleted with all its messages, and a new queue of its name begins empty."""
    store.declare(arguments=b"old", lease="5000")
    store.publish(*(message() for _ in range(4)), message(delay_ms=LONG_MS))
    held, dead = store.take(2)
    store.dead_letter(dead)
    assert ("deleted", 3) == store.delete()
    assert store.store.reads.status("q") is None
    assert [] == store.store.queues()
    assert [] == store.store.leases_of("q", "s/")
    assert [] == store.store.reads.dead_letters("q", 9)
    assert ("created", 0, 0, b"new") == store.declare(arguments=b"new")
    assert LONG_MS == store.reserve().lease_ms
    assert [held.tag] == store.release("nacked", held)
    assert 0 == store.ack(held.tag, dead.tag)
    assert {} == store.places()
    assert 0 == store.ledger("published")


def test_deleting_what_is_not_there(store):
    """The deletion of a missing queue returns "missing"."""
    assert ("missing", 0) == store.delete()


def test_if_empty_refuses_while_messages_wait(store):
    """if_empty refuses while messages are ready or delayed and returns their number.

    Held messages do not count, as in AMQP.
    """
    store.publish(message(), message(delay_ms=LONG_MS))
    assert ("not_empty", 2) == store.delete(if_empty=True)
    assert {"ready": 1, "delayed": 1} == store.places()
    store.purge()
    assert ("deleted", 0) == store.delete(if_empty=True)


def test_if_unused_refuses_while_it_is_consumed(store):
    """if_unused refuses while the queue has consumers and returns their number."""
    store.declare()
    store.store.attach("q", "host:1", 1)
    store.store.attach("q", "host:2", 1)
    assert ("in_use", 2) == store.delete(if_unused=True)
    store.store.attach("q", "host:1", 0)
    assert ("in_use", 1) == store.delete(if_unused=True)
    store.store.attach("q", "host:2", 0)
    assert ("deleted", 0) == store.delete(if_unused=True)


def test_a_queue_can_be_deleted_by_one_who_consumes(store):
    """A queue with consumers can be deleted; they are consumers of the next queue of its name."""
    store.declare()
    store.store.attach("q", "host:1", 1)
    assert ("deleted", 0) == store.delete()
    assert ("created", 0, 1, b"") == store.declare()
    assert ["host:1"] == store.store.consumers_of("q")
    store.store.attach("q", "host:1", 0)
    assert [] == store.store.consumers_of("q")


def test_nobody_consumes_from_a_queue_that_is_not_there(store):
    """A subscription to a missing queue is refused and not stored."""
    assert not store.store.attach("q", "host:1", 1)
    assert [] == store.store.consumers_of("q")
    store.publish(message())
    assert store.store.attach("q", "host:1", 1)


# -- exchanges


def test_the_first_declaration_of_an_exchange_holds(store):
    """The first declaration of an exchange counts; later ones get the stored declaration."""
    assert b"one" == store.store.declare_exchange("e", b"one")
    assert b"one" == store.store.declare_exchange("e", b"two")
    assert b"one" == store.store.exchange_table("e").declaration
    assert ["e"] == store.store.exchanges()


def test_an_exchange_that_is_not_there(store):
    """A missing exchange has no declaration, no version and no bindings."""
    table = store.store.exchange_table("e")
    assert (None, None, frozenset()) == (table.declaration, table.version, table.bindings)
    assert store.store.bindings_version("e") is None
    assert [] == store.store.exchanges()


def test_bindings_are_added_and_removed(store):
    """A binding of any bytes is added or removed once."""
    binary = bytes(range(256))
    store.store.bind("e", True, [b"a", b"b", binary])
    store.store.bind("e", True, [b"a"])
    assert {b"a", b"b", binary} == store.store.exchange_table("e").bindings
    store.store.bind("e", False, [b"a", b"unknown"])
    assert {b"b", binary} == store.store.exchange_table("e").bindings
    store.store.bind("e", False, [b"b", binary])
    assert frozenset() == store.store.exchange_table("e").bindings


def test_the_version_changes_with_the_bindings(store):
    """Each change of bindings leads to a new version; a call without a change keeps it."""
    versions = []
    for bound, binding in [(True, b"a"), (True, b"b"), (False, b"a"), (True, b"a"), (False, b"b")]:
        store.store.bind("e", bound, [binding])
        versions.append(store.store.bindings_version("e"))
        assert versions[-1] == store.store.exchange_table("e").version
    assert 5 == len(set(versions))
    store.store.bind("e", True, [b"a"])
    store.store.bind("e", False, [b"b"])
    assert versions[-1] == store.store.bindings_version("e")


def test_the_version_can_be_asked_for_without_waiting(store):
    """post_bindings_version returns the same as bindings_version."""
    store.store.bind("e", True, [b"a"])
    found, unknown = [], []  # two nodes of a cluster may reply in any order
    store.store.post_bindings_version("e", found.append)
    store.store.post_bindings_version("unknown", unknown.append)
    store.store.wait_for_replies()
    assert ([store.store.bindings_version("e")], [None]) == (found, unknown)


def test_a_table_without_bindings_has_a_version(store):
    """A table without bindings has a version, so that its empty route can become stale."""
    store.store.bind("e", False, [b"unknown"])
    assert store.store.bindings_version("e")


def test_deleting_an_exchange_takes_its_bindings(store):
    """An exchange is deleted with its bindings, and other exchanges stay."""
    store.store.declare_exchange("e", b"one")
    store.store.declare_exchange("f", b"two")
    store.store.bind("e", True, [b"a"])
    store.store.bind("f", True, [b"a"])
    store.store.delete_exchange("e")
    assert store.store.exchange_table("e").declaration is None
    assert frozenset() == store.store.exchange_table("e").bindings
    assert ["f"] == store.store.exchanges()
    assert {b"a"} == store.store.exchange_table("f").bindings
    store.store.delete_exchange("unknown")


def test_the_bindings_of_a_queue_are_found_by_its_name(store):
    """The bindings of a deleted queue are removed from all exchanges, and no others are."""
    store.store.declare_exchange("e", b"declared")
    store.store.bind("e", True, [b"a", b"b"], "q")
    store.store.bind("f", True, [b"a"], "q")
    store.store.bind("f", True, [b"c"], "other")
    store.store.bind("g", True, [b"a"], "q")
    assert 0 == store.store.bind("g", False, [b"a"], "q")
    version = store.store.bindings_version("f")
    assert {"e": b"declared"} == store.store.unbind_queue("q")
    assert frozenset() == store.store.exchange_table("e").bindings
    assert {b"c"} == store.store.exchange_table("f").bindings
    assert version != store.store.bindings_version("f")
    assert {} == store.store.unbind_queue("q")


def test_the_bindings_of_a_queue_that_was_made_anew_stay(store):
    """The bindings of a queue that was declared again are kept.

    A process that deletes a queue and then unbinds it may meet another that declares the queue.
    """
    store.store.bind("e", True, [b"a"], "q")
    store.declare()
    assert {} == store.store.unbind_queue("q")
    assert {b"a"} == store.store.exchange_table("e").bindings
    store.delete()
    store.store.unbind_queue("q")  # an engine may do it as it deletes the queue
    assert frozenset() == store.store.exchange_table("e").bindings


def test_the_bindings_of_a_deleted_exchange_are_not_made_anew(store):
    """The removal of a queue's bindings does not create the table of a deleted exchange."""
    store.store.bind("e", True, [b"a"], "q")
    store.store.delete_exchange("e")
    store.store.unbind_queue("q")
    assert store.store.bindings_version("e") is None


def test_an_exchange_is_deleted_if_nothing_is_bound_to_it(store):
    """if_unbound deletes an exchange only if it has no bindings."""
    store.store.declare_exchange("e", b"one")
    store.store.bind("e", True, [b"a"])
    store.store.delete_exchange("e", if_unbound=True)
    table = store.store.exchange_table("e")
    assert (b"one", {b"a"}) == (table.declaration, table.bindings)
    assert 0 == store.store.bind("e", False, [b"a"])
    store.store.delete_exchange("e", if_unbound=True)
    assert [] == store.store.exchanges()
    assert store.store.bindings_version("e") is None


@pytest.mark.parametrize("name", ["version", "{e}", "e:f", "ü", "%7B", ""])
def test_any_name_will_do(store, name):
    """The name of an exchange may contain characters that are special to the engine."""
    store.store.declare_exchange(name, b"declared")
    store.store.bind(name, True, [b"a"])
    assert [name] == store.store.exchanges()
    assert {b"a"} == store.store.exchange_table(name).bindings


def test_a_binding_may_look_like_anything(store):
    """A binding may be any bytes, even those of the engine's own field for the version."""
    store.store.bind("e", True, [b"a"])
    before = store.store.bindings_version("e")
    store.store.bind("e", True, [b"\x92\xa7version\xa1q"])
    assert {b"a", b"\x92\xa7version\xa1q"} == store.store.exchange_table("e").bindings
    assert before != store.store.bindings_version("e")


def test_a_queue_that_is_not_there_is_not_bound(store):
    """With present=True, a binding to a missing queue is refused and leaves nothing behind."""
    store.store.bind("e", True, [b"other"], "o")
    assert NO_QUEUE == store.store.bind("e", True, [pack(["k", "q"])], "q", present=True)
    assert {b"other"} == store.store.exchange_table("e").bindings
    assert {} == store.store.unbind_queue("q")
    store.declare("q")
    assert 2 == store.store.bind("e", True, [pack(["k", "q"])], "q", present=True)
    store.delete("q")
    store.store.unbind_queue("q")
    assert {b"other"} == store.store.exchange_table("e").bindings

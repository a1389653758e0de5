import pytest

from reliq.message.envelope import pack
from reliq.store.values import CREATED, NO_QUEUE
from tests.contract.steps import LONG_MS, message

# -- queues


def test_a_declaration_creates_a_queue_once(store):
    """The first creates it, the same again finds it; it is listed and empty."""
    assert ("created", 0, 0, b"args") == store.declare(arguments=b"args")
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"args")
    assert ["q"] == store.store.queues()
    assert {} == store.places()


def test_a_declaration_with_other_arguments_is_told_what_there_is(store):
    """It changes nothing."""
    store.declare(arguments=b"old", lease="5000")
    assert ("differs", 0, 0, b"old") == store.declare(arguments=b"new", lease="7000")
    assert 5000 == store.reserve().lease_ms
    assert ("existed", 0, 0, b"old") == store.declare(arguments=b"old")


def test_a_queue_without_arguments_takes_those_of_its_first_declaration(store):
    """It is made once, listed and empty, as by a publish; what is there is left as it is."""
    for _ in range(2):
        store.store.create_queue("q")
    assert (["q"], {}) == (store.store.queues(), store.places())
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"args", lease="5000")
    store.store.create_queue("q")
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"args")
    assert 5000 == store.reserve().lease_ms


def test_a_passive_declaration_only_looks(store):
    """It says what there is, whatever its arguments, and creates nothing."""
    assert "missing" == store.declare(passive=True)[0]
    assert store.store.reads.status("q") is None
    assert [] == store.store.queues()
    store.declare(arguments=b"args")
    assert ("existed", 0, 0, b"args") == store.declare(arguments=b"", passive=True)


def test_a_declaration_counts_what_waits_and_who_consumes(store):
    """Ready and delayed messages and consumers are counted; held and dead ones are not."""
    store.publish(*(message() for _ in range(4)), message(delay_ms=LONG_MS))
    store.dead_letter(store.take(2)[0])
    store.store.attach("q", "host:1", 2)
    assert ("existed", 3, 1) == store.declare(passive=True)[:3]


def test_a_queue_that_a_publish_created_takes_the_first_arguments(store):
    """It has none until it is declared; those then hold, and messages are kept."""
    assert [CREATED] == store.publish(message())
    assert ("existed", 1, 0, b"args") == store.declare(arguments=b"args", lease="5000")
    assert 5000 == store.reserve().lease_ms
    assert "differs" == store.declare(arguments=b"other")[0]
    assert ["q"] == store.store.queues()


def test_status_of_a_queue(store):
    """Everything about it is read at one instant; None where there is no queue."""
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
    """Ready and delayed messages go and are counted; held and dead ones stay."""
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
    """However many wait, all go and are counted."""
    store.publish(*(message() for _ in range(450)))
    store.publish(*(message(delay_ms=LONG_MS) for _ in range(450)))
    assert 900 == store.purge()
    assert {} == store.places()


def test_the_failures_of_a_purged_message_are_forgotten(store):
    """Nothing of it is left that a message of the same tag could inherit."""
    sent = message()
    store.publish(sent)
    store.release("nacked", *store.take())
    store.purge()
    store.publish(sent)
    assert -1 == store.take()[0].failed


def test_deleting_a_queue_takes_everything_in_it(store):
    """Waiting, held and dead messages go; a queue of the same name begins anew."""
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
    """It is said, and nothing else happens."""
    assert ("missing", 0) == store.delete()


def test_if_empty_refuses_while_messages_wait(store):
    """Ready or delayed: how many is said; a held one does not count, as in AMQP."""
    store.publish(message(), message(delay_ms=LONG_MS))
    assert ("not_empty", 2) == store.delete(if_empty=True)
    assert {"ready": 1, "delayed": 1} == store.places()
    store.purge()
    assert ("deleted", 0) == store.delete(if_empty=True)


def test_if_unused_refuses_while_it_is_consumed(store):
    """How many consumers there are is said."""
    store.declare()
    store.store.attach("q", "host:1", 1)
    store.store.attach("q", "host:2", 1)
    assert ("in_use", 2) == store.delete(if_unused=True)
    store.store.attach("q", "host:1", 0)
    assert ("in_use", 1) == store.delete(if_unused=True)
    store.store.attach("q", "host:2", 0)
    assert ("deleted", 0) == store.delete(if_unused=True)


def test_a_queue_can_be_deleted_by_one_who_consumes(store):
    """Without a condition nothing keeps it; who listens on is a consumer of the next one."""
    store.declare()
    store.store.attach("q", "host:1", 1)
    assert ("deleted", 0) == store.delete()
    assert ("created", 0, 1, b"") == store.declare()
    assert ["host:1"] == store.store.consumers_of("q")
    store.store.attach("q", "host:1", 0)
    assert [] == store.store.consumers_of("q")


def test_nobody_consumes_from_a_queue_that_is_not_there(store):
    """Who begins to is told, and is not noted."""
    assert not store.store.attach("q", "host:1", 1)
    assert [] == store.store.consumers_of("q")
    store.publish(message())
    assert store.store.attach("q", "host:1", 1)


# -- exchanges


def test_the_first_declaration_of_an_exchange_holds(store):
    """Whoever declares later is told what is stored."""
    assert b"one" == store.store.declare_exchange("e", b"one")
    assert b"one" == store.store.declare_exchange("e", b"two")
    assert b"one" == store.store.exchange_table("e").declaration
    assert ["e"] == store.store.exchanges()


def test_an_exchange_that_is_not_there(store):
    """Nothing is known of it: no declaration, no version, no bindings."""
    table = store.store.exchange_table("e")
    assert (None, None, frozenset()) == (table.declaration, table.version, table.bindings)
    assert store.store.bindings_version("e") is None
    assert [] == store.store.exchanges()


def test_bindings_are_added_and_removed(store):
    """Each once, whatever its bytes."""
    binary = bytes(range(256))
    store.store.bind("e", True, [b"a", b"b", binary])
    store.store.bind("e", True, [b"a"])
    assert {b"a", b"b", binary} == store.store.exchange_table("e").bindings
    store.store.bind("e", False, [b"a", b"unknown"])
    assert {b"b", binary} == store.store.exchange_table("e").bindings
    store.store.bind("e", False, [b"b", binary])
    assert frozenset() == store.store.exchange_table("e").bindings


def test_the_version_changes_with_the_bindings(store):
    """A change has a version that was never there; what changes nothing keeps it."""
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
    """post_bindings_version answers as bindings_version does."""
    store.store.bind("e", True, [b"a"])
    found, unknown = [], []  # two nodes of a cluster answer in any order
    store.store.post_bindings_version("e", found.append)
    store.store.post_bindings_version("unknown", unknown.append)
    store.store.wait_for_replies()
    assert ([store.store.bindings_version("e")], [None]) == (found, unknown)


def test_a_table_without_bindings_has_a_version(store):
    """That nothing is bound is a route too: it can be found out to be stale."""
    store.store.bind("e", False, [b"unknown"])
    assert store.store.bindings_version("e")


def test_deleting_an_exchange_takes_its_bindings(store):
    """Others stay, and a route by its old version is stale."""
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
    """Those of a queue that is gone are removed, in whatever exchanges, and no others."""
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
    """Whoever deletes a queue and unbinds it then may meet one who has declared it again."""
    store.store.bind("e", True, [b"a"], "q")
    store.declare()
    assert {} == store.store.unbind_queue("q")
    assert {b"a"} == store.store.exchange_table("e").bindings
    store.delete()
    store.store.unbind_queue("q")  # an engine may do it as it deletes the queue
    assert frozenset() == store.store.exchange_table("e").bindings


def test_the_bindings_of_a_deleted_exchange_are_not_made_anew(store):
    """What a queue was bound to once may be gone before it is: no table comes of that."""
    store.store.bind("e", True, [b"a"], "q")
    store.store.delete_exchange("e")
    store.store.unbind_queue("q")
    assert store.store.bindings_version("e") is None


def test_an_exchange_is_deleted_if_nothing_is_bound_to_it(store):
    """With if_unbound it stays, with all there is, while something is."""
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
    """What is special to the engine is not special in a name."""
    store.store.declare_exchange(name, b"declared")
    store.store.bind(name, True, [b"a"])
    assert [name] == store.store.exchanges()
    assert {b"a"} == store.store.exchange_table(name).bindings


def test_a_binding_may_look_like_anything(store):
    """Bindings are bytes: those of the word that the table's version may be kept under, too."""
    store.store.bind("e", True, [b"a"])
    before = store.store.bindings_version("e")
    store.store.bind("e", True, [b"\x92\xa7version\xa1q"])
    assert {b"a", b"\x92\xa7version\xa1q"} == store.store.exchange_table("e").bindings
    assert before != store.store.bindings_version("e")


def test_a_queue_that_is_not_there_is_not_bound(store):
    """Where it is to be: one that went since it was declared leaves no binding behind."""
    store.store.bind("e", True, [b"other"], "o")
    assert NO_QUEUE == store.store.bind("e", True, [pack(["k", "q"])], "q", present=True)
    assert {b"other"} == store.store.exchange_table("e").bindings
    assert {} == store.store.unbind_queue("q")
    store.declare("q")
    assert 2 == store.store.bind("e", True, [pack(["k", "q"])], "q", present=True)
    store.delete("q")
    store.store.unbind_queue("q")
    assert {b"other"} == store.store.exchange_table("e").bindings

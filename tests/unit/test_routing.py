import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliq.message.envelope import pack
from reliq.routing.routes import Route, topic_matches, words_of
from reliq.store.values import ExchangeTable

WORDS = st.sampled_from(["a", "b", "ab", "a*", "#a", "[x]", "\n", "é", ""])
KEYS = st.lists(WORDS, max_size=8).map(".".join)
BINDINGS = st.lists(WORDS | st.sampled_from("*#"), max_size=6).map(".".join)


def split(key):
    """Return the words of a key: as RabbitMQ splits it, an empty one has none."""
    return key.split(".") if key else []


def naive(binding, words):
    """Match word by word, as AMQP 0-9-1 says: ``*`` is one word, ``#`` is zero or more."""
    if not binding:
        return not words
    if binding[0] == "#":
        return any(naive(binding[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and binding[0] in {"*", words[0]} and naive(binding[1:], words[1:])


@given(BINDINGS, KEYS)
@example("#", "a")
@example("#", "")
@example("*", "")
@example("", "")
@example("#.*", "")
@example("#.a.#.b.#", "a.a.b.a.b.b")
@example("a.#", "a")
@example("#.a", "a")
@example("a.*.#", "a")
@example("a.b", "a.b\n")
@example("a.*", "a.")
def test_a_topic_matches_as_amqp_says(binding, key):
    """The same answer as a naive matcher, whatever the words hold."""
    found = topic_matches(words_of(binding), words_of(key))
    assert naive(*map(split, (binding, key))) == found


def test_no_pattern_takes_long():
    """What a producer names its routing key cannot stop a process: time is words times pattern."""
    found = route("topic", (".".join("#" * 60 + "x"), "q1"), ("#.a.#.a.#.a.#.x", "q2"))
    begun = time.process_time()
    assert () == found.lookup(".".join("a" * 1000))
    assert time.process_time() - begun < 1


def route(type_, *bindings, exchange="e"):
    """Return the route of an exchange of a type with (key, queue) bindings; None: undeclared."""
    declaration = None if type_ is None else pack({"type": type_})
    packed = frozenset(pack([key, queue]) for key, queue in bindings)
    return Route(ExchangeTable(declaration, b"1", packed), exchange)


def test_direct_matches_the_very_key():
    """All queues of the key, no other."""
    found = route("direct", ("a", "q1"), ("a", "q2"), ("b", "q3"), ("*", "q4"), ("a.b", "q5"))
    assert ("q1", "q2") == found.lookup("a")
    assert ("q5",) == found.lookup("a.b")
    assert () == found.lookup("c")


def test_fanout_matches_everything():
    """Whatever the keys are."""
    found = route("fanout", ("a", "q1"), ("", "q2"))
    assert ("q1", "q2") == found.lookup("") == found.lookup("zzz")


def test_topic_matches_patterns():
    """A message goes to every queue that a pattern of it fits, and once to each."""
    found = route("topic", ("a.#", "q1"), ("*.b", "q1"), ("#", "q2"), ("c", "q3"))
    assert ("q1", "q2") == found.lookup("a.b")
    assert ("q2", "q3") == found.lookup("c")


@pytest.mark.parametrize(
    ("exchange", "type_", "expected"),
    [
        ("amq.topic", None, ("q",)),
        ("amq.fanout", None, ("q",)),
        ("amq.direct", None, ()),
        ("other", None, ()),
        ("other", "topic", ("q",)),
    ],
)
def test_the_type_is_the_declared_one(exchange, type_, expected):
    """The exchanges that AMQP declares beforehand have theirs; without one it is direct."""
    assert expected == route(type_, ("a.*", "q"), exchange=exchange).lookup("a.b")


def test_nothing_is_bound():
    """An exchange without bindings leads nowhere."""
    for type_ in ("direct", "topic", "fanout"):
        assert () == route(type_).lookup("a")


def test_thousands_of_keys():
    """What was found before is remembered in bounded memory, and stays right."""
    found = route("topic", ("a.*", "q"))
    for number in range(3000):
        assert ("q",) == found.lookup(f"a.{number}")
        assert () == found.lookup(f"b.{number}")
    assert len(found._found) < 2000


@given(st.lists(st.tuples(BINDINGS, st.sampled_from("pqrs")), max_size=6), KEYS)
def test_a_queue_is_found_once_and_in_order(bindings, key):
    """Queues come sorted and without repetition: all processes publish in one order."""
    expected = {queue for binding, queue in bindings if naive(split(binding), split(key))}
    assert tuple(sorted(expected)) == route("topic", *bindings).lookup(key)

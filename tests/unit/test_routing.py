import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliq.message.envelope import pack
from reliq.routing.routes import Route, topic_matches, words_of
from reliq.values.values import ExchangeTable

WORDS = st.sampled_from(["a", "b", "ab", "a*", "#a", "[x]", "\n", "é", ""])
KEYS = st.lists(WORDS, max_size=8).map(".".join)
BINDINGS = st.lists(WORDS | st.sampled_from("*#"), max_size=6).map(".".join)


def split(key):
    """Return the words of a key; an empty key has none, as in RabbitMQ."""
    return key.split(".") if key else []


def naive(binding, words):
    """Match word by word, as AMQP 0-9-1 does: ``*`` is one word, ``#`` is zero or more."""
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
    """A topic pattern matches like a naive matcher, for any words."""
    found = topic_matches(words_of(binding), words_of(key))
    assert naive(*map(split, (binding, key))) == found


def test_no_pattern_takes_long():
    """The time of a match is words times pattern, so no routing key can block a process."""
    found = route("topic", (".".join("#" * 60 + "x"), "q1"), ("#.a.#.a.#.a.#.x", "q2"))
    begun = time.process_time()
    assert () == found.lookup(".".join("a" * 1000))
    assert time.process_time() - begun < 1


def route(type_, *bindings, exchange="e"):
    """Return the route of an exchange with (key, queue) bindings; type None: undeclared."""
    declaration = None if type_ is None else pack({"type": type_})
    packed = frozenset(pack([key, queue]) for key, queue in bindings)
    return Route(ExchangeTable(declaration, b"1", packed), exchange)


def test_direct_matches_the_very_key():
    """A direct exchange routes to all queues with exactly the key."""
    found = route("direct", ("a", "q1"), ("a", "q2"), ("b", "q3"), ("*", "q4"), ("a.b", "q5"))
    assert ("q1", "q2") == found.lookup("a")
    assert ("q5",) == found.lookup("a.b")
    assert () == found.lookup("c")


def test_fanout_matches_everything():
    """A fanout exchange routes to all queues, whatever the keys."""
    found = route("fanout", ("a", "q1"), ("", "q2"))
    assert ("q1", "q2") == found.lookup("") == found.lookup("zzz")


def test_topic_matches_patterns():
    """A topic exchange routes a message once to every queue with a matching pattern."""
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
    """Predeclared AMQP exchanges have their own type; other undeclared ones are direct."""
    assert expected == route(type_, ("a.*", "q"), exchange=exchange).lookup("a.b")


def test_nothing_is_bound():
    """An exchange without bindings routes to no queue."""
    for type_ in ("direct", "topic", "fanout"):
        assert () == route(type_).lookup("a")


def test_thousands_of_keys():
    """Remembered routes take bounded memory and stay correct."""
    found = route("topic", ("a.*", "q"))
    for number in range(3000):
        assert ("q",) == found.lookup(f"a.{number}")
        assert () == found.lookup(f"b.{number}")
    assert len(found._matches) < 2000


@given(st.lists(st.tuples(BINDINGS, st.sampled_from("pqrs")), max_size=6), KEYS)
def test_a_queue_is_found_once_and_in_order(bindings, key):
    """Queues are sorted and distinct, so all processes publish in one order."""
    expected = {queue for binding, queue in bindings if naive(split(binding), split(key))}
    assert tuple(sorted(expected)) == route("topic", *bindings).lookup(key)

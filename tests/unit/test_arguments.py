import pytest

from reliq.errors import ConfigurationError
from reliq.message.envelope import unpack
from reliq.message.queue_arguments import (
    INSTANT_MS,
    declared_limits,
    differ_in_partitions,
    queue_arguments,
)


def test_no_arguments():
    """A plain queue has no arguments, and the scripts get none."""
    expected = queue_arguments("q", False, None)
    assert {} == expected[1]
    assert expected == queue_arguments("q", False, {})


def test_arguments_become_what_scripts_need():
    """Each known argument has the name that the scripts read, and its value as text."""
    arguments = {
        "x-expires": 60_000,
        "x-message-ttl": 0,
        "x-max-priority": 255,
        "x-visibility-timeout": 100,
    }
    declaration, meta = queue_arguments("q", True, arguments)
    expected = {
        "auto_delete": "1",
        "expires": "60000",
        "message_ttl": str(INSTANT_MS),
        "max_priority": "255",
        "lease": "100",
    }
    assert expected == meta
    assert {"auto_delete": True, **arguments} == unpack(declaration)


def test_the_order_of_arguments_does_not_matter():
    """The order of arguments does not change the bytes, which declarations are compared by."""
    one = {"x-expires": 1000, "x-message-ttl": 5}
    other = {"x-message-ttl": 5, "x-expires": 1000}
    assert queue_arguments("q", False, one) == queue_arguments("q", False, other)


def test_different_arguments_are_different_bytes():
    """Each argument and auto_delete change the bytes of a declaration."""
    declarations = {
        queue_arguments("q", auto_delete, arguments)[0]
        for auto_delete in (False, True)
        for arguments in ({}, {"x-expires": 1}, {"x-expires": 2}, {"x-message-ttl": 1})
    }
    assert 8 == len(declarations)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "quorum"},
        {"x-queue-mode": "lazy"},
        {"x-expires": None},
        {"ha-policy": "all"},
    ],
)
def test_what_means_nothing_here_is_passed_over(arguments):
    """RabbitMQ's storage arguments, arguments without a value and other vendors' are ignored."""
    assert queue_arguments("q", False, None) == queue_arguments("q", False, arguments)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-expires", 0),
        ("x-expires", -1),
        ("x-expires", 1.5),
        ("x-expires", "1000"),
        ("x-expires", True),
        ("x-expires", 10**15),
        ("x-message-ttl", -1),
        ("x-message-ttl", b"5"),
        ("x-max-priority", 256),
        ("x-max-priority", -1),
        ("x-visibility-timeout", 99),
        ("x-visibility-timeout", []),
    ],
)
def test_a_wrong_value_is_refused(argument, value):
    """The error names the queue, the argument and the value."""
    with pytest.raises(ConfigurationError) as caught:
        queue_arguments("orders", False, {argument: value})
    for part in ("'orders'", argument, "a whole number", repr(value)):
        assert part in str(caught.value)


def test_a_misspelt_argument_is_refused():
    """A misspelt argument is refused with the nearest known name; otherwise it would do nothing."""
    with pytest.raises(ConfigurationError, match=r"'orders'.*x-expire'.*did you mean x-expires"):
        queue_arguments("orders", False, {"x-expire": 5})


def test_an_unknown_argument_is_refused():
    """An unknown argument that resembles no known one is refused with the list of known ones."""
    with pytest.raises(ConfigurationError, match=r"known: .*x-expires.*x-visibility-timeout"):
        queue_arguments("orders", False, {"x-zzz": 5})


def declaration(**arguments):
    """Return the stored form of a declaration with these arguments."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return queue_arguments("q", False, named)[0]


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ({}, {"concurrency": 5}, True),
        ({"concurrency": 5, "rate": "5/s"}, {"concurrency": 6}, True),
        ({"partitions": 4}, {}, True),
        ({"partitions": 4}, {"concurrency": 5}, True),
        ({"concurrency": 5, "expires": 100}, {"concurrency": 5}, False),
        ({"rate": "5/s", "expires": 100}, {"rate": "6/s", "expires": 200}, False),
    ],
)
def test_limits_may_differ(one, other, agree):
    """Limits are no part of the compared declaration; partitions may differ."""
    first, second = declaration(**one), declaration(**other)
    assert agree == (first == second or differ_in_partitions(first, second))


def test_limits_are_stored_as_declared():
    """The declared limits are stored apart, in force and as declared."""
    limits = {"x-concurrency": -1, "x-rate": "5/s"}
    _, meta = queue_arguments("q", False, {**limits, "x-expires": 100})
    assert limits == declared_limits(meta.pop("declared_limits"))
    assert {"rate": "5/s", "expires": "100"} == meta
    assert {} == declared_limits("[") == declared_limits("5") == declared_limits("")


@pytest.mark.parametrize("value", ["1/s", "500/s", "100/m burst 10", "1000/h"])
def test_a_rate_is_stored_as_given(value):
    """A rate is stored as its text; none and -1 store no limit."""
    assert value == queue_arguments("q", False, {"x-rate": value})[1]["rate"]
    unlimited = queue_arguments("q", False, {"x-rate": "none", "x-concurrency": -1})[1]
    assert {"declared_limits"} == set(unlimited)

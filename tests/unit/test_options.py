import dataclasses
import sys
import threading

import pytest

from reliq.errors import ConfigurationError, ReliqError
from reliq.options import PASSED_THROUGH, RULES, Options, parse
from reliq.units import bytes_of

SECONDS = [name for name, (words, _) in RULES.items() if words.startswith("a number of seconds")]
COUNTS = [
    name for name, (words, _) in RULES.items() if words.startswith("a whole number, at least")
]
TEXTS = [name for name, (words, _) in RULES.items() if words.startswith("a string")]
SIZES = [name for name, (words, _) in RULES.items() if words.startswith("a size")]
CHOICES = [name for name, (words, _) in RULES.items() if words.startswith("one of")]
NAN = float("nan")

WRONG = [
    *((name, value) for name in SECONDS for value in ("soon", "5", True, NAN, -1, [], 10**12)),
    *((name, value) for name in COUNTS for value in ("many", 1.0, True, 0, -5, {})),
    *((name, value) for name in TEXTS for value in (5, b"bytes", True, [])),
    *(
        (name, value)
        for name in SIZES
        for value in ("", "much", "64 M B", "-64MB", "64MB/s", "64MiB", "1kB", 1000, 64e6, True, [])
    ),
    *((name, value) for name in CHOICES for value in ("other", 1, [], "")),
    *(("socket_keepalive", value) for value in (1, "yes")),
    *((name, None) for name, (words, _) in RULES.items() if not words.endswith("or None")),
]


def test_every_option_has_a_rule_and_a_word():
    """Each option is checked by a rule, has a valid default and is documented."""
    fields = {field.name: field for field in dataclasses.fields(Options)}
    assert set(fields) == set(RULES)
    for name, field in fields.items():
        assert field.default == getattr(parse({name: field.default}), name)
        assert name in (Options.__doc__ or "")


def test_no_options_are_the_defaults():
    """None, an empty mapping and the defaults are equal."""
    assert Options() == parse(None) == parse({})


def test_defaults():
    """The defaults are those of the documentation."""
    options = parse(None)
    expected = (60, 5, 5, None, 5, 20, 10_000, 180 * 86_400, 10, 5)
    assert expected == (
        options.visibility_timeout,
        options.restore_interval,
        options.orphan_grace,
        options.consumer_timeout,
        options.poll_interval,
        options.delivery_limit,
        options.dead_letter_max,
        options.dead_letter_ttl,
        options.socket_timeout,
        options.socket_connect_timeout,
    )


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused(name, value):
    """The error names the option and the expected form, and shows the value unless it is secret."""
    with pytest.raises(ConfigurationError) as caught:
        parse({name: value})
    text = str(caught.value)
    assert text.startswith(f"expected {name} to be {RULES[name][0]}, got: ")
    assert (repr(value) in text) == (not name.endswith("password"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in SECONDS for value in (60, 60.5)),
        *((name, 5000) for name in COUNTS),
        *((name, "text") for name in TEXTS),
        ("confirm", "none"),
        ("unroutable", "error"),
        ("queue_order_strategy", "sorted"),
        ("queue_order_strategy", "priority"),
        ("priority_order", "descending"),
        ("delivery_limit", None),
        ("consumer_timeout", None),
        ("socket_keepalive", False),
    ],
)
def test_a_right_value_is_kept(name, value):
    """A valid value is kept unchanged."""
    assert value == getattr(parse({name: value}), name)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_bytes_or_text(name):
    """Sizes have decimal units, and equal sizes in different notations are the same number."""
    for size in (64_000_000, "64000000", "64000kB", "64MB", " 64 mb ", "0.064GB", "64M"):
        assert 64_000_000 == getattr(parse({name: size}), name)
    assert 2_000_000_000 == getattr(parse({name: "2GB"}), name)
    assert 16_400_000 == getattr(parse({name: "16.4MB"}), name)


def test_the_bytes_of_a_text():
    """A size may have any usual notation; a part of a unit is not cut off."""
    texts = ("500", "1kB", "1MB", "2GB", "1TB", "1.5 GB", "4.1MB")
    sizes = [500, 1000, 10**6, 2 * 10**9, 10**12, 1_500_000_000, 4_100_000]
    assert sizes == [bytes_of(text) for text in texts]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("visibility_timout", "visibility_timeout"),
        ("visibilty_timeout", "visibility_timeout"),
        ("delivery_limits", "delivery_limit"),
        ("global_key_prefix", "global_keyprefix"),
        ("socket_time_out", "socket_timeout"),
    ],
)
def test_a_misspelt_name_is_refused(wrong, near):
    """A misspelt name is refused with the nearest known name."""
    with pytest.raises(ConfigurationError, match=f"'{wrong}': did you mean {near}\\?"):
        parse({wrong: 5})


@pytest.mark.parametrize("name", ["zzz", "", 5, None, ("a",)])
def test_an_unknown_name_is_refused(name):
    """A name that resembles no known one is refused with the list of known names."""
    with pytest.raises(ConfigurationError, match=r"known: .*visibility_timeout") as raised:
        parse({name: 5})
    names = str(raised.value).partition("known: ")[2].split(", ")
    assert sorted(set(names)) == names, "each name once"


@pytest.mark.parametrize("name", sorted(PASSED_THROUGH))
def test_what_kombu_writes_is_passed_over(name):
    """Kombu's own names beside reliq's are ignored, whatever their values."""
    assert Options() == parse({name: object()})


def test_a_hold_shorter_than_the_lease_is_a_contradiction():
    """A consumer_timeout below visibility_timeout is refused: it would end renewed leases."""
    with pytest.raises(ConfigurationError, match=r"consumer_timeout.*60 s.*got: 30"):
        parse({"consumer_timeout": 30})
    with pytest.raises(ConfigurationError, match="consumer_timeout"):
        parse({"consumer_timeout": 99, "visibility_timeout": 100})
    assert 60 == parse({"consumer_timeout": 60}).consumer_timeout


@pytest.mark.parametrize("prefix", ["{app}", "a{", "}"])
def test_braces_in_the_prefix_are_a_contradiction(prefix):
    """Braces in the prefix are refused: a cluster would choose the slot by them, not the queue."""
    with pytest.raises(ConfigurationError, match=r"global_keyprefix.*braces"):
        parse({"global_keyprefix": prefix})


def test_a_password_is_shown_nowhere():
    """A password appears neither in the options' representation nor in an error."""
    options = parse({"password": "hush", "username": "me", "visibility_timeout": 5})
    assert "Options(visibility_timeout=5.0, username='me', password=**)" == repr(options)
    assert "hush" not in str(options)
    with pytest.raises(ConfigurationError) as caught:
        parse({"password": b"hush"})
    assert "hush" not in str(caught.value)


def test_options_are_frozen():
    """Options cannot be changed after their check."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse(None).visibility_timeout = 5


def test_the_users_mapping_is_left_alone():
    """The caller's mapping is not changed, as Kombu shares it among connections."""
    given = {"visibility_timeout": 5, "max_retries": 3}
    parse(given)
    assert {"visibility_timeout": 5, "max_retries": 3} == given


def test_the_error_can_be_caught_by_what_it_is():
    """ConfigurationError is a ReliqError and a ValueError."""
    assert issubclass(ConfigurationError, ReliqError)
    assert issubclass(ConfigurationError, ValueError)


def test_options_that_another_thread_writes_into():
    """Options can be parsed while another thread changes them.

    Kombu keeps a publish's retry policy in the mapping that all connections share.
    """
    shared = {field.name: field.default for field in dataclasses.fields(Options)}
    over, interval = threading.Event(), sys.getswitchinterval()

    def write():
        while not over.is_set():
            shared["max_retries"] = 3
            over.is_set()  # a moment
            shared.pop("max_retries")

    thread = threading.Thread(target=write)
    thread.start()
    sys.setswitchinterval(1e-6)
    try:
        assert {Options()} == {parse(shared) for _ in range(1000)}
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("delivery_limit", "None", None),
        ("redelivery_backoff", "None", None),
        ("redelivery_backoff", "[1, 60]", (1.0, 60.0)),
        ("address_map", '{"a:1": "b:2"}', (("a:1", "b:2"),)),
        ("username", "None", "None"),
    ],
)
def test_values_as_text(name, text, value):
    """Values of other types may be given as text, for programs that pass only text (Airflow)."""
    assert value == getattr(parse({name: text}), name)


@pytest.mark.parametrize("text", ["[60, 1]", "[1", "{}", "none", "5"])
def test_text_that_is_no_value(text):
    """Invalid text is refused, and the error shows the text as it was given."""
    with pytest.raises(ConfigurationError, match="got: ") as caught:
        parse({"redelivery_backoff": text})
    assert repr(text) in str(caught.value)

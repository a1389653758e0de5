import pytest

from reliq.errors import MessageRefused
from reliq.options import parse
from reliq.routing.outgoing import by_default, together, wanted
from reliq.values.values import Wanted

DEFAULT = Wanted("accepted", 1, 5000)


def test_the_options_are_the_default():
    """The options are the default; seconds become ms, never 0, which a server takes as no limit."""
    options = parse({"confirm": "replicated", "confirm_replicas": 2, "confirm_timeout": 0.001})
    assert Wanted("replicated", 2, 1) == by_default(options)
    assert DEFAULT == by_default(parse({}))


@pytest.mark.parametrize(
    ("properties", "timeout_s", "expected"),
    [
        ({}, None, DEFAULT),
        ({"confirm": None}, None, DEFAULT),
        ({"confirm": "none"}, None, DEFAULT._replace(level="none")),
        ({"confirm": "fsynced"}, 0.25, Wanted("fsynced", 1, 250)),
        ({}, 7, DEFAULT._replace(timeout_ms=7000)),
    ],
)
def test_a_message_asks_for_itself(properties, timeout_s, expected):
    """A message's property and timeout override the options, each independently."""
    assert expected == wanted(DEFAULT, properties, timeout_s)


@pytest.mark.parametrize("level", ["", "ACCEPTED", 1, False, {}, []])
def test_a_wrong_level(level):
    """A wrong level of any type is refused with the list of allowed levels."""
    with pytest.raises(MessageRefused, match="'none', 'accepted', 'replicated', 'fsynced', got"):
        wanted(DEFAULT, {"confirm": level}, None)


@pytest.mark.parametrize("timeout_s", [0, -1, "1", True, float("nan"), float("inf"), []])
def test_a_wrong_timeout(timeout_s):
    """A wrong timeout is refused with the expected form."""
    with pytest.raises(MessageRefused, match="confirm_timeout to be a number of seconds"):
        wanted(DEFAULT, {}, timeout_s)


def test_wishes_together():
    """Each requested level appears once, with the longest of its timeouts."""
    wishes = [
        DEFAULT,
        Wanted("fsynced", 1, 10),
        Wanted("replicated", 1, 10),
        Wanted("replicated", 1, 30),
        Wanted("replicated", 1, 20),
    ]
    expected = [DEFAULT, Wanted("replicated", 1, 30), Wanted("fsynced", 1, 10)]
    assert expected == together(wishes)

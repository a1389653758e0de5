"""A claim belongs to one token at a time, while it is extended or after it was finished."""

import pytest

from reliq.values.values import CLAIMED, FINISHED
from tests.contract.steps import LONG_MS
from tests.support.waiting import wait_until

BRIEF_MS = 30


@pytest.fixture
def claim(store):
    """Return the store's claim, by default of the name "x" for a long time."""

    def ask(token, keep_ms=LONG_MS, *, name="x", **options):
        return store.store.claim(name, token, keep_ms, **options)

    return ask


def test_the_first_has_it(claim):
    """The first token gets the claim; another one gets its remaining time."""
    assert CLAIMED == claim("a")
    assert LONG_MS - 10_000 < claim("b") <= LONG_MS


def test_asking_again_is_having_it(claim):
    """A repeated claim of the same token succeeds, as a try is repeated if its reply was lost."""
    assert [CLAIMED, CLAIMED] == [claim("a"), claim("a")]


def test_names_are_apart(claim):
    """Claims of different names are independent, for any characters."""
    names = ["x", "y", "", "{x}", "%7Bx%7D", "x y\n", "ü"]
    assert [CLAIMED] * len(names) == [claim("a", name=name) for name in names]
    assert all(claim("b", name=name) > 0 for name in names)


def test_it_ends_by_itself(claim):
    """A claim that is not extended ends after its time."""
    claim("a", BRIEF_MS)
    wait_until(lambda: claim("b") == CLAIMED, interval_s=0.005)
    assert claim("a") > 0


def test_it_can_be_extended(claim):
    """An extension restarts the time of a claim."""
    claim("a", BRIEF_MS)
    assert CLAIMED == claim("a")
    assert claim("b") > BRIEF_MS


def test_giving_it_up_frees_it(claim):
    """A released claim is free for the next token."""
    claim("a")
    assert CLAIMED == claim("a", 0)
    assert CLAIMED == claim("b")


def test_nobody_gives_up_the_claim_of_another(claim):
    """A token cannot release or finish the claim of another one."""
    claim("a")
    assert claim("b", 0) > 0
    assert claim("b", finished=True) > 0
    assert CLAIMED == claim("a")


def test_what_is_finished_stays(claim):
    """A finished claim stays finished until its time ends, for all tokens."""
    claim("a")
    assert CLAIMED == claim("a", finished=True)
    assert FINISHED == claim("b")
    assert FINISHED == claim("b", 0)
    assert FINISHED == claim("b", finished=True)


def test_finishing_again_is_having_finished(claim):
    """A repeated finish succeeds, as a try is repeated if its reply was lost."""
    claim("a")
    assert [CLAIMED, CLAIMED] == [claim("a", finished=True), claim("a", finished=True)]


def test_what_is_finished_is_forgotten_after_its_time(claim):
    """A finished claim is forgotten after the time given at its finish."""
    claim("a")
    claim("a", BRIEF_MS, finished=True)
    wait_until(lambda: claim("b") == CLAIMED, interval_s=0.005)


def test_what_was_finished_late_counts(claim):
    """A late finish counts if no other token holds the claim by then."""
    claim("a", BRIEF_MS)
    wait_until(lambda: claim("b", BRIEF_MS) == CLAIMED, interval_s=0.005)
    claim("b", 0)
    assert CLAIMED == claim("a", finished=True)
    assert FINISHED == claim("b")

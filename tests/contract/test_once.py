"""A claim is one token's at a time, for as long as it is extended or was finished."""

import pytest

from reliq.store.values import CLAIMED, FINISHED
from tests.contract.steps import LONG_MS
from tests.support.waiting import wait_until

BRIEF_MS = 30


@pytest.fixture
def claim(store):
    """Return the store's claim, of the name "x" for a long time where nothing else is said."""

    def ask(token, keep_ms=LONG_MS, *, name="x", **options):
        return store.store.claim(name, token, keep_ms, **options)

    return ask


def test_the_first_has_it(claim):
    """Another is told how long it still counts."""
    assert CLAIMED == claim("a")
    assert LONG_MS - 10_000 < claim("b") <= LONG_MS


def test_asking_again_is_having_it(claim):
    """A try whose reply was lost is repeated."""
    assert [CLAIMED, CLAIMED] == [claim("a"), claim("a")]


def test_names_are_apart(claim):
    """Whatever characters they are made of."""
    names = ["x", "y", "", "{x}", "%7Bx%7D", "x y\n", "ü"]
    assert [CLAIMED] * len(names) == [claim("a", name=name) for name in names]
    assert all(claim("b", name=name) > 0 for name in names)


def test_it_ends_by_itself(claim):
    """One that is not extended is free after its time."""
    claim("a", BRIEF_MS)
    wait_until(lambda: claim("b") == CLAIMED, interval_s=0.005)
    assert claim("a") > 0


def test_it_can_be_extended(claim):
    """Its time begins anew."""
    claim("a", BRIEF_MS)
    assert CLAIMED == claim("a")
    assert claim("b") > BRIEF_MS


def test_giving_it_up_frees_it(claim):
    """The next one has it."""
    claim("a")
    assert CLAIMED == claim("a", 0)
    assert CLAIMED == claim("b")


def test_nobody_gives_up_the_claim_of_another(claim):
    """It is refused, and so is finishing it."""
    claim("a")
    assert claim("b", 0) > 0
    assert claim("b", finished=True) > 0
    assert CLAIMED == claim("a")


def test_what_is_finished_stays(claim):
    """Nobody else has it, and nothing frees it, until its time is up."""
    claim("a")
    assert CLAIMED == claim("a", finished=True)
    assert FINISHED == claim("b")
    assert FINISHED == claim("b", 0)
    assert FINISHED == claim("b", finished=True)


def test_finishing_again_is_having_finished(claim):
    """A try whose reply was lost is repeated."""
    claim("a")
    assert [CLAIMED, CLAIMED] == [claim("a", finished=True), claim("a", finished=True)]


def test_what_is_finished_is_forgotten_after_its_time(claim):
    """The time is that of the finish, not of the claim."""
    claim("a")
    claim("a", BRIEF_MS, finished=True)
    wait_until(lambda: claim("b") == CLAIMED, interval_s=0.005)


def test_what_was_finished_late_counts(claim):
    """The claim had ended, nobody else has taken it: what is done is done."""
    claim("a", BRIEF_MS)
    wait_until(lambda: claim("b", BRIEF_MS) == CLAIMED, interval_s=0.005)
    claim("b", 0)
    assert CLAIMED == claim("a", finished=True)
    assert FINISHED == claim("b")

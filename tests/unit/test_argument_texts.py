"""The stored text of a task's arguments equals the text that Celery writes."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st

from reliq.integrations.call_template import task_ids, text_of

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.decimals()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text() | st.integers() | st.tuples(st.text()), inner, max_size=5),
        st.frozensets(st.integers(), max_size=3),
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(VALUES, st.integers(1, 60) | st.just(1024), st.integers(0, 4))
@example(("it's", [], {}, (), (1,)), 1024, 3)
@example(("x" * 8,), 13, 3)
@example(((((1,),),),), 1024, 3)
def test_the_text_is_celerys(value, longest, levels):
    """The text equals Celery's for any value, any length limit and any depth limit."""
    assert saferepr(value, longest, maxlevels=levels) == text_of(value, longest, levels)


def test_a_value_in_itself():
    """A value that contains itself has a finite text, the same as Celery's."""
    value: list = [1]
    value.append(value)
    assert saferepr((value,), 1024, maxlevels=3) == text_of((value,), 1024, 3)


def test_ids_are_uuids_of_version_4():
    """Every generated id is a distinct UUID of version 4 in its canonical text form."""
    ids = list(task_ids(5000))
    assert 5000 == len(set(ids))
    found = {(UUID(text).version, UUID(text).variant, str(UUID(text)) == text) for text in ids}
    assert {(4, RFC_4122, True)} == found

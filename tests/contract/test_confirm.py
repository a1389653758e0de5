"""What every engine answers about confirmations; what only replicas show is an integration test."""

import pytest

from reliq.store.values import CREATED, DUPLICATE
from tests.contract.steps import message


@pytest.mark.slow
@pytest.mark.parametrize("level", ["none", "accepted"])
def test_storing_is_enough(store, level):
    """Below replicas and disk, a stored message needs no more: no wait, no refusal."""
    item = message(number=1, low_water=1)
    store.store.confirmer.require_confirm(level)
    assert [CREATED] == store.publish(item)
    store.store.confirmer.confirm(level, 1, 1, [item])
    assert [DUPLICATE] == store.publish(item)
    store.store.confirmer.confirm(level, 1, 1, [item])


def test_replicas_are_never_refused_beforehand(store):
    """Whether enough replicas have a message shows only once it is stored."""
    store.store.confirmer.require_confirm("replicated")

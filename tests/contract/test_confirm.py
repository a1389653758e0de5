"""Confirmations on every engine. Integration tests cover those that need replicas."""

import pytest

from reliq.store.values import CREATED, DUPLICATE
from tests.contract.steps import message


@pytest.mark.slow
@pytest.mark.parametrize("level", ["none", "accepted"])
def test_storing_is_enough(store, level):
    """A stored message is confirmed at once at the levels below replicas and disk."""
    item = message(number=1, low_water=1)
    store.store.confirmer.require_confirm(level)
    assert [CREATED] == store.publish(item)
    store.store.confirmer.confirm(level, 1, 1, [item])
    assert [DUPLICATE] == store.publish(item)
    store.store.confirmer.confirm(level, 1, 1, [item])


def test_replicas_are_never_refused_beforehand(store):
    """The level "replicated" is not refused beforehand, as only a publish shows the replicas."""
    store.store.confirmer.require_confirm("replicated")

"""A smoke test of the contract on the embedded broker, whose rules are those of Redis."""

import pytest

from reliq.embedded.folder import Folder
from reliq.embedded.keeper import ask
from reliq.embedded.start import stop
from reliq.errors import BrokerRefused
from reliq.options import parse
from reliq.store.embedded import EmbeddedAddress, EmbeddedStore
from reliq.values.values import CREATED, Wanted
from tests.contract.steps import message
from tests.contract.test_ack import test_an_ack_finishes_the_message  # noqa: F401
from tests.contract.test_publish import (
    test_a_retry_is_stored_once,  # noqa: F401
    test_a_retry_over_another_connection_is_stored_once,  # noqa: F401
    test_priority_then_age,  # noqa: F401
)
from tests.contract.test_release import test_an_orderly_return_keeps_the_count  # noqa: F401
from tests.contract.test_reserve import (
    test_a_cache_that_is_lost_costs_nothing,  # noqa: F401
    test_no_message_is_given_to_two,  # noqa: F401
)


class EmbeddedEngine:
    """A server in a folder."""

    def __init__(self, path):
        self.folder = Folder(str(path))

    def connect(self, consumer, **options):
        """Return a connected store."""
        store = EmbeddedStore(EmbeddedAddress(self.folder), parse(options), consumer)
        store.connect()
        return store

    def forget_caches(self):
        """Drop the scripts."""
        with self.folder.socket() as path:
            assert ask(path, "SCRIPT FLUSH").startswith(b"+OK")


@pytest.fixture
def engine(tmp_path):
    """Return a broker in a folder of this test."""
    engine = EmbeddedEngine(tmp_path / "broker")
    yield engine
    stop(engine.folder)


def test_storing_confirms(store):
    """A stored message is confirmed at the level "fsynced", without replicas."""
    item = message(number=1, low_water=1)
    store.store.confirmer.require_confirm("fsynced")
    assert [CREATED] == store.publish(item)
    store.store.confirmer.confirm(Wanted("fsynced", 1, 100), [item])


def test_replicas_are_refused(store):
    """The level "replicated" is refused, as an embedded broker has no replicas."""
    with pytest.raises(BrokerRefused, match="no replicas"):
        store.store.confirmer.require_confirm("replicated")

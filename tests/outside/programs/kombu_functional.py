"""Kombu's functional test classes over reliq, as Kombu runs them over its own transports.

test_kombu_suite.py runs them, with `t` (Kombu's tests, from its source) on the path.
RELIQ_TEST_BROKER is the URL of a live broker, and RELIQ_TEST_DEAD has no server.
"""

from __future__ import annotations

import os

import kombu
import pytest
from t.integration.common import (
    BaseEventLoop,
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)
from t.integration.test_redis import test_RedisPriority as RedisPriority

import reliq  # noqa: F401, a program that uses Kombu alone imports it.

LIVE = os.environ["RELIQ_TEST_BROKER"]
DEAD = os.environ["RELIQ_TEST_DEAD"]


@pytest.fixture(params=[None, {"global_keyprefix": "_prefixed_"}], ids=["plain", "prefixed"])
def options(request):
    """Return the transport options of Kombu's own Redis tests."""
    return request.param


@pytest.fixture
def connection(options):
    """Return a connection to the live broker."""
    connection = kombu.Connection(LIVE, transport_options=options)
    yield connection
    connection.release()


@pytest.fixture
def invalid_connection():
    """Return a connection to a URL without a server."""
    connection = kombu.Connection(DEAD)
    yield connection
    connection.release()


@pytest.fixture
def failover_connection(options):
    """Return a connection whose first URL is dead."""
    connection = kombu.Connection([DEAD, LIVE], transport_options=options)
    yield connection
    connection.release()


class TestBasic(BasicFunctionality):
    """Connections, channels, queues, simple queues."""


class TestExchangeTypes(BaseExchangeTypes):
    """Direct, topic and fanout exchanges."""


class TestTimeToLive(BaseTimeToLive):
    """Messages that expire."""


class TestPriority(RedisPriority):
    """The order of Kombu's Redis transport: priority 0 comes first, one message in each call."""


class TestAmqpPriority(BasePriority):
    """AMQP's order, by the option for it."""

    PRIORITY_ORDER = "asc"

    # These tests expect three messages from one call of drain_events. Over Kombu's virtual
    # transports a call delivers one message, and Kombu has the two tests above for them.
    test_publish_consume = None
    test_publish_requeue_consume = None

    @pytest.fixture
    def options(self, options):
        """Return the options with the priority order added."""
        return {**(options or {}), "priority_order": "descending"}


class TestMessage(BaseMessage):
    """Ack, reject, requeue."""


class TestEventLoop(BaseEventLoop):
    """Kombu's own event loop."""


class TestFailover(BaseFailover):
    """A list of URLs of which the first is dead."""

"""Fixtures of the integration tests."""

from __future__ import annotations

import pytest

from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster

from .kombu_client import client

__all__ = ["client"]


@pytest.fixture
def url(redis_url):
    """Return the URL of the shared server, emptied; its ledgers balance at the end."""
    yield redis_url
    assert_balanced(redis_url)


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of three masters, shared by the tests of a file."""
    with RedisCluster(3) as cluster:
        yield cluster


@pytest.fixture
def bare_cluster():
    """Return a cluster of three masters that serves even if slots are missing; nodes keep data."""
    extra = ["--cluster-require-full-coverage", "no"]
    with RedisCluster(3, node_timeout_ms=1000, appendonly=True, extra=extra) as cluster:
        yield cluster

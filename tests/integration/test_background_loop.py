"""The background loop of a process that forks no children."""

from __future__ import annotations

import threading

from reliq.engines.urls import connect
from tests.support.cluster import ANCHOR
from tests.support.waiting import wait_until

from .kombu_client import Taker, declare


def test_a_lost_connection_is_replaced_amid_many_duties(client, cluster):
    """The process returns to the register, however long its duties at other nodes take."""
    connection = client.connect(cluster.url())
    declare(connection, "q")
    Taker(connection, "q")
    session = connection.transport.link.session
    name, deferred = session.duties._name, session.duties._deferred
    over, store = threading.Event(), connect(cluster.url(), {}, "looker/1")

    def connected():
        found = store.liveness([name])[name]
        return found is not None and found.connected

    def one_of_many(_store):
        if not over.wait(0.01):
            deferred.append(one_of_many)

    try:
        wait_until(connected)
        lost = store.liveness([name])[name].client_id
        deferred.append(one_of_many)
        with cluster.owner(ANCHOR).client() as admin:
            admin.client_kill_filter(_id=lost)
        wait_until(lambda: not connected())
        wait_until(connected, timeout_s=20)
    finally:
        over.set()
        store.close()

"""The background loop of a process that forks no children."""

from __future__ import annotations

import threading
import time

from reliq.store.urls import connect
from tests.support.cluster import ANCHOR
from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, publish


def test_a_lost_connection_is_replaced_amid_many_duties(client, cluster):
    """The process returns to the register, however long its duties at other nodes take."""
    connection = client.connect(cluster.url())
    declare(connection, "q")
    Taker(connection, "q")
    session = connection.transport.link.session
    name, soon = session.duties._name, session.duties.runner.soon
    over, store = threading.Event(), connect(cluster.url(), {}, "looker/1")

    def connected():
        found = store.liveness([name])[name]
        return found.client_id if found is not None and found.connected else 0

    def one_of_many(_store):
        if not over.wait(0.01):
            soon(one_of_many)

    try:
        lost = wait_until(connected)
        soon(one_of_many)
        with cluster.owner(ANCHOR).client() as admin:
            admin.client_kill_filter(_id=lost)
        wait_until(lambda: connected() not in {0, lost}, timeout_s=20)
    finally:
        over.set()
        store.close()


def test_acks_wait_for_a_connection_to_the_new_server(client):
    """If the server is replaced during the duties, they end, and the next connection acks."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", 1)
    Taker(connection, "q", prefetch_count=1).take(1)
    session = connection.transport.link.session
    session.background.stop()
    outbox, store = session.outbox, session.open_store()
    store.connect()
    ((queue, _, lease),) = session.leases.all()
    outbox.ack_later(queue, [lease.tag])
    outbox.replaced_at = time.monotonic()
    session.duties.runner.soon(lambda _store: None)
    turn = threading.Thread(target=session.duties.runner.run_all, args=(store,))
    turn.start()
    turn.join(30)
    try:
        assert not turn.is_alive()
        assert session.owes
        store.close()
        store = session.open_store()
        store.connect()
        session.duties.runner.soon(lambda _store: None)
        session.duties.runner.run_all(store)
        wait_until(lambda: 1 == client.status("q").ledger["acked"])
        assert not session.owes
    finally:
        outbox.replaced_at = 0.0
        turn.join()
        store.close()

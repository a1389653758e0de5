"""Two green threads of eventlet that wait for one connection of a cluster, in either order."""

from __future__ import annotations

import sys
from time import monotonic

import eventlet

eventlet.monkey_patch()

from reliq.client.cluster.slots import slot_of  # noqa: E402 - eventlet comes first
from reliq.lua.keys import queue_keys  # noqa: E402
from reliq.store.urls import store_of  # noqa: E402

QUEUE = "q"
SECONDS = 2.0


def main():
    """Print, for each order, the reply to a call and whether the wait ended with a notification."""
    notification = queue_keys("", QUEUE).notification
    store = store_of(sys.argv[1], None, "s/1")
    store.connect()
    wire, notifier = store._wire, store.notifier
    wire.wire_of(slot_of(notification))

    def call():
        nothing = f"{{{QUEUE}}}nothing"  # delays the reply
        return wire.exchange([(("BLPOP", nothing, SECONDS), None)], SECONDS)

    def wait():
        ends_at = monotonic() + 30
        while (left := ends_at - monotonic()) > 0:  # connecting to a node ends it early
            notifier.listen([QUEUE], left)
            if notifier.wait(left):
                return True
        return False

    for order in ((call, wait), (wait, call)):
        threads = {}
        for do in order:
            threads[do] = eventlet.spawn(do)
            eventlet.sleep(SECONDS / 4)
        reply = threads[call].wait()
        wire.call(("RPUSH", notification, "token"))
        print(reply, threads[wait].wait())
    store.close()


if __name__ == "__main__":
    main()

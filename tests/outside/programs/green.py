"""Two green threads of eventlet, each with a command too large for the socket's buffer."""

from __future__ import annotations

import sys

import eventlet

eventlet.monkey_patch()

from reliq.client.wire import Wire  # noqa: E402 - eventlet comes first
from reliq.options import Options  # noqa: E402
from reliq.store.urls import address  # noqa: E402

LARGE = b"x" * 20_000_000


def main():
    """Call from both threads, and print the sizes of the replies."""
    wire = Wire(address(sys.argv[1]), Options(), "test")
    threads = [eventlet.spawn(wire.call, ("ECHO", LARGE)) for _ in range(2)]
    print(*(len(thread.wait()) for thread in threads))
    wire.close()


if __name__ == "__main__":
    main()

"""The lower limit for any transport: the same round trips without further work.

A publish is one command with the body, and its reply. Consuming at prefetch n is one command that
takes n bodies, and one command for each body without waiting for its reply.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
import redis

from benchmarks import child
from benchmarks.peers import BARE, TOOL

if TYPE_CHECKING:
    from benchmarks.setting import Setting

LIST, HASH = "limit", "held"
REQUESTS_OF_TOOL = 20_000


class Client(Protocol):
    """Sends commands and reads replies, one after another."""

    def send(self, *command: Any) -> None:
        """Write one command to the socket."""

    def read(self) -> Any:
        """Return the next reply."""


class Bare:
    """A blocking socket and hiredis's reader."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def send(self, *command: Any) -> None:
        """Write one command to the socket."""
        self._socket.sendall(hiredis.pack_command(command))

    def read(self) -> Any:
        """Return the next reply."""
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply


class Library:
    """A connection of redis-py without its client."""

    def __init__(self, port: int) -> None:
        self._connection = redis.Connection(port=port)  # type: ignore[no-untyped-call]
        self._connection.connect()  # type: ignore[no-untyped-call]

    def send(self, *command: Any) -> None:
        """Write one command to the socket."""
        self._connection.send_command(*command)  # type: ignore[no-untyped-call]

    def read(self) -> Any:
        """Return the next reply."""
        return self._connection.read_response()


def open_client(port: int, bare: bool) -> Client:
    """Return one of the two clients."""
    return Bare(port) if bare else Library(port)


def publish_loop(port: int, bare: bool, seconds: float, size: int) -> float:
    """Return round trips per second, each with a body of *size* bytes."""
    client, body = open_client(port, bare), b"x" * size
    count, start = 0, time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        client.send("LPUSH", LIST, body)
        client.read()
        count += 1
    return count / (time.perf_counter() - start)


def consume_loop(port: int, bare: bool, prefetch: int, count: int, size: int) -> float:
    """Return messages per second: a command for `prefetch` bodies, an unawaited one for each."""
    client, body, done = open_client(port, bare), b"x" * size, 0
    for _ in range(0, count, 100):
        client.send("LPUSH", LIST, *[body] * 100)
        client.read()
    start = time.perf_counter()
    replies = 0
    while done < count:
        client.send("RPOP", LIST, prefetch)
        for _ in range(replies):
            client.read()
        taken = client.read()
        for _ in taken:
            client.send("HDEL", HASH, "tag")
        done += len(taken)
        replies = len(taken)
    for _ in range(replies):
        client.read()
    return done / (time.perf_counter() - start)


def publish(setting: Setting, seconds: float, size: int) -> float:
    """Return the limit of publishing with a round trip each; the peer selects the client."""
    if setting.peer.name == TOOL:
        return tool(setting, size)
    bare = setting.peer.name == BARE
    return float(
        child.run(publish_loop, port=setting.redis.port, bare=bare, seconds=seconds, size=size)
    )


def consume(setting: Setting, prefetch: int, count: int, size: int) -> float:
    """Return the limit of consuming with a write for each ack."""
    return float(
        child.run(
            consume_loop,
            port=setting.redis.port,
            bare=setting.peer.name == BARE,
            prefetch=prefetch,
            count=count,
            size=size,
        )
    )


def tool(setting: Setting, size: int) -> float:
    """Return the result of `redis-benchmark` for LPUSH with one client."""
    executable = shutil.which("redis-benchmark")
    if executable is None:
        raise AssertionError("redis-benchmark is not on PATH")
    requests = setting.size(REQUESTS_OF_TOOL, least=100)
    command = [executable, "-p", setting.redis.port, "-c", 1, "-n", requests, "-d", size]
    said = subprocess.run(
        [*map(str, command), "-t", "lpush", "-q"], capture_output=True, text=True, check=True
    )
    found = re.findall(r"LPUSH: ([\d.]+) requests per second", said.stdout)
    return float(found[-1])

"""Sockets whose buffers are full: reading while writing, and timeouts."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from reliq.client.connect import Address
from reliq.client.pipeline import Pipeline, Post
from reliq.client.poll import readable
from reliq.client.posts import Posts
from reliq.client.stream import Readable, Stream, pack
from reliq.client.wire import Wire
from reliq.errors import BrokerTimeout, BrokerUnavailable
from reliq.options import Options
from reliq.store.urls import address
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

from .test_threads import dialled, is_in
from .test_turns import ended, started

LARGE = b"x" * 4_000_000  # more than both ends of a pair of sockets buffer


class Connection:
    """The source of a stream: one end of a pair of sockets."""

    login = None
    token = ()

    def __init__(self, sock):
        self.sock = sock
        self.close = self.leave_parent = sock.close


class Peer:
    """A server played by the test, and the posts to it."""

    def __init__(self, timeout_s):
        ours, self.sock = socket.socketpair()
        self.pipeline = Pipeline(Address(), timeout_s, lambda _error: None)
        self.posts = Posts(self.pipeline)
        self.stream = Stream(Connection(ours))
        self.pipeline.begin(self.stream)

    def write(self, *command, handler=print, script=None):
        """Write the command; return the post."""
        post = Post(command, script, 0.0, handler)
        self.posts.post(pack(command), post)
        return post

    def call(self, *command):
        """Return the reply."""
        came = []
        self.write(*command, handler=came.append)
        self.posts.wait_for(lambda: bool(came))
        return came[0]

    def take(self, size):
        """Read *size* bytes of the written data."""
        while size > 0:
            taken = len(self.sock.recv(min(size, 1 << 16)))
            assert taken
            size -= taken


@pytest.fixture
def peer_of():
    """Return a function that returns a peer with the given timeout."""
    peers = []

    def make(timeout_s=60.0):
        peers.append(Peer(timeout_s))
        return peers[-1]

    yield make
    for peer in peers:
        peer.sock.close()
        peer.posts.hang_up(BrokerUnavailable("the test is over"))


class Held:
    """Keeps a reading thread from its poll, as a signal handler does."""

    def __init__(self, monkeypatch):
        self.released = threading.Event()
        self.thread = None
        polls = Readable.wait

        def wait(readable, timeout_s):
            if threading.current_thread() is self.thread:
                self.released.wait(60)
            polls(readable, timeout_s)

        monkeypatch.setattr(Readable, "wait", wait)


# -- both sides write


def test_large_replies_to_a_pipeline_of_large_commands(fresh_redis):
    """Replies are read while large commands are written, because a proxy's buffer may be full."""
    came = []
    with closing(Proxy(fresh_redis, buffer=1 << 16)) as proxy:
        wire = Wire(address(proxy.url()), Options(socket_timeout=60.0), "test")
        with closing(wire):
            commands = [(("ECHO", LARGE), None)] * 15
            assert ended(started(lambda: came.extend(wire.exchange(commands))))
    assert [LARGE] * 15 == came


def test_who_writes_reads_when_another_no_longer_does(peer_of):
    """A writing thread takes over the reading when the reader leaves, without a wake-up."""
    peer = peer_of()
    reads = started(peer.call, "ECHO", "1")
    wait_until(lambda: is_in(reads, "wait"))
    writes = started(peer.call, "ECHO", LARGE)
    wait_until(lambda: peer.stream.unsent)
    peer.sock.sendall(b"+1\r\n")
    assert ended(reads)
    peer.sock.settimeout(20)
    peer.sock.sendall(b"$%d\r\n%b\r\n" % (len(LARGE), LARGE))
    peer.take(len(LARGE))
    assert ended(writes)


def test_who_posts_writes_while_another_is_in_a_handler(peer_of):
    """A post waits only for room in the socket, not for the end of another thread's handler."""
    peer = peer_of()
    begun, may_end = threading.Event(), threading.Event()

    def handle(_reply):
        begun.set()
        may_end.wait(30)

    peer.write("ECHO", "1", handler=handle)
    hands_out = started(peer.posts.wait)
    peer.sock.sendall(b"+1\r\n")
    assert begun.wait(20)
    posts = started(lambda: peer.write("ECHO", LARGE))
    peer.take(len(LARGE))
    assert ended(posts)
    may_end.set()
    assert ended(hands_out)


class Renegotiates:
    """A TLS socket that has to read before it writes."""

    def __init__(self, sock):
        self._sock = sock
        self.must_read = False

    def send(self, data):
        """Send, unless it has to read first."""
        if self.must_read:
            raise ssl.SSLWantReadError
        return self._sock.send(data)

    def recv(self, size):
        """Read."""
        data = self._sock.recv(size)
        self.must_read = False
        return data

    def __getattr__(self, name):
        """Behave like the socket otherwise."""
        return getattr(self._sock, name)


def test_what_tls_has_to_read_before_it_writes_is_read(peer_of):
    """Data that TLS has to read before it writes is read when it comes with a reply.

    No other event follows for which the thread could wait.
    """
    peer = peer_of()
    peer.write("ECHO", "1", handler=print)
    peer.sock.sendall(b"+1\r\n")
    tls = peer.stream._sock = Renegotiates(peer.stream._sock)
    tls.must_read = True
    assert ended(started(peer.write, "ECHO", "2"))
    assert not peer.stream.unsent


# -- timeouts


def test_who_writes_looks_at_the_time_too(peer_of, monkeypatch):
    """A writing thread checks the timeout, even while the reading one is kept from it.

    The reading thread runs a signal handler.
    """
    peer, held = peer_of(0.5), Held(monkeypatch)
    reads = held.thread = threading.Thread(target=peer.call, args=("ECHO", "1"), daemon=True)
    reads.start()
    wait_until(lambda: is_in(reads, "wait"))
    came = []
    assert ended(started(lambda: came.append(peer.write("ECHO", LARGE))))
    assert isinstance(came[0].reply, BrokerTimeout)
    held.released.set()
    assert ended(reads)


def test_what_is_answered_and_not_taken_is_given_up(peer_of):
    """A command that the server has answered but does not accept in full ends in time.

    No reply is pending then.
    """
    peer = peer_of(0.5)
    writes = started(peer.write, "ECHO", LARGE)
    wait_until(lambda: peer.stream.unsent)
    peer.sock.sendall(b"-ERR\r\n")
    assert ended(writes)
    assert peer.pipeline.stream is None


def test_a_reply_to_nothing_ends_the_connection(peer_of):
    """A reply without a command ends the connection.

    The next reply would be taken for that of another command.
    """
    peer = peer_of()
    peer.sock.sendall(b"+1\r\n")
    with pytest.raises(BrokerUnavailable):
        peer.posts.receive()
    assert peer.pipeline.stream is None


def test_what_has_come_is_not_too_late(fresh_redis):
    """A reply in the socket counts as in time after a suspension, even if time is checked first."""
    with closing(dialled(fresh_redis, socket_timeout=0.2)) as wire:
        replies = []
        wire.post(("ECHO", "1"), replies.append)
        wait_until(lambda: readable([wire.fileno()], 0))
        wait_until(lambda: wire.silent_s > 0.2)
        wire.check()
        wire.wait_for_replies()
        assert [b"1"] == replies


def test_what_has_not_come_is_too_late(fresh_redis):
    """A program that only posts gets the timeout when it checks the time."""
    with closing(dialled(fresh_redis, socket_timeout=0.2)) as wire:
        fresh_redis.freeze()
        replies = []
        wire.post(("ECHO", "1"), replies.append)
        wait_until(lambda: wire.silent_s > 0.2)
        with pytest.raises(BrokerTimeout):
            wire.check()
        fresh_redis.thaw()
        assert [BrokerTimeout] == [type(reply) for reply in replies]


class Trickle:
    """A peer that sends a large reply byte by byte, until the connection is closed."""

    def __init__(self, sock):
        self._sock = sock
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        with suppress(OSError):
            self._sock.sendall(b"$100000\r\n")
            while True:
                self._sock.sendall(b"x")
                time.sleep(0.02)


def test_a_posts_reply_that_trickles_is_late():
    """A reply of which only single bytes arrive is overdue after socket_timeout."""
    peer = Peer(0.3)
    with closing(peer.sock):
        trickle = Trickle(peer.sock)
        error = peer.call("GET", "x")
        assert isinstance(error, BrokerTimeout)
    trickle.thread.join()


def test_a_calls_reply_that_trickles_is_late():
    """A call whose reply trickles ends after socket_timeout."""
    ours, theirs = socket.socketpair()
    with closing(theirs), closing(ours):
        trickle = Trickle(theirs)
        stream = Stream(Connection(ours))
        stream.write(pack(("GET", "x")))
        with pytest.raises(TimeoutError):
            stream.replies(1, 0.3, lambda: None)
        stream.close()
    trickle.thread.join()


def test_a_login_that_trickles_is_late():
    """A login whose reply trickles ends after socket_connect_timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Address("127.0.0.1", server.getsockname()[1], password="x")
        with ThreadPoolExecutor() as pool:
            trying = pool.submit(client.connect, Options(socket_connect_timeout=0.3), "x")
            peer, _ = server.accept()
            with closing(peer):
                trickle = Trickle(peer)
                with pytest.raises(BrokerTimeout):
                    trying.result(timeout=30)
            trickle.thread.join()


def test_a_reply_that_comes_in_parts_is_not_late():
    """Each 4 KiB of a reply begin a new socket_timeout."""
    peer = Peer(0.3)
    parts = [b"$40960\r\n", *[b"x" * 4096] * 10, b"\r\n"]
    came = []
    with closing(peer.sock):
        peer.write("GET", "x", handler=came.append)
        for part in parts:
            peer.pipeline.since -= 0.25
            peer.sock.sendall(part)
            peer.pipeline.take()
        assert [b"x" * 40960] == came or peer.pipeline.waiting
        peer.posts.wait()
    assert [b"x" * 40960] == came

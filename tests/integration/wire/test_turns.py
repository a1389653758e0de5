"""The turns of threads to read, write and call handlers, and their effects on other threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing

import pytest

from reliq.client import calls, pipeline, posts, stream
from reliq.client.poll import readable
from reliq.client.stream import Readable
from reliq.client.wire import Wire
from reliq.options import Options
from reliq.store.urls import address
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

from .test_threads import dialled, is_in

LARGE = b"x" * 30_000_000  # more than the sockets of both sides buffer


@pytest.fixture
def wire(fresh_redis):
    """Return a wire to a separate server, with a timeout longer than any test."""
    wire = dialled(fresh_redis, socket_timeout=60.0)
    yield wire
    fresh_redis.thaw()
    wire.close()


@pytest.fixture
def proxy(fresh_redis):
    """Return a proxy that buffers little of the data that it forwards."""
    with closing(Proxy(fresh_redis, buffer=1 << 16)) as proxy:
        yield proxy


@pytest.fixture
def narrow(proxy):
    """Return a wire through the proxy."""
    wire = Wire(address(proxy.url()), Options(socket_timeout=60.0), "test")
    wire.connect_to_post()
    yield wire
    wire.close()


def started(do, *arguments, name=None):
    """Return a started thread that calls *do*."""
    thread = threading.Thread(target=do, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def ended(thread):
    """Whether *thread* ends, and not because of a timeout."""
    thread.join(50)
    return not thread.is_alive()


def taken(wire):
    """Return the number of bytes that the socket of the posts has accepted."""
    stream = wire.pipeline.stream
    return stream.written - len(stream.unsent)


def takes_some(wire, proxy):
    """Let the proxy read more; return when the writer over *wire* has noticed that."""
    sent = taken(wire)
    proxy.allow(len(LARGE) // 10)
    wait_until(lambda: taken(wire) > sent)


# -- forks

PROLOGUE = """
import os, signal, sys, threading, time
from reliq.client import wire as module
from reliq.store.urls import address
from reliq.options import Options

wire = module.Wire(address(sys.argv[1]), Options(), "test")
"""
LOOKS_ON = """
wire.call(("PING",))
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(20)
seen, begun = [], module.Posts

def begin(*arguments):
    # What another thread sees that looks in the middle of it.
    thread = threading.Thread(target=lambda: seen.append(wire.alive))
    thread.start()
    thread.join()
    return begun(*arguments)

module.Posts = begin
assert b"PONG" == wire.call(("PING",))
assert [False] == seen, seen
"""
IN_A_HANDLER = """

def be_child():
    signal.alarm(20)
    began, handled = threading.Event(), []

    def handle(reply):
        began.set()
        time.sleep(0.5)  # the handler takes a while: this is no wait for anything
        handled.append(reply)

    wire.post(("ECHO", "child"), handle)
    threading.Thread(target=wire.wait_for_replies).start()
    began.wait()
    wire.wait_for_replies()
    os._exit(0 if handled == [b"child"] else 1)

def fork(reply):
    global child
    child = os.fork()
    if child == 0:
        be_child()

wire.post(("ECHO", "parent"), fork)
wire.wait_for_replies()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
LOCKED = """
import ctypes
wire.connect_to_post()
held = threading.Event()

def hold():
    with wire.pipeline.lock:
        held.set()
        time.sleep(60)

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = ctypes.PyDLL(None).fork()  # runs no hooks
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(20)
came = []
wire.post(("ECHO", "child"), came.append)
wire.wait_for_replies()
os._exit(0 if came == [b"child"] else 1)
"""


def run(script, url):
    """Run the process, which must print nothing."""
    command = [sys.executable, "-W", "error", "-c", PROLOGUE + script, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)


def test_no_thread_of_a_child_sees_the_conversation_of_its_parent(redis_url):
    """No thread of a forked child sees its parent's connection, even while it is being replaced."""
    run(LOOKS_ON, redis_url)


def test_a_child_is_in_no_handler_of_its_parent(redis_url):
    """A forked child's wait for replies includes handlers, even if a handler has forked."""
    run(IN_A_HANDLER, redis_url)


def test_a_child_finds_no_lock_that_its_parent_holds(redis_url):
    """A forked child finds none of its parent's locks, even without fork hooks."""
    run(LOCKED, redis_url)


# -- reading


def test_who_writes_leaves_what_has_come_to_who_reads(narrow, proxy, monkeypatch):
    """A writing thread leaves arrived replies to the reading one, which would wait for them."""
    may_poll, polls = threading.Event(), Readable.wait

    def wait(self, timeout_s):
        if threading.current_thread() is reader:
            may_poll.wait(30)  # it has the turn to read, but does not run for a moment
        polls(self, timeout_s)

    monkeypatch.setattr(Readable, "wait", wait)
    came: list[object] = []
    narrow.post(("ECHO", "1"), came.append)
    reader = threading.Thread(target=narrow.wait_for_replies, daemon=True)
    reader.start()
    wait_until(lambda: is_in(reader, "wait") and readable([narrow.fileno()], 0))
    proxy.allow(0)
    writer = started(narrow.post, ("SET", "k", LARGE))
    wait_until(lambda: narrow.pipeline.stream.unsent)
    takes_some(narrow, proxy)
    narrow.receive()
    assert [] == came
    may_poll.set()
    assert ended(reader)
    assert [b"1"] == came
    proxy.allow(None)
    assert ended(writer)
    narrow.wait_for_replies()


def test_who_waits_for_a_handler_waits_for_nothing_else(wire):
    """A wait for a handler does not wait for later posts."""
    begun, may_end = threading.Event(), threading.Event()

    def handle(_reply):
        begun.set()
        may_end.wait(30)

    wire.post(("ECHO", "1"), handle)
    handing_out = started(wire.wait_for_replies)
    assert begun.wait(20)
    waits_too = started(wire.wait_for_replies)
    wait_until(lambda: is_in(waits_too, "wait_for"))
    wire.post(("BLPOP", "nothing", "0"), patience_s=60.0)
    may_end.set()
    assert ended(waits_too)
    assert ended(handing_out)


def test_a_timeout_of_a_month(fresh_redis):
    """A timeout of a month is accepted, though it is longer than poll can count."""
    with closing(dialled(fresh_redis, socket_timeout=30 * 86400.0)) as wire:
        assert b"PONG" == wire.call(("PING",))


# -- writing


def test_who_posts_waits_for_its_own_bytes(narrow, proxy):
    """A post waits for its own bytes, not for later ones of other threads."""
    stream = narrow.pipeline.stream
    proxy.allow(0)
    threads = []
    for command in (("SET", "k", LARGE), *[("PING",)] * 12, ("SET", "k", LARGE * 2)):
        written = stream.written
        threads.append(started(narrow.post, command))
        wait_until(lambda written=written: stream.written > written)
    proxy.allow(len(LARGE))
    for thread in threads[:-1]:
        assert ended(thread)
    assert stream.unsent
    proxy.allow(None)
    assert ended(threads[-1])
    narrow.wait_for_replies()


@pytest.mark.parametrize("posted", [False, True])
def test_a_large_command_may_take_longer_than_the_timeout(proxy, monkeypatch, posted):
    """A large command may take longer than the timeout while the server keeps reading it."""
    now = 0.0
    for module in (stream, pipeline, posts, calls):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    with closing(Wire(address(proxy.url()), Options(socket_timeout=3.0), "test")) as wire:
        came: list[object] = []
        wire.connect_to_post()
        proxy.allow(0)
        if posted:
            sender = started(wire.post, ("SET", "k", LARGE), came.append)
            written_over = wire.pipeline.stream
        else:
            written_over = wire.pipeline.stream
            wire.calls.add(written_over)
            sender = started(lambda: came.append(wire.call(("SET", "k", LARGE))))
        wait_until(lambda: written_over.unsent)
        for _ in range(4):
            now += 2.0
            left = len(written_over.unsent)
            proxy.allow(len(LARGE) // 10)
            wait_until(lambda left=left: len(written_over.unsent) < left)
        proxy.allow(None)
        assert ended(sender)
        wire.wait_for_replies()
        assert [b"OK"] == came

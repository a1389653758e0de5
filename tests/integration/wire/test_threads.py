"""Many threads, one socket: a waiting thread blocks no other, and no replies are mixed up."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from contextlib import suppress

import pytest

from reliq.client.wire import Wire
from reliq.errors import BrokerTimeout, BrokerUnavailable, ReliqError
from reliq.options import Options
from reliq.store.urls import address
from tests.support.waiting import wait_until


def dialled(server, **options):
    """Return a connected wire to *server*."""
    wire = Wire(address(server.url()), Options(**options), "test")
    wire.connect_to_post()
    return wire


@pytest.fixture
def wire(fresh_redis):
    """Return a wire to a separate server."""
    wire = dialled(fresh_redis, socket_timeout=3.0)
    yield wire
    fresh_redis.thaw()
    wire.close()


class Caller(threading.Thread):
    """A thread that calls one command and keeps its result."""

    def __init__(self, wire: Wire, *command: object) -> None:
        super().__init__(daemon=True)
        self._wire = wire
        self._command = command
        self.came: object = None
        self.start()

    def run(self) -> None:
        """Call the command."""
        try:
            self.came = self._wire.call(self._command)
        except ReliqError as error:
            self.came = error

    def answer(self) -> object:
        """Return the result; fail if there is none in time."""
        self.join(20)
        assert not self.is_alive()
        return self.came


def waits(wire, *command):
    """Return a thread that has called *command* and waits for its reply."""
    wire.call(("PING",))  # so that there is a connection
    caller = Caller(wire, *command)
    wait_until(lambda: is_in(caller, "wait"))
    return caller


def is_in(thread, function):
    """Whether *thread* is in a function of this name."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_who_waits_holds_up_nobody_who_posts(wire, fresh_redis):
    """A post is written, and a read without waiting returns, while another thread waits."""
    caller = waits(wire, "BLPOP", "called", "20")
    fresh_redis.freeze()
    replies: list[object] = []
    wire.post(("ECHO", "posted"), replies.append)
    wire.receive()
    assert caller.is_alive()
    fresh_redis.thaw()
    wire.wait_for_replies()
    assert [b"posted"] == replies
    wire.call(("RPUSH", "called", "1"))
    assert [b"called", b"1"] == caller.answer()


def test_a_close_ends_what_is_waited_for(wire, fresh_redis):
    """A close ends the waits of other threads at once, with its reason."""
    callers = [waits(wire, "BLPOP", "nothing", "20") for _ in range(2)]
    fresh_redis.freeze()
    replies: list[object] = []
    wire.post(("ECHO", "3"), replies.append)
    wire.close()
    assert 1 == len(replies)
    for came in (*replies, *(caller.answer() for caller in callers)):
        assert isinstance(came, BrokerUnavailable)
        assert not isinstance(came, BrokerTimeout)


@pytest.mark.slow
def test_all_who_wait_hear_of_a_timeout(wire, fresh_redis):
    """Every waiting thread gets the timeout, even one that is still connecting."""
    caller = waits(wire, "BLPOP", "nothing", "20")
    fresh_redis.freeze()
    callers = [caller, *(Caller(wire, "ECHO", number) for number in range(5))]
    for caller in callers:
        assert isinstance(caller.answer(), BrokerTimeout)
    assert not wire.alive
    fresh_redis.thaw()
    assert b"again" == wire.call(("ECHO", "again"))


def test_each_thread_gets_the_replies_to_its_own_commands(wire):
    """Each thread gets the replies of its own calls, and posts get theirs in order."""
    wrong: list[object] = []
    posted: list[int] = []

    def ask(who: int) -> None:
        for number in range(300):
            texts = [f"{who}.{number}.{part}".encode() for part in range(1 + number % 3)]
            if wire.exchange([(("ECHO", text), None) for text in texts]) != texts:
                wrong.append(texts)

    threads = [threading.Thread(target=ask, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        wire.post(("ECHO", number), lambda reply: posted.append(int(reply)))
        if number % 100 == 0:
            wire.wait_for_replies()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    wire.wait_for_replies()
    assert [] == wrong
    assert list(range(1000)) == posted
    assert not wire.waiting


def test_a_wait_for_replies_is_one_for_their_handlers(wire):
    """A wait for replies includes their handlers, even in another thread."""
    began, handled = threading.Event(), []

    def handle(reply: object) -> None:
        began.set()
        time.sleep(0.3)  # the handler takes a while; the test waits for nothing here
        handled.append(reply)

    wire.post(("ECHO", "1"), handle)
    reader = threading.Thread(target=wire.wait_for_replies)
    reader.start()
    assert began.wait(30)
    wire.wait_for_replies()
    assert [b"1"] == handled
    reader.join(30)


def test_a_wait_for_replies_is_for_what_was_posted_before_it(wire):
    """A wait for replies covers only earlier posts, not later ones of other threads."""
    replies: list[object] = []
    wire.post(("ECHO", "1"), replies.append)
    later: list[object] = []
    waiting = threading.Thread(target=wire.wait_for_replies)
    waiting.start()
    wait_until(lambda: replies)
    wire.post(("BLPOP", "nothing", "2"), later.append)
    waiting.join(1)
    assert not waiting.is_alive()
    assert ([b"1"], []) == (replies, later)
    wire.wait_for_replies()


def test_handlers_that_raise(wire):
    """Each handler is called once even if all raise errors, and the first error is raised."""
    called = []

    def raises(reply: object) -> None:
        called.append(reply)
        raise KeyError(len(called))

    for _ in range(2000):
        wire.post(("ECHO", "1"), raises)
    with pytest.raises(KeyError, match="1"):
        wire.wait_for_replies()
    assert 2000 == len(called)
    assert not wire.waiting


@pytest.mark.parametrize("watched", [False, True])
def test_a_handler_posts_after_its_server_was_dismissed(wire, fresh_redis, watched):
    """A handler can post after its server was demoted, except under a watching event loop.

    A wait inside the handler does not wait for the handler itself.
    """
    with fresh_redis.client() as client:
        client.replicaof("127.0.0.1", 1)
    if watched:
        wire.disable_reconnect()
    replies: list[object] = []

    def post_again(reply: object) -> None:
        replies.append(reply)
        wire.wait_for_replies()
        wire.post(("ECHO", "2"), replies.append)

    wire.post(("SET", "key", "1"), post_again)
    wire.post(("SET", "key", "2"), replies.append)
    with pytest.raises(BrokerUnavailable) if watched else suppress(BrokerUnavailable):
        wire.wait_for_replies()
    if not watched:
        wire.wait_for_replies()
    assert not wire.waiting
    assert "READONLY" in str(replies[0])
    assert [BrokerUnavailable] * 2 == [type(reply) for reply in replies[:2]]
    assert ([] if watched else [b"2"]) == replies[2:]


def test_handlers_may_use_each_others_connections(fresh_redis):
    """Handlers in two threads can call over each other's wires."""
    wires = [dialled(fresh_redis, socket_timeout=30.0) for _ in range(2)]
    both = threading.Barrier(2)
    got: list[object] = []

    def cross(mine: Wire, other: Wire) -> None:
        def handle(_reply: object) -> None:
            both.wait(30)
            got.append(other.call(("ECHO", "crossed")))
            got.append(mine.call(("ECHO", "own")))
            other.post(("ECHO", "posted"), got.append)
            other.wait_for_replies()

        mine.post(("ECHO", "1"), handle)
        mine.wait_for_replies()

    threads = [
        threading.Thread(target=cross, args=pair, daemon=True)
        for pair in (tuple(wires), tuple(reversed(wires)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for wire in wires:
        wire.wait_for_replies()
        wire.close()
    assert sorted([b"crossed", b"own", b"posted"] * 2) == sorted(got)


def test_a_command_larger_than_the_socket_takes(fresh_redis):
    """A command beyond the socket's buffer is written as the server reads, and others follow it."""
    wire = dialled(fresh_redis, socket_timeout=20.0, socket_connect_timeout=20.0)
    large = b"x" * 30_000_000
    replies: list[object] = []
    fresh_redis.freeze()
    caller = Caller(wire, "ECHO", large)
    posts = threading.Thread(target=wire.post, args=(("ECHO", large), replies.append))
    posts.start()
    time.sleep(0.2)  # so that both have filled the socket, though the test holds either way
    small = threading.Thread(target=wire.post, args=(("ECHO", "small"), replies.append))
    small.start()
    fresh_redis.thaw()
    assert large == caller.answer()
    for thread in (posts, small):
        thread.join(20)
    wire.wait_for_replies()
    wire.close()
    assert {large, b"small"} == set(replies)


@pytest.mark.slow
def test_a_command_that_a_server_does_not_take(wire, fresh_redis):
    """A command that the server does not read ends after socket_timeout, as its handler sees."""
    fresh_redis.freeze()
    replies: list[object] = []
    wire.post(("ECHO", b"x" * 30_000_000), replies.append)
    assert 1 == len(replies)
    assert isinstance(replies[0], BrokerTimeout)
    assert not wire.alive


class Interrupted(BaseException):
    """Raised by a signal handler."""


class Asker:
    """Calls over a wire until it is stopped, and records wrong replies."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.stopped = False
        self.armed = False
        self.asked = 0
        self.wrong: list[object] = []

    def ask(self) -> None:
        """Call until the connection fails, because another thread's command was cut in half."""
        with suppress(BrokerUnavailable):
            while not self.stopped:
                text = str(random.random()).encode()
                self._wire.post(("ECHO", text))
                self.asked += 1
                if self._wire.call(("ECHO", text)) != text:
                    self.wrong.append(text)

    def ask_on(self) -> None:
        """Call until it is stopped."""
        while not self.stopped:
            self.ask()

    def ask_until_interrupted(self) -> None:
        """Call until a signal arrives, after a moment."""
        with suppress(Interrupted):
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.002), 0.1)
            self.ask_on()
        self.armed = False


# An interrupt may come between a socket's opening and its assignment, so that it is collected. Or
# it comes in a destructor, where Python only prints it; another one follows a moment later.
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_interrupts_at_any_moment(wire):
    """Every thread continues after thousands of interrupts, and no replies are mixed up."""

    def interrupt(*_: object) -> None:
        if mine.armed:
            raise Interrupted

    mine, other = Asker(wire), Asker(wire)
    thread = threading.Thread(target=other.ask_on, daemon=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    thread.start()
    try:
        for _ in range(2000):
            with suppress(Interrupted):  # a second one, on a very busy machine
                mine.ask_until_interrupted()
        signal.setitimer(signal.ITIMER_REAL, 0)
        wait_until(lambda: other.asked > 500)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        other.stopped = True
    thread.join(60)
    assert not thread.is_alive()
    assert [] == mine.wrong + other.wrong
    assert min(mine.asked, other.asked) > 500
    assert b"after" == wire.call(("ECHO", "after"))
    wire.wait_for_replies()
    assert not wire.waiting

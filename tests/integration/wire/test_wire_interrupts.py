"""An interrupt at any moment mixes up no replies, repeats no handler and blocks no thread."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from reliq.client.wire import Wire
from reliq.errors import BrokerUnavailable
from reliq.options import Options
from reliq.store.urls import address
from tests.support.interrupts import Interrupter
from tests.support.waiting import wait_until

from .test_threads import Caller

pytestmark = pytest.mark.slow  # some hundred connections each

FILES = tuple(
    f"reliq/client/{name}.py"
    for name in (
        "wire",
        "calls",
        "pipeline",
        "posts",
        "stream",
        "poll",
    )
)


class Talk:
    """The commands of one thread over a wire: posts, a call, posts, and a wait."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.posted = 0
        self.came: list[tuple[int, object]] = []
        self.called: object = None

    def post(self) -> None:
        """Post a command whose reply is its number."""
        number = self.posted
        self.posted += 1
        self._wire.post(("ECHO", number), lambda reply: self.came.append((number, reply)))

    def hold(self) -> None:
        """Run all commands."""
        for _ in range(3):
            self.post()
        with suppress(BrokerUnavailable):
            self.called = self._wire.call(("ECHO", "called"))
        for _ in range(2):
            self.post()
        self._wire.wait_for_replies()

    def errors(self) -> list[object]:
        """Return the wrong replies: those of other commands, and repeated ones."""
        wrong: list[object] = [
            (number, reply)
            for number, reply in self.came
            if not isinstance(reply, BrokerUnavailable) and reply != str(number).encode()
        ]
        numbers = [number for number, _ in self.came]
        if len(set(numbers)) != len(numbers):
            wrong.append(numbers)
        if self.called not in {None, b"called"}:
            wrong.append(self.called)
        return wrong


@pytest.fixture
def dial(fresh_redis):
    """Return a function that returns a new wire to a separate server."""
    wires = []

    def dial():
        wires.append(Wire(address(fresh_redis.url()), Options(socket_timeout=5.0), "test"))
        wires[-1].connect_to_post()
        return wires[-1]

    yield dial
    fresh_redis.thaw()
    for wire in wires:
        wire.close()


class Poster(threading.Thread):
    """A thread that posts one command and waits for all replies."""

    def __init__(self, wire: Wire, text: str) -> None:
        super().__init__(daemon=True)
        self._wire = wire
        self._text = text
        self.came: list[object] = []
        self.start()

    def run(self) -> None:
        """Post the command, and wait."""
        try:
            self._wire.post(("ECHO", self._text), self.came.append)
        except BrokerUnavailable as error:
            self.came.append(error)
        with suppress(BrokerUnavailable):
            self._wire.wait_for_replies()


def still_works(wire):
    """Fail unless another thread gets its reply and no post is pending."""
    assert b"after" == Caller(wire, "ECHO", "after").answer()
    thread = threading.Thread(target=wire.wait_for_replies, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert not wire.waiting


# A connection that was just opened or is being returned to the pool is collected.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_one_thread_is_interrupted(dial):
    """An interrupt at any point of one thread's commands leaves the wire usable."""
    point = 0
    while True:
        point += 1
        wire = dial()
        talk, interrupter = Talk(wire), Interrupter(FILES, point)
        interrupter.run(talk.hold)
        still_works(wire)
        assert [] == talk.errors(), interrupter.where
        wire.close()
        if not interrupter.where:
            break
    assert point > 200


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_one_thread_is_interrupted_for_which_others_wait(dial, fresh_redis):
    """If a thread that reads for others is interrupted, each gets its reply or an error."""
    point = 0
    while True:
        point += 1
        wire = dial()
        fresh_redis.freeze()
        posters: list[Poster] = []
        talk, interrupter = Talk(wire), Interrupter(FILES, point)

        def join(wire=wire, posters=posters, interrupter=interrupter):
            """Post from other threads once the first one waits, or has been interrupted."""
            wait_until(lambda: wire.waiting or interrupter.where)
            posters.extend(Poster(wire, f"poster {number}") for number in range(3))
            fresh_redis.thaw()

        helper = threading.Thread(target=join)
        helper.start()
        interrupter.run(talk.hold)
        helper.join(20)
        for number, poster in enumerate(posters):
            poster.join(20)
            assert not poster.is_alive(), interrupter.where
            (came,) = poster.came
            if not isinstance(came, BrokerUnavailable):
                assert f"poster {number}".encode() == came, interrupter.where
        still_works(wire)
        assert [] == talk.errors(), interrupter.where
        wire.close()
        if not interrupter.where:
            break
    assert point > 200

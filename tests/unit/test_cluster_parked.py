"""What waits for a slot: who sends it may fail in any way."""

from __future__ import annotations

import threading
import time

import pytest

from reliq.engines.redis.cluster.parked import Parked
from reliq.engines.redis.cluster.request import Request
from reliq.errors import BrokerTimeout, BrokerUnavailable
from tests.support.waiting import wait_until


class Sender:
    """Sends nothing, and hears of no reply; raises what it is told to."""

    def __init__(self, *, timeout_s, sending=None, reading=None):
        self.parked = Parked(self, timeout_s, "broker")
        self.sending, self.reading = sending, reading
        self.tries = 0
        self.failed = []
        self.told = threading.Event()

    def send_again(self, request):
        """Do as if."""
        self.tries += 1
        if self.sending is not None:
            raise self.sending
        request.sent = (None, None)

    def look_for_nodes(self):
        """Do nothing."""

    def read_reply(self, request, timeout_s):
        """Wait in vain."""
        self.tries += 1
        if self.reading is not None:
            raise self.reading
        time.sleep(timeout_s)

    def judge(self, slot):
        """Know nothing."""
        return "", False

    def fail(self, request, error):
        """Note it."""
        self.failed.append(error)
        request.finished = True
        self.parked.replied(request, served=False)
        self.told.set()


def request():
    """Return a request of some slot."""
    return Request(7, ("GET", "key"), None, 0.0)


def test_a_thread_that_fails_again_and_again_pauses():
    """Whatever it is that fails."""
    sender = Sender(timeout_s=60.0, reading=RuntimeError("two read at once"))
    parked = sender.parked
    parked.park(request(), "why", at_once=True)
    time.sleep(0.5)
    parked.close(BrokerUnavailable("closed"))
    assert 0 < sender.tries < 20


def test_what_could_not_be_sent_is_told_in_time():
    """Whatever the reason was: it is tried until socket_timeout, and no longer."""
    sender = Sender(timeout_s=0.5, sending=RuntimeError("can't start new thread"))
    parked = sender.parked
    parked.park(request(), "why", at_once=True)
    assert sender.told.wait(20)
    (error,) = sender.failed
    assert isinstance(error, BrokerTimeout)
    assert "can't start new thread" in str(error)
    assert 1 < sender.tries < 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_an_ended_thread_has_left_is_told_in_time():
    """It was to be sent, and is not: another thread tells."""
    sender = Sender(timeout_s=0.5, sending=SystemExit())
    parked = sender.parked
    left = request()
    parked.park(left, "why", at_once=True)
    wait_until(lambda: sender.tries and not parked._thread.is_alive())
    wait_until(lambda: parked.revive() or sender.told.wait(0.1))
    assert isinstance(sender.failed[0], BrokerTimeout)


def test_what_was_sent_is_not_sent_again():
    """Also where a handler of something else has raised meanwhile: it has a reply to come."""
    sender = Sender(timeout_s=60.0)
    left = request()
    sends = []

    def send_again(request):
        sends.append(request)
        request.sent = (None, None)
        raise BrokerUnavailable("said a handler")

    sender.send_again = send_again
    sender.parked.park(left, "why", at_once=True)
    wait_until(lambda: sender.tries)  # its reply is read, which is the next turn's
    assert [left] == sends
    sender.parked.close(BrokerUnavailable("closed"))

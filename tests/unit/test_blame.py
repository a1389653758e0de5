"""The exceptions that count as the fault of a message."""

import signal
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import gevent
import gevent.event
import pytest

from reliq.integrations.requests import is_to_blame
from reliq.interrupts import came_from_outside


class BackendLostError(Exception):
    """An error of a result backend that has lost its connection."""


CONSUMER = SimpleNamespace(
    app=SimpleNamespace(
        backend=SimpleNamespace(
            # Kombu's Redis counts KeyError among its connection errors.
            exception_safe_to_retry=lambda exc: isinstance(exc, (BackendLostError, KeyError))
        )
    )
)


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, RecursionError, ValueError])
def test_what_content_brings_about(error):
    """Exceptions that code raises for an unexpected value are the fault of the message."""
    assert is_to_blame(CONSUMER, error("x"))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError,
        TimeoutError,
        OSError,
        MemoryError,
        BackendLostError,
        SystemExit,
        KeyboardInterrupt,
    ],
)
def test_what_would_have_happened_to_any_message(error):
    """Errors of a connection or the machine, and exits of the process, are not its fault."""
    assert not is_to_blame(CONSUMER, error("x"))


class LateError(Exception):
    """Raised by a handler or thrown into a greenlet."""


class Handler:
    """Handlers of signals, in the ways in which an application can write them."""

    def method(self, number, frame):
        """Raise, as a method."""
        raise LateError

    def __call__(self, *arguments):
        """Raise, as an object that takes any arguments."""
        self.method(0, None)


def one_more(_extra, number, frame):
    """Raise, one call further down."""
    Handler().method(number, None)


HANDLERS = (Handler().method, Handler(), partial(one_more, 7))


@contextmanager
def handling(handler):
    """Let *handler* handle SIGALRM meanwhile."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def interrupted():
    """Send this process a signal in the midst of a function."""
    signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_raises(handler):
    """An exception of a signal handler is not the fault of the message that it interrupted."""
    with handling(handler), pytest.raises(LateError) as found:
        interrupted()
    assert came_from_outside(found.value)
    assert not is_to_blame(CONSUMER, found.value)


def test_what_a_signal_handler_raises_in_disguise():
    """Kombu wraps the exceptions of a decoder, those of a handler included."""

    def decode():
        try:
            interrupted()
        except LateError as exc:
            raise ValueError("cannot decode") from exc

    with handling(HANDLERS[0]), pytest.raises(ValueError, match="cannot") as found:
        decode()
    assert not is_to_blame(CONSUMER, found.value)


@pytest.mark.parametrize("how", ["waiting", "asleep"])
def test_what_is_thrown_into_a_greenlet(how):
    """An exception that is thrown into a waiting greenlet is not the fault of its message."""
    wait = gevent.event.Event().wait if how == "waiting" else partial(gevent.sleep, 60)
    greenlet = gevent.spawn(wait)
    gevent.sleep(0)
    greenlet.kill(LateError("from outside"))
    assert not is_to_blame(CONSUMER, greenlet.exception)


def test_what_a_greenlet_raises_itself():
    """An exception of the code that runs in a greenlet is the fault of the message."""
    greenlet = gevent.spawn({}.__getitem__, "absent")
    gevent.sleep(0)
    assert is_to_blame(CONSUMER, greenlet.exception)

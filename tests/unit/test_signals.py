"""Emission of signals: all receivers are called, and none can harm the sender or the others."""

from __future__ import annotations

import inspect
import logging
import re

import pytest

from reliq import signals
from reliq.message.envelope import Envelope, encode
from reliq.signals import emit, emit_published, identity_in, message_dead, message_published
from tests.contract.steps import message

ALL = [getattr(signals, name) for name in signals.__all__]


def envelope(**headers):
    """Return a stored message with these headers."""
    return encode(Envelope(b"", None, None, headers, {}, "", "q"))


def test_a_receiver_that_raises_breaks_nothing(caplog):
    """An error of a receiver is logged with its traceback, and the other receivers are called."""
    calls = []

    def bad(broker, **arguments):
        calls.append("bad")
        raise ValueError("as told")

    def good(broker, **arguments):
        calls.append((broker, arguments))

    with message_dead.connected_to(bad), message_dead.connected_to(good):
        emit(message_dead, "reliq://a", tag="t")
    assert {"bad", "('reliq://a', {'tag': 't'})"} == {str(call) for call in calls}
    (record,) = caplog.records
    assert (logging.ERROR, True) == (record.levelno, "as told" in caplog.text)
    assert "message_dead" in record.getMessage()


def test_what_ends_a_process_is_not_held_up():
    """Ctrl-C in a receiver ends the process, as it is not an error of the receiver."""

    def interrupted(broker, **arguments):
        raise KeyboardInterrupt

    with message_dead.connected_to(interrupted), pytest.raises(KeyboardInterrupt):
        emit(message_dead, "reliq://a")


def test_a_coroutine_function_is_refused_in_words(caplog):
    """A coroutine function, which no code would await, is not called, and the log states this."""

    async def receiver(broker, **arguments):
        """Never runs."""

    with message_dead.connected_to(receiver):
        emit(message_dead, "reliq://a")
    assert "plain function" in caplog.text


def test_a_receiver_may_listen_to_one_broker():
    """The sender is the broker's name, so that blinker's own choice of senders works."""
    brokers = []

    def receiver(broker, **arguments):
        brokers.append(broker)

    with message_dead.connected_to(receiver, sender=str(b"reliq://b", "ascii")):
        emit(message_dead, "reliq://a")
        emit(message_dead, "reliq://b")
    assert ["reliq://b"] == brokers


def test_a_muted_signal_is_silent():
    """A signal muted by blinker's `muted` calls no receiver."""
    calls = []
    with message_dead.connected_to(calls.append), message_dead.muted():
        emit(message_dead, "reliq://a")
    assert [] == calls


def test_what_is_said_of_a_published_message():
    """A signal about a published message has durations in seconds and ids from the headers."""
    told = []

    def receiver(broker, **arguments):
        told.append((broker, arguments))

    items = [message("a", tag="t", delay_ms=1500, ttl_ms=250, exchange="x"), message("b", tag="u")]
    headers = {"id": "7", "task": "ship"}
    with message_published.connected_to(receiver):
        emit_published("reliq://a", items, headers, "key")
    common = {"headers": headers, "task_id": "7", "routing_key": "key"}
    first = {"queue": "a", "tag": "t", "exchange": "x", "delay_s": 1.5, "ttl_s": 0.25}
    second = {"queue": "b", "tag": "u", "exchange": "", "delay_s": 0.0, "ttl_s": None}
    assert [("reliq://a", first | common), ("reliq://a", second | common)] == told


def test_identity_of_a_stored_message():
    """The identity of a stored message is its headers and task id; empty if it is unreadable."""
    nothing = {"headers": {}, "task_id": None}
    assert {"headers": {"id": "7"}, "task_id": "7"} == identity_in(envelope(id="7"))
    assert {"headers": {"id": 7}, "task_id": None} == identity_in(envelope(id=7))
    assert [nothing, nothing] == [identity_in(None), identity_in(b"\xc1")]


@pytest.mark.parametrize("signal", ALL, ids=lambda signal: signal.name)
def test_every_signal_is_documented(signal):
    """A signal's docstring states its sender, and docs/signals.md documents it too."""
    assert signal.name in signals.__all__
    assert re.search(r"^ +By: ", inspect.getdoc(signal) or "", re.MULTILINE) or re.search(
        r"^By: ", inspect.getdoc(signal) or "", re.MULTILINE
    )

"""Intentionally broken transports, to show that the checker detects their errors.

``reliq-early://`` acks a message at its delivery, before it runs.
``reliq-drop://`` confirms one publish in RELIQ_CHAOS_DROP (10 000) without storing it.
With RELIQ_CHAOS_BREAK_BATCHES, any transport sends wrong and duplicate reports to batches.
"""

from __future__ import annotations

import os
import random
from itertools import count

from kombu.transport import TRANSPORT_ALIASES

from reliq.batches import callbacks as batch_callbacks
from reliq.batches.job_reports import JobReports
from reliq.message.delivery_tag import new_tag
from reliq.transports import redis
from reliq.transports.channel import Channel

_DROPS = int(os.environ.get("RELIQ_CHAOS_DROP", "10000"))
_published = count(1)


class EarlyChannel(Channel):
    """Acks a message when it is reserved."""

    def basic_consume(self, queue, no_ack, callback, consumer_tag, **kwargs):
        """Consume without acks, whatever was requested."""
        return super().basic_consume(queue, True, callback, consumer_tag, **kwargs)


class DroppingChannel(Channel):
    """Drops a task at intervals."""

    def basic_publish(self, message, exchange="", routing_key="", **kwargs):
        """Publish most messages."""
        if (message.get("headers") or {}).get("task") and next(_published) % _DROPS == 0:
            return
        super().basic_publish(message, exchange, routing_key, **kwargs)


class EarlyTransport(redis.Transport):
    """The transport of ``reliq-early://``."""

    def create_channel(self, connection):
        """Return a new channel."""
        channel = EarlyChannel(self)
        self.channels.append(channel)
        return channel


class DroppingTransport(redis.Transport):
    """The transport of ``reliq-drop://``."""

    def create_channel(self, connection):
        """Return a new channel."""
        channel = DroppingChannel(self)
        self.channels.append(channel)
        return channel


def register() -> None:
    """Add the schemes to Kombu's table."""
    TRANSPORT_ALIASES["reliq-early"] = f"{__name__}:EarlyTransport"
    TRANSPORT_ALIASES["reliq-drop"] = f"{__name__}:DroppingTransport"
    if os.environ.get("RELIQ_CHAOS_BREAK_BATCHES"):
        break_batches()


def break_batches():
    """Publish each callback of a batch twice, and count every third failure as a success."""
    published, numbered = batch_callbacks._published, batch_callbacks.GivenNumber
    report, ends = JobReports.report, count(1)

    def twice(*args):
        return published(*args) and published(*args)

    def another(batch, _number, own_tag):
        return numbered(batch, random.randrange(2**32), own_tag=lambda _: new_tag(0))

    def confused(self, store, batch, change, then=None):
        if change.state == "failed" and next(ends) % 3 == 0:
            change = change._replace(state="succeeded", text="")
        report(self, store, batch, change, then)

    batch_callbacks._published, batch_callbacks.GivenNumber = twice, another
    JobReports.report = confused

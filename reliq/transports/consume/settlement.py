"""Settlement: acks, returns and dead-letters the delivered messages of a channel.

The channel handles single acks, the hot path. A worker leaves the outcome of a task at its message
(:mod:`...values.job_headers`). It is reported to the batch before the message is acknowledged.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...batches.jobs import Change
from ...consumer.host import HOST
from ...consumer.leases import log_at_the_limit
from ...errors import BrokerUnavailable, again, logger
from ...forks import here
from ...message.queue_names import queue_of
from ...printable import word
from ...signals import emit, emit_at_the_limit, identity, message_dead
from ...values.job_headers import BATCH, SUCCEEDED, Outcome, job_of
from ...values.values import Delivery, How, Lease
from ..message import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...values.protocol import Store
    from ..base import Transport
    from ..message import Message, QoS


Verdict: TypeAlias = Literal["acked", "ended", "dead"] | How
"""How a message ends. ended: it was acked before, and only its job ends now."""


@dataclass(eq=False)
class Settlement:
    """The one door by which the messages of a channel end: :meth:`settle`.

    Only a single ack of an ordinary message, the hot path, passes it by (``Channel.basic_ack``).
    """

    _over: Transport
    _qos: QoS

    def __post_init__(self) -> None:
        """Look up the connection's parts once."""
        self._link = self._over.link

    @property
    def _store(self) -> Store:
        """A connection that also works after the channel was closed."""
        return self._link.session.spare_store() if self._qos.closed else self._link.store

    def settle(self, messages: Sequence[Message], verdict: Verdict, error: str = "nacked") -> None:
        """End *messages*, which the channel has given up; first report the ends of their jobs.

        Unreadable messages that are acked become dead letters. *error*: of returned messages that
        are dead-lettered at their delivery limit. Refused, and logged, if the lease was lost.

        On BrokerUnavailable, the channel keeps a failed dead letter; the others are returned over
        the next connection. Acks raise only BrokerTimeout.
        """
        if verdict == "acked":
            readable = [message for message in messages if message.decode_error is None]
            self._ack([message for message in readable if not self._report_job(message, verdict)])
            self.settle([item for item in messages if item.decode_error is not None], "dead")
        elif verdict == "dead":
            for message in messages:
                self._dead_letter(message)
        else:
            for message in messages:
                self._report_job(message, verdict)
            if verdict == "ended":
                self._end_tasks(messages)
            else:
                self._release(verdict, messages, error)
                self._over.pull.credit_regained()

    def _report_job(self, message: Message, verdict: Verdict) -> bool:
        """Report to its batch how the job of *message* ends; return whether the report acks it.

        Without an outcome, the task is acknowledged early or retried, or it was revoked before it
        started. For an early ack, the batch records the start first: a job always has a message or
        a worker. Outside of Celery workers, an ack means that the work is done.
        """
        outcome, message.outcome = message.outcome, None
        membership = job_of(message.headers) if BATCH in message.headers else None
        if membership is None:
            return False
        session, acked = self._link.session, verdict == "acked"
        batch, job, retries = membership
        token, tag = int(message.token), message.delivery_tag
        if acked and outcome is None and not message.begun:
            outcome = SUCCEEDED
            if HOST.takes_from(self._over):
                # Celery's worker revokes expired tasks.
                why = "revoked or expired" if message.headers.get("expires") else "revoked"
                outcome = Outcome("cancelled", why)
        if verdict in {"nacked", "released"} and message.begun:
            change = Change("return", job, "", retries, token)
        elif outcome is not None and verdict in {"acked", "ended", "dead"}:
            state, text = outcome
            change = Change("end", job, state, retries, token, tag, message.queue, text)
        elif acked and message.acked_early:
            # The same change as the child process reports, so that the second one changes nothing.
            queue = queue_of(message.queue)
            change = Change("begin", job, "", retries, token, tag, queue, session.id)
        else:
            return False
        # No thread reads replies of a closed channel: the session sends the report, and reads them.
        store = None if self._qos.closed else self._link.store
        # The callback keeps the message alive: a message without references loses its lease.
        session.reports.report(
            store, batch, change, partial(self._ack, [message]) if acked else None
        )
        return acked

    def note_begun(self, message: Message, *, acked: bool) -> None:
        """Record that the pool begins the task of *message*, which is *acked* now or at its end."""
        message.begun, message.acked_early = True, acked
        if message.limited:
            self._link.session.leases.note_begun(*message.lease, begun=True)

    def _end_tasks(self, messages: Sequence[Message]) -> None:
        """Free the slots that tasks, acked as they began, have occupied until now.

        In a worker that takes no more than it can start, an ack is sent again for any other task:
        its reply wakes the loop, which another thread cannot, to request the next message.
        """
        for message in messages:
            if message.limited or (HOST.bounded and not HOST.forks()):
                message.limited_queues = ()
                self._ack([message])

    def _keeps_slot(self, message: Message) -> bool:
        """Whether a message acked as its task begins keeps its lease until the task ends.

        A failed report of the begin is repeated with the next renewals.
        """
        session = self._link.session
        early = message.limited and message.acked_early
        if not early or not session.leases.begin_task(*message.lease):
            return False
        with suppress(BrokerUnavailable):
            session.duties.renewal.renew(self._store)
        return True

    def _ack(self, messages: Sequence[Message]) -> None:
        messages = [message for message in messages if not self._keeps_slot(message)]
        for queue, group in groupby(messages, attrgetter("queue")):
            tags = [message.delivery_tag for message in group]
            if self._qos.closed:
                self._link.session.outbox.ack_later(queue, tags)
            else:
                self._over.loop.ack(queue, tags)

    def reject(self, delivery_tag: str, requeue: bool) -> None:
        """Return a message, counted as a failed delivery, or make it a dead letter."""
        here()
        message = self._qos.take(delivery_tag)
        if message is None:
            return
        error = sys.exc_info()[1]
        if error is not None and HOST.takes_from(self._over):
            message.error = in_words(error)  # Celery rejects invalid messages
        # A task whose process died, for example, returns with this error.
        self.settle([message], "nacked" if requeue else "dead", message.error or "nacked")

    def give_back(self, how: How) -> None:
        """Return every unacked message of the channel."""
        here()
        messages = list(self._qos.delivered.values())
        self._qos.delivered.clear()
        for kind, some in groupby(messages, partial(self._how, how)):
            self.settle(list(some), kind)

    def let_go(self) -> None:
        """Keep the leases of unacked messages only while the application holds the messages.

        A logged callback error, for example, keeps its message alive although no code processes
        it. Such messages are returned as soon as the broker is reachable.
        """
        for message in self._qos.let_go():
            if message.callback_raised:
                how = self._how("released", message)
                self._link.session.outbox.release_later(message.queue, how, (message.lease,))

    def _how(self, how: How, message: Message) -> How:
        """Return how to return *message*: counted after a failed delivery, or as unbegun."""
        held = self._link.session.leases.own(*message.lease) if how == "released" else None
        return how if held is None else held.how

    def _release(self, how: How, messages: Sequence[Message], error: str) -> None:
        outbox = self._link.session.outbox
        groups = groupby(messages, attrgetter("queue"))
        for queue, group in groups:
            store, leases = self._store, [message.lease for message in group]
            try:
                released = outbox.release(store, queue, how, leases, error)
            except BrokerUnavailable:
                for other, rest in groups:
                    outbox.release_later(other, how, [message.lease for message in rest])
                raise
            self._over.reserver.ask_again(queue)
            _report(released.refused, queue, how)
            log_at_the_limit(queue, released.dead)
            if released.dead:
                known = {message.delivery_tag: message.headers for message in messages}
                emit_at_the_limit(store.broker, queue, released.dead, error, known)
                self._route_soon(queue)

    def _dead_letter(self, message: Message) -> None:
        self._report_job(message, "dead")
        reason, error = message.dead_letter_reason
        lease, failed = message.lease, message.failed
        try:
            self._give_up(message.queue, lease, message.headers, failed, reason, error)
        except BrokerUnavailable:
            self._qos.put_back(message)
            raise

    def settle_malformed(
        self, message: Message, error: Exception, settled: bool, no_ack: bool = False
    ) -> None:
        """Return or dead-letter a message that made a Celery worker's code raise, unless *settled*.

        Its first failed delivery, and a worker that stops, may have another cause: the message is
        returned, unless its body is unreadable or its task may have begun.
        """
        message.malformed, message.error = True, in_words(error)
        if settled or self._qos.take(message.delivery_tag) is None:
            logger.error(
                "message %s of %r made the code that received it raise %s; it was not "
                "dead-lettered, because %s",
                message.delivery_tag,
                message.queue,
                message.dead_letter_reason[1],
                "its consumer needs no ack"
                if no_ack
                else "it had been acknowledged or rejected before",
            )
            return
        try:
            if message.decode_error is None and HOST.stopping():
                self._return_malformed(message, "released")
            elif message.decode_error is None and not message.begun and not message.failed:
                self._return_malformed(message, "nacked")
            else:
                self.settle([message], "dead")
        except BrokerUnavailable as exc:
            # Raised in the loop's next turn, because in this one it would drop the acks of others.
            self._over.reserver.failure = again(exc)

    def _return_malformed(self, message: Message, how: How) -> None:
        logger.warning(
            "message %s of %r made the code that received it raise %s; it was returned, and is "
            "dead-lettered if its next delivery fails as well",
            *(message.delivery_tag, message.queue, message.error),
        )
        self.settle([message], how)
        self._over.loop.note_unrun()

    def dead_letter_undecodable(self, delivery: Delivery, error: Exception, no_ack: bool) -> None:
        """Dead-letter a delivery whose envelope is unreadable, which never was a message."""
        queue, lease = delivery.queue, Lease(delivery.tag, delivery.token)
        if no_ack:
            logger.error(
                "message %s of %r is undecodable and was removed, because its consumer needs no "
                "ack: %s",
                lease.tag,
                queue,
                error,
            )
            return
        self._give_up(queue, lease, {}, max(delivery.failed, 0), "undecodable", str(error))

    def _give_up(
        self, queue: str, lease: Lease, headers: dict[str, Any], count: int, reason: str, error: str
    ) -> None:
        tag, store = lease.tag, self._link.store
        refused = self._link.session.outbox.dead_letter(self._store, queue, reason, error, [lease])
        _report(refused, queue, reason)
        if not refused:
            if reason in {"undecodable", "malformed"}:
                logger.error(
                    "message %s of %r is %s and was dead-lettered: %s; inspect it with "
                    "reliq dead show %s %s",
                    *(tag, queue, reason, error, word(queue), word(tag)),
                )
            else:  # rejected by the application, which knows the reason
                logger.info(
                    "message %s of %r was %s and dead-lettered; to restore it, run "
                    "reliq dead replay %s --tag %s",
                    *(tag, queue, reason, word(queue), word(tag)),
                )
            emit(
                message_dead,
                store.broker,
                queue=queue,
                tag=tag,
                count=count,
                consumer=store.consumer,
                reason=reason,
                error=error,
                **identity(headers),
            )
        self._route_soon(queue)
        self._over.reserver.ask_again(queue)  # there is credit for the next message
        self._over.loop.note_unrun()
        self._over.pull.credit_regained()

    def _route_soon(self, queue: str) -> None:
        """Route dead letters of *queue* soon if it was declared with a dead-letter exchange."""
        declared = self._over.declarations.queues.get(queue)
        if declared is not None and "dead_letter_exchange" in declared[1]:
            self._link.session.duties.route_soon(queue)


def _report(refused: list[str], queue: str, how: str) -> None:
    for tag in refused:
        logger.warning(
            "message %s of %r could not be %s: its lease was lost, another consumer may have it; "
            "raise visibility_timeout if this happens in normal operation",
            tag,
            queue,
            how,
        )

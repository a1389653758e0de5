"""The notifier of a Redis broker: BLPOP on the notifications of the consumed queues.

It has its own socket, so that no command waits behind a BLPOP. One token wakes one
consumer. A lost token is harmless: the wait ends by itself, and the consumer then reserves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from ..client import refusals
from ..client.error_replies import code_of
from ..client.poll import Pipe, readable
from ..errors import BrokerRefused, BrokerUnavailable, ReliqError, again, logger
from ..lua import keys, scripts
from ..lua.keys import queue_keys
from ..values.values import ignore_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..client.commands import Commands
    from ..client.pipeline import OnReply
    from ..client.stream import Reply
    from ..client.wire import Wire

# The longest wait while a BLPOP is being ended: CLIENT UNBLOCK may have missed it.
_ENDS_S = 0.02
# How long a token that ends a wait is kept: its notifier may have ended.
_TOKEN_MS = 60_000


class RedisNotifier:
    """Waits until a queue may have ready messages. A notification is only a hint."""

    polled: frozenset[str] = frozenset()
    """The queues to query now, because no connection waits for their notifications."""

    def __init__(self, wire: Wire, commands: Commands, unblock: Callable[[OnReply], None]) -> None:
        """Wait over *wire*; *unblock* ends its BLPOP over another one, and passes the reply on.

        If that is refused, a token in a list of its own ends it, sent over *commands*.
        """
        self._wire = wire
        self.descriptors, self.disable_reconnect = wire.descriptors, wire.disable_reconnect
        self._commands = commands
        self._unblock = unblock
        self._id = os.urandom(8).hex()
        self._waits_at = ""  # the queue in whose slot that list is
        self._prefix = wire.options.global_keyprefix
        self._listening = False
        self._notifications: dict[bytes, str] = {}
        self.queues: frozenset[str] = frozenset()
        """The queues of the current wait, or of the last one."""
        self._notified: str | None = None
        self._error: ReliqError | None = None
        self._clearing = False
        self._must_end = False
        self._ending = False
        self._pipe = Pipe()

    @property
    def listening(self) -> bool:
        """Whether a BLPOP is pending at the broker. An interrupt may have dropped it or its end."""
        return self._listening and self._wire.alive and self._wire.waiting

    def take_notification(self) -> str | None:
        """Return a queue whose notification has arrived, each once, or None."""
        notified, self._notified = self._notified, None
        return notified

    def listen(self, queues: Sequence[str], timeout_s: float) -> None:
        """Begin to wait unless a wait is pending; over nodes, for the queues not waited for yet."""
        if self.listening:
            return
        notifications = [queue_keys(self._prefix, queue).notification for queue in queues]
        self._notifications = {
            notification.encode("utf-8", "surrogateescape"): queue
            for notification, queue in zip(notifications, queues, strict=True)
        }
        self.queues = frozenset(queues)
        self._notified = None
        self._must_end = False
        self._waits_at = queues[0]
        notifications.insert(0, self._wakeup)
        if self._clearing:
            self._wire.post(("UNLINK", *notifications), ignore_result)
        # Zero would mean forever; a ms is the shortest timeout of Redis.
        command = ("BLPOP", *notifications, f"{max(timeout_s, 0.001):.3f}")
        self._listening = True
        try:
            self._wire.post(command, self._on_reply, patience_s=timeout_s)
        except ReliqError:
            self._listening = False
            raise

    def _on_reply(self, reply: Reply) -> None:
        self._listening = False
        wrong = isinstance(reply, BrokerRefused) and code_of(reply.reply) == "WRONGTYPE"
        if wrong and not self._clearing:
            # Another program wrote to the key. The next wait removes it: a lost token is harmless.
            self._clearing = True
            logger.warning(
                "a notification key of %s has another type: it is removed", sorted(self.queues)
            )
            return
        self._clearing = False
        if isinstance(reply, ReliqError):
            self._error = reply
        elif reply is not None:
            self._notified = self._notifications.get(reply[0])

    def receive(self) -> bool:
        """Take the reply if it has arrived; True if the wait is over. Raises BrokerUnavailable."""
        self._wire.receive()
        self._raise()
        return not self.listening

    def wait(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s* for a notification or :meth:`wake`; True if the BLPOP is over."""
        listening = self.listening
        if listening and self.receive():
            return True
        if self._ending:
            timeout_s = min(timeout_s, _ENDS_S)
        reader = self._pipe.fileno()
        descriptors = (reader, self._wire.fileno()) if listening else (reader,)
        deadline = monotonic() + max(timeout_s, 0.0)
        while True:
            ready = readable(descriptors, deadline - monotonic())
            woken = reader in ready
            if woken:
                self._pipe.read()
            if not listening:
                return False
            self._wire.check()
            if self.receive():
                return True
            if woken or not ready:  # otherwise a part of the reply has arrived
                return False

    def end_wait(self) -> None:
        """End the wait on the broker, so that it can begin anew for other queues."""
        if self.listening and not self._must_end:
            self._must_end = self._ending = True
            lacks = refusals.lacks(self._commands.address.identity, refusals.UNBLOCK)
            try:
                if lacks or not self._wire.client_id:
                    self._post_token()
                else:
                    self._unblock(self._on_unblocked)
            except BaseException:
                self._must_end = self._ending = False
                raise

    def _on_unblocked(self, reply: Reply) -> None:
        self._ending = False
        if reply == 1:
            return
        self._must_end = False
        refused = isinstance(reply, BrokerRefused)
        if refused:
            refusals.note(self._commands.address.identity, refusals.UNBLOCK, reply)
        # Reply 0: it overtook the BLPOP, which another socket carries, or the BLPOP is over.
        if refused or reply == 0:
            with suppress(ReliqError):  # the user of that connection gets the error
                self.end_wait()

    @property
    def _wakeup(self) -> str:
        return keys.wakeup(self._prefix, self._waits_at, f"{self._id}-{os.getpid()}")

    def _post_token(self) -> None:
        guard = queue_keys(self._prefix, self._waits_at).guard
        key = self._wakeup
        command, script = scripts.WAKE.over(None, (_TOKEN_MS,), wakeup=key, guard=guard)
        self._commands.post(command, self._on_token, script)

    def _on_token(self, reply: Reply) -> None:
        self._ending = False
        if isinstance(reply, BrokerUnavailable):  # if refused, the wait ends by itself
            self._must_end = False

    def wake(self) -> None:
        """End another thread's :meth:`wait` now."""
        self._pipe.write()

    def check(self) -> None:
        """Raise BrokerTimeout if the broker has not replied after the wait's timeout."""
        self._wire.check()
        self._raise()

    def close(self) -> None:
        """Close the socket and the pipe; a token under way is lost, which is harmless."""
        self._wire.close()
        self._listening = False
        self._error = None
        self._pipe.close()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise again(error)

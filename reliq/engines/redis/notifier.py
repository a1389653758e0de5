"""The notifier of a Redis broker: BLPOP on the notifications of the consumed queues.

Its own socket, so that no command ever waits behind a BLPOP. One token wakes one
consumer; losing a token is harmless, because the wait ends by itself and the
consumer looks anyway.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, BrokerUnavailable, ReliqError, again
from ...store.values import ignore_result
from ..poll import Pipe, readable
from . import keys, refusals, scripts
from .keys import queue_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .commands import Commands
    from .pipeline import OnReply
    from .stream import Reply
    from .wire import Wire

logger = logging.getLogger("reliq")

# So soon it is looked whether a wait that was to be ended has been met by that.
_ENDS_S = 0.02
# A token that ends a wait lasts so long: whoever was to take it may have ended.
_TOKEN_MS = 60_000


class RedisNotifier:
    """Waits until a queue may have something to take. A hint, never the message."""

    def __init__(self, wire: Wire, commands: Commands, unblock: Callable[[OnReply], None]) -> None:
        """Wait over *wire*; *unblock* ends its BLPOP over another one, and passes the reply on.

        Where that is refused a token in a list of its own does, sent over *commands*.
        """
        self._wire = wire
        self.descriptors, self.disable_reconnect = wire.descriptors, wire.disable_reconnect
        self._commands = commands
        self._unblock = unblock
        self._id = os.urandom(8).hex()
        self._waits_at = ""  # the queue beside which that list is
        self._prefix = wire.options.global_keyprefix
        self._listening = False
        self._notifications: dict[bytes, str] = {}
        self.queues: frozenset[str] = frozenset()
        """The queues of the wait that is under way, or was last."""
        self._notified: str | None = None
        self._error: ReliqError | None = None
        self._clearing = False
        self._told_to_end = False
        self._ending = False
        self._pipe = Pipe()

    @property
    def listening(self) -> bool:
        """Whether a wait is under way on the broker."""
        return self._listening and self._wire.alive

    def take_notification(self) -> str | None:
        """Return a queue whose notification has come, each once; None when there is no more."""
        notified, self._notified = self._notified, None
        return notified

    def listen(self, queues: Sequence[str], timeout_s: float) -> None:
        """Begin to wait, unless a wait is under way; over nodes, for what is not waited for yet."""
        if self.listening:
            return
        notifications = [queue_keys(self._prefix, queue).notification for queue in queues]
        self._notifications = {
            notification.encode("utf-8", "surrogateescape"): queue
            for notification, queue in zip(notifications, queues, strict=True)
        }
        self.queues = frozenset(queues)
        self._notified = None
        self._told_to_end = False
        self._waits_at = queues[0]
        notifications.insert(0, self._wakeup)
        if self._clearing:
            self._wire.post(("UNLINK", *notifications), ignore_result)
        # Zero would mean for ever; a ms is the least that Redis tells apart from it.
        command = ("BLPOP", *notifications, f"{max(timeout_s, 0.001):.3f}")
        self._listening = True
        try:
            self._wire.post(command, self._on_reply, patience_s=timeout_s)
        except ReliqError:
            self._listening = False
            raise

    def _on_reply(self, reply: Reply) -> None:
        self._listening = False
        if isinstance(reply, BrokerRefused) and "WRONGTYPE" in str(reply) and not self._clearing:
            # Somebody has written to a key of ours. It holds nothing but a token, and one that is
            # lost is made up for: the next wait removes what is there, once.
            self._clearing = True
            logger.warning(
                "a notification of %s held something else: it is removed", sorted(self.queues)
            )
            return
        self._clearing = False
        if isinstance(reply, ReliqError):
            self._error = reply
        elif reply is not None:
            self._notified = self._notifications.get(reply[0])

    def receive(self) -> bool:
        """Take what has come without waiting; True when the wait is over.

        Raises BrokerUnavailable.
        """
        self._wire.receive()
        self._raise()
        return not self._listening

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, for :meth:`wake`, or for *timeout_s*; True when one came."""
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
            if woken or not ready:  # else a part of the reply has come
                return False

    def end_wait(self) -> None:
        """End the wait on the broker, so that it can begin anew for other queues."""
        if self.listening and not self._told_to_end:
            self._told_to_end = self._ending = True
            lacks = refusals.lacks(self._commands.address.identity, refusals.UNBLOCK)
            try:
                if lacks or not self._wire.client_id:
                    self._post_token()
                else:
                    self._unblock(self._on_unblocked)
            except BaseException:
                self._told_to_end = self._ending = False
                raise

    def _on_unblocked(self, reply: Reply) -> None:
        self._ending = False
        if reply == 1:
            return
        self._told_to_end = False
        refused = isinstance(reply, BrokerRefused)
        if refused:
            refusals.note(self._commands.address.identity, refusals.UNBLOCK, reply)
        # Or it has overtaken the wait, which comes over another socket, or that is over by now.
        if refused or reply == 0:
            with suppress(ReliqError):  # who uses that connection is told
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
        if isinstance(reply, BrokerUnavailable):  # where it was refused, the wait ends by itself
            self._told_to_end = False

    def wake(self) -> None:
        """End another thread's :meth:`wait` now."""
        self._pipe.write()

    def check(self) -> None:
        """Raise BrokerTimeout if the broker has let the wait run out unanswered."""
        self._wire.check()
        self._raise()

    def close(self) -> None:
        """Close the socket and the pipe; a token on its way is lost, which is harmless."""
        self._wire.close()
        self._listening = False
        self._error = None
        self._pipe.close()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise again(error)

"""Renewal: renew each lease after a third of its time, and report lost leases.

Communicates with the broker; the leases know which are held and which are due.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import BrokerRefused, ReliqError, logger
from ..signals import emit, identity, lease_lost
from ..values.limits import chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..options import Options
    from ..values.protocol import Store
    from ..values.values import Lease, Lost
    from .leases import Held, Leases
    from .runner import Runner


@dataclass(eq=False)
class Renewal:
    """Renews the leases of one session."""

    _options: Options
    _leases: Leases
    _runner: Runner

    def renew(self, store: Store, all_of_them: bool = False) -> None:
        """Post the renewal of every lease that has used a third of its time."""
        for tag, held in self._leases.overstayed().items():
            logger.warning(
                "message %s of %r was held longer than consumer_timeout (%g s): "
                "its lease is no longer renewed, and the message will be delivered again",
                tag,
                held.queue,
                self._options.consumer_timeout,
            )
            self._report_lost(tag, held, "consumer_timeout")
        lease_ms = int(self._options.visibility_timeout * 1000)
        for queue, leases in self._leases.due(all_of_them).items():
            for chunk in chunks(leases):
                on_result = partial(self._renewed, queue, chunk)
                store.post_renew(queue, lease_ms, chunk, on_result, self._leases.begun(chunk))

    def _renewed(self, queue: str, leases: Sequence[Lease], result: Lost | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if isinstance(result, BrokerRefused):
                logger.error("leases on %r could not be renewed: %s", queue, result)
            self._leases.not_renewed(leases)
            return
        self._leases.renewed(leases, result.lease_ms / 1000)
        tokens = dict(leases)
        for tag in result.tags:
            held = self._leases.lost(tag, tokens[tag])
            if held is None:
                continue  # acked or returned meanwhile
            if held.begun:
                logger.warning(
                    "lease lost: the running task of message %s of %r, which is acked, no longer "
                    "counts towards the limits of its queue; this process did not renew it within "
                    "visibility_timeout (%g s): raise that if processes freeze for longer",
                    *(tag, queue, self._options.visibility_timeout),
                )
                self._report_lost(tag, held, "gone")
                continue
            if tag in result.gone:
                logger.warning(
                    "lease lost: message %s of %r no longer exists; it was finished elsewhere "
                    "while this process also held it, its queue was deleted, or the broker has "
                    "lost its data (run reliq doctor to check)",
                    tag,
                    queue,
                )
                self._report_lost(tag, held, "gone")
                continue
            logger.warning(
                "lease lost: message %s of %r went back to its queue and may run twice; "
                "this process did not renew it within visibility_timeout (%g s): raise that if "
                "processes freeze for longer, and prevent a second run with reliq.once",
                tag,
                queue,
                self._options.visibility_timeout,
            )
            self._report_lost(tag, held, "returned")

    def _report_lost(self, tag: str, held: Held, reason: str) -> None:
        """Send the signal later: the connection is locked while a reply is read."""
        if lease_lost.receivers:
            message: Any = None if held.message is None else held.message()
            headers = getattr(message, "headers", None) or {}
            held_s = monotonic() - held.since
            own = {"queue": held.queue, "tag": tag, "reason": reason, "held_s": held_s}
            own |= identity(headers)
            self._runner.soon(lambda store: emit(lease_lost, store.broker, **own))

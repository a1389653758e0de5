"""Steps: a store with an audit after each step.

The tests call the store through it. It waits for posted steps, so that all steps read alike. After
each step, every touched queue must balance: the ledger with the counts, the counts with the stored
envelopes, and the leases with the unacked messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reliq.errors import ReliqError
from reliq.message.delivery_tag import new_tag
from reliq.values.values import ALONE, Delivery, Lease, Publication
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reliq.values.protocol import Store
    from reliq.values.values import (
        Duties,
        How,
        Lost,
        Move,
        Promoted,
        Released,
        Reservation,
        Restored,
        Returned,
        Work,
    )

LONG_MS = 60_000
"""A lease that no test outlives."""

PLACES = ("ready", "delayed", "unacked", "dead")
_LEFT = ("acked", "expired", "purged", "dropped", "moved")


def message(queue: str = "q", envelope: bytes = b"", rank: int = 5, **changes: Any) -> Publication:
    """Return a publication with its own tag; by default unnumbered, not delayed and without TTL."""
    values: dict[str, Any] = {
        "tag": new_tag(rank),
        "publisher": "p",
        "number": 0,
        "low_water": 0,
        "delay_ms": 0,
        "ttl_ms": -1,
        "exchange": "",
        "version": b"",
    }
    return Publication(queue=queue, envelope=envelope, rank=rank, **(values | changes))


def lease_of(delivery: Delivery | Lease) -> Lease:
    """Return the lease of a delivery."""
    return Lease(delivery.tag, delivery.token)


def envelopes(reservation: Reservation) -> list[bytes | None]:
    """Return the reserved envelopes in their order."""
    return [delivery.envelope for delivery in reservation.deliveries]


def tags(items: Iterable[Returned | Delivery]) -> list[str]:
    """Return the delivery tags of *items*."""
    return [item.tag for item in items]


class Steps:
    """One audited store. The unwrapped methods are called on `store`."""

    def __init__(self, store: Store, touched: set[str]) -> None:
        self.store = store
        self._touched = touched

    # -- publishing and reserving

    def publish(self, *messages: Publication) -> list[int]:
        """Publish in one call."""
        outcomes = self.store.publish(messages)
        self._audit(*(item.queue for item in messages))
        return outcomes

    def post_publish(self, *messages: Publication) -> list[int]:
        """Post a publish in one call, and wait."""
        result = self._wait(lambda on_result: self.store.post_publish(messages, on_result))
        self._audit(*(item.queue for item in messages))
        return result[0]

    def reserve(
        self,
        n: int = 1,
        *,
        queue: str = "q",
        lease_ms: int = LONG_MS,
        no_ack: bool = False,
        occupancy: int = ALONE,
    ) -> Reservation:
        """Reserve at most *n*."""
        reservation = self.store.reserve(queue, n, lease_ms, no_ack, occupancy)
        self._audit(queue)
        return reservation

    def promote(self, queue: str = "q") -> Promoted:
        """Promote the due messages, and wait; return the report about the others."""
        (result,) = self._wait(lambda on_result: self.store.post_promote(queue, on_result))
        self._audit(queue)
        return result

    def take(self, n: int = 1, *, queue: str = "q", lease_ms: int = LONG_MS) -> list[Delivery]:
        """Reserve exactly *n*, in as many calls as necessary."""
        taken: list[Delivery] = []
        while got := self.reserve(n - len(taken), queue=queue, lease_ms=lease_ms).deliveries:
            taken += got
            if len(taken) == n:
                break
        assert n == len(taken)
        return taken

    def hand_back(self, *taken: Delivery, queue: str = "q") -> int:
        """Return messages that were taken with no_ack."""
        back = self.store.hand_back(queue, taken)
        self._audit(queue)
        return back

    # -- settling

    def ack(self, *tags: str, queue: str = "q") -> int:
        """Ack, and wait."""
        result = self._wait(lambda on_result: self.store.post_ack(queue, tags, on_result))
        self._audit(queue)
        return sum(result)

    def release(self, how: How, *held: Delivery | Lease, queue: str = "q") -> list[str]:
        """Return messages to the queue; return the refused tags."""
        return self.give_back(how, *held, queue=queue).refused

    def give_back(self, how: How, *held: Delivery | Lease, queue: str = "q") -> Released:
        """Return messages to the queue; return the results."""
        released = self.store.release(queue, how, [lease_of(item) for item in held])
        self._audit(queue)
        return released

    def dead_letter(
        self, *held: Delivery | Lease, reason: str = "rejected", error: str = "", queue: str = "q"
    ) -> list[str]:
        """Dead-letter messages; return the refused tags."""
        leases = [lease_of(item) for item in held]
        refused = self.store.dead_letter(queue, reason, error, leases)
        self._audit(queue)
        return refused

    def renew(
        self, *held: Delivery | Lease, lease_ms: int = LONG_MS, queue: str = "q"
    ) -> list[str]:
        """Renew, and wait; return the lost tags of all replies."""
        return [tag for lost in self._renew(held, lease_ms, queue) for tag in lost.tags]

    def begin_tasks(self, *held: Delivery | Lease, queue: str = "q") -> list[str]:
        """Renew with the mark of an early ack: the tasks run. Wait; return the lost tags."""
        leases = [lease_of(item) for item in held]
        results: list[Lost] = self._wait(
            lambda on_result: self.store.post_renew(
                queue, LONG_MS, leases, on_result, begun={lease.tag for lease in leases}
            )
        )
        self._audit(queue)
        return [tag for lost in results for tag in lost.tags]

    def renew_gone(self, *held: Delivery | Lease, queue: str = "q") -> list[str]:
        """Renew, and wait; return the lost tags whose message is no longer stored."""
        return [tag for lost in self._renew(held, LONG_MS, queue) for tag in lost.gone]

    def _renew(self, held: Iterable[Delivery | Lease], lease_ms: int, queue: str) -> list[Lost]:
        leases = [lease_of(item) for item in held]
        results: list[Lost] = self._wait(
            lambda on_result: self.store.post_renew(queue, lease_ms, leases, on_result)
        )
        self._audit(queue)
        return results

    def end(self, *held: Delivery | Lease, queue: str = "q") -> list[str]:
        """End leases now; return the refused tags."""
        leases = [lease_of(item) for item in held]
        results: list[list[str]] = self._wait(
            lambda on_result: self.store.post_end_leases(queue, leases, on_result)
        )
        self._audit(queue)
        return [tag for refused in results for tag in refused]

    def restore(
        self,
        *,
        queue: str = "q",
        lease_ms: int = LONG_MS,
        force: bool = False,
        include_messages: bool = False,
    ) -> Restored:
        """Make one step of the pass, and wait."""
        result: list[Restored] = self._wait(
            lambda on_result: self.store.post_restore(
                queue, lease_ms, on_result, force, include_messages
            )
        )
        self._audit(queue)
        return result[0]

    def expire(self, queue: str = "q") -> bool:
        """Remove the expired messages, and wait; return whether there may be more."""
        result: list[bool] = self._wait(lambda on_result: self.store.post_expire(queue, on_result))
        self._audit(queue)
        return result[0]

    def return_ended(self, *held: Delivery | Lease, queue: str = "q") -> Restored:
        """End leases and return their messages, as after the death of their consumer."""
        assert [] == self.end(*held, queue=queue)
        return self.restore(queue=queue, force=True)

    # -- dead letters

    def replay(self, *died: str, queue: str = "q") -> list[str]:
        """Replay dead letters; return their tags."""
        replayed = self.store.replay(queue, died)
        self._audit(queue)
        return replayed

    def purge_dead(self, *died: str, queue: str = "q") -> int:
        """Remove dead letters."""
        count = self.store.purge_dead(queue, died)
        self._audit(queue)
        return count

    def begin_move(self, target: str, *died: str, queue: str = "q") -> tuple[int, list[Move]]:
        """Assign publish numbers to dead letters for a move."""
        begun = self.store.begin_move(queue, target, died)
        self._audit(queue)
        return begun

    def end_move(self, *died: str, queue: str = "q") -> int:
        """Remove messages that are stored at the target of a move."""
        count = self.store.end_move(queue, died)
        self._audit(queue)
        return count

    # -- topology and register

    def declare(
        self, queue: str = "q", arguments: bytes = b"", *, passive: bool = False, **meta: str
    ) -> tuple[str, int, int, bytes]:
        """Declare a queue; *meta* is the part of the arguments that the scripts need."""
        declared = self.store.declare_queue(queue, passive, arguments, meta)
        self._audit(queue)
        return declared

    def configure(self, queue: str = "q", **changes: str | None) -> dict[str, str] | None:
        """Change fields of a queue that scripts use; return all, or None without the queue."""
        fields = self.store.configure(queue, changes)
        self._audit(queue)
        return fields

    def delete(self, queue: str = "q", **conditions: bool) -> tuple[str, int]:
        """Delete a queue."""
        deleted = self.store.delete_queue(queue, **conditions)
        self._audit(queue)
        return deleted

    def purge(self, queue: str = "q") -> int:
        """Purge a queue."""
        purged = self.store.purge(queue)
        self._audit(queue)
        return purged

    def pause(self, paused: bool, queue: str = "q") -> bool:
        """Pause or resume a queue."""
        done = self.store.pause(queue, paused)
        self._audit(queue)
        return done

    def duties(
        self, consumer: str, ttl_ms: int = LONG_MS, again_ms: int = LONG_MS, **record: str
    ) -> Duties:
        """Send a heartbeat, and wait; return the duties that queues need from living consumers."""
        record = {"client_id": "1", "run_id": "r", "queues": ""} | record
        result: list[Duties] = self._wait(
            lambda on_result: self.store.post_heartbeat(
                consumer, ttl_ms, again_ms, record, on_result
            )
        )
        return result[0]

    def heartbeat(self, consumer: str, ttl_ms: int = LONG_MS, **arguments: Any) -> list[str]:
        """Send a heartbeat, and wait; return the queues to check now."""
        return self.duties(consumer, ttl_ms, **arguments).due

    def survey(self, *queues: str) -> dict[str, Work]:
        """Query the work to do in *queues*, and wait."""
        results: list[dict[str, Work]] = self._wait(
            lambda on_result: self.store.post_survey(queues or ("q",), on_result)
        )
        return {queue: work for result in results for queue, work in result.items()}

    def snapshot(self, *queues: str, every_ms: int = 60_000) -> list[int]:
        """Record the counts of *queues*, and wait."""
        return self._wait(
            lambda on_result: self.store.post_snapshots(queues or ("q",), on_result, every_ms)
        )

    # -- reading

    def places(self, queue: str = "q") -> dict[str, int]:
        """Return the number of messages per place, without empty places."""
        status = self.store.reads.status(queue)
        assert status is not None
        return {place: n for place in PLACES if (n := getattr(status, place))}

    def ledger(self, counter: str, queue: str = "q") -> int:
        """Return one counter of the ledger."""
        status = self.store.reads.status(queue)
        assert status is not None
        return status.ledger.get(counter, 0)

    def take_notification(self, queue: str) -> None:
        """Take the token of a queue's notification, like a waiting consumer that dies."""
        self.store.notifier.listen([queue], 5.0)
        self.wait_to_the_end()
        self.store.notifier.take_notification()

    def wait_to_the_end(self) -> None:
        """Wait until the notifier's wait ends; a node's reply or a new connection interrupts it."""

        def is_over() -> bool:
            self.store.receive()
            return self.store.notifier.wait(1.0)

        wait_until(is_over)

    # -- waiting

    def pass_time(self, ms: int) -> None:
        """Wait until *ms* have passed on the broker's clock, measured in a separate queue."""
        self.publish(message("clock", ttl_ms=ms))
        wanted = self.ledger("expired", "clock") + 1
        wait_until(
            lambda: self.promote("clock") and self.ledger("expired", "clock") == wanted,
            interval_s=0.002,
        )

    # -- internals

    def _wait(self, post: Callable[[Callable[[Any], None]], None]) -> list[Any]:
        results: list[Any] = []
        post(results.append)
        self.store.wait_for_replies()
        for result in results:
            if isinstance(result, ReliqError):
                raise result
        return results

    def _audit(self, *queues: str) -> None:
        self._touched.update(queues)
        audit(self.store, self._touched)


def audit(store: Store, queues: Iterable[str]) -> None:
    """Fail unless the published messages are exactly those that left and those that are stored."""
    for queue in queues:
        status = store.reads.status(queue)
        if status is None:
            continue
        here = {place: getattr(status, place) for place in PLACES}
        left = {counter: status.ledger.get(counter, 0) for counter in _LEFT}
        account = sum(here.values()) + sum(left.values())
        assert status.ledger.get("published", 0) == account, (queue, here, left)
        assert status.stored == sum(here.values()), (queue, here)
        held = [*store.leases_of(queue, "s/"), *store.leases_of(queue, "move/")]
        assert status.unacked == len(held), (queue, here)
        waiting_bytes = status.ledger.get("waiting_bytes", 0)
        assert waiting_bytes >= 0, (queue, waiting_bytes)
        if not status.ready + status.delayed:
            assert 0 == waiting_bytes, queue

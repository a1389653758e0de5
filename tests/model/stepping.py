"""One step of the model: taken on the broker and in the oracle, and compared in full.

The shared state of the machine's rules: numbered consumers, all leases and tags that were given
out, and the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from reliq.errors import ReliqError
from reliq.values.limits import OUTLIVES_MS
from tests.model.snapshot import Snapshot
from tests.model.terms import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.values.protocol import Store
    from reliq.values.values import Delivery, Lease, Publication
    from tests.model.brokers import Broker
    from tests.model.oracle import QueueOracle
    from tests.model.terms import Settings

QUEUE, OTHER = "q", "other"
CONSUMERS = (1, 2, 3)

consumers = st.sampled_from(CONSUMERS)
# Indexes into a list of known items, counted from the newest.
picks = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def picked_of(known: list[Any], picked: list[int]) -> list[Any]:
    """Return the items at the picked indexes, counted from the newest, each once."""
    return list(dict.fromkeys(known[-1 - pick % len(known)] for pick in picked)) if known else []


class Stepping(RuleBasedStateMachine):
    """A state machine without rules; a subclass sets `broker`."""

    broker: ClassVar[Broker]
    settings: Settings
    oracle: QueueOracle
    other: QueueOracle
    """Another queue, to which dead letters are moved."""
    version: bytes

    def __init__(self) -> None:
        super().__init__()
        self.broker.clear()
        self.clock = self.broker.clock
        self.names: dict[int, str] = {}
        self.leases: list[Lease] = []
        """All leases that were given out, oldest first."""
        self.finished: dict[str, Delivery] = {}
        """The messages reserved with no_ack, by tag."""
        self.tags: list[str] = []
        """The tags of all published messages, oldest first."""
        self.retriable: dict[str, list[Publication]] = {}
        """For each publisher, the publications that it may still retry."""
        self.since_gone_ms: int | None = None
        """The time since the queue was deleted, even if it exists again; None: never deleted."""
        self.made = 0
        self._generation = 0
        for number in CONSUMERS:
            self.rename(number)

    # -- consumers

    def rename(self, number: int) -> None:
        """Replace a consumer by a new one."""
        self._generation += 1
        self.names[number] = f"c{self._generation}/{number}"

    def store(self, number: int = 1) -> Store:
        """Return the connection of a consumer."""
        return self.broker.store(self.settings, number, self.names[number])

    # -- one step

    def step(
        self,
        what: str,
        act: Callable[[], Any],
        expect: Callable[[int], Any],
        queue: str = QUEUE,
    ) -> Any:
        """Do *act* on the broker; fail unless its answer and state are those of *expect*.

        *expect* gets the time of the step and returns the answer. See `posted` for steps that do
        not wait for a reply.
        """
        self._steady()
        answer = act()
        note(f"{what} -> {answer}")
        expected = expect(self.clock.now)
        assert expected == answer, f"{what}: expected {expected}, got {answer}"
        oracle = self.oracle if queue == QUEUE else self.other
        found = self.broker.snapshot(queue)
        found.check()
        differences = found.differences(Snapshot.expected(oracle, self.clock.now))
        assert not differences, f"after {what}: " + "; ".join(differences)
        if not self.oracle.exists and self.since_gone_ms is None:
            self.since_gone_ms = 0
        return answer

    def posted(self, store: Store, post: Callable[[Callable[[Any], None]], None]) -> Any:
        """Return the one result of a posted step."""
        results: list[Any] = []
        post(results.append)
        store.wait_for_replies()
        (result,) = results
        if isinstance(result, ReliqError):
            raise result
        return result

    def teardown(self) -> None:
        """Compare the status that operators see."""
        if not hasattr(self, "oracle"):
            return
        status = self.store().reads.status(QUEUE)
        assert (status is not None) == self.oracle.exists
        if status is not None:
            told = [getattr(status, place) for place in PLACES]
            assert [len(self.oracle.at(place)) for place in PLACES] == told
            assert len(self.oracle.messages) == status.stored
            assert self.oracle.paused == status.paused

    # -- time

    def pass_time(self, ms: int) -> None:
        """Advance the clock by *ms*."""
        self.clock.advance(ms)
        note(f"+ {ms} ms")
        # Numbers outlive their queue only for a while. The result of a later retry is not defined.
        if self.since_gone_ms is not None:
            self.since_gone_ms += ms
            if self.since_gone_ms >= OUTLIVES_MS:
                self.retriable.clear()
                self.since_gone_ms = None

    def _steady(self) -> None:
        """Keep the mutex from expiring while a step is on its way."""
        _, lapses = self.oracle.mutex or ("", 0)
        if abs(lapses - self.clock.now) <= self.clock.lapses_within_ms:
            self.pass_time(lapses - self.clock.now + self.clock.lapses_within_ms + 1)
        self.broker.hold_mutex(QUEUE, lapses - self.clock.now)

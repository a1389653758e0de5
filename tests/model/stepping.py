"""One step of the model: taken on the broker, said by the oracle, compared in full.

What the rules of the machine share: consumers by number, all that was ever given out,
and the time at which a step is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from reliq.errors import ReliqError
from reliq.store.limits import OUTLIVES_MS
from tests.model.snapshot import Snapshot
from tests.model.terms import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.store.protocol import Store
    from reliq.store.values import Delivery, Lease, Publication
    from tests.model.brokers import Broker
    from tests.model.oracle import QueueOracle
    from tests.model.terms import Settings

QUEUE, OTHER = "q", "other"
CONSUMERS = (1, 2, 3)

consumers = st.sampled_from(CONSUMERS)
# Which of what is known, counted from the newest.
picks = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def picked_of(known: list[Any], picked: list[int]) -> list[Any]:
    """Return those of what is known, by how new they are, each once."""
    return list(dict.fromkeys(known[-1 - pick % len(known)] for pick in picked)) if known else []


class Stepping(RuleBasedStateMachine):
    """A state machine without rules; `broker` is what a subclass drives."""

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
        """Every lease that was ever given out, oldest first."""
        self.finished: dict[str, Delivery] = {}
        """What was taken with no_ack, by tag."""
        self.tags: list[str] = []
        """Of every message that was ever published, oldest first."""
        self.retriable: dict[str, list[Publication]] = {}
        """By publisher: what it may still publish again."""
        self.since_gone_ms: int | None = None
        """For how long the queue is gone, or was and is there again; None: it was not."""
        self.made = 0
        self._generation = 0
        for number in CONSUMERS:
            self.rename(number)

    # -- consumers

    def rename(self, number: int) -> None:
        """Let a consumer that was never there before take the place of this one."""
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
        """Do *act* on the broker; fail unless it answers, and leaves, what *expect* says.

        *expect* is told the time of the step and returns the answer; see `posted` for
        steps that are not waited for.
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
        """Compare what operators are told."""
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
        """Let so much time pass."""
        self.clock.advance(ms)
        note(f"+ {ms} ms")
        # What a retry finds then is not said: numbers outlive their queue for a while only.
        if self.since_gone_ms is not None:
            self.since_gone_ms += ms
            if self.since_gone_ms >= OUTLIVES_MS:
                self.retriable.clear()
                self.since_gone_ms = None

    def _steady(self) -> None:
        """See that the mutex does not lapse while a step is on its way."""
        _, lapses = self.oracle.mutex or ("", 0)
        if abs(lapses - self.clock.now) <= self.clock.lapses_within_ms:
            self.pass_time(lapses - self.clock.now + self.clock.lapses_within_ms + 1)
        self.broker.hold_mutex(QUEUE, lapses - self.clock.now)

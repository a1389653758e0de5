"""The rules for operators, the notification, and time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.oracle import QueueOracle
from tests.model.stepping import QUEUE, Stepping, consumers

# Actions of operators; the more an action removes, the rarer it is.
ORDERS = (*("resume",) * 3, "pause", "purge", "delete")


class Surroundings(Stepping):
    """Rules that neither hold nor publish messages."""

    # -- operators, and the notification

    @rule(order=st.sampled_from(ORDERS))
    def operate(self, order: str) -> None:
        """Pause, resume, purge or delete the queue."""
        if order in ("pause", "resume"):
            paused = order == "pause"
            self.step(
                order,
                lambda: self.store().pause(QUEUE, paused),
                lambda _: self.oracle.pause(paused),
            )
        elif order == "purge":
            self.step(order, lambda: self.store().purge(QUEUE), lambda _: self.oracle.purge())
        else:
            self.step(order, lambda: self.store().delete_queue(QUEUE), self._delete)
            self.tags = ["gone"]
            self.leases.clear()
            self.pass_time(1)

    def _delete(self, _: int) -> tuple[str, int]:
        found = self.oracle
        if not found.exists:
            return "missing", 0
        self.oracle = QueueOracle(self.settings, numbers=found.numbers, last_move=found.last_move)
        return "deleted", len(found.at("ready") + found.at("delayed"))

    @rule()
    def hear(self) -> None:
        """Take the token of the notification, as a waiting consumer does."""

        def expect(_: int) -> bool:
            notified, self.oracle.notification = self.oracle.notification, False
            return notified

        self.step("the notification", lambda: self.broker.take_notification(QUEUE), expect)

    @rule()
    def expire(self) -> None:
        """Remove expired messages, as happens in a queue without consumers."""
        store = self.store()
        self.step(
            "expire",
            lambda: self.posted(store, lambda on: store.post_expire(QUEUE, on)),
            self.oracle.expire,
        )

    @rule(
        number=consumers,
        heard=st.booleans(),
        paused=st.sampled_from((False, False, False, True)),
    )
    def survey(self, number: int, heard: bool, paused: bool) -> None:
        """Survey the queue: the answer is complete, and nothing changes.

        In some runs, the notification was taken and lost before, or the queue is paused.
        """
        store = self.store(number)
        if heard:
            self.hear()
        if paused:
            self.operate("pause")

        def ask() -> tuple[int, bool, bool] | None:
            work = self.posted(store, lambda on: store.post_survey([QUEUE], on)).get(QUEUE)
            if work is None:
                return None
            flags = work.flags
            return self._rounded(work.pass_ms), "expired" in flags, "job_events" in flags

        def expect(now: int) -> tuple[int, bool, bool] | None:
            work = self.oracle.survey(store.consumer, now)
            return None if work is None else (self._rounded(work[0]), *work[1:])

        self.step(f"{store.consumer} surveys", ask, expect)
        if paused:
            self.operate("resume")

    @staticmethod
    def _rounded(pass_ms: int) -> int:
        """Return the part of the answer that does not depend on the server's own clock."""
        return min(pass_ms, 1)

    # -- time

    @rule(ms=st.sampled_from((1, 40, 300, 1000, 31_000)))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.pass_time(ms)

    @rule(beyond=st.sampled_from((0, -1, 1)))
    def wait_for_something(self, beyond: int) -> None:
        """Let time pass until the next change, such as an expiry, or 1 ms before or after it."""
        now = self.clock.now
        ahead = min((m for m in self.oracle.boundaries() if m > now), default=now) - now
        if 0 < ahead + beyond < 6000:
            self.pass_time(ahead + beyond)

"""The state machine of batches: reports about jobs in any order, late, repeated and wrong.

It is separate from that of queues (:mod:`.machine`), because a batch knows only the reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from reliq.batches.callbacks import cancel_nested, publish_due
from reliq.batches.jobs import CALLBACKS, NESTED, OPEN, PARENT, Change, Note
from tests.model.jobs_oracle import BATCHES, CHILD, PARENT_BATCH, BatchOracle
from tests.model.terms import Settings

if TYPE_CHECKING:
    from reliq.batches.jobs import Callback
    from reliq.values.protocol import Store
    from tests.model.brokers import Broker

JOBS = ("i", "j", "k")
OURS = tuple(f"05{0:012x}{who * 10}00000{number}j" for who in "ab" for number in (1, 2))
"""The tags of two publishers."""
TAGS = ("t", "t", "u", *OURS)
SETTINGS = Settings(2, 2, 5000, 30_000)

batches = st.sampled_from((PARENT_BATCH, PARENT_BATCH, PARENT_BATCH, CHILD))
jobs = st.sampled_from(JOBS)
queues = st.sampled_from(("q", "q", "q", "r", ""))
tries = st.sampled_from((0, 0, 0, 1, 2))
tokens = st.sampled_from((0, 1, 2, 3))


def changes_of(what: str, states: tuple[str, ...] = ("",), text: str = "") -> Any:
    """Return a strategy for changes of one kind."""
    state, tag = st.sampled_from(states), st.sampled_from(TAGS)
    return st.builds(Change, st.just(what), jobs, state, tries, tokens, tag, queues, st.just(text))


ends = changes_of("end", ("succeeded", "succeeded", "failed", "error", "lost", "cancelled"), "why")
changes = st.one_of(
    changes_of("enter", ("waiting", "delayed")),
    changes_of("enter", ("waiting",)),
    changes_of("enter", ("waiting",), text="more"),
    changes_of("withdraw"),
    changes_of("begin", text="worker"),
    changes_of("begin", text="worker"),
    changes_of("return"),
    ends,
    ends,
    changes_of("replay"),
    changes_of("replay", text="t"),
    st.sampled_from((Change("seal"), Change("seal", tag=OURS[0]), Change("cancel"))),
)


class JobsModel(RuleBasedStateMachine):
    """The rules; a subclass sets `broker`."""

    broker: ClassVar[Broker]

    def __init__(self) -> None:
        super().__init__()
        self.broker.clear()
        self.clock = self.broker.clock
        self.oracles: dict[str, BatchOracle] = {}
        self.listed: dict[str, int] = {}
        """For each batch, the time at which it is next due for a check."""

    @property
    def store(self) -> Store:
        """The connection."""
        return self.broker.store(SETTINGS, 1, "c1/1")

    def step(self, what: str, answer: Any, expected: Any) -> None:
        """Fail unless the broker's answer and its stored state are the expected ones."""
        note(f"{what} -> {answer}")
        assert expected == answer, f"{what}: expected {expected}, got {answer}"
        for name in BATCHES:
            is_, oracle = self._shown(name), self.oracles.get(name)
            wanted = None if oracle is None else oracle.shown()
            if is_ != wanted:
                keys = sorted((is_ or {}).keys() | (wanted or {}).keys())
                differs = [
                    f"{key}: expected {(wanted or {}).get(key)}, is {(is_ or {}).get(key)}"
                    for key in keys
                    if (is_ or {}).get(key) != (wanted or {}).get(key)
                ]
                raise AssertionError(f"after {what}, batch {name}: " + "; ".join(differs))
        assert set(self.oracles) == set(self.store.batches.batches(10))

    def _shown(self, name: str) -> dict[str, Any] | None:
        """Return the broker's report of a batch; None if there is no such batch."""
        seen = self.store.batches
        record = seen.batch(name)
        if record is None:
            assert [] == [job for part in seen.jobs(name) for job in part]
            assert ([], [], []) == (
                seen.failures(name, 9),
                seen.progress(name, 9),
                seen.reports(name, 9),
            )
            return None
        found = [job for part in seen.jobs(name) for job in part]
        assert record.total == len({job.id for job in found})
        return {
            "counts": record.counts,
            "times": (
                record.created_ms,
                record.sealed_ms,
                record.cancelled_ms,
                record.ended_ms,
            ),
            "due": set(record.due),
            "due_since": record.due_since_ms,
            "said": set(record.published),
            "heard": record.heard_ms,
            "jobs": {
                job.id: (
                    job.state,
                    job.retries,
                    job.token,
                    job.since_ms,
                    job.tag,
                    job.queue,
                    job.worker or job.before,
                )
                for job in found
            },
            "failures": seen.failures(name, 9),
            "progress": [tuple(one) for one in seen.progress(name, 9)],
            "reports": [tuple(one) for one in seen.reports(name, 999)],
        }

    # -- a batch

    @initialize(first=st.lists(changes, max_size=6))
    def begin(self, first: list[Change]) -> None:
        """Open the parent."""
        self.open(PARENT_BATCH)
        if first:
            self.change(PARENT_BATCH, first, "")

    @rule(name=batches)
    def open(self, name: str) -> None:
        """Open a batch, perhaps again; the child is a job of the parent."""
        fields = {"own": name, **({PARENT: PARENT_BATCH} if name == CHILD else {})}
        is_new = name not in self.oracles
        if is_new:
            self.oracles[name] = BatchOracle(self.clock.now, fields)
            self.listed[name] = self.clock.now
        self.step(f"open {name}", self.store.batches.open_batch(name, "test", fields), is_new)
        if is_new and name == CHILD:
            self.change(PARENT_BATCH, [Change("enter", CHILD, "waiting", tag=NESTED)], "")

    @rule(
        name=batches,
        some=st.lists(changes, min_size=1, max_size=4),
        by=st.sampled_from(("", *JOBS)),
    )
    def change(self, name: str, some: list[Change], by: str) -> None:
        """Report changes of jobs."""
        answer = self.store.batches.change(name, some, by=by)
        oracle = self.oracles.get(name)
        expected = None if oracle is None else oracle.change(some, by, self.clock.now)
        short = [" ".join(map(str, filter(None, one))) for one in some]
        self.step(f"{name}: {short}, by {by!r}", answer and tuple(answer), expected)

    @precondition(lambda self: any(one.jobs for one in self.oracles.values()))
    @rule(name=batches, job=jobs, late=st.sampled_from((0, 0, 0, 1)))
    def lose(self, name: str, job: str, late: int) -> None:
        """Report a job as lost, in the state in which it was seen."""
        known = self.oracles[name].jobs.get(job) if name in self.oracles else None
        if known is not None:
            seen = str(known.since - late)
            self.change(name, [Change("lose", job, tag=known.tag, text=seen)], "")

    @rule(name=batches, ago=st.sampled_from((-1, 0, 1, 100)))
    def settle(self, name: str, ago: int) -> None:
        """Declare that all jobs entered before a given time have been looked for."""
        self.change(name, [Change("settle", text=str(self.clock.now - ago))], "")

    @precondition(lambda self: any(one.jobs for one in self.oracles.values()))
    @rule(name=batches, job=jobs, how=st.sampled_from(("succeeded", "failed", "error", "replay")))
    def go_on(self, name: str, job: str, how: str) -> None:
        """Begin, end or replay the known delivery of a job, as usually happens."""
        known = self.oracles[name].jobs.get(job) if name in self.oracles else None
        if known is None or not (known.is_open or how == "replay"):
            return
        where = (known.tag or "t", known.queue)
        if how == "replay":
            again = Change("replay", job, "", known.retries, known.token + 1, *where)
            self.change(name, [again], "")
            return
        if known.state == "working":
            step = Change("end", job, how, known.retries, known.token, *where, "why")  # type: ignore[arg-type]
        else:
            step = Change("begin", job, "", known.retries, known.token + 1, *where, "worker")
        self.change(name, [step], "")

    # -- actions on a batch

    @rule(name=batches)
    def publish_due(self, name: str) -> None:
        """Publish each due callback once, and report the end to the parent."""
        record, oracle = self.store.batches.batch(name), self.oracles.get(name)
        if record is None or oracle is None:
            return
        publish_due(self.store, record)
        self._say(oracle)
        self.step(f"{name}: what is due is published", None, None)

    def _say(self, oracle: BatchOracle) -> None:
        for callback in CALLBACKS:
            if callback in oracle.due:
                if callback != "failure":
                    self._tell_parent(oracle)
                oracle.say(callback)

    def _tell_parent(self, child: BatchOracle) -> None:
        parent, told = self.oracles.get(PARENT_BATCH), child.end_in_parent()
        if parent is not None and told and parent.change(told, "", self.clock.now)[2]:
            self._say(parent)

    @rule(name=batches, callback=st.sampled_from(CALLBACKS))
    def say(self, name: str, callback: Callback) -> None:
        """Record a callback as published, perhaps one that is not due, or again."""
        self.store.batches.note_published(name, callback)
        if name in self.oracles:
            self.oracles[name].say(callback)
        self.step(f"{name}: {callback} is said", None, None)

    @rule()
    def cancel(self) -> None:
        """Cancel a batch, and the batches that are open jobs of it."""
        self.change(PARENT_BATCH, [Change("cancel")], "")
        cancel_nested(self.store, PARENT_BATCH)
        parent, child = (self.oracles.get(name) for name in BATCHES)
        job = parent.jobs.get(CHILD) if parent is not None else None
        cancelled = child is not None and job is not None and job.state in OPEN
        if cancelled and child.change([Change("cancel")], "", self.clock.now)[2]:
            self._say(child)
        self.step("those in it are cancelled", None, None)

    @rule(
        name=batches,
        job=jobs,
        retries=tries,
        token=tokens,
        queue=queues,
        progress=st.sampled_from((None, (1.0, 2.0, "half"), (2.0, 2.0, ""))),
        report=st.sampled_from(("", "", "price is missing")),
        times=st.sampled_from((1,) * 9 + (25,)),
    )
    def say_of_itself(
        self,
        name: str,
        job: str,
        retries: int,
        token: int,
        queue: str,
        progress: Any,
        report: str,
        times: int,
    ) -> None:
        """Record a job's own progress or report, up to the limit of reports and beyond."""
        oracle = self.oracles.get(name)
        known = oracle.jobs.get(job) if oracle is not None else None
        if times > 1 and known is not None:
            retries, token, queue, report = known.retries, known.token, known.queue, "again"
        said = Note(job, retries, token, queue, progress, report)
        for _ in range(times):
            answer = self.store.batches.note(name, said)
            expected = oracle is not None and oracle.note(said, self.clock.now)
            assert expected == answer, f"{name}: {said}: expected {expected}, got {answer}"
        self.step(f"{name}: {said} {times} times", answer, expected)

    @rule(name=batches)
    def forget(self, name: str) -> None:
        """Remove a batch."""
        self.store.batches.forget_batch(name)
        self.oracles.pop(name, None)
        self.listed.pop(name, None)
        self.step(f"{name} is forgotten", None, None)
        self.clock.advance(1)

    @rule(limit=st.integers(0, 3), again_ms=st.sampled_from((0, 100, 1000)))
    def look(self, limit: int, again_ms: int) -> None:
        """Take batches that are due for a check, those with the longest wait first."""
        now = self.clock.now
        due = sorted((at, name) for name, at in self.listed.items() if at <= now)
        answer = self.store.batches.next_batches(limit, again_ms)
        taken = due[:limit]
        for _, name in due:
            if name in answer:
                self.listed[name] = now + again_ms
        # Among batches with equally long waits, any choice is right.
        same = [at for at, _ in taken] == sorted(at for at, name in due if name in answer)
        self.step(
            f"take {limit} for {again_ms} ms -> {answer}", (len(answer), same), (len(taken), True)
        )

    @rule(ms=st.sampled_from((1, 100, 1000)))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms)
        note(f"+ {ms} ms")


def jobs_machine_for(running: Broker) -> type[JobsModel]:
    """Return the state machine of batches that drives this broker."""
    return type("JobsModel", (JobsModel,), {"broker": running})

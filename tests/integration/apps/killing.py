"""Points at which a process, or its broker, is killed: between two steps of a job or a batch.

A step is the effect of a call of the store, derived from its arguments: "enter" is the change
that enters a job, over any engine. A point is therefore found under any name of the
surrounding code. A point that is never reached fails its test, because no process was killed.
Before the kill, the process reads the state of the job and its message over a separate
connection, and writes it to the test's folder. This shows that the point is the intended one.
"""

from __future__ import annotations

import json
import os
import signal
import time
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from reliq.batches.jobs import NESTED
from reliq.client.cluster.wire import ClusterWire
from reliq.client.wire import Wire
from reliq.message.envelope import decode
from reliq.store.batches import RedisBatches
from reliq.store.cluster.reads import ClusterBatches
from reliq.store.cluster.store import ClusterStore
from reliq.store.store import RedisStore
from reliq.store.urls import connect
from reliq.values.job_headers import job_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BEFORE, SENT, AFTER, HANDLED = "before", "sent", "after", "handled"
"""For a posted step, *sent* is when it is posted; *after* and *handled* surround its reply."""
STEPS = frozenset(
    {
        *("listed", "open", "enter", "withdraw", "begin", "return", "end", "lose", "replay"),
        *("seal", "cancel", "tell", "note", "said", "publish", "retry", "callback", "reserve"),
        *("ack", "release", "dead-letter", "read", "forget-events", "forget"),
        *("unlink", "nested-enter", "nested-end", "nested-replay", "nested-lose"),
    }
)


class Point(NamedTuple):
    """A place where the process is killed, once."""

    step: str
    when: str
    number: int = 1
    """Number of the pass through this point at which the process is killed."""
    who: str = ""
    """Process of a worker, "parent" or "child"; "" for any process."""
    name: str = ""
    """The batch."""
    queue: str = ""
    """The queue of its jobs; "" if it has the name of the batch."""


class Step(NamedTuple):
    """The effect of a call."""

    step: str
    name: str
    job: str = ""
    tag: str = ""


# -- the step of a call


def _of_changes(_: Any, batch: str, changes: Any, *__: Any, **___: Any) -> Iterator[Step]:
    for change in changes:
        what = "tell" if (change.what, change.state) == ("end", "lost") else change.what
        if change.tag == NESTED:
            yield Step(f"nested-{what}", batch, change.job)
        else:
            yield Step(what, batch, change.job, change.tag)


def _of_publish(_: Any, publications: Any) -> Iterator[Step]:
    for item in publications:
        if item.publisher.startswith("batch:"):
            yield Step("callback", item.publisher.removeprefix("batch:").rpartition(":")[0])
        found = job_of(decode(item.envelope).headers)
        if found is not None:
            yield Step("retry" if found[2] else "publish", found[0], found[1], item.tag)


def _of_ack(_: Any, queue: str, tags: Any, *__: Any) -> Iterator[Step]:
    for tag in tags:
        yield Step("ack", queue, tag=tag)


def _of_events(_: Any, queue: str, *__: Any) -> Iterator[Step]:
    yield Step("forget-events", queue)


def _of_leases(step: str) -> Callable[..., Iterator[Step]]:
    def of(_: Any, queue: str, *rest: Any) -> Iterator[Step]:
        (leases,) = (one for one in rest if isinstance(one, list))
        for lease in leases:
            yield Step(step, queue, tag=lease.tag)

    return of


def _of_batch(step: str) -> Callable[..., Iterator[Step]]:
    def of(_: Any, batch: str, *__: Any, **___: Any) -> Iterator[Step]:
        yield Step(step, batch)

    return of


def _of_note(_: Any, batch: str, note: Any) -> Iterator[Step]:
    yield Step("note", batch, note.job)


def _of_unlink(_: Any, command: Any, *__: Any) -> Iterator[Step]:
    if command[0] == "UNLINK":
        yield Step("unlink", command[1].partition("{")[2].partition("}")[0])


def _of_reservation(_: Any, queue: str, *__: Any) -> Iterator[Step]:
    yield Step("reserve", queue)


def _of_reading(_: Any, queue: str, *__: Any) -> Iterator[Step]:
    yield Step("read", queue)


def _brought(result: Any) -> bool:
    """Return whether a reserve, or a read, has returned something."""
    return bool(getattr(result, "deliveries", result))


_OF_BATCHES = {
    "open_batch": _of_batch("open"),
    "change": _of_changes,
    "post_change": lambda store, batch, change, *_: _of_changes(store, batch, (change,)),
    "note_published": _of_batch("said"),
    "note": _of_note,
    "forget_batch": _of_batch("forget"),
}
_OF_STORE = {
    "publish": _of_publish,
    "reserve": _of_reservation,
    "post_reserve": _of_reservation,
    "post_ack": _of_ack,
    "release": _of_leases("release"),
    "dead_letter": _of_leases("dead-letter"),
    "job_events": _of_reading,
    "forget_job_events": _of_events,
}
_BRINGS = {"reserve", "read"}


# -- the killer


class Killer:
    """Kills at points, each once, in the first process of ours that reaches it."""

    def __init__(self, points: list[Point], directory: Path, url: str) -> None:
        for point in points:
            if point.step not in STEPS or point.when not in {BEFORE, SENT, AFTER, HANDLED}:
                raise ValueError(f"there is no such point: {point}")
        self._points = points
        self._directory = directory
        self._url = url
        self._first = os.getpid()
        self._came = dict.fromkeys(points, 0)

    def arm(self) -> None:
        """Let the engine of the URL call this object at each step."""
        batches, store, wire = _classes(self._url)
        for name, steps in _OF_BATCHES.items():
            self._wrap(batches, name, steps)
        for name, steps in _OF_STORE.items():
            self._wrap(store, name, steps)
        self._wrap(batches, "_list", _of_batch("listed"))
        self._wrap(wire, "call", _of_unlink)

    def _wrap(self, owner: type, name: str, steps_of: Callable[..., Iterator[Step]]) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            steps = list(steps_of(*args, **kwargs))
            self._at(BEFORE, steps)
            if name.startswith("post_"):
                args = tuple(self._heard(one, steps) if callable(one) else one for one in args)
            found = function(*args, **kwargs)
            self._at(SENT if name.startswith("post_") else AFTER, steps, found)
            return found

        setattr(owner, name, called)

    def _heard(self, on_result: Callable[[Any], None], steps: list[Step]) -> Callable[[Any], None]:
        def heard(result: Any) -> None:
            if not isinstance(result, Exception):
                self._at(AFTER, steps, result)
            on_result(result)
            if not isinstance(result, Exception):
                self._at(HANDLED, steps, result)

        return heard

    def _at(self, when: str, steps: list[Step], result: Any = True) -> None:
        """Kill if a point is reached."""
        process = "parent" if os.getpid() == self._first else "child"
        for point in self._points:
            for step in steps:
                if (point.step, point.when) != (step.step, when):
                    continue
                if step.name not in {"", point.name, point.queue}:
                    continue
                if point.who not in {"", process}:
                    continue
                if when != BEFORE and step.step in _BRINGS and not _brought(result):
                    continue
                self._came[point] += 1
                if self._came[point] == point.number:
                    self._kill(point, step)

    def _kill(self, point: Point, step: Step) -> None:
        mark = self._directory / f"{point.name}.killed"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return  # another process has handled the point
        victim = self._directory / f"{point.name}.victim"
        seen = _look(self._url, point, step) if step.name else {}
        mark.write_text(json.dumps({"point": point, "step": step, **seen}) + "\n")
        if not victim.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        pid, port, key = json.loads(victim.read_text())
        if key:
            _replicate(port, key)
        os.kill(pid, signal.SIGKILL)
        while _lives(pid):
            time.sleep(0.001)


def _replicate(port: int, key: str) -> None:
    """Wait until a replica has all data of the node of *key*, which otherwise is lost with it."""
    with redis.Redis(port=port, single_connection_client=True) as client:
        client.set(key, "")
        if client.execute_command("WAIT", 1, 20_000) < 1:
            raise RuntimeError(f"no replica of the node at {port} has {key}")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def _classes(url: str) -> tuple[type, type, type]:
    if url.startswith("reliq-cluster"):
        return ClusterBatches, ClusterStore, ClusterWire
    return RedisBatches, RedisStore, Wire


def _look(url: str, point: Point, step: Step) -> dict[str, Any]:
    """Return the state of a job and its message; the open connection ends with the process."""
    store = connect(url, {}, "look")
    queue = point.queue or point.name
    record = store.batches.batch(point.name)
    jobs = {job.id: job for part in store.batches.jobs(point.name) for job in part}
    by_tag = {job.tag: job for job in jobs.values() if job.tag}
    job = jobs.get(step.job) or by_tag.get(step.tag)
    tag = step.tag or (job.tag if job is not None else "")
    place = store.reads.whereabouts(queue, [tag]).get(tag) if tag else None
    return {
        "batch": None if record is None else {k: v for k, v in record.counts.items() if v},
        "due": [] if record is None else record.due,
        "said": [] if record is None else record.published,
        "state": job and job.state,
        "message": place,
        "stored": (found.stored if (found := store.reads.status(queue)) is not None else 0),
    }

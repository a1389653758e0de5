"""Batch: what a producer does with it, over a connection of its own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from typing_extensions import Self

from ..claims import opener
from ..errors import ConfigurationError, NotFound, ReliqError
from ..forks import here
from ..integrations.connections import current_app, current_connection
from ..integrations.job_runs import RUNNING
from ..integrations.outcomes import Membership, adding_to, membership
from ..many import publish_many
from ..message.delivery_tag import new_tag
from ..store.batch_info import BatchInfo
from ..store.jobs import CALLBACKS, NESTED, PARENT, Change, is_id
from ..transfer.batch_callbacks import cancel_nested
from ..transfer.batch_callbacks import change as change_batch
from ..transports.jobs import enter
from .arguments import checked_id, milliseconds, names_of, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ..store.jobs import BatchRecord, JobFailure, Progress, Report
    from ..store.protocol import Store

_DAY_S = 86_400.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class BatchStatus(BatchInfo):
    """One batch, and a part of what is known of its jobs."""

    failures: Sequence[JobFailure]
    """Jobs that failed or ended in error, the last first."""
    progress: Sequence[Progress]
    """How far jobs are, those first that reported it last."""
    messages: Sequence[Report]
    """What jobs reported, the last first."""

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON can carry it. Times are ISO 8601, in UTC."""
        return {
            "id": self.id,
            "name": self.name,
            "counts": self.counts,
            "total": self.total,
            "done": self.done,
            "percent": self.percent,
            "created": _iso(self.created_ms),
            "sealed": _iso(self.sealed_ms),
            "cancelled_at": _iso(self.cancelled_ms),
            "ended": _iso(self.ended_ms),
            "failures": [_row(item) for item in self.failures],
            "progress": [_row(item) for item in self.progress],
            "messages": [_row(item) for item in self.messages],
        }


class Batch:
    """Tasks that are counted together.

    As a context manager it is opened, and what the block publishes joins it: also what another
    thread publishes in a block of ``batch.adding()``. At the end of the block it is sealed; where
    an exception leaves the block it stays open, and is sealed after *seal_timeout* seconds
    without a new job, or by hand.

    on_success, on_complete, on_failure: signatures of tasks, each published once, with the
    batch's id as their first argument: when all jobs have succeeded, when all have ended, when the
    first one failed. None of them before the seal. failures: exceptions, besides
    :class:`reliq.Failed`, that count as failures and not as errors, or their dotted names.
    batch_ttl: for how many seconds it is kept after its end. parent: the batch, or its id, whose
    job this one is; as a rule that of the block in which it is opened. app: the Celery app whose
    broker it is at, unless a *url* is given; as a rule that of a callback, or the current one.
    """

    def __init__(
        self,
        name: str = "",
        *,
        on_success: Any = None,
        on_complete: Any = None,
        on_failure: Any = None,
        failures: tuple[type[Exception] | str, ...] = (),
        seal_timeout: float = 3600.0,
        batch_ttl: float = 7 * _DAY_S,
        parent: Batch | str | None = None,
        id: str | None = None,  # noqa: A002 - what it is called
        app: Any = None,
        url: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = checked_id("id", id) if id else uuid4().hex
        self.name = "" if name == "" else checked_id("name", name)
        self._callbacks = dict(zip(CALLBACKS, (on_success, on_complete, on_failure), strict=True))
        self._failures = names_of(failures)
        self._seal_timeout_ms = milliseconds("seal_timeout", seal_timeout)
        self._ttl_ms = milliseconds("batch_ttl", batch_ttl)
        self._parent = parent.id if isinstance(parent, Batch) else parent
        if self._parent is not None:
            checked_id("parent", self._parent)
        # In a thread of its own the current application may be another one.
        signed = (getattr(one, "app", None) for one in self._callbacks.values())
        self._app = app or next(filter(None, signed), None)
        connection = current_connection if self._app is None else self._app.connection_for_write
        self._opener = opener("batch", url, transport_options, connection)
        self._store: Store | None = None
        self._block: AbstractContextManager[None] | None = None
        self._process = here()

    @classmethod
    def get(
        cls,
        id: str,  # noqa: A002 - what it is called
        *,
        app: Any = None,
        url: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> Batch:
        """Return the batch of that *id*, asking nothing yet; raises NotFound for what is no id."""
        if not is_id(id):
            raise NotFound(f"no batch {id!r:.100}: that is not the id of one")
        return cls(id=id, app=app, url=url, transport_options=transport_options)

    def __enter__(self) -> Self:
        """Open it; raises BrokerUnavailable, and ConfigurationError for an id that is taken.

        One that is a job of another is entered there. Raises BatchClosed where that takes no
        more jobs, NotFound where it is not at the same broker.
        """
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self._block, self._process = self.adding(), here()
        self._block.__enter__()
        return self

    def _open(self) -> None:
        around, running = membership(), RUNNING.get()
        parent = self._parent or (around.batch if around is not None else None)
        if parent == self.id:
            raise ConfigurationError(f"expected another batch as the parent of {self.id!r}")
        fields = {
            f"on_{name}": packed(one, self.id) for name, one in self._callbacks.items() if one
        }
        fields["seal_timeout_ms"], fields["ttl_ms"] = str(self._seal_timeout_ms), str(self._ttl_ms)
        if parent is not None:
            fields[PARENT] = parent
        store = self._connected()
        if not store.batches.open_batch(self.id, self.name, fields):
            raise ConfigurationError(f"there is a batch {self.id!r} already")
        if parent is not None:
            job = running.job if running is not None and running.batch == parent else ""
            try:
                with adding_to(Membership(parent, (), job)):
                    enter(store, ((parent, Change("enter", self.id, "waiting", tag=NESTED)),))
            except ReliqError:
                store.batches.forget_batch(self.id)
                raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Seal it, unless an exception leaves the block, or a child that was forked in it."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(exc_type, exc, traceback)
        try:
            if exc_type is None and self._process == here():
                self.seal()
        finally:
            self.close()

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Let the tasks that a block of this thread publishes join the batch."""
        running = RUNNING.get()
        job = running.job if running is not None and running.batch == self.id else ""
        with adding_to(Membership(self.id, self._failures, job)):
            yield

    def map(self, task: Any, iterable: Iterable[Any], **options: Any) -> int:
        """Publish a call of *task* for each item of *iterable*, as jobs; return how many.

        As :func:`reliq.publish_many` does, with its *options* and errors: hundreds at a time, and
        memory stays flat.
        """
        with self.adding():
            return publish_many(task, iterable, **options)

    def seal(self) -> None:
        """Say that there are no more jobs to come but by its own; harmless when repeated."""
        self._change(Change("seal", tag=new_tag(0, job=True)))  # by its publisher's name

    def cancel(self, *, terminate: bool = False, signal: str = "SIGTERM") -> None:
        """Have what waits dropped when it would begin; what runs sees ``reliq.cancelled()``.

        With *terminate* what runs is revoked, too, with *signal*, by the remote control of its
        app: a process of a prefork pool ends. Batches that are its jobs are cancelled like it.
        Raises ConfigurationError where there is no app.
        """
        app: Any = self._app or current_app()
        if terminate and app is None:
            raise ConfigurationError("expected an app, because Celery is not in use here, got none")

        def revoke(ids: list[str]) -> None:
            app.control.revoke(ids, terminate=True, signal=signal)

        self._change(Change("cancel"))
        cancel_nested(self._connected(), self.id, revoke if terminate else None)

    def _change(self, change: Change) -> None:
        if change_batch(self._connected(), self.id, change) is None:
            raise self._missing()

    def status(self, limit: int = _SHOWN, skip: int = 0) -> BatchStatus:
        """Return what is known of it now; raises NotFound for one that is not there any more.

        Of those that failed, of how far jobs are and of what they have reported it has the last
        *limit*, after *skip* others.
        """
        store, record, skip = self._connected(), self._record(), max(skip, 0)
        return BatchStatus.of(
            record,
            store.now_ms(),
            failures=store.batches.failures(self.id, limit, skip),
            progress=store.batches.progress(self.id, limit, skip),
            messages=store.batches.reports(self.id, limit, skip),
        )

    def wait(self, timeout: float | None = None) -> BatchStatus:
        """Return its status when it has ended; raises TimeoutError after *timeout* seconds."""
        until = None if timeout is None else monotonic() + timeout
        pause_s = _FIRST_PAUSE_S
        while not self._record().ended_ms:
            if until is not None and monotonic() >= until:
                raise TimeoutError(f"batch {self.id!r} has not ended within {timeout:g} s")
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return self.status()

    def close(self) -> None:
        """Close its connection; the next call opens one."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _record(self) -> BatchRecord:
        record = self._connected().batches.batch(self.id)
        if record is None:
            raise self._missing()
        return record

    def _missing(self) -> NotFound:
        return NotFound(
            f"no batch {self.id!r} at {self._connected().broker}: it was not opened, or its "
            "batch_ttl is over"
        )

    def _connected(self) -> Store:
        if self._store is None:
            self._store = self._opener()
        return self._store


def _row(item: JobFailure | Progress | Report) -> dict[str, Any]:
    row = item._asdict()
    return {**row, "at": _iso(row.pop("at_ms"))}


def _iso(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat()

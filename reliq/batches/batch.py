"""Batch: the interface for producers, over a connection of its own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from ..errors import BrokerTimeout, BrokerUnavailable, ConfigurationError, NotFound, ReliqError
from ..forks import here
from ..integrations.connections import current_app, current_connection
from ..integrations.job_runs import RUNNING
from ..message.delivery_tag import new_tag
from ..tasks.once import opener
from ..tasks.publish_many import publish_many
from ..values.job_headers import Membership, adding_to, membership
from .arguments import checked_id, milliseconds, names_of, packed
from .callbacks import cancel_nested
from .callbacks import change as change_batch
from .entries import enter
from .info import BatchInfo
from .jobs import CALLBACKS, NESTED, PARENT, Change, is_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

    from ..values.protocol import Store
    from .jobs import BatchRecord, JobFailure, Progress, Report

_T = TypeVar("_T")
_DAY_S = 86_400.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class BatchStatus(BatchInfo):
    """The state of one batch, and part of the state of its jobs."""

    failures: Sequence[JobFailure]
    """Jobs that failed or ended in an error, the latest first."""
    progress: Sequence[Progress]
    """The progress of jobs, the latest report first."""
    messages: Sequence[Report]
    """Messages that jobs reported, the latest first."""

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON-compatible values. Times are ISO 8601, in UTC."""
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

    Use a batch as a context manager. Entering the block opens the batch, and tasks published in
    the block join it, also from other threads in a block of ``batch.adding()``. The end of the
    block seals the batch. After an exception, it stays open: call ``batch.seal()``, or it is sealed
    after *seal_timeout* seconds without a new job.

    on_success, on_complete, on_failure: signatures of tasks, each published once after the seal
    with the batch's id as the first argument: when all jobs have succeeded, when all have ended,
    when the first one has failed. failures: exceptions, or their dotted names, that count as
    failures instead of errors, besides :class:`reliq.Failed`. batch_ttl: seconds for which the
    batch is kept after its end. parent: the batch, or its id, with this batch as a job. Defaults
    to that of the enclosing block. app: the Celery app with the batch's broker, unless *url* is
    given. Defaults to the app of a callback, or the current one.
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
        id: str | None = None,  # noqa: A002 - the public name
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
        # A separate thread may have another current app.
        signed = (getattr(callback, "app", None) for callback in self._callbacks.values())
        self._app = app or next(filter(None, signed), None)
        connection = current_connection if self._app is None else self._app.connection_for_write
        self._opener = opener("batch", url, transport_options, connection)
        self._store: Store | None = None
        self._block: AbstractContextManager[None] | None = None
        self._process = here()

    @classmethod
    def get(
        cls,
        id: str,  # noqa: A002 - the public name
        *,
        app: Any = None,
        url: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
    ) -> Batch:
        """Return the batch with this *id* without contacting the broker; raises NotFound."""
        if not is_id(id):
            raise NotFound(f"no batch {id!r:.100}: invalid id")
        return cls(id=id, app=app, url=url, transport_options=transport_options)

    def __enter__(self) -> Self:
        """Open the batch; raises BrokerUnavailable, and ConfigurationError for an existing id.

        A batch with a parent is added there as a job. Raises BatchClosed if the parent accepts no
        more jobs, and NotFound if it is not at the same broker.
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
            f"on_{name}": packed(task, self.id) for name, task in self._callbacks.items() if task
        }
        fields["seal_timeout_ms"], fields["ttl_ms"] = str(self._seal_timeout_ms), str(self._ttl_ms)
        if parent is not None:
            fields[PARENT] = parent
        store = self._connected()
        if not store.batches.open_batch(self.id, self.name, fields):
            raise ConfigurationError(f"batch {self.id!r} already exists")
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
        """Seal the batch, unless an exception or a forked child leaves the block."""
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
        """Let tasks published by a block of this thread join the batch."""
        running = RUNNING.get()
        job = running.job if running is not None and running.batch == self.id else ""
        with adding_to(Membership(self.id, self._failures, job)):
            yield

    def map(self, task: Any, iterable: Iterable[Any], **options: Any) -> int:
        """Publish a call of *task* for each item of *iterable*, as jobs; return the number.

        Like :func:`reliq.publish_many`, with its *options* and errors; memory stays constant.
        """
        with self.adding():
            return publish_many(task, iterable, **options)

    def seal(self) -> None:
        """Declare that only the batch's own jobs may add more jobs. Idempotent."""
        self._change(Change("seal", tag=new_tag(0)))  # named by its publisher

    def cancel(self, *, terminate: bool = False, signal: str = "SIGTERM") -> None:
        """Cancel the batch: waiting jobs are skipped, running jobs see ``reliq.cancelled()``.

        With *terminate*, running jobs are also revoked with *signal* through the app's remote
        control: in a prefork pool, their processes end. Nested batches are cancelled in the same
        way. Raises ConfigurationError with *terminate* if there is no app.
        """
        app: Any = self._app or current_app()
        if terminate and app is None:
            raise ConfigurationError("expected an app, because Celery is not in use here, got none")

        def revoke(ids: list[str]) -> None:
            app.control.revoke(ids, terminate=True, signal=signal)

        self._change(Change("cancel"))
        self._twice(lambda store: cancel_nested(store, self.id, revoke if terminate else None))

    def _change(self, change: Change) -> None:
        if self._twice(lambda store: change_batch(store, self.id, change)) is None:
            raise self._missing()

    def status(self, limit: int = _SHOWN, skip: int = 0) -> BatchStatus:
        """Return the current status; raises NotFound for a batch that does not exist.

        Includes the latest *limit* failures, progress entries and messages, after the first *skip*.
        """
        record, part = self._record(), (self.id, limit, max(skip, 0))
        return self._twice(
            lambda store: BatchStatus.of(
                record,
                store.now_ms(),
                failures=store.batches.failures(*part),
                progress=store.batches.progress(*part),
                messages=store.batches.reports(*part),
            )
        )

    def wait(self, timeout: float | None = None) -> BatchStatus:
        """Wait for the end; return the status. Raises TimeoutError after *timeout* seconds."""
        until = None if timeout is None else monotonic() + timeout
        pause_s = _FIRST_PAUSE_S
        while not self._record().ended_ms:
            if until is not None and monotonic() >= until:
                raise TimeoutError(f"batch {self.id!r} has not ended within {timeout:g} s")
            sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return self.status()

    def close(self) -> None:
        """Close the connection; the next call opens one."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _record(self) -> BatchRecord:
        record = self._twice(lambda store: store.batches.batch(self.id))
        if record is None:
            raise self._missing()
        return record

    def _missing(self) -> NotFound:
        return NotFound(
            f"no batch {self.id!r} at {self._connected().broker}: it was not opened, or its "
            "batch_ttl has passed"
        )

    def _twice(self, call: Callable[[Store], _T]) -> _T:
        """Return the result of a repeatable *call*; repeat it once if the connection was cut.

        A connection that was used within the last 20 ms is used unchecked.
        """
        store = self._connected()
        try:
            return call(store)
        except BrokerTimeout:
            raise
        except BrokerUnavailable:
            return call(store)

    def _connected(self) -> Store:
        if self._store is None:
            self._store = self._opener()
        return self._store


def _row(item: JobFailure | Progress | Report) -> dict[str, Any]:
    row = item._asdict()
    return {**row, "at": _iso(row.pop("at_ms"))}


def _iso(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat()

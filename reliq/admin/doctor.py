"""The doctor's checks of queues, consumers and batches; the engine checks the server."""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import __version__
from ..batches.jobs import CALLBACK_FIELD
from ..errors import BrokerRefused, BrokerUnavailable
from ..message.queue_arguments import is_durable
from ..printable import word
from ..values.inspection import Finding
from ..values.protocol import Attempt
from ..values.unreadable import number
from .audit import audit
from .batches import MOST, listed_records
from .limits import limits_of, unenforced
from .partitions import merged_measures
from .walking import page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..batches.jobs import BatchRecord
    from ..values.inspection import Consumer, QueueStatus
    from ..values.protocol import Store

# The seal_timeout of a batch without one.
_SEALED_WITHIN_MS = 3_600_000
# Consumers check each batch twice a minute, and publish due callbacks as soon as they know of them.
_DUE_MS = 180_000
_LONG_LEASE_S = 600
# Maximum batches (or messages) examined, and batches named.
_EXAMINED = 100
_NAMED = 5

_AGAIN = "fix the problem of the broker first, then run the check again"
_RIGHTS = "use a user with the rights that `reliq acl operator` prints"


def examine(store: Store) -> list[Finding]:
    """Return the finding of each check, with a remedy for each problem."""
    measures = store.reads.measure_all()
    statuses = measures.each(lambda measure: measure.status)
    merged = merged_measures(measures)
    whole = [measure.status for measure in merged]
    limited = [item.queue for item in limits_of(merged) if item.limited]
    return [
        *_unreachable("queues", statuses.unreachable),
        *_consumers(store, statuses, limited),
        *_installation(),
        *_or_ok(
            _queues(whole), "queues", f"{len(whole)}, none paused, unserved or with dead letters"
        ),
        *_ended_leases(store, statuses),
        *_batches(store),
        *_or_ok(_ledgers(statuses), "ledger", f"{len(statuses)} queues, all balanced"),
    ]


def refused(error: BrokerRefused | BrokerUnavailable) -> Finding:
    """Return the finding for queues that this user may not read, or whose node is lost."""
    remedy = f"{_RIGHTS}, and the right --prefix" if isinstance(error, BrokerRefused) else _AGAIN
    text = f"queues and consumers are unreadable: {error}"
    return Finding("queues", "error", text, remedy)


def _unreachable(check: str, items: Iterable[object]) -> Iterator[Finding]:
    for item in items:
        yield Finding(check, "error", f"some are unreadable: {item}", _AGAIN)


def _or_ok(findings: Iterable[Finding], check: str, text: str) -> list[Finding]:
    return list(findings) or [Finding(check, "ok", text)]


def _consumers(store: Store, statuses: list[QueueStatus], limited: list[str]) -> list[Finding]:
    """Check the consumers, if the node of their register answers."""
    with Attempt(store) as attempt:
        consumers = store.reads.consumers()
    if attempt.lost is not None:
        return [Finding("consumers", "error", f"unreadable: {attempt.lost}", _AGAIN)]
    gone = sum(not consumer.connected for consumer in consumers)
    rest = f"{gone} of them dead, with no messages to return" if gone else "all connected"
    return [
        *_or_ok(_stale(store, statuses, consumers), "consumers", f"{len(consumers)}, {rest}"),
        *_passes(consumers),
        *_or_ok(_options(consumers), "options", "consumers of one queue have the same options"),
        *_or_ok(_versions(consumers), "reliq", __version__),
        *_not_enforced(limited, consumers),
    ]


def _stale(
    store: Store, statuses: list[QueueStatus], consumers: list[Consumer]
) -> Iterator[Finding]:
    served = {queue for consumer in consumers if consumer.connected for queue in consumer.queues}
    # Count messages in durable queues without live consumers: last heartbeats may be outdated.
    waiting = {
        status.name: status.ready + status.delayed + status.unacked
        for status in statuses
        if status.name not in served and is_durable(status.declared)
    }
    for consumer in consumers:
        left = [queue for queue in consumer.queues if queue in waiting]
        wait = sum(waiting[queue] for queue in left)
        if consumer.connected or not wait:
            continue
        yield Finding(
            "consumers",
            "warning",
            f"consumer {consumer.id} is in the register without a connection: it was killed, "
            f"and {wait} messages wait in its queues",
            f"start a worker for {', '.join(left)}: it returns held messages within ten seconds",
        )
    known = {consumer.id for consumer in consumers}
    silent = defaultdict(list)
    for status in statuses:
        if status.consumers and status.name in waiting:
            for name in set(store.consumers_of(status.name)) - known:
                silent[name].append(status.name)
    for name, queues in sorted(silent.items()):
        yield Finding(
            "consumers",
            "warning",
            f"consumer {name} of {', '.join(queues)} has not sent a heartbeat for a long time",
            "start a worker for these queues: it removes this consumer from them, and returns its "
            "messages when their leases have expired",
        )


def _passes(consumers: list[Consumer]) -> Iterator[Finding]:
    failing = {queue: (name.id, why) for name in consumers for queue, why in name.failing.items()}
    for queue, (name, why) in sorted(failing.items()):
        yield Finding(
            "passes",
            "error",
            f"restore_visible on {queue!r} fails at consumer {name}: {why}",
            "until then, messages of killed workers do not return to this queue: fix the cause in "
            "the error (a key of another program, a missing permission), or report it",
        )


def _options(consumers: list[Consumer]) -> Iterator[Finding]:
    """Report options that differ among the consumers of a queue, and a leftover of redis://."""
    leases_s = {item.id: number(item.options.get("visibility_timeout")) for item in consumers}
    long = [name for name, seconds in leases_s.items() if seconds > _LONG_LEASE_S]
    if long:
        yield Finding(
            "options",
            "info",
            f"visibility_timeout is {leases_s[long[0]]} s at {len(long)} consumer(s) ({long[0]}), "
            "as if left over from redis://: messages of a frozen worker return after this time",
            "leave the option out, or set it to 60: it does not limit the run time of a task",
        )
    exposed = [consumer for consumer in consumers if consumer.unprotected]
    if exposed:
        tasks = sorted({task for consumer in exposed for task in consumer.unprotected})
        yield Finding(
            "options",
            "warning",
            f"{len(exposed)} prefork worker(s) ({exposed[0].label}) lose the task of a killed pool "
            f"process: {', '.join(tasks)} acknowledge late without "
            "task_reject_on_worker_lost",
            "set app.conf.task_reject_on_worker_lost = True, and restart the workers",
        )
    by_option: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for consumer in consumers:
        for queue in consumer.queues:
            for option, value in consumer.options.items():
                by_option[option][queue][repr(value)].append(consumer.id)
    for option, queues in sorted(by_option.items()):
        torn = {queue: values for queue, values in queues.items() if len(values) > 1}
        if not torn:
            continue
        queue, values = min(torn.items())
        each = "; ".join(f"{value}: {', '.join(ids)}" for value, ids in sorted(values.items()))
        more = f" (and {len(torn) - 1} more queues)" if len(torn) > 1 else ""
        yield Finding(
            "options",
            "warning",
            f"consumers of {queue!r}{more} disagree about {option}: {each}",
            "give all of them the same broker_transport_options, and restart them",
        )


def _versions(consumers: list[Consumer]) -> Iterator[Finding]:
    versions = sorted({consumer.version for consumer in consumers} | {__version__})
    if len(versions) > 1:
        yield Finding(
            "reliq",
            "warning",
            f"versions {', '.join(versions)} are in use at this broker (this is {__version__})",
            "upgrade the older ones; reliq consumers lists them",
        )


def _not_enforced(limited: list[str], consumers: list[Consumer]) -> Iterator[Finding]:
    for queue, older in sorted(unenforced(limited, consumers).items()):
        yield Finding(
            "limits",
            "warning",
            f"{len(older)} consumer(s) of {queue!r} ({older[0].label}, reliq {older[0].version}) "
            "do not enforce its limits",
            "upgrade them: until then, the queue may exceed its concurrency and rate",
        )


def _queues(statuses: list[QueueStatus]) -> Iterator[Finding]:
    for status in statuses:
        waiting = status.ready + status.delayed
        if status.paused:
            yield Finding(
                "queues",
                "warning",
                f"queue {status.name!r} is paused, with {waiting} messages waiting in it",
                f"reliq queue resume {word(status.name)}",
            )
        elif waiting and not status.consumers and is_durable(status.declared):
            yield Finding(
                "queues",
                "warning",
                f"{waiting} messages wait in {status.name!r}, which has no consumers",
                "start a worker for it, or reliq queue purge it",
            )
        if status.dead:
            yield Finding(
                "dead letters",
                "info",
                f"{status.dead} in {status.name!r}",
                f"reliq dead list {word(status.name)}; reliq dead replay {word(status.name)}",
            )


def _ended_leases(store: Store, statuses: list[QueueStatus]) -> Iterator[Finding]:
    """Report expired leases in queues without consumers."""
    for status in statuses:
        if not status.unacked or status.consumers:
            continue
        now_ms = store.now_ms()
        held = page(store, status.name, "unacked", _EXAMINED, 0)
        ended = [item for item in held if item.at_ms <= now_ms]
        if ended:
            more = " or more" if len(ended) == _EXAMINED else ""
            yield Finding(
                "leases",
                "warning",
                f"the leases of {len(ended)}{more} messages of {status.name!r} have expired, and "
                f"it has no consumers; held by {ended[0].consumer}",
                "start a worker for it: the messages then return",
            )


def _batches(store: Store) -> Iterator[Finding]:
    try:
        records = listed_records(store, ("seal_timeout_ms",))
    except BrokerRefused as exc:
        yield Finding("batches", "error", f"unreadable: {exc}", _RIGHTS)
        return
    yield from _unreachable("batches", records.unreachable)
    now_ms = store.now_ms()
    left = [
        record
        for record in records
        if record.is_left(number(record.fields.get("seal_timeout_ms")) or _SEALED_WITHIN_MS, now_ms)
    ]
    if left:
        yield Finding(
            "batches",
            "warning",
            f"never sealed, and without a new job for their seal_timeout: {_named(left)}",
            f"start a worker: it seals them; or reliq batch seal {word(left[0].id)} if no producer "
            "adds jobs any more; or reliq batch cancel",
        )
    due = [record for record in records if record.due and now_ms - record.due_since_ms > _DUE_MS]
    overdue = list(islice((record for record in due if _has_message(store, record)), _EXAMINED))
    if overdue:
        yield Finding(
            "batches",
            "warning",
            f"callbacks have been due for minutes, and are not published: {_named(overdue)}",
            "start a worker: it publishes them; if one runs, its log names the missing or full "
            "queue",
        )
    if not (records.unreachable or left or overdue):
        text = f"{len(records)}, none abandoned or with an overdue callback"
        more = f" (older batches are not checked: more than {MOST})" if not records.complete else ""
        yield Finding("batches", "ok", text + more)


def _has_message(store: Store, record: BatchRecord) -> bool:
    """Whether a batch has a message for a due callback. A callback without one is due, too."""
    try:
        whole = store.batches.batch(record.id)
    except BrokerUnavailable:  # lost meanwhile
        return False
    return whole is not None and any(CALLBACK_FIELD + name in whole.fields for name in whole.due)


def _named(records: list[BatchRecord]) -> str:
    names = [f"{record.id!r} ({word(record.name)})" for record in records[:_NAMED]]
    more = [f"{len(records) - _NAMED} more"] if len(records) > _NAMED else []
    return ", ".join([*names, *more])


def _ledgers(statuses: list[QueueStatus]) -> Iterator[Finding]:
    for result in map(audit, statuses):
        if not result.balanced:
            yield Finding(
                "ledger",
                "error",
                f"queue {result.queue!r} does not balance: {result.difference} messages differ",
                "a key was deleted, evicted or written by another program (see maxmemory-policy "
                "and keys above), or reliq has a bug: please report it with reliq audit --json",
            )


_PACKAGE = __name__.partition(".")[0]
_ONE_PACKAGE = (
    "pip uninstall reliq kombu-reliq, then pip install kombu-reliq; use a separate environment "
    "for a program that needs the other package"
)


def _installation() -> Iterator[Finding]:
    """Check the location of this package, and whether another one shares its folder.

    On the package index, ``reliq`` is an HTML parser, whose wheel also installs
    ``reliq/__init__.py``. The package installed last overwrites the file.
    """
    others = sorted(
        {
            f"reliq {item.version}"
            for item in distributions(name="reliq")
            # This project, under its former name, may still be installed as a clone.
            if not any(point.group == "kombu.serializers" for point in item.entry_points)
        }
    )
    besides = f"{', '.join(others)} is another project, and is installed beside kombu-reliq"
    if not hasattr(sys.modules[_PACKAGE], "register"):
        what = "reliq/__init__.py is not from kombu-reliq: import reliq loads another package"
        why = besides if others else "another package named reliq was installed or removed"
        yield Finding("installation", "error", f"{what} ({why})", _ONE_PACKAGE)
    elif others:
        yield Finding(
            "installation",
            "warning",
            f"{besides}: both install reliq/__init__.py, and upgrading or removing either "
            "breaks the other",
            _ONE_PACKAGE,
        )
    else:
        yield Finding("installation", "ok", f"imported from {Path(__file__).parents[1]}")

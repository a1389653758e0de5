"""What is wrong with queues and consumers; the broker's own is the engine's."""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import __version__
from ..errors import BrokerRefused, BrokerUnavailable
from ..message.queue_arguments import is_durable
from ..printable import word
from ..store.inspection import Finding
from ..store.jobs import CALLBACK_FIELD
from ..store.unreadable import number
from .audit import audit
from .batches import MOST, looked
from .partitions import for_each_queue, merged
from .reporting import statuses
from .walking import page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..store.inspection import Consumer, QueueStatus
    from ..store.jobs import BatchRecord
    from ..store.protocol import Store

# Of a batch that says nothing of it.
_SEALED_WITHIN_MS = 3_600_000
# Consumers look at each batch twice a minute, and publish what is due as soon as they hear of it.
_DUE_MS = 180_000
# So many batches are looked into, and so many are named.
_LOOKED_INTO = 100
_NAMED = 5

_AGAIN = "put right first what is wrong with the broker, and look again"
_RIGHTS = "use a user with the rights that `reliq acl operator` prints"


def examine(store: Store) -> list[Finding]:
    """Return what was looked at, each with its remedy where something is wrong."""
    found = for_each_queue(store, None, lambda names: statuses(store, names))
    whole = merged(found)
    return [
        *_unreachable("queues", found.unreachable),
        *_consumers(store, found, partial=bool(found.unreachable)),
        *_installation(),
        *_or_ok(
            _queues(whole), "queues", f"{len(whole)}, none paused, deserted or with dead letters"
        ),
        *_ended_leases(store, found),
        *_batches(store),
        *_or_ok(_ledgers(found), "ledger", f"{len(found)} queues, all balanced"),
    ]


def refused(error: BrokerRefused | BrokerUnavailable) -> Finding:
    """Return what is found where this user may not look at queues, or a node of them is lost."""
    remedy = f"{_RIGHTS}, and the right --prefix" if isinstance(error, BrokerRefused) else _AGAIN
    text = f"neither queues nor consumers could be looked at: {error}"
    return Finding("queues", "error", text, remedy)


def _unreachable(check: str, items: Iterable[object]) -> Iterator[Finding]:
    for item in items:
        yield Finding(check, "error", f"some cannot be read: {item}", _AGAIN)


def _or_ok(found: Iterable[Finding], check: str, text: str) -> list[Finding]:
    return list(found) or [Finding(check, "ok", text)]


def _consumers(store: Store, found: list[QueueStatus], *, partial: bool) -> list[Finding]:
    """Look at the consumers. partial: some queues cannot be told, so perhaps they cannot either."""
    try:
        consumers = store.reads.consumers()
    except BrokerUnavailable as exc:
        if not partial:
            raise
        return [Finding("consumers", "error", f"they could not be looked at: {exc}", _AGAIN)]
    gone = sum(not consumer.connected for consumer in consumers)
    rest = f"{gone} of them gone, and nothing is left to return" if gone else "all connected"
    return [
        *_or_ok(_stale(store, found, consumers), "consumers", f"{len(consumers)}, {rest}"),
        *_passes(consumers),
        *_or_ok(_conflicts(consumers), "options", "consumers of one queue have the same options"),
        *_or_ok(_versions(consumers), "reliq", __version__),
    ]


def _stale(
    store: Store, statuses: list[QueueStatus], consumers: list[Consumer]
) -> Iterator[Finding]:
    served = {queue for consumer in consumers if consumer.connected for queue in consumer.queues}
    # Of each queue that stays and that nobody serves, what is in it: a last heartbeat may be older.
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
            f"consumer {consumer.id} is in the register and has no connection: it was killed, "
            f"and {wait} messages in its queues wait for another",
            f"start a worker for {', '.join(left)}: it returns what was held within ten seconds",
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
            f"consumer {name} of {', '.join(queues)} has sent no heartbeat for long",
            "start a worker for these queues: it takes the name off them, and returns what "
            "it held when the leases have ended",
        )


def _passes(consumers: list[Consumer]) -> Iterator[Finding]:
    failing = {queue: (name.id, why) for name in consumers for queue, why in name.failing.items()}
    for queue, (name, why) in sorted(failing.items()):
        yield Finding(
            "passes",
            "error",
            f"restore_visible on {queue!r} fails at consumer {name}: {why}",
            "nothing that a killed worker held in this queue comes back meanwhile: fix what the "
            "error names (a key that somebody else wrote, a missing permission), or report it",
        )


def _conflicts(consumers: list[Consumer]) -> Iterator[Finding]:
    said: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for consumer in consumers:
        for queue in consumer.queues:
            for option, value in consumer.options.items():
                said[option][queue][repr(value)].append(consumer.id)
    for option, queues in sorted(said.items()):
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
            "upgrade the older ones; reliq consumers shows who they are",
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
                f"{waiting} messages wait in {status.name!r}, and nobody consumes from it",
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
    """Look for messages of which nobody is left to take the lease away."""
    for status in statuses:
        if not status.unacked or status.consumers:
            continue
        now_ms = store.now_ms()
        held = page(store, status.name, "unacked", _LOOKED_INTO, 0)
        ended = [item for item in held if item.at_ms <= now_ms]
        if ended:
            more = " or more" if len(ended) == _LOOKED_INTO else ""
            yield Finding(
                "leases",
                "warning",
                f"the leases of {len(ended)}{more} messages of {status.name!r} have ended, and "
                f"nobody consumes from it; held by {ended[0].consumer}",
                "start a worker for it: the messages return then",
            )


def _batches(store: Store) -> Iterator[Finding]:
    try:
        records = looked(store, ("seal_timeout_ms",))
    except BrokerRefused as exc:
        yield Finding("batches", "error", f"they could not be looked at: {exc}", _RIGHTS)
        return
    yield from _unreachable("batches", records.untold)
    now_ms = store.now_ms()
    left = [
        record
        for record in records.found
        if record.is_left(number(record.fields.get("seal_timeout_ms")) or _SEALED_WITHIN_MS, now_ms)
    ]
    if left:
        yield Finding(
            "batches",
            "warning",
            f"never sealed, and without a new job for their seal_timeout: {_named(left)}",
            f"start a worker: it seals them; or reliq batch seal {word(left[0].id)} where nobody "
            "adds jobs any more, or reliq batch cancel it",
        )
    due = [one for one in records.found if one.due and now_ms - one.due_since_ms > _DUE_MS]
    unsaid = list(islice((record for record in due if _has_message(store, record)), _LOOKED_INTO))
    if unsaid:
        yield Finding(
            "batches",
            "warning",
            f"callbacks are due and were not published for minutes: {_named(unsaid)}",
            "start a worker: it publishes them; where one runs, its log names the queue that is "
            "missing or full",
        )
    if not (records.untold or left or unsaid):
        text = f"{len(records.found)}, none left open or with a callback that stays due"
        more = f" (of those before them nothing is known: more than {MOST})" if records.more else ""
        yield Finding("batches", "ok", text + more)


def _has_message(store: Store, record: BatchRecord) -> bool:
    """Whether a batch has a message for what is due: it is due, too, where it has none."""
    try:
        whole = store.batches.batch(record.id)
    except BrokerUnavailable:  # lost meanwhile
        return False
    return whole is not None and any(CALLBACK_FIELD + one in whole.fields for one in whole.due)


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
                "a key was deleted, evicted or written by somebody else (see maxmemory-policy and "
                "keys above), or reliq has a bug: please report it with reliq audit --json",
            )


_PACKAGE = __name__.partition(".")[0]
_ONE_PACKAGE = (
    "pip uninstall reliq kombu-reliq, then pip install kombu-reliq; a program that needs the "
    "other one needs an environment of its own"
)


def _installation() -> Iterator[Finding]:
    """Look from where this package is imported, and whether another one shares its folder.

    On the package index the name ``reliq`` belongs to an HTML parser, whose wheel installs
    ``reliq/__init__.py``, too: whichever comes last overwrites it.
    """
    others = sorted(
        {
            f"reliq {item.version}"
            for item in distributions(name="reliq")
            # Ours, by its former name, may still be installed as a clone.
            if not any(point.group == "kombu.serializers" for point in item.entry_points)
        }
    )
    besides = f"{', '.join(others)} is another project, and is installed beside kombu-reliq"
    if not hasattr(sys.modules[_PACKAGE], "register"):
        what = "reliq/__init__.py is not that of kombu-reliq: import reliq is not ours"
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

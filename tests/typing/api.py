"""The public API under mypy --strict; a wrong annotation fails the type check. It is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import reliq
import reliq.web
from reliq import (
    BatchUncertain,
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    MessageRefused,
    NotConfirmed,
    NotFound,
    PartlyPublished,
    PreconditionFailed,
    QueueFull,
    ReliqError,
    Unroutable,
)
from reliq.admin import (
    ROLES,
    AuditResult,
    BatchAudit,
    BatchInfo,
    BrokerInfo,
    Consumer,
    DeadLetter,
    DeadLetterGroups,
    Finding,
    Inspector,
    JobFailure,
    JobInfo,
    Message,
    MessageDetails,
    QueueReport,
    QueueStatus,
    Report,
    Search,
    Snapshot,
    acl_rule,
)
from reliq.integrations.middleware import (
    BeginContext,
    DeliverContext,
    EndContext,
    PublishContext,
    apply_publish,
)
from reliq.metrics import Collector
from reliq.migration.migrate import Migration, Plan, Step
from reliq.options import Options, parse
from reliq.signals import (
    broker_switched,
    lease_lost,
    message_dead,
    message_published,
    message_restored,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from reliq.web import Application


def errors() -> tuple[type[ReliqError], ...]:
    """Every error is a ReliqError, and some are also builtin errors."""
    unavailable: type[ConnectionError] = BrokerUnavailable
    timeout: type[BrokerUnavailable] = BrokerTimeout
    unconfirmed: type[BrokerUnavailable] = NotConfirmed
    configuration: type[ValueError] = ConfigurationError
    refused: type[ValueError] = MessageRefused
    del unavailable, timeout, unconfirmed, configuration, refused
    return (BatchUncertain, BrokerRefused, NotFound, PreconditionFailed, QueueFull, Unroutable)


def flush_again(error: BatchUncertain) -> tuple[int, tuple[str, ...]]:
    """Flush a batch again after an error that reports its uncertain messages."""
    error.batch.flush()
    messages: int = error.messages
    queues: tuple[str, ...] = error.queues
    return messages, queues


def codes(error: NotFound | PreconditionFailed) -> int:
    """Channel errors have AMQP's code."""
    code: int = error.code
    return code


def inspect(url: str, options: Mapping[str, object] | None = None) -> Sequence[str]:
    """Use the Inspector as a context manager with typed results."""
    with Inspector(url, transport_options=options) as inspector:
        queues: list[str] = inspector.queues()
        consumers: list[Consumer] = inspector.consumers()
        living: list[tuple[str, str, int, str, tuple[str, ...], int, int, int, bool]] = [
            (c.id, c.host, c.pid, c.version, c.queues, c.started_ms, c.seen_ms, c.held, c.connected)
            for c in consumers
        ]
        del living
        for queue in queues:
            status: QueueStatus = inspector.status(queue)
            counts: tuple[int, int, int, int] = (
                status.ready,
                status.delayed,
                status.unacked,
                status.dead,
            )
            published: int = status.ledger["published"]
            arguments: dict[str, object] = status.arguments
            dead_letters: list[DeadLetter] = inspector.dead_letters(queue, limit=10)
            reasons: list[tuple[str, int, str, int, str, str]] = [
                (item.tag, item.died_ms, item.reason, item.count, item.consumer, item.error)
                for item in dead_letters
            ]
            paused: bool = status.paused
            inspector.pause(queue)
            inspector.resume(queue)
            known: list[tuple[str | None, str | None, int]] = [
                (item.task, item.id, item.published_ms) for item in dead_letters
            ]
            replayed: int = inspector.replay(queue, task="shop.pay", older_than_s=60, to="other")
            replayed += inspector.replay(queue, [item.tag for item in dead_letters])
            removed: int = inspector.purge_dead_letters(queue, reason="expired", limit=5)
            one: DeadLetter = inspector.dead_letter(queue, "tag")
            del paused, counts, published, arguments, reasons, known, replayed, removed, one
            steps: list[int] = list(inspector.move(queue, inspector))
            del steps
        durable: list[str] = inspector.durable_queues()
        del durable
        results: list[AuditResult] = inspector.audit()
        unbalanced: list[tuple[str, int]] = [
            (result.queue, result.difference) for result in results if not result.balanced
        ]
        ledgers: list[dict[str, int]] = [result.ledger for result in results]
        found: list[dict[str, int]] = [result.counts for result in results]
        del unbalanced, ledgers, found
    opened = Inspector(url)
    watch_batches(opened)
    opened.close()
    return queues


def watch_batches(inspector: Inspector) -> int:
    """Inspect batches, and change them."""
    batches: list[BatchInfo] = inspector.batches(5, name="import", stage="open")
    counts: dict[str, int] = inspector.batch(batches[0].id).counts
    jobs: list[JobInfo] = inspector.jobs(batches[0].id, "working")
    failures: list[JobFailure] = inspector.job_failures(batches[0].id, limit=5)
    counted: list[BatchAudit] = inspector.audit_batches()
    changed: bool = inspector.seal_batch("id") or inspector.cancel_batch("id")
    return len(counts) + len(jobs) + len(failures) + len(counted) + int(changed)


def look(inspector: Inspector) -> int:
    """Read the typed data of the pages."""
    past: list[Snapshot] = inspector.history("orders", since_ms=0, points=60)
    search: Search = inspector.find("ship", "orders", limit=5, looks=100, cursor="x")
    found: list[Message] = search.found + inspector.held_by("host:1", limit=3).found
    details: MessageDetails = inspector.message("orders", found[0].tag)
    consumers: list[str] = [event.consumer for event in details.history]
    groups: DeadLetterGroups = inspector.dead_letter_groups("orders", looks=50)
    groups = inspector.dead_letter_groups("orders", groups)
    group: str = groups.groups[0].fingerprint
    opened: Search = inspector.dead_letters_of_group("orders", group, cursor=search.cursor)
    due: list[int] = inspector.due("orders", every_s=10, points=6)
    counts = [
        past[0].ready,
        groups.counted,
        opened.looked,
        inspector.replay("q", fingerprint=group),
    ]
    return sum(due) + sum(counts) + len(consumers)


def operate(inspector: Inspector, path: Path) -> int:
    """Inspect and repair, with typed filters and steps."""
    about: BrokerInfo = inspector.about()
    role: str = about.role
    memory: int | None = about.memory_bytes
    report: Report = inspector.report(inspector.report())
    queues: list[QueueReport] = report.queues
    rates: list[float | None] = [queue.rate_in for queue in queues]
    messages: list[Message] = inspector.peek("orders", "unacked", limit=5, skip=1)
    due: list[int | None] = [message.due_ms for message in messages]
    findings: list[Finding] = inspector.doctor()
    remedies: list[str] = [item.remedy for item in findings if item.severity == "error"]
    settings: dict[str, Any] = inspector.configure("orders", {"x-max-length": 5})
    settings = inspector.settings("orders")
    pools: list[tuple[str, dict[str, Any]]] = [(c.pool, c.options) for c in inspector.consumers()]
    count: int = inspector.purge("orders") + inspector.delete("orders", if_empty=True)
    count += inspector.count_dead_letters("orders", match="Timeout", limit=5)
    for steps in (
        inspector.replaying("orders", to="other", rate=50.0, newer_than_s=60),
        inspector.purging_dead_letters("orders", ["tag"], reason="expired"),
        inspector.export_dead_letters("orders", path, resume=True),
        inspector.import_dead_letters("orders", str(path), again=True, task="shop.pay"),
    ):
        count += sum(steps)
    inspector.replay("orders", colour="red")  # type: ignore[call-arg]
    rules: list[str] = [acl_rule(name, user="celery", prefix="shop:") for name in ROLES]
    del role, memory, rates, due, remedies, settings, pools, rules
    return count


def options() -> Options:
    """Options are frozen, typed, and come from one parse."""
    parsed: Options = parse({"visibility_timeout": 30, "delivery_limit": None})
    seconds: float = parsed.visibility_timeout
    limit: int | None = parsed.delivery_limit
    prefix: str = parsed.global_keyprefix
    del seconds, limit, prefix
    native: bool = parsed.native_delay
    del native
    replicas: int = parsed.confirm_replicas
    del replicas
    return Options(
        visibility_timeout=30.0,
        confirm="replicated",
        priority_order="descending",
        unroutable="error",
    )


@message_dead.connect
def on_dead(broker: str, *, task_id: str | None, reason: str, **more: object) -> None:
    """Receive some of a signal's arguments; the decorator keeps the function's type."""
    del broker, task_id, reason, more


def signals() -> list[str]:
    """Signals are blinker's, and connect() returns the connected function."""
    names = [
        signal.name for signal in (message_published, message_restored, lease_lost, broker_switched)
    ]
    on_dead("reliq://localhost:6379/0", task_id=None, reason="rejected")
    return [*names, message_dead.name]


def publish_many(task: Any, rows: Iterable[tuple[int, str]]) -> int:
    """Return the number of published calls, also after an error that reports the rest."""
    ids: list[str] = []

    def mark(name: str, headers: dict[str, Any], properties: dict[str, Any]) -> None:
        headers["tenant"], properties["priority"] = name, 3

    try:
        return reliq.publish_many(
            task, rows, star=True, on_sent=ids.extend, before_send=mark, countdown=60
        )
    except PartlyPublished as exc:
        unsent: list[Any] = exc.unsent
        uncertain: tuple[str, ...] = exc.uncertain
        if exc.batch is not None:
            exc.batch.flush()
        return exc.sent + len(uncertain) + len(unsent)


def once(url: str) -> bool:
    """Return the value of the block; an exception in it is not swallowed."""
    with reliq.once("id", ttl=60, lease=5.0, url=url, transport_options={"confirm": "none"}) as own:
        first: bool = own
    return first


def version() -> str:
    """Return the version as text; register() returns nothing."""
    nothing: None = reliq.register()  # type: ignore[func-returns-value]
    del nothing
    return reliq.__version__


def migrate(options: Mapping[str, object]) -> tuple[list[Plan], int]:
    """List the messages to migrate, and move them."""
    with Migration("redis://a", "reliq://b", kombu_options=options) as migration:
        plans = [migration.plan(queue) for queue in migration.queues()]
        steps: list[Step] = [step for plan in plans for step in migration.run(plan.queue)]
        names = [plan.queue for plan in plans]
        steps += [step for _, step in migration.run_unacked(3600.0, names)]
    return plans, sum(step.moved + step.delayed + step.dead + step.early for step in steps)


def metrics(registry: CollectorRegistry, options: Mapping[str, object]) -> Iterable[Metric]:
    """Register the metrics of two brokers in an application's own registry."""
    collector = Collector("reliq://a", "reliq://b", transport_options=options, all_queues=True)
    registry.register(collector)
    found: Iterable[Metric] = collector.collect()
    collector.close()
    return found


def look_at_it(options: Mapping[str, object]) -> Application:
    """Return the page as an application to mount."""
    return reliq.web.app(
        "reliq://a",
        "reliq-cluster://b",
        transport_options=options,
        allow_actions=True,
        user_header="X-User",
        operators={"ann"},
        redact=["password"],
        interval_s=1,
    )


class Tenant(reliq.Middleware):
    """The four methods of a middleware, and their contexts."""

    def publish(self, context: PublishContext) -> None:
        """Change a header."""
        context.headers["tenant"] = f"{context.name} {context.id}"

    def deliver(self, context: DeliverContext) -> None:
        """Read a header."""
        tenant: Any = context.headers.get("tenant")
        del tenant

    def begin(self, context: BeginContext) -> None:
        """Keep a value until the end."""
        context.local[self] = context.task.request

    def end(self, context: EndContext) -> None:
        """Read the outcome."""
        error: BaseException | None = context.error
        state: str = context.state
        del error, state


def middleware(app: Any) -> None:
    """Add middleware to an app, and apply it to a message made without Celery."""
    reliq.add_middleware(app, Tenant(), reliq.Middleware())
    headers: dict[str, Any] = {}
    context = PublishContext(
        app=app, name="a", id="1", headers=headers, properties={}, args=(), kwargs={}, options={}
    )
    apply_publish(context)


def enrol_all(task: Any, rows: Iterable[int], report: Any) -> str:
    """Publish a batch of calls, with a nested batch."""
    with reliq.Batch("enrol", on_success=report, failures=(KeyError, "shop.NoPrice")) as batch:
        published: int = batch.map(task, rows, countdown=60)
        with reliq.Batch("more", parent=batch, seal_timeout=60, batch_ttl=3600.0):
            task.delay(published)
    batch.cancel(terminate=True, signal="SIGINT")
    batch.close()
    identity: str = batch.id
    return identity


def watch_it(identity: str, app: Any) -> dict[str, Any]:
    """Return a batch's status, as a page shows it."""
    status = reliq.Batch.get(identity, app=app).wait(timeout=60)
    percent: float = status.percent
    total: int = status.total
    reasons: list[str] = [failure.reason for failure in status.failures]
    texts: list[str] = [message.text for message in status.messages]
    done: list[float] = [job.done for job in status.progress]
    del percent, total, reasons, texts, done
    return status.as_dict()


def say(number: int) -> None:
    """Report the progress of a job."""
    found = reliq.current_batch()
    if found is not None:
        own: str = found.id
        del own
    if not reliq.cancelled():
        reliq.progress(number, 10, "checking")
        reliq.report("price is missing")
    with reliq.add_jobs():
        raise reliq.Failed("not qualified")

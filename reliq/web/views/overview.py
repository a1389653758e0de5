"""The overview: each broker, and all its queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, BrokerUnavailable, NotFound
from ...message.queue_arguments import is_durable
from ..asked import PAGE
from .look import Pager

if TYPE_CHECKING:
    from ...admin import BrokerInfo, QueueReport, Report, Untold
    from ..asked import Asked
    from ..series import Series
    from ..watch import Checkup
    from .look import Look

SORTS = ("queue", "ready", "delayed", "unacked", "dead", "consumers", "oldest_age_s")
_SIZE = 2 * PAGE
_SPARK_MINUTES = 60


@dataclass(frozen=True, slots=True)
class Totals:
    """What all queues of a broker have together."""

    ready: int
    delayed: int
    unacked: int
    dead: int
    rate_in: float | None
    rate_out: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """One broker. Where it could not be asked, *error* says why."""

    number: int
    name: str
    error: str = ""
    info: BrokerInfo | None = None
    totals: Totals | None = None
    queues: list[QueueReport] = field(default_factory=list)
    pager: Pager | None = None
    untold: list[Untold] = field(default_factory=list)
    checkup: Checkup | None = None
    sparks: dict[str, Series] = field(default_factory=dict)
    """The last hour of the queues that are shown."""
    temporary: int = 0
    """So many queues are not shown because they end with their connection."""


def overview(look: Look, number: int, name: str) -> Overview:
    """Return what is shown of one broker; raises ReliqError."""
    report = look.watch.report(look.inspector)
    kept = _kept(report, look.asked)
    queues = _chosen(kept, look.asked)
    skip = look.asked.number("skip") if look.asked.broker == number else 0
    page = queues[skip : skip + _SIZE]
    return Overview(
        number,
        name,
        "",
        report.broker,
        _totals(kept),
        page,
        Pager(skip, len(page), len(queues), skip + _SIZE < len(queues), _SIZE),
        report.untold,
        look.watch.checkup(),
        _sparks(look, page),
        len(report.queues) - len(kept),
    )


def _sparks(look: Look, queues: list[QueueReport]) -> dict[str, Series]:
    found = {}
    for queue in queues:
        try:
            found[queue.queue] = look.watch.history(look.inspector, queue.queue, _SPARK_MINUTES)
        except (NotFound, BrokerRefused):  # noqa: PERF203 - gone meanwhile; not for this user
            continue
        except BrokerUnavailable:  # a node of several, for which nobody is to wait again
            break
    return found


def _kept(report: Report, asked: Asked) -> list[QueueReport]:
    """Return the queues without those that end with their connection, unless all are wanted."""
    if asked.text("all"):
        return report.queues
    return [queue for queue in report.queues if is_durable(queue.arguments)]


def _chosen(kept: list[QueueReport], asked: Asked) -> list[QueueReport]:
    """Return the queues whose name has the text that was asked for, in the order asked for."""
    part = asked.text("name").casefold()
    queues = [queue for queue in kept if part in queue.queue.casefold()]
    sort = asked.text("sort")
    if sort not in SORTS or sort == "queue":
        return sorted(queues, key=lambda queue: queue.queue)
    return sorted(queues, key=lambda queue: (-(getattr(queue, sort) or 0), queue.queue))


def _totals(queues: list[QueueReport]) -> Totals:
    def rates(name: str) -> float | None:
        known = [rate for queue in queues if (rate := getattr(queue, name)) is not None]
        return sum(known) if known else None

    def total(name: str) -> int:
        return sum(getattr(queue, name) for queue in queues)

    return Totals(
        total("ready"),
        total("delayed"),
        total("unacked"),
        total("dead"),
        rates("rate_in"),
        rates("rate_out"),
    )

"""The pages: where each is, what it is made from, and its template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..admin.names import CHANGEABLE
from ..errors import BrokerRefused, BrokerUnavailable, NotFound, ReliqError
from .views.jobs import batch, batches, consumer, consumers, log, operation, shares
from .views.look import Look
from .views.messages import dead, group, message, search
from .views.queues import delayed, health, overview, queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .asked import Asked
    from .brokers import Broker
    from .site import Site


class Page(NamedTuple):
    """One page."""

    path: str
    template: str
    title: str
    make: Callable[[Site, Asked], dict[str, Any]]
    """Returns what its template needs; asks brokers, so it is called in a thread."""
    reads: str
    """The names of its query, beside that of the broker."""
    nav: str = ""
    """Under which name of the navigation it is found."""
    live: bool = True
    """Whether it changes while somebody looks."""


def broker_of(site: Site, asked: Asked) -> Broker:
    """Return the broker that a page or an action is about; raises NotFound."""
    try:
        return site.brokers[asked.broker]
    except IndexError:
        raise NotFound(f"no broker {asked.broker}: there are {len(site.brokers)}") from None


def _of(view: Callable[[Look], Any]) -> Callable[[Site, Asked], dict[str, Any]]:
    """Return what makes a page of *view*, which looks at one broker."""

    def make(site: Site, asked: Asked) -> dict[str, Any]:
        broker = broker_of(site, asked)
        with broker.inspector() as inspector:
            look = Look(inspector, asked, site.watches[broker.number], site.redaction)
            return {"view": view(look)}

    return make


def _overview(site: Site, asked: Asked) -> dict[str, Any]:
    found = []
    for broker, watch in zip(site.brokers, site.watches, strict=True):
        try:
            with broker.inspector() as inspector:
                look = Look(inspector, asked, watch, site.redaction)
                found.append(overview(look, broker.number, broker.name))
        except ReliqError as exc:  # noqa: PERF203 - one of few brokers
            about = {"number": broker.number, "name": broker.name, "info": None}
            found.append({**about, "error": str(exc)})
    return {"views": found}


PAGES = (
    Page("/", "overview.html", "Overview", _overview, "all name sort skip", "overview"),
    Page("/queue", "queue.html", "Queue", _of(queue), "queue state range skip", "overview"),
    Page("/message", "message.html", "Message", _of(message), "queue tag id", "overview"),
    Page("/dead", "dead.html", "Dead letters", _of(dead), "queue", "dead"),
    Page("/dead/group", "group.html", "Dead letters", _of(group), "queue group cursor", "dead"),
    # A search goes on where it is told to.
    Page("/search", "search.html", "Search", _of(search), "queue text cursor", "", live=False),
    Page("/delayed", "delayed.html", "Delayed", _of(delayed), "queue horizon skip", "delayed"),
    Page("/consumers", "consumers.html", "Consumers", _of(consumers), "skip", "consumers"),
    Page("/consumer", "consumer.html", "Consumer", _of(consumer), "id cursor", "consumers"),
    Page("/batches", "batches.html", "Batches", _of(batches), "name stage skip", "batches"),
    Page("/batch", "batch.html", "Batch", _of(batch), "id state skip", "batches"),
    # The doctor takes seconds: it looks when it is asked to.
    Page("/health", "health.html", "Health", _of(health), "", "health", live=False),
    Page("/log", "log.html", "Log", log, "skip", "log"),
    Page("/operation", "operation.html", "Operation", operation, "id", "log"),
)

ABOUT_ALL = frozenset({"/", "/log", "/operation"})
"""Pages that are about no broker, or about all of them."""

NAVIGATION = (
    ("overview", "/", "Overview"),
    ("dead", "/dead", "Dead letters"),
    ("delayed", "/delayed", "Delayed"),
    ("consumers", "/consumers", "Consumers"),
    ("batches", "/batches", "Batches"),
    ("health", "/health", "Health"),
    ("log", "/log", "Log"),
)


def context(site: Site, page: Page, asked: Asked) -> dict[str, Any]:
    """Return what every template needs."""
    return {
        "asked": asked,
        "page": page,
        "navigation": NAVIGATION,
        "brokers": list(site.brokers),
        "settings": site.settings,
        "changeable": CHANGEABLE,
        "shares": shares,
    }


def parts(site: Site, page: Page, asked: Asked) -> dict[str, str]:
    """Return the parts of a page as they are now; raises ReliqError."""
    made = {**context(site, page, asked), **page.make(site, asked)}
    return site.templates.parts(page.template, made)


def whole(site: Site, page: Page, asked: Asked, more: Mapping[str, Any]) -> tuple[str, int]:
    """Return a page as it is now, and its status: where it cannot be made, that page says why."""
    about = {**context(site, page, asked), **more}
    try:
        return site.templates.whole(page.template, {**about, **page.make(site, asked)}), 200
    except ReliqError as exc:
        failure = {"error": str(exc), "kind": _kind(exc)}
        return site.templates.whole("failure.html", {**about, **failure}), _status(exc)


def _kind(error: ReliqError) -> str:
    if isinstance(error, BrokerUnavailable):
        return "away"
    if isinstance(error, NotFound):
        return "missing"
    return "refused" if isinstance(error, BrokerRefused) else "wrong"


def _status(error: ReliqError) -> int:
    return {"away": 503, "missing": 404, "refused": 502, "wrong": 400}[_kind(error)]

"""The pages: path, view and template of each."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..admin.names import CHANGEABLE
from ..errors import BrokerRefused, BrokerUnavailable, NotFound, ReliqError
from . import charts
from .action_log import ActionLog, Operations
from .brokers import Broker, Watch
from .page_request import PAGE, Source, pager
from .redaction import Redaction
from .texts import FILTERS, shown
from .views.jobs import batch, batches, consumer, consumers, shares
from .views.messages import dead, group, message, search
from .views.queues import delayed, health, overview, queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .page_request import PageRequest
    from .settings import Settings

_PART = "part_"


def templates() -> Environment:
    """Return the templates, with their filters and macros."""
    made = Environment(
        loader=PackageLoader("reliq.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    made.globals["charts"] = charts
    # A global, not an import of the templates: blocks rendered alone do not see imports.
    made.globals["draw"] = made.get_template("charts.html").module
    made.globals["ui"] = made.get_template("macros.html").module
    # Load all now, so that an upgrade of the package does not affect a running process.
    for name in made.list_templates():
        made.get_template(name)
    return made


class Site:
    """The parts that pages and actions use; raises ConfigurationError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.brokers = [Broker(n, url, settings) for n, url in enumerate(settings.urls)]
        # Not inside Broker: a reference cycle would leave its connections to the garbage collector.
        self.watches = [Watch(broker) for broker in self.brokers]
        self.redaction = Redaction(settings.redact)
        self.log = ActionLog(settings.action_log)
        self.operations = Operations(self.log)
        self.templates = templates()

    @contextmanager
    def source(self, request: PageRequest, broker: Broker) -> Iterator[Source]:
        """Lend the inspector and other parts for one view or action."""
        with broker.inspector() as inspector:
            yield Source(inspector, request, self.watches[broker.number], self.redaction)

    def close(self) -> None:
        """Close the idle connections, and remove the files of exports."""
        for broker in self.brokers:
            broker.close()
        self.operations.close()


class Page(NamedTuple):
    """One page."""

    path: str
    template: str
    title: str
    make: Callable[[Site, PageRequest], dict[str, Any]]
    """Returns the values of its template. Queries brokers, so it is called in a thread."""
    reads: str
    """The query names that it reads, besides `broker`."""
    nav: str = ""
    """The name of its navigation entry."""
    live: bool = True
    """Whether it is updated while viewed."""


def broker_of(site: Site, request: PageRequest) -> Broker:
    """Return the broker of a page or action; raises NotFound."""
    try:
        return site.brokers[request.broker]
    except IndexError:
        raise NotFound(f"no broker {request.broker}: there are {len(site.brokers)}") from None


def _of(view: Callable[[Source], Any]) -> Callable[[Site, PageRequest], dict[str, Any]]:
    """Return a function that makes a page from *view*, which reads one broker."""

    def make(site: Site, request: PageRequest) -> dict[str, Any]:
        with site.source(request, broker_of(site, request)) as source:
            return {"view": view(source), "now_ms": source.inspector.now_ms()}

    return make


def _overview(site: Site, request: PageRequest) -> dict[str, Any]:
    views = []
    for broker in site.brokers:
        try:
            with site.source(request, broker) as source:
                views.append(overview(source, broker.number, broker.name))
        except ReliqError as exc:  # noqa: PERF203 - one of few brokers
            about = {"number": broker.number, "name": broker.name, "info": None}
            views.append({**about, "error": str(exc)})
    return {"views": views}


def _log(site: Site, request: PageRequest) -> dict[str, Any]:
    entries = site.log.entries(PAGE, request.number("skip"))
    page = pager(request, entries, len(site.log))
    return {"entries": entries, "operations": site.operations.all()[:10], "pager": page}


def _operation(site: Site, request: PageRequest) -> dict[str, Any]:
    operation = site.operations.get(request.text("id"))
    if operation is None:
        raise NotFound("unknown operation: another process started it, or it is too old")
    return {"item": operation}


PAGES = (
    Page("/", "overview.html", "Overview", _overview, "all name sort skip", "overview"),
    Page("/queue", "queue.html", "Queue", _of(queue), "queue state range skip", "overview"),
    Page("/message", "message.html", "Message", _of(message), "queue tag id", "overview"),
    Page("/dead", "dead.html", "Dead letters", _of(dead), "queue", "dead"),
    Page("/dead/group", "group.html", "Dead letters", _of(group), "queue group cursor", "dead"),
    # Not live: a search continues only when the user asks.
    Page("/search", "search.html", "Search", _of(search), "queue text cursor", "", live=False),
    Page("/delayed", "delayed.html", "Delayed", _of(delayed), "queue horizon skip", "delayed"),
    Page("/consumers", "consumers.html", "Consumers", _of(consumers), "skip", "consumers"),
    Page("/consumer", "consumer.html", "Consumer", _of(consumer), "id cursor", "consumers"),
    Page("/batches", "batches.html", "Batches", _of(batches), "name stage skip", "batches"),
    Page("/batch", "batch.html", "Batch", _of(batch), "id state skip", "batches"),
    # Not live: the doctor takes seconds.
    Page("/health", "health.html", "Health", _of(health), "", "health", live=False),
    Page("/log", "log.html", "Log", _log, "skip", "log"),
    Page("/operation", "operation.html", "Operation", _operation, "id", "log"),
)

ABOUT_ALL = frozenset({"/", "/log", "/operation"})
"""Pages of no broker or of all brokers."""

NAVIGATION = (
    ("overview", "/", "Overview"),
    ("dead", "/dead", "Dead letters"),
    ("delayed", "/delayed", "Delayed"),
    ("consumers", "/consumers", "Consumers"),
    ("batches", "/batches", "Batches"),
    ("health", "/health", "Health"),
    ("log", "/log", "Log"),
)


def context(site: Site, page: Page, request: PageRequest) -> dict[str, Any]:
    """Return the values that every template needs."""
    return {
        "request": request,
        "page": page,
        "navigation": NAVIGATION,
        "brokers": site.brokers,
        "settings": site.settings,
        "changeable": CHANGEABLE,
        "shares": shares,
    }


def parts(site: Site, page: Page, request: PageRequest) -> dict[str, str]:
    """Return the current blocks ``part_...`` of a page's template; raises ReliqError."""
    about = {**context(site, page, request), **page.make(site, request)}
    template = site.templates.get_template(page.template)
    return {
        block.removeprefix(_PART): "".join(made(template.new_context(dict(about))))
        for block, made in template.blocks.items()
        if block.startswith(_PART)
    }


def whole(site: Site, page: Page, request: PageRequest, more: Mapping[str, Any]) -> tuple[str, int]:
    """Return the current page and its HTTP status; on an error, a page that reports it."""
    about = {**context(site, page, request), **more}
    template, status = page.template, 200
    try:
        about |= page.make(site, request)
    except ReliqError as exc:
        kind = next(name for name, (error, _) in _KINDS.items() if isinstance(exc, error))
        template, status = "failure.html", _KINDS[kind][1]
        about |= {"error": str(exc), "kind": kind}
    return site.templates.get_template(template).render(about), status


_KINDS: dict[str, tuple[type[ReliqError], int]] = {
    "away": (BrokerUnavailable, 503),
    "missing": (NotFound, 404),
    "refused": (BrokerRefused, 502),
    "wrong": (ReliqError, 400),
}

"""``reliq exporter``: metrics of one or several brokers for Prometheus."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import click

from reliq.hosts import is_loopback, is_of_this_machine

from .endings import Refused, stop_event
from .options import broker_options, listening, priority_order_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .target import Target


@click.command()
@broker_options
@listening(9742, "The address to listen on. There is no login: every client can read the metrics.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="On loopback: another host name of this machine besides localhost (repeatable).",
)
@click.option("--all-queues", is_flag=True, help="Include temporary queues.")
@click.option(
    "--celery-names",
    is_flag=True,
    help="Add celery-exporter's metrics of queues, such as celery_queue_length.",
)
@priority_order_option
def exporter(
    target: Target,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    priority_order: str | None,
    **given: bool,
) -> None:
    """Serve metrics for Prometheus on http://HOST:PORT/metrics.

    Each scrape queries the brokers, with one script for each queue. An unreachable broker has
    reliq_up 0, and an unreachable cluster node reliq_node_up 0; the others are still reported.

    Exits with 0 on SIGTERM or Ctrl-C, and with 2 if it cannot start.

    \b
    Examples:
      reliq exporter --url reliq://localhost:6379/0
      reliq exporter --url reliq://a:6379/0 --url reliq://b:6379/0 --port 9742
      reliq exporter --url reliq://localhost:6379/0 --celery-names
    """
    if importlib.util.find_spec("prometheus_client") is None:
        raise Refused.for_extra("the exporter needs prometheus-client", "metrics")
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - an extra

    from reliq.metrics import Collector  # noqa: PLC0415 - it needs the extra

    options = dict(target.options)
    if priority_order is not None:
        options["priority_order"] = priority_order
    registry = CollectorRegistry()
    collector = Collector(*target.urls, transport_options=options, **given)
    registry.register(collector)
    stopped = stop_event()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Refused(f"cannot listen on {host}:{port}: {error}; choose another --port") from error
    if is_loopback(host):
        server.set_app(_of_this_machine(server.get_app(), {name.lower() for name in hosts}))
    click.echo(f"serving metrics on http://{host}:{server.server_port}/metrics")
    stopped.wait()
    server.shutdown()
    server.server_close()
    thread.join()
    collector.close()


def _of_this_machine(inner: Any, hosts: set[str]) -> Callable[..., Iterable[bytes]]:
    """Return a WSGI application that answers only to host names of this machine, like the page."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if is_of_this_machine(environ.get("HTTP_HOST", ""), hosts):
            return inner(environ, start)  # type: ignore[no-any-return]
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"ask for localhost, or allow the name with --allow-host\n"]

    return answer

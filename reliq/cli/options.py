"""Options that several commands share, and their types."""

from __future__ import annotations

import functools
import re
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reliq.errors import ConfigurationError
from reliq.options import parse

from .completion import batch_ids, queue_names
from .target import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class Number(click.FloatRange):
    """A finite number in a range. click accepts "nan" in each range, and "inf" in an open one."""

    def convert(self, value: Any, *where: Any) -> float:
        """Return the number; an error names the expected value."""
        number = float(super().convert(value, *where))
        if not isfinite(number):
            self.fail(f"expected a number, got {value!r}", *where)
        return number


def duration(given: str) -> float:
    """Return seconds, from a plain number or parts with units: 90, 15m, 1h30m, 2d."""
    text = given.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?[smhdw])+", text):
        raise click.BadParameter(f"expected seconds, or for example 15m, 1h30m, 2d; got {given!r}")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw])", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _address_map(
    _context: click.Context, _option: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    """Return the transport option ``address_map``; an error names the expected format."""
    known: dict[str, str] = {}
    for pair in (pair for text in given for pair in re.split(r"[;\s]+", text) if pair):
        announced, equals, reachable = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"expected HOST:PORT=HOST:PORT, got {pair!r}")
        if known.setdefault(announced, reachable) != reachable:
            raise click.BadParameter(f"{announced} is given twice: {known[announced]}, {reachable}")
    try:
        parse({"address_map": known})
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None
    return known


queue_argument = click.argument("queue", shell_complete=queue_names)
batch_argument = click.argument("batch", metavar="ID", shell_complete=batch_ids)
prefix_option = click.option(
    "--prefix",
    envvar="RELIQ_KEYPREFIX",
    default="",
    show_envvar=True,
    help="The transport option global_keyprefix, if the application sets it.",
)
master_option = click.option(
    "--master-name",
    envvar="RELIQ_MASTER_NAME",
    show_envvar=True,
    help="With reliq-sentinel://: the master's name.",
)
address_map_option = click.option(
    "--address-map",
    multiple=True,
    envvar="RELIQ_ADDRESS_MAP",
    show_envvar=True,
    metavar="HOST:PORT=HOST:PORT",
    callback=_address_map,
    help="With reliq-cluster://: the announced and the reachable address of a node, for example "
    "10.0.0.5:6379=localhost:7001 (repeatable, or separated by ';').",
)
priority_order_option = click.option(
    "--priority-order",
    type=click.Choice(["ascending", "descending"]),
    help="The transport option priority_order, if the application sets it.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Change nothing; only print the number of messages."
)
all_option = click.option(
    "--all", "every", is_flag=True, help="Also show temporary queues; --json always has them."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_url_option = click.option(
    "--url",
    "urls",
    multiple=True,
    envvar="RELIQ_URL",
    show_envvar=True,
    help="The broker, for example reliq://localhost:6379/0 (repeatable, or separated by ';').",
)


skip_option = click.option("--skip", type=click.IntRange(0), default=0, help="Number to skip.")


def limit_option(default: int) -> Callable[[F], F]:
    """Return a decorator that adds ``--limit``."""
    return click.option(
        "--limit", type=click.IntRange(1), default=default, show_default=True, help="Maximum count."
    )


def interval_option(least: float, most: float, default: float, text: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--interval``, in seconds; *text* is its help."""
    kind = Number(least, most)
    return click.option("--interval", type=kind, default=default, show_default=True, help=text)


def listening(port: int, host_help: str) -> Callable[[F], F]:
    """Return a decorator that adds the options of an HTTP server."""
    kind, free = click.IntRange(0, 65_535), "The port to listen on; 0: any free port."
    number = click.option("--port", type=kind, default=port, show_default=True, help=free)
    host = click.option("--host", default="127.0.0.1", show_default=True, help=host_help)
    return lambda command: host(number(command))


def collected(name: str, make: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds *options* and passes ``make(...)`` of them as *name*."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def wrapper(*args: Any, **given: Any) -> Any:
            own = {key: given.pop(key) for key in make.__annotations__ if key in given}
            return command(*args, **{name: make(**own)}, **given)

        decorated: Any = wrapper
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return add


_broker_options = (_url_option, master_option, address_map_option, prefix_option)
broker_options = collected("target", target_of, *_broker_options)
"""Adds the options that name the brokers; the command gets them as *target*."""
on_brokers = collected("target", target_of, *_broker_options, json_option)
"""Adds the same options and --json."""

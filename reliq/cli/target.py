"""Which brokers a command is about: from --url, RELIQ_URL, or Celery's application."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.core import ParameterSource

from reliq.admin import Inspector
from reliq.errors import NotFound, ReliqError, again
from reliq.failover.brokers import without_password

from .application import Application
from .console import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True)
class Target:
    """The brokers, and the transport options for all of them."""

    urls: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def inspect(self, url: str) -> Inspector:
        """Connect to one of them; raises ReliqError."""
        return Inspector(url, self.options)

    def gather(self, look: Callable[[Inspector], T]) -> Gathered[T]:
        """Return what *look* says of each broker, and which of them could not be asked.

        A queue that one broker has and another has not is no failure.
        """
        found: list[T] = []
        failures: list[tuple[str, ReliqError]] = []
        for url in self.urls:
            try:
                with self.inspect(url) as inspector:
                    found.append(look(inspector))
            except ReliqError as error:  # noqa: PERF203 - one of few brokers
                failures.append((name_of(url), again(error)))
        if found:
            failures = [item for item in failures if not isinstance(item[1], NotFound)]
        return Gathered(found, failures)


@dataclass(frozen=True)
class Gathered(Generic[T]):
    """Answers of several brokers."""

    found: list[T]
    failures: list[tuple[str, ReliqError]]

    def require_some(self) -> list[T]:
        """Return the answers; raise Refused where there is none."""
        if not self.found:
            self.complain()
        return self.found

    def complain(self) -> None:
        """Raise Refused where a broker could not be asked: after the others were shown."""
        if self.failures:
            # An error names its broker where it is about it.
            raise Refused("\n".join(str(error) for _, error in self.failures))


def name_of(url: str) -> str:
    """Return a URL, or the URLs of a group of Sentinels, as they may be shown."""
    return without_password(url)


def split_urls(given: Iterable[str]) -> tuple[str, ...]:
    """Return one entry for each broker: several may stand in one text, between semicolons.

    The URLs of Sentinels that follow each other are one broker.
    """
    found: list[str] = []
    # A semicolon that no URL of ours follows is one of a password that nobody has encoded.
    for url in (
        part.strip() for text in given for part in re.split(r";(?=\s*reliq[a-z-]*:/|\s*$)", text)
    ):
        sentinel = "reliq-sentinel://"
        if url.startswith(sentinel) and found and found[-1].startswith(sentinel):
            found[-1] += f";{url}"
        elif url:
            found.append(url)
    return tuple(found)


prefix_option = click.option(
    "--prefix",
    envvar="RELIQ_KEYPREFIX",
    default="",
    show_envvar=True,
    help="The global_keyprefix of the transport options, if one is used.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_url_option = click.option(
    "--url",
    "urls",
    multiple=True,
    envvar="RELIQ_URL",
    show_envvar=True,
    help="The broker, for example reliq://localhost:6379/0; several: again, or between ';'.",
)
master_option = click.option(
    "--master-name",
    envvar="RELIQ_MASTER_NAME",
    show_envvar=True,
    help="With reliq-sentinel:// URLs: the name under which the Sentinels know the master.",
)


def on_brokers(command: F) -> F:
    """Add what names the brokers; the command gets it as *target*."""

    @_url_option
    @master_option
    @prefix_option
    @functools.wraps(command)
    def wrapper(
        *args: Any, urls: tuple[str, ...], master_name: str | None, prefix: str, **given: Any
    ) -> Any:
        return command(*args, target=target_of(urls, prefix, master_name), **given)

    return wrapper  # type: ignore[return-value]


def target_of(urls: tuple[str, ...], prefix: str, master_name: str | None) -> Target:
    """Return the brokers of the current command; raises UsageError where none is named."""
    context = click.get_current_context()
    application = context.find_object(Application)
    from_environment = context.get_parameter_source("urls") is ParameterSource.ENVIRONMENT
    said = {"global_keyprefix": prefix, "master_name": master_name}
    given = {name: value for name, value in said.items() if value}
    if application is not None:
        its_urls, its_options = application.brokers()
        chosen = split_urls(its_urls if not urls or from_environment else urls)
        return Target(chosen, {**its_options, **given})
    if not urls:
        raise click.UsageError("Missing option '--url' (env var: 'RELIQ_URL').")
    return Target(split_urls(urls), given)


# A shell puts a completion into the line as it is, and Enter runs the line: a name that
# a shell would read as anything but itself is not offered. Nor is one like an option.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+,-]*")


def _queue_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the queues that begin so, for a shell's completion; none where nobody answers.

    Only those whose names are safe in the line of a shell.
    """
    try:
        with context:
            target = target_of(
                tuple(context.params.get("urls") or ()),
                context.params.get("prefix") or "",
                context.params.get("master_name"),
            )
    except click.UsageError:
        return []
    found = target.gather(lambda inspector: inspector.queues()).found
    return sorted({name for names in found for name in names if _offered(name, incomplete)})


def _offered(name: str, incomplete: str) -> bool:
    return name.startswith(incomplete) and _SAFE.fullmatch(name) is not None


queue_argument = click.argument("queue", shell_complete=_queue_names)

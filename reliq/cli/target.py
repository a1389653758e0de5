"""The brokers of a command: query each of them, and print the results."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.core import ParameterSource

from reliq import admin
from reliq.errors import NotFound, ReliqError, again
from reliq.failover.brokers import without_password
from reliq.printable import plain
from reliq.spool import is_spool

from . import console as out
from .application import Application
from .endings import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reliq.admin import Inspector

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """The brokers of a command, and their common transport options."""

    urls: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    spools: tuple[str, ...] = ()
    """The URLs of spools, which are not brokers."""
    as_json: bool = False
    """Whether to print results as JSON."""

    def gather(self, read: Callable[[Inspector], T]) -> Gathered[T]:
        """Return the result of *look* for each broker, and the failures of the others.

        If a broker has a result, NotFound on another broker is not a failure.
        """
        answers: list[T] = []
        failures: list[tuple[str, ReliqError]] = []
        for url in self.urls:
            try:
                with admin.Inspector(url, self.options) as inspector:
                    answers.append(read(inspector))
            except ReliqError as error:  # noqa: PERF203 - one of few brokers
                failures.append((without_password(url), again(error)))
        if answers:
            failures = [item for item in failures if not isinstance(item[1], NotFound)]
        return Gathered(answers, failures)

    def answer(
        self,
        find: Callable[[Inspector], Iterable[Any]],
        shown: Callable[[list[dict[str, Any]]], Iterable[Any]],
    ) -> list[dict[str, Any]]:
        """Print the results of *find* from all brokers, as JSON or by *shown*; return the rows.

        A row is a result and its broker. Raises Refused, after printing the rows, if a broker
        did not answer or a result of *find* has ``unreachable`` parts.
        """
        unreachable: list[object] = []

        def read(inspector: Inspector) -> list[dict[str, Any]]:
            there = find(inspector)
            unreachable.extend(getattr(there, "unreachable", ()))
            return [out.of_broker(inspector.broker, item) for item in there]

        gathered = self.gather(read)
        rows = [row for part in gathered.require_some() for row in part]
        out.answer(rows, self.as_json, shown)
        gathered.complain(unreachable)
        return rows

    def change(
        self,
        kind: str,
        name: str,
        work: Callable[[Inspector], dict[str, Any]],
        sentence: Callable[[dict[str, Any]], str],
    ) -> None:
        """Run *work* on each broker that has the *kind* called *name*; print a line for each."""
        self.answer(
            lambda inspector: [{kind: name, **work(inspector)}],
            lambda rows: [f"{name} at {row['broker']}: {sentence(row)}" for row in rows],
        )


@dataclass(frozen=True)
class Gathered(Generic[T]):
    """Results of several brokers."""

    answers: list[T]
    failures: list[tuple[str, ReliqError]]

    def require_some(self) -> list[T]:
        """Return the results; raise Refused if there are none."""
        if not self.answers:
            self.complain()
        return self.answers

    def complain(self, unreachable: Iterable[object] = ()) -> None:
        """Raise Refused if a broker or a node did not answer.

        Call this after the output of the other brokers. An error about a broker names it.
        """
        errors = [*(str(error) for _, error in self.failures), *map(str, unreachable)]
        if errors:
            raise Refused("\n".join(errors))


_BETWEEN = r";(?=\s*reliq[a-z-]*:/|\s*$)"


def split_urls(given: Iterable[str]) -> tuple[str, ...]:
    """Return one entry for each broker; semicolons separate the brokers of one text.

    Consecutive Sentinels in one text are one broker, and so are consecutive nodes of a cluster.
    In two texts, they belong to two brokers.
    """
    urls: list[str] = []
    for text in given:
        before = ""
        # A semicolon without a reliq URL behind it belongs to a password that is not encoded.
        for url in filter(None, map(str.strip, re.split(_BETWEEN, text))):
            scheme = url.partition("://")[0]
            if scheme in {"reliq-sentinel", "reliq-cluster"} and scheme == before:
                urls[-1] += f";{url}"
            else:
                urls.append(url)
            before = scheme
    return tuple(urls)


def target_of(
    urls: tuple[str, ...] = (),
    prefix: str = "",
    master_name: str | None = None,
    address_map: Mapping[str, str] | None = None,
    as_json: bool = False,
) -> Target:
    """Return the brokers of the current command; raises UsageError if none is named."""
    context = click.get_current_context()
    application = context.find_object(Application)
    from_environment = context.get_parameter_source("urls") is ParameterSource.ENVIRONMENT
    options = {"global_keyprefix": prefix, "master_name": master_name, "address_map": address_map}
    given: dict[str, Any] = {name: value for name, value in options.items() if value}
    if application is not None:
        its_urls, its_options = application.brokers()
        # Celery's list of URLs is one text: it may name several nodes of one broker.
        its_own = not urls or from_environment
        chosen = split_urls((";".join(its_urls),) if its_own else urls)
        given = {**its_options, **given}
    else:
        if from_environment:  # click splits the variable at spaces
            urls = (";".join(url.rstrip(";") for url in urls),)
        chosen = split_urls(urls)
    spools = tuple(url for url in chosen if is_spool(url))
    brokers = tuple(url for url in chosen if url not in spools)
    if not chosen:
        raise click.UsageError(
            "Missing option '--url' (env var: 'RELIQ_URL'), such as reliq://localhost:6379/0."
        )
    if not brokers:
        raise click.UsageError("a spool is not a broker; use: reliq spool status PATH")
    try:
        for url in brokers:
            admin.Inspector.require_url(url)
    except ReliqError as error:
        raise click.UsageError(plain(str(error))) from None
    return Target(brokers, given, spools, as_json)

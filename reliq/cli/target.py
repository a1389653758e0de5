"""The brokers a command is about, and how it asks each of them and prints what they say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.core import ParameterSource

from reliq import admin
from reliq.errors import NotFound, ReliqError, again
from reliq.failover.brokers import without_password
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
    """The brokers, and the transport options for all of them."""

    urls: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    spools: tuple[str, ...] = ()
    """Those of the URLs that are journals of publishers, and no brokers."""
    as_json: bool = False
    """Whether what is found is printed as JSON."""

    def gather(self, look: Callable[[Inspector], T]) -> Gathered[T]:
        """Return what *look* says of each broker, and which of them could not be asked.

        A queue that one broker has and another has not is no failure.
        """
        found: list[T] = []
        failures: list[tuple[str, ReliqError]] = []
        for url in self.urls:
            try:
                with admin.Inspector(url, self.options) as inspector:
                    found.append(look(inspector))
            except ReliqError as error:  # noqa: PERF203 - one of few brokers
                failures.append((without_password(url), again(error)))
        if found:
            failures = [item for item in failures if not isinstance(item[1], NotFound)]
        return Gathered(found, failures)

    def answer(
        self,
        find: Callable[[Inspector], Iterable[Any]],
        shown: Callable[[list[dict[str, Any]]], Iterable[Any]],
    ) -> list[dict[str, Any]]:
        """Print what *find* says of each broker, as JSON or as *shown* has it; return its rows.

        A row is a result and the broker it is of. Raises Refused where a broker could not
        be asked, or *find* has met something ``unreachable``: after the others were printed.
        """
        unreachable: list[object] = []

        def look(inspector: Inspector) -> list[dict[str, Any]]:
            there = find(inspector)
            unreachable.extend(getattr(there, "unreachable", ()))
            return [out.of_broker(inspector.broker, item) for item in there]

        found = self.gather(look)
        rows = [row for part in found.require_some() for row in part]
        out.answer(rows, self.as_json, shown)
        found.complain(unreachable)
        return rows

    def change(
        self,
        kind: str,
        name: str,
        work: Callable[[Inspector], dict[str, Any]],
        said: Callable[[dict[str, Any]], str],
    ) -> None:
        """Do *work* to the *kind* of *name* at each broker that has it; print a line about each."""
        self.answer(
            lambda inspector: [{kind: name, **work(inspector)}],
            lambda rows: [f"{name} at {row['broker']}: {said(row)}" for row in rows],
        )


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

    def complain(self, unreachable: Iterable[object] = ()) -> None:
        """Raise Refused where a broker, or a node of one, could not be asked.

        After the others were shown. An error names its broker where it is about it.
        """
        said = [*(str(error) for _, error in self.failures), *map(str, unreachable)]
        if said:
            raise Refused("\n".join(said))


_BETWEEN = r";(?=\s*reliq[a-z-]*:/|\s*$)"


def split_urls(given: Iterable[str]) -> tuple[str, ...]:
    """Return one entry for each broker: several may stand in one text, between semicolons.

    The URLs of Sentinels that follow each other in one text are one broker, and so are those of
    nodes of a cluster; in two texts they are of two.
    """
    found: list[str] = []
    for text in given:
        before = ""
        # A semicolon that no URL of ours follows is one of a password that nobody has encoded.
        for url in filter(None, map(str.strip, re.split(_BETWEEN, text))):
            scheme = url.partition("://")[0]
            if scheme in {"reliq-sentinel", "reliq-cluster"} and scheme == before:
                found[-1] += f";{url}"
            else:
                found.append(url)
            before = scheme
    return tuple(found)


def target_of(
    urls: tuple[str, ...] = (),
    prefix: str = "",
    master_name: str | None = None,
    address_map: Mapping[str, str] | None = None,
    as_json: bool = False,
) -> Target:
    """Return the brokers of the current command; raises UsageError where none is named."""
    context = click.get_current_context()
    application = context.find_object(Application)
    from_environment = context.get_parameter_source("urls") is ParameterSource.ENVIRONMENT
    said = {"global_keyprefix": prefix, "master_name": master_name, "address_map": address_map}
    given: dict[str, Any] = {name: value for name, value in said.items() if value}
    if application is not None:
        its_urls, its_options = application.brokers()
        # A list of Celery's is one text: it may name several nodes of one broker.
        its_own = not urls or from_environment
        chosen = split_urls((";".join(its_urls),) if its_own else urls)
        given = {**its_options, **given}
    elif not urls:
        raise click.UsageError("Missing option '--url' (env var: 'RELIQ_URL').")
    else:
        if from_environment:  # click has split it where there was a space
            urls = (";".join(url.rstrip(";") for url in urls),)
        chosen = split_urls(urls)
    spools = tuple(url for url in chosen if is_spool(url))
    brokers = tuple(url for url in chosen if url not in spools)
    if not brokers:
        raise click.UsageError("a spool is no broker: reliq spool status PATH shows what is in it")
    return Target(brokers, given, spools, as_json)

"""What somebody asks of a page: who it is, of which broker, and the query, read with care."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .names import link, pairs_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .users import User

# Of which the place is a number that scripts count with.
_MOST = 2**31
PAGE = 50
"""So many rows a page of a list has."""
_LONGEST = 2000


@dataclass(frozen=True)
class Asked:
    """One request for a page. Two that are equal are shown the same."""

    user: User = field(compare=False)
    may_act: bool
    """Whether the user is an operator, and actions are allowed at all."""
    query: tuple[tuple[str, str], ...] = ()
    root_path: str = ""
    several: bool = field(default=False, compare=False)
    """Whether there are several brokers, so that links have to name theirs."""

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return next((value for key, value in self.query if key == name), default)[:_LONGEST]

    def texts(self, name: str) -> list[str]:
        """Return all values of a name."""
        return [value for key, value in self.query if key == name]

    def number(self, name: str, default: int = 0, most: int = _MOST) -> int:
        """Return a value that is a number from 0 to *most*; the default for what is none."""
        value = self.text(name)
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(_MOST))):
            return default
        return min(int(value), most)

    @property
    def broker(self) -> int:
        """The number of the broker that the page is about; the first unless one is named."""
        return self.number("broker")

    def link(self, path: str, **values: object) -> str:
        """Return the URL of another page of the same broker."""
        if self.several and "broker" not in values and self.broker:
            values = {**values, "broker": self.broker}
        return link(self.root_path, path, values)

    def again(self, path: str, query: Iterable[tuple[str, str]]) -> str:
        """Return the URL of a page with a query as it was given, names that stand twice too."""
        text = pairs_text(query)
        return f"{self.root_path}{path}?{text}" if text else f"{self.root_path}{path}"

    def here(self, path: str, **changes: object) -> str:
        """Return the URL of this page with another query."""
        return link(self.root_path, path, {**dict(self.query), **changes})

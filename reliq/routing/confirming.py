"""What a publish waits for: the options, and what one message asks for instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MessageRefused
from ..options import CONFIRMS, RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..options import Confirm, Options
    from ..store.protocol import Store
    from ..store.values import Publication

BY_STORING = frozenset({"none", "accepted"})


class Wanted(NamedTuple):
    """The confirmation that a publish waits for."""

    level: Confirm
    replicas: int
    timeout_ms: int

    @property
    def by_storing(self) -> bool:
        """Whether storing a message is all there is to wait for."""
        return self.level in BY_STORING

    def require(self, store: Store) -> None:
        """Raise BrokerRefused where the broker can never give it; nothing is stored yet."""
        if self.level not in BY_STORING:
            store.require_confirm(self.level)

    def wait(self, store: Store, publications: Sequence[Publication]) -> None:
        """Wait until *publications*, which are stored, are this safe; raises NotConfirmed."""
        if self.level not in BY_STORING and publications:
            store.confirm(self.level, self.replicas, self.timeout_ms, publications)


ACCEPTED = Wanted("accepted", 0, 1)
"""The broker has stored it."""


def by_default(options: Options) -> Wanted:
    """Return what the options say."""
    return Wanted(options.confirm, options.confirm_replicas, _ms(options.confirm_timeout))


def wanted(default: Wanted, properties: dict[str, Any], timeout_s: Any) -> Wanted:
    """Return what one message asks for; raises MessageRefused, before anything is stored.

    *timeout_s* is the ``confirm_timeout`` of Kombu's ``Producer.publish``.
    """
    level = properties.get("confirm")
    if level is None and timeout_s is None:
        return default
    if level is not None and level not in CONFIRMS:
        raise MessageRefused(
            f"expected confirm to be one of {', '.join(map(repr, CONFIRMS))}, got: {level!r}; "
            "nothing was stored"
        )
    timeout_ms = default.timeout_ms
    if timeout_s is not None:
        expected, check = RULES["confirm_timeout"]
        try:
            timeout_ms = _ms(check(timeout_s))
        except (TypeError, ValueError) as exc:
            raise MessageRefused(
                f"expected confirm_timeout to be {expected}, got: {timeout_s!r}; nothing was stored"
            ) from exc
    return Wanted(level or default.level, default.replicas, timeout_ms)


def together(wishes: Iterable[Wanted]) -> list[Wanted]:
    """Return what to wait for so that every wish comes true: each level once, the longest time."""
    found: dict[Confirm, Wanted] = {}
    for wish in wishes:
        known = found.get(wish.level)
        if known is None or known.timeout_ms < wish.timeout_ms:
            found[wish.level] = wish
    return [found[level] for level in CONFIRMS if level in found]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))

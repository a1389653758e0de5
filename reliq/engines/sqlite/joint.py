"""Joint publishes: what threads of a process publish at the same time is stored together.

A thread that publishes while another one does would wait for its turn, and then compete with all
the others for Python's own lock at each of its statements. So the one that writes takes what the
others wait with into its own transaction, all or nothing of it, and tells them when it is stored.
Where something in it fails, each does its own by itself, and hears its own error.

Who waits here may hold the lock of its own connection, and who leads holds its own already and
takes no other's: nobody waits for the lock of somebody who waits.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ...errors import BrokerUnavailable, ReliqError
from ...forks import OwnLock, here

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .location import Location
    from .transaction import Transaction

    Step: TypeAlias = Callable[[Transaction], list[int]]

_MOST = 64


class Request:
    """A step that waits to be done by whoever leads."""

    lock = OwnLock()
    """Held until it is done, or its turn: a lock, as an interrupted wait for it harms nothing."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.outcomes: list[int] | None = None
        self.error: ReliqError | None = None
        """Set where it is not known whether it is stored."""
        self.leads = False
        """Whether it is its turn to lead."""
        self.lock.acquire()


class Joint:
    """Who of a process publishes to one file now, and what the others wait with."""

    _lock = OwnLock()
    """Guards all of it; held for some steps of a deque, and nothing is called under it."""
    _known: ClassVar[weakref.WeakValueDictionary[tuple[Any, ...], Joint]] = (
        weakref.WeakValueDictionary()
    )

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = here()
        self._led = False
        self._waiting: deque[Request] = deque()

    @classmethod
    def of(cls, *what: Any) -> Joint:
        """Return the one that all share whose publishes may be stored together."""
        return cls._known.setdefault(what, cls())

    def lead(self) -> bool:
        """Whether the caller leads, until :meth:`leave`: False where somebody else does."""
        with self._lock:
            if self._process != here():
                self._begin()  # in a child: who led and who waited are its parent's
            led, self._led = self._led, True
            return not led

    def wait(self, step: Step, timeout_s: float) -> Request:
        """Wait until *step* is done by who leads, or it is the caller's turn to lead.

        That is so as well where nobody has given the lead back within *timeout_s*.
        Whoever is interrupted waits no longer.
        """
        request = Request(step)
        with self._lock:
            if not self._led:
                self._led = request.leads = True
                return request
            self._waiting.append(request)
        try:
            if not request.lock.acquire(timeout=timeout_s):
                if self._withdraw(request):
                    request.leads = True
                    return request
                request.lock.acquire()  # somebody is at it, and will not be long
        except BaseException:
            if not self._withdraw(request) and request.leads:
                self.leave()
            raise
        return request

    def _withdraw(self, request: Request) -> bool:
        """Take back what nobody has taken on; False where somebody has."""
        with self._lock:
            try:
                self._waiting.remove(request)
            except ValueError:
                return False
            return True

    def take(self) -> list[Request]:
        """Return what others wait with: whoever leads does it now."""
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]

    def leave(self) -> None:
        """Lead no more; the next that waits does."""
        with self._lock:
            if not self._waiting:
                self._led = False
                return
            request = self._waiting.popleft()
            request.leads = True
        request.lock.release()


class Group:
    """What is stored in one transaction of who leads; ``with`` around that transaction.

    Tells the others at its end, and gives the lead back. Nothing is raised where it failed
    because of one of them: each does its own by itself then.
    """

    def __init__(self, joint: Joint, where: Location) -> None:
        self._joint = joint
        self._where = where
        self._others: list[Request] = []
        self._outcomes: list[list[int]] = []
        self._complete = False

    def __enter__(self) -> Group:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Return self."""
        return self

    def join(self, transaction: Transaction) -> None:
        """Do what the others wait with; nothing but the commit is to follow."""
        self._others = self._joint.take()
        self._outcomes = [other.step(transaction) for other in self._others]
        self._complete = True

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Tell the others: stored, or not known, or to be done by themselves."""
        for place, other in enumerate(self._others):
            if exc is None:
                other.outcomes = self._outcomes[place]
            elif self._complete:
                other.error = exc if isinstance(exc, ReliqError) else self._interrupted()
            other.lock.release()
        self._joint.leave()
        return isinstance(exc, ReliqError) and bool(self._others) and not self._complete

    def _interrupted(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self._where}: another thread, that stored it, was interrupted")

"""A signal handler or destructor can enter each lock that its own thread holds."""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path

import pytest

import reliq
from reliq.client.pipeline import Pipeline
from reliq.forks import OwnLock


def locks():
    """Yield the owner and name of each lock of the package."""
    package = Path(reliq.__file__).parent
    for path in package.rglob("*.py"):
        if "OwnLock()" in path.read_text("utf-8"):
            name = ".".join(["reliq", *path.relative_to(package).with_suffix("").parts])
            for kind in vars(import_module(name)).values():
                if isinstance(kind, type) and kind.__module__ == name:
                    yield from locks_of(kind)
    yield "Pipeline.lock", Pipeline(None, 1.0, bool), "lock"


def locks_of(kind):
    """Yield each lock of a new instance of *kind*."""
    for name, value in vars(kind).items():
        if isinstance(value, OwnLock):
            yield f"{kind.__name__}.{name}", kind.__new__(kind), name


class Dropped:
    """Enters a lock when it is collected."""

    def __init__(self, enter):
        self._enter = enter

    def __del__(self):
        """Enter the lock."""
        self._enter()


@pytest.mark.timeout(10)
def test_each_lock_is_entered_by_its_own_thread():
    """A handler and a destructor that run while their thread holds a lock enter it."""
    entered = []
    before = signal.getsignal(signal.SIGUSR1)
    for name, owner, attribute in locks():

        def enter(owner=owner, attribute=attribute, name=name):
            with getattr(owner, attribute):
                entered.append(name)

        signal.signal(signal.SIGUSR1, lambda *_, enter=enter: enter())
        with getattr(owner, attribute):
            signal.raise_signal(signal.SIGUSR1)
            Dropped(enter)
    signal.signal(signal.SIGUSR1, before)
    assert len(entered) > 50
    assert all(2 == entered.count(name) for name in entered)

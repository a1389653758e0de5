"""An interrupt at any moment leaves no transaction of a spool open, and the spool usable."""

from __future__ import annotations

import gc
import random
import signal
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from kombu.exceptions import EncodeError

from reliq.errors import BrokerRefused, ReliqError
from reliq.spool.journal import JOURNALS
from tests.integration.spool.test_spool import PUBLISH, Away, is_locked
from tests.support.audits import assert_balanced
from tests.support.interrupts import Interrupter

TAKEN = (1, "", "q", 0, b"", False, "name")
# Python 3.13 traces the instructions of a function only from its second call on: `close` is short.
STEPS = {
    "check": lambda journal: journal.check(),
    "declare": lambda journal: journal.declare("queue", "q", b"x"),
    "add": lambda journal: journal.add([PUBLISH] * 2, 10**9),
    "add on the disk": lambda journal: journal.add([PUBLISH], 10**9, fsync=True),
    "take": lambda journal: journal.take(0, "broker", "data"),
    "done": lambda journal: journal.done([TAKEN]),
    "rows": lambda journal: journal.rows("SELECT 1"),
    "close": lambda journal: (journal.close(), journal.close()),
}


def works(journal, path):
    """Whether the journal stores a publish for another thread, and leaves the file unlocked."""
    failed = []

    def use():
        try:
            before = journal.holds
            journal.add([PUBLISH], 10**9)
            assert before + 1 == journal.holds
        except (ReliqError, sqlite3.Error, AssertionError) as exc:
            failed.append(exc)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive() and not failed and not is_locked(path)


# An interrupt right after the file was opened leaves the rest to the collector, which closes it.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("opened", [True, False], ids=["open", "new"])
def test_an_interrupt_anywhere(tmp_path, step, opened):
    """After an interrupt at any point, every thread and process can use the spool."""
    do, point = STEPS[step], 0
    files = ("reliq/spool/journal.py", "contextlib.py")
    while True:
        point += 1
        path = tmp_path / f"{point}.db"
        journal = JOURNALS.at(str(path))
        if opened:
            journal.add([PUBLISH], 10**9)
        interrupter = Interrupter(files, point)
        interrupter.run(lambda journal=journal: do(journal))
        assert works(journal, path), interrupter.where
        journal.close()
        if not interrupter.where:
            break
    assert point > 2
    del interrupter
    gc.collect()


class Limit(Exception):
    """Raised by the alarm."""


@contextmanager
def alarms():
    """Yield a function that sets the alarm, which raises Limit."""

    def hit(*_):
        raise Limit

    before = signal.signal(signal.SIGALRM, hit)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_interrupted(alarm, after_s, away, connection, body):
    """Publish with an alarm *after_s* seconds later; return whether it interrupted the publish."""
    try:
        try:
            alarm(after_s)
            away.publish(connection, body)
        finally:
            alarm(0)
    except (Limit, EncodeError):  # Kombu makes the latter of an interrupt while it encodes
        return True
    return False


@pytest.fixture
def away(redis_factory, tmp_path):
    """Return a separate Redis and a spool; the ledgers balance at the end."""
    away = Away(redis_factory(appendonly=True), tmp_path)
    yield away
    assert_balanced(away.home)


@pytest.mark.slow
# An alarm in a destructor of Python's own, which only reports it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_alarms_in_an_outage(away):
    """Alarms that interrupt publishes into the spool leave it usable, and lose nothing."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, confirmed, interrupted = random.Random(seed), [], 0
    with away.connect(probe_interval=5) as connection:
        away.publish(connection, -1)
        away.server.kill()
        away.publish(connection, -2)
        with alarms() as alarm:
            for n in range(1500):
                if is_interrupted(alarm, chance.uniform(0.00001, 0.0006), away, connection, n):
                    interrupted += 1
                else:
                    confirmed.append(n)
        assert interrupted > 100
        away.publish(connection, "after")
        away.back()
        bodies = away.bodies()
    assert set() == {-1, -2, *confirmed, "after"} - {*bodies}
    assert len({*bodies}) == len(bodies)


def test_a_handler_that_publishes(tmp_path):
    """A signal handler that publishes inside a publish is refused; the publish is stored."""
    path = tmp_path / "spool.db"
    journal, refused = JOURNALS.at(str(path)), []

    def publishes():
        try:
            journal.add([PUBLISH], 10**9)
        except BrokerRefused as exc:
            refused.append(str(exc))
        yield PUBLISH

    journal.add(publishes(), 10**9)
    assert 1 == journal.holds
    assert ["signal handler" in text for text in refused] == [True]
    with closing(sqlite3.connect(path)) as other:
        assert (1,) == other.execute("SELECT count(*) FROM publishes").fetchone()

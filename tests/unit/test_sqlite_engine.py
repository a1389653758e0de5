"""Parts of the embedded engine that need no second process."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliq.engines.sqlite import notifications, presence, restoring, transaction
from reliq.engines.sqlite.location import location
from reliq.engines.sqlite.owners import make_notifications
from reliq.engines.sqlite.publish_sequence import SequenceSet
from reliq.engines.sqlite.store import SqliteStore
from reliq.errors import BrokerTimeout, ConfigurationError
from reliq.message.envelope import pack
from reliq.options import parse
from tests.contract.steps import Steps, message

LONG_AGO_S = 3600


@pytest.fixture
def where(tmp_path):
    """Return the location of a file that is not there yet."""
    return location(str(tmp_path / "broker.db"))


@pytest.fixture
def store(where):
    """Return a store of it."""
    store = SqliteStore(where, parse({}), "s/1")
    yield Steps(store, set())
    store.close()


@given(
    st.lists(st.tuples(st.sampled_from(["add", "below", "again"]), st.integers(1, 40)), max_size=60)
)
def test_numbers_are_a_set(steps):
    """Ranges know the same numbers as a set does, also when they were written and read."""
    numbers, known = SequenceSet(), set()
    for what, number in steps:
        if what == "add":
            assert (number not in known) == numbers.add(number)
            known.add(number)
        elif what == "below":
            numbers.forget_below(number)
            known = {other for other in known if other >= number}
        else:
            numbers = SequenceSet(str(numbers))
        assert known == {other for other in range(1, 41) if other in numbers}


def test_numbers_in_a_row_are_few_bytes():
    """Ten thousand of a batch are one range."""
    numbers = SequenceSet()
    for number in range(1, 10_001):
        numbers.add(number)
    assert "1-10000" == str(numbers)


@pytest.mark.parametrize("path", ["", "/", None, "a\0b"])
def test_a_url_without_a_file_is_refused(path):
    """It says what a URL looks like, or what is wrong with the path."""
    with pytest.raises(ConfigurationError, match="in the URL"):
        location(path)


def clocks(monkeypatch):
    """Return the two clocks of the engine, to be set by hand."""
    now = SimpleNamespace(wall=10**18, awake=10**12)
    fake = SimpleNamespace(time_ns=lambda: now.wall, monotonic_ns=lambda: now.awake)
    monkeypatch.setattr(transaction, "time", fake)
    monkeypatch.setattr(restoring, "time", fake)
    return now


def test_a_machine_that_slept_ends_no_lease_at_once(store, monkeypatch):
    """Nobody could renew meanwhile: leases run out one lease after it woke, no sooner."""
    now = clocks(monkeypatch)
    store.publish(message())
    store.take(lease_ms=10_000)
    store.restore(lease_ms=10_000)
    now.wall += 3600 * 10**9  # it sleeps: only one of the clocks goes on
    assert {} == store.restore(lease_ms=10_000).by_consumer
    for clock in ("wall", "awake"):
        setattr(now, clock, getattr(now, clock) + 9 * 10**9)
    assert {} == store.restore(lease_ms=10_000).by_consumer
    for clock in ("wall", "awake"):
        setattr(now, clock, getattr(now, clock) + 2 * 10**9)
    assert {"s/1": 1} == store.restore(lease_ms=10_000).by_consumer


def test_time_that_passes_awake_is_no_sleep(store, monkeypatch):
    """A lease that ran out while everybody was awake ends with the next pass."""
    now = clocks(monkeypatch)
    store.publish(message())
    store.take(lease_ms=10_000)
    store.restore(lease_ms=10_000)
    for seconds in (6, 5):
        assert {} == store.restore(lease_ms=10_000).by_consumer
        now.wall, now.awake = now.wall + seconds * 10**9, now.awake + seconds * 10**9
    assert {"s/1": 1} == store.restore(lease_ms=10_000).by_consumer


def test_a_clock_that_is_set_back_spares_nothing_for_hours(store, monkeypatch):
    """What is taken after that comes back one lease later, as always."""
    now = clocks(monkeypatch)
    store.publish(message())
    store.restore(lease_ms=10_000)
    now.wall -= 3600 * 10**9
    store.take(lease_ms=10_000)
    for seconds in (6, 5):
        assert {} == store.restore(lease_ms=10_000).by_consumer
        now.wall, now.awake = now.wall + seconds * 10**9, now.awake + seconds * 10**9
    assert {"s/1": 1} == store.restore(lease_ms=10_000).by_consumer


def test_a_clock_that_is_set_back_keeps_nobody_from_a_pass(store, where, monkeypatch):
    """Whoever passed over the queue before is gone: the next does not wait for its hour."""
    now = clocks(monkeypatch)
    store.publish(message())
    assert store.restore().granted
    now.wall -= 3600 * 10**9
    other = Steps(SqliteStore(where, parse({}), "s/2"), set())
    assert other.restore().granted
    assert not store.restore().granted
    other.store.close()


def test_presence_is_held_until_it_is_left(where):
    """One that is held is present, also to its own process, which must not probe it."""
    presence.hold(where, "me")
    assert presence.present(where, "me")
    assert presence.present(where, "me")
    presence.leave(where, "me")
    assert not presence.present(where, "me")
    assert not presence.present(where, "nobody")


def test_a_child_does_not_share_the_presence_of_its_parent(where):
    """A fork neither holds it on nor lets it go."""
    presence.hold(where, "parent")
    child = os.fork()
    if not child:
        seen = 1
        try:
            seen = 0 if presence.present(where, "parent") else 2
        finally:
            os._exit(seen)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    presence.leave(where, "parent")
    assert not presence.present(where, "parent")


def test_a_presence_outlives_who_clears_away_what_is_old(store, where):
    """With each heartbeat its file is new again, or there again: others see that it lives."""
    name, _ = store.store.server()
    path = Path(where.notifications) / f"{name}.lock"
    before = time.time() - LONG_AGO_S
    os.utime(path, (before, before))
    store.heartbeat("s", client_id=name)
    assert path.stat().st_mtime > before + 1
    path.unlink()
    store.heartbeat("s", client_id=name)
    child = os.fork()
    if not child:
        seen = 1
        try:
            seen = 0 if presence.present(where, name) else 2
        finally:
            os._exit(seen)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_the_dead_left_is_swept(where):
    """Locks and FIFOs that nobody has open go, but for new ones, those in use, and others'."""
    directory = Path(make_notifications(where))
    own, dead, new = (f"1-{letter * 12}" for letter in "abc")
    notification = notifications.make(where, own)
    presence.hold(where, own)
    for name in (f"{dead}.lock", f"{new}.lock", "other.txt", "poetry.lock", "church.notification"):
        (directory / name).touch()
    os.close(notifications.make(where, dead))
    before = time.time() - LONG_AGO_S
    for path in directory.iterdir():
        if not path.name.startswith(new):
            os.utime(path, (before, before))
    presence.sweep(where)
    left = sorted(path.name for path in directory.iterdir())
    expected = [f"{own}.lock", f"{own}.notification", f"{new}.lock"]
    assert [*expected, "church.notification", "other.txt", "poetry.lock"] == left
    os.close(notification)
    presence.leave(where, own)


def test_many_make_the_file_at_once(tmp_path):
    """Whoever comes while another makes the tables takes them for its own."""
    for number in range(20):
        where, begin = location(str(tmp_path / f"{number}.db")), threading.Barrier(6)

        def start(where=where, begin=begin):
            store = SqliteStore(where, parse({}), "s/1")
            begin.wait(10)
            found = store.queues()
            store.close()
            return found

        with ThreadPoolExecutor(6) as pool:
            starts = [pool.submit(start) for _ in range(6)]
        assert [[]] * 6 == [done.result() for done in starts]


def test_a_read_of_another_thread_changes_no_write(where):
    """A write transaction has the file for itself, whoever reads before it begins."""
    store, other = (SqliteStore(where, parse({"socket_timeout": 0.1}), "s/1") for _ in range(2))
    transaction = store.write()
    store.read()
    with transaction, pytest.raises(BrokerTimeout):
        other.probe()
    other.probe()
    store.close()
    other.close()


class Interrupted(BaseException):
    """What a signal's handler raises, between two instructions."""


def interrupt(do, after):
    """Call *do*, and interrupt it when it has called *after* functions of C; False: it has not."""
    count = 0

    def on_event(_frame, event, _argument):
        nonlocal count
        if event == "c_return":
            count += 1
            if count == after:
                raise Interrupted

    sys.setprofile(on_event)
    try:
        do()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("what", ["publish", "listen"])
def test_a_step_that_is_interrupted_keeps_nobody_out(where, what):
    """A soft time limit, wherever it strikes, leaves no transaction open: others go on."""
    store, other = (SqliteStore(where, parse({"socket_timeout": 0.1}), "s/1") for _ in range(2))
    Steps(store, set()).publish(message())
    other.connect()
    store.notifier.descriptors()  # made once; from here on every try makes the same calls

    def do():
        if what == "publish":
            store.publish([message()])
        else:
            store.notifier.listen(["q"], 60)

    after = 0
    while interrupt(do, after + 1):
        other.probe()
        after += 1
    assert after > 5
    store.close()
    other.close()


def test_a_store_that_nobody_closed_is_closed(where):
    """It leaves no descriptor open when it is collected."""
    SqliteStore(where, parse({}), "s/0").queues()  # what the first one leaves open is its own
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        SqliteStore(where, parse({}), "s/1").queues()
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_deleted_queue_is_bound_to_nothing(store):
    """In the same step, so whoever deletes it may die after that; what was to go with them goes."""
    store.store.declare_exchange("stays", pack({"type": "direct"}))
    store.store.declare_exchange("goes", pack({"type": "direct", "auto_delete": True}))
    for queue in ("q", "other"):
        store.store.declare_queue(queue, False, b"", {})
        store.store.bind("stays", True, [pack(["k", queue])], queue)
    store.store.bind("goes", True, [pack(["k", "q"])], "q")
    store.store.declare_exchange("junk", b"\xc1")
    store.store.bind("junk", True, [b"junk"], "q")
    version = store.store.bindings_version("stays")
    store.store.delete_queue("q")
    assert {pack(["k", "other"])} == store.store.exchange_table("stays").bindings
    assert version != store.store.bindings_version("stays")
    assert ["junk", "stays"] == store.store.exchanges()
    table = store.store.exchange_table("goes")
    assert (None, None, frozenset()) == (table.declaration, table.version, table.bindings)


def test_no_placeholder_has_a_number():
    """Python 3.12 up to 3.12.3 takes `?1` for a name and warns of the values that it gets."""
    statements = "".join(
        path.read_text("utf-8")
        for path in Path(transaction.__file__).parent.iterdir()
        if path.is_file()
    )
    assert [] == re.findall(r"\?[0-9]", statements)

"""The times in a message's headers and properties are checked before anything is stored."""

from __future__ import annotations

import copy
import datetime as dt
import math
import time
from decimal import Decimal

import pytest
from celery.utils.time import maybe_iso8601, maybe_make_aware

from reliq.errors import MessageRefused
from reliq.transports.publish.encoder import take_delay, ttl_ms

UTC = dt.timezone.utc
BERLIN = dt.timezone(dt.timedelta(hours=2))
YEAR_MS = 365 * 86_400_000

WRONG = [
    -1,
    -0.5,
    "-1",
    "soon",
    "",
    "1.5",
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    [1],
    {},
    b"5",
    dt.timedelta(seconds=1),
    10**18,
]


def task(**headers):
    """Return the headers of a Celery task message."""
    return {"task": "add", "id": "1", "eta": None, **headers}


def in_s(seconds):
    """Return an aware time, *seconds* from now."""
    return dt.datetime.now(UTC) + dt.timedelta(seconds=seconds)


# -- refused values


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_wrong_delay_is_refused(value):
    """The error names the argument and its value."""
    with pytest.raises(MessageRefused, match=r"expected x-delay to be a number of ms.*stored"):
        take_delay({"x-delay": value}, native=True)


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_wrong_time_to_live_is_refused(value):
    """The error names the argument and its value."""
    with pytest.raises(MessageRefused, match=r"expected expiration to be a number of ms.*stored"):
        ttl_ms({"expiration": value})


def test_a_decimal_is_refused():
    """A Decimal is refused as a delay: Redis would get it as text of an unexpected form."""
    with pytest.raises(MessageRefused, match="x-delay"):
        take_delay({"x-delay": Decimal(5)}, native=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 0), (0, 0), (5, 5), ("5", 5), (5.0, 5), (0.2, 1), (10 * YEAR_MS, 10 * YEAR_MS)],
)
def test_a_delay_in_ms(value, expected):
    """A delay may be a number or text; a part of a ms is rounded up; ten years are accepted."""
    assert expected == take_delay({"x-delay": value}, native=False)[1]


@pytest.mark.parametrize(("value", "expected"), [(None, -1), ("0", 100), ("1500", 1500), (7, 7)])
def test_a_time_to_live_in_ms(value, expected):
    """Kombu writes seconds as text; -1 means no time to live, and 0 counts as 100 ms."""
    assert expected == ttl_ms({"expiration": value})


# -- x-delay


def test_a_delay_is_taken_once():
    """A message that is forwarded with its headers is not delayed again."""
    stored, delay_ms = take_delay({"x-delay": 500, "other": 1}, native=True)
    assert (500, {"x-delayed": 500, "other": 1}) == (delay_ms, stored)
    assert 0 == take_delay(stored, native=True)[1]


def test_a_delay_wins_over_an_eta():
    """A delay replaces an eta, so that the worker does not wait for the eta as well."""
    eta = in_s(3600).isoformat()
    stored, delay_ms = take_delay(task(eta=eta, **{"x-delay": 500}), native=True)
    assert 500 == delay_ms
    assert task(**{"x-delayed": 500, "x-eta": eta}) == stored


def test_a_delay_of_none_is_no_delay():
    """A delay of None leaves the headers unchanged."""
    assert take_delay({"x-delay": None}, native=True) == ({"x-delay": None}, 0)


# -- eta


def test_an_eta_becomes_a_delay():
    """An eta becomes a delay, and the stored message no longer makes a worker hold it."""
    eta = in_s(100).isoformat()
    stored, delay_ms = take_delay(task(eta=eta), native=True)
    assert task(**{"x-eta": eta}) == stored
    assert 99_000 < delay_ms <= 100_001


@pytest.mark.parametrize("native", [True, False])
def test_the_eta_of_an_earlier_message_is_not_stored(native):
    """A task that is published with a received task's headers stores no eta but its own."""
    assert (task(), 0) == take_delay(task(**{"x-eta": in_s(100).isoformat()}), native)
    eta = in_s(100).isoformat()
    stored = take_delay(task(eta=eta, **{"x-eta": "2020-01-01"}), native=True)[0]
    assert task(**{"x-eta": eta}) == stored


def test_the_headers_of_the_caller_stay_as_they_are():
    """The caller's headers stay unchanged, as Kombu passes the same ones to every try."""
    headers = task(eta=in_s(100).isoformat(), **{"x-delay": 5})
    before = copy.deepcopy(headers)
    take_delay(headers, native=True)
    assert before == headers


def test_a_retry_waits_only_for_the_rest():
    """The delay of a retried publish is computed anew, so that it ends at the same eta."""
    headers = task(eta=in_s(100).isoformat())
    first = take_delay(headers, native=True)[1]
    time.sleep(0.02)
    assert take_delay(headers, native=True)[1] < first


def test_without_native_delay_an_eta_is_celerys():
    """Without native delay, the headers stay unchanged."""
    headers = task(eta=in_s(100).isoformat())
    assert (headers, 0) == take_delay(headers, native=False)


def test_an_eta_of_something_else_is_not_ours():
    """An eta is understood only in Celery's task messages."""
    headers = {"eta": in_s(100).isoformat()}
    assert (headers, 0) == take_delay(headers, native=True)


def test_an_eta_that_has_passed_is_no_delay():
    """An eta in the past means no delay, never a negative one."""
    eta = in_s(-100).isoformat()
    assert (task(**{"x-eta": eta}), 0) == take_delay(task(eta=eta), native=True)


@pytest.mark.parametrize("eta", ["soon", "2030-13-01T00:00:00", "T", 5, ["x"]], ids=repr)
def test_an_eta_that_cannot_be_read_is_left_to_celery(eta):
    """An unreadable eta is left to Celery, which has its own error for it."""
    assert (task(eta=eta), 0) == take_delay(task(eta=eta), native=True)


@pytest.mark.parametrize(
    "moment",
    [
        dt.datetime(2040, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
        dt.datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC),
        dt.datetime(2040, 1, 2, 3, 4, 5, 678_901, tzinfo=BERLIN),
        dt.datetime(2040, 1, 2, 3, 4, 5, 678_901),  # noqa: DTZ001 - naive is what is tested
        dt.datetime(3040, 1, 2, 3, 4, 5, 678_901, tzinfo=BERLIN),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
    ids=str,
)
@pytest.mark.parametrize("end", ["+00:00", "Z"])
def test_an_eta_means_what_celerys_worker_reads_in_it(moment, end):
    """An eta, aware or naive, near or far, means the same time as in Celery's worker, to the ms."""
    text = moment.isoformat().replace("+00:00", end)
    meant = maybe_make_aware(maybe_iso8601(text), BERLIN) - dt.datetime(1970, 1, 1, tzinfo=UTC)
    meant_ms = -(-meant // dt.timedelta(milliseconds=1))
    before_ms = time.time_ns() // 1_000_000
    delay_ms = take_delay(task(eta=text), native=True)[1]
    after_ms = time.time_ns() // 1_000_000
    assert meant_ms - after_ms <= delay_ms <= meant_ms - before_ms


@pytest.mark.parametrize("microsecond", [0, 1, 499, 500, 999, 1000, 999_999])
def test_the_delay_is_never_short(microsecond, monkeypatch):
    """A delay never ends before its eta, for any parts of a ms of eta, client and server."""
    eta = dt.datetime(2033, 5, 18, 3, 33, 20, microsecond, tzinfo=UTC)
    for part_ns in (0, 1, 500_000, 999_999):
        now_ns = 1_999_999_999 * 10**9 + part_ns
        monkeypatch.setattr(time, "time_ns", lambda now=now_ns: now)
        delay_ms = take_delay(task(eta=eta.isoformat()), native=True)[1]
        due_ms = now_ns // 1_000_000 + delay_ms  # the server's clock has whole ms
        assert due_ms * 1000 >= 2_000_000_000 * 10**6 + microsecond

import math
import struct
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from time import process_time
from uuid import UUID, uuid4

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliq.errors import MessageRefused
from reliq.message.envelope import VERSION, Envelope, EnvelopeError, decode, encode, pack, unpack
from reliq.routing.publish_ids import Publisher

ZONES = st.none() | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**60), 10**60),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(timezones=ZONES),
    st.uuids(),
    st.decimals(allow_nan=False),
)
KEYS = st.text() | st.integers() | st.none() | st.booleans() | st.binary() | st.uuids()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.none() | st.text()
ENVELOPES = st.builds(
    Envelope,
    body=st.binary() | st.text(),
    content_type=TEXTS,
    content_encoding=TEXTS,
    headers=st.dictionaries(st.text(), VALUES, max_size=5),
    properties=st.dictionaries(st.text(), VALUES, max_size=5),
    exchange=st.text(),
    routing_key=st.text(),
)


def envelope(**changes):
    """Return an empty envelope with *changes* applied."""
    return Envelope(b"", None, None, {}, {}, "", "")._replace(**changes)


def there_and_back(value):
    """Return *value* as a header after encoding and decoding."""
    return decode(encode(envelope(headers={"h": value}))).headers["h"]


@pytest.mark.slow
@given(ENVELOPES)
def test_an_envelope_comes_back(sent):
    """Body, headers and properties of any nesting come back equal, with the same types."""
    received = decode(encode(sent))
    assert sent == received
    assert [type(field) for field in sent] == [type(field) for field in received]


@given(SCALARS)
def test_a_value_keeps_its_type(value):
    """A scalar keeps its type: a datetime, a big integer and bytes do not become text or floats."""
    assert (type(value), value) == (type(there_and_back(value)), there_and_back(value))


@pytest.mark.parametrize(
    "number",
    [2**63, 2**64, -(2**63) - 1, 10**4000, -(10**4000)],
    ids=["2**63", "2**64", "-2**63-1", "10**4000", "-10**4000"],
)
def test_big_integers_come_back(number):
    """Integers come back at any size, also beyond msgpack's range."""
    assert number == there_and_back(number)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "sNaN", "1E+999", "0.10"])
def test_decimals_come_back_as_they_were(text):
    """Decimals come back digit by digit, including the special values."""
    assert text == str(there_and_back(Decimal(text)))


def test_not_a_number_comes_back():
    """NaN comes back as a float."""
    assert math.isnan(there_and_back(math.nan))


def test_the_offset_of_a_time_is_kept():
    """An aware datetime comes back aware, with its offset, to the microsecond."""
    zone = timezone(-timedelta(hours=3, minutes=30))
    sent = datetime(2024, 2, 29, 23, 59, 59, 999_999, zone)
    assert sent.isoformat() == there_and_back(sent).isoformat()
    assert (date, time) == tuple(map(type, there_and_back([date(1, 1, 1), time(0)])))


def test_containers_become_lists_and_dicts():
    """Tuples and sets come back as lists, as in JSON."""
    assert [1, [2, 3]] == there_and_back((1, (2, 3)))
    assert [1] == there_and_back({1}) == there_and_back(frozenset({1}))
    assert {"a": [1]} == there_and_back(OrderedDict(a=(1,)))


class Colour(IntEnum):
    """An integer with a name."""

    RED = 1


def test_subclasses_become_their_base():
    """Subclasses of str and int, such as tags and enumerations, are stored as their base."""
    tag = Publisher().tag(5, {})
    assert (str, str(tag)) == (type(there_and_back(tag)), there_and_back(tag))
    assert 1 == there_and_back(Colour.RED)


@pytest.mark.parametrize(
    "value",
    [object(), "\ud800", 1j, len, range(3), timedelta(1), 10**5000],
    ids=["object", "surrogate", "complex", "function", "range", "timedelta", "10**5000"],
)
def test_what_cannot_be_stored_is_refused(value):
    """A value that cannot be stored is refused before anything is stored.

    The error names the allowed types.
    """
    with pytest.raises(MessageRefused, match=r"cannot be stored.*datetime"):
        encode(envelope(headers={"h": [value]}))


def test_what_is_nested_too_deeply_is_refused():
    """A value that is nested too deeply is refused when it is sent, not when it is read."""
    value = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(MessageRefused):
        encode(envelope(headers={"h": value}))


def test_what_contains_itself_is_refused():
    """A value that contains itself is refused."""
    value = []
    value.append(value)
    with pytest.raises(MessageRefused):
        encode(envelope(headers={"h": value}))


@pytest.mark.parametrize("depth", [100, 500])
def test_what_is_accepted_can_be_read(depth):
    """A value of an accepted depth can be read."""
    value = []
    for _ in range(depth):
        value = [value]
    assert value == there_and_back(value)


@pytest.mark.parametrize("key", [(1, 2), frozenset({1}), ()])
def test_a_key_that_cannot_be_read_is_refused(key):
    """A mapping with an unusual key is refused unless the consumer can read it."""
    try:
        data = encode(envelope(headers={"h": {key: 1}}))
    except MessageRefused:
        return
    decode(data)


# -- data that is not an envelope


def read_or_refuse(data):
    """Fail if *data* is neither read nor refused with a reason."""
    try:
        decode(data)
    except EnvelopeError as exc:
        reason = str(exc)
    else:
        reason = "none: it was read"
    assert reason


@given(st.binary())
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(data):
    """Arbitrary bytes are read or raise EnvelopeError."""
    read_or_refuse(data)


@given(ENVELOPES)
@settings(max_examples=30)
def test_a_truncated_envelope_is_refused(sent):
    """An envelope that is truncated at any byte is refused."""
    data = encode(sent)
    for length in range(len(data)):
        with pytest.raises(EnvelopeError):
            decode(data[:length])


@pytest.mark.slow
@given(ENVELOPES, st.data())
@settings(max_examples=300)
def test_a_damaged_envelope_is_read_or_refused(sent, data):
    """A changed, inserted or removed byte leads to EnvelopeError at worst."""
    stored = bytearray(encode(sent))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stored) - 1))
        stored[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not stored:
            break
    read_or_refuse(bytes(stored))


@given(st.integers(-128, 127), st.binary(max_size=20))
def test_any_extension_is_read_or_refused(code, payload):
    """A value of an unknown or mismatched extension type leads to EnvelopeError at worst."""
    fields = [VERSION, *envelope(headers={"h": msgpack.ExtType(code & 127, payload)})]
    data = msgpack.packb(fields)
    # The code of msgpack's own extension for times is negative: insert it manually.
    data = data.replace(bytes([code & 127]) + payload, bytes([code & 255]) + payload)
    read_or_refuse(data)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        5,
        "text",
        {},
        [],
        [VERSION],
        [VERSION, *envelope()][:-1],
        [VERSION, *envelope(), 1],
        [VERSION, *envelope(body=5)],
        [VERSION, *envelope(body=None)],
        [VERSION, *envelope(headers=[])],
        [VERSION, *envelope(headers=None)],
        [VERSION, *envelope(properties="text")],
        [VERSION, *envelope(content_type=7)],
        [VERSION, *envelope(content_encoding=["utf-8"])],
        [VERSION, *envelope(exchange=None)],
        [VERSION, *envelope(routing_key=b"q")],
        ["1", *envelope()],
        [None, *envelope()],
    ],
)
def test_another_shape_is_refused(fields):
    """Valid msgpack of another shape is refused as not an envelope."""
    with pytest.raises(EnvelopeError, match="not an envelope"):
        decode(msgpack.packb(fields))


@pytest.mark.parametrize("version", [0, 2, 77, -1])
def test_another_version_is_named(version):
    """The error for an envelope of another version names the version."""
    with pytest.raises(EnvelopeError, match=f"version {version} "):
        decode(msgpack.packb([version, *envelope()]))


@pytest.mark.parametrize(
    "claim",
    [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 9],
)
def test_a_claim_of_more_than_there_is_costs_nothing(claim):
    """A claimed length beyond the input is refused without an allocation."""
    with pytest.raises(EnvelopeError):
        decode(b"\x98\x01" + claim)


@given(VALUES)
def test_the_codec_serves_any_value(value):
    """The codec also carries the arguments of tasks, as the `reliq` serializer."""
    assert value == unpack(pack(value))


def test_a_uuid_is_sixteen_bytes():
    """A UUID is stored in at most 18 bytes."""
    value = uuid4()
    assert len(pack(value)) <= 18
    assert UUID is type(unpack(pack(value)))


@pytest.mark.parametrize("header", [b"\xdd", b"\xdf"])
def test_what_a_header_claims_is_not_allocated(header):
    """A megabyte of headers that claim a megabyte each is refused in little memory."""
    claims = header + struct.pack(">I", 400_000)
    data = claims * 500 + bytes(900_000)
    tracemalloc.start()
    try:
        with pytest.raises(EnvelopeError):
            unpack(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000_000


def test_a_message_that_memory_cannot_hold_is_not_an_envelope():
    """A process that lacks the memory for a message refuses it and continues."""
    code = """
import resource
from reliq.message.envelope import EnvelopeError, unpack
data = b"\\xdd\\x00\\xa0\\x00\\x00" + b"\\x90" * (10 << 20)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20),) * 2)
try:
    unpack(data)
except EnvelopeError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    expected = "not decoded: 10485765 bytes need more memory than this process may use\n"
    assert (expected, "") == (done.stdout, done.stderr)


@pytest.mark.parametrize(
    "key",
    [
        lambda n: UUID(int=n * (2**61 - 1) + 7),
        lambda n: n * (2**61 - 1) + 2**64 + 7,
        lambda n: Decimal(n * (2**61 - 1) + 7),
    ],
    ids=["uuid", "int", "decimal"],
)
def test_keys_that_collide_take_no_time_by_the_square_of_their_number(key):
    """A map with 10,000 keys of one hash is refused at once; a map with 100 is read."""
    few = {key(n): n for n in range(100)}
    assert few == unpack(pack(few))
    header = b"\xdf" + (10_000).to_bytes(4, "big")
    many = b"".join(pack(key(n)) + b"\x00" for n in range(10_000))
    began = process_time()
    with pytest.raises(EnvelopeError, match="10000 keys of one map"):
        unpack(header + many)
    assert process_time() - began < 2


def test_many_maps_and_keys_that_do_not_collide_are_read():
    """Maps with thousands of distinct UUIDs, decimals and big integers as keys are read."""
    value = {uuid4(): {Decimal(n): n, "n": 2**70 + n} for n in range(2000)}
    assert value == unpack(pack(value))

"""An envelope made from a similar one has the same bytes as an encoded envelope."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliq.message.envelope import AlikeEnvelopes, Differing, Envelope, encode

NAMES = st.sampled_from(["id", "root_id", "argsrepr", "tenant", "n", "nested"])
VALUES = st.one_of(
    st.none(), st.integers(), st.text(), st.dates(), st.lists(st.integers() | st.none(), max_size=3)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
DIFFERING = Differing(("id", "argsrepr"), ("correlation_id",))


@given(
    st.dictionaries(NAMES, VALUES),
    st.dictionaries(st.sampled_from(["correlation_id", "priority"]), VALUES),
    st.lists(st.tuples(st.binary(max_size=400) | TEXTS, TEXTS, TEXTS, TEXTS), min_size=2),
    st.none() | TEXTS,
)
def test_the_bytes_are_those_of_encoding(headers, properties, messages, content_type):
    """The bytes equal an encoding for any shared headers and any subset of differing fields."""
    envelopes = None
    for body, task_id, shown, correlation in messages:
        differing = {"id": task_id, "argsrepr": shown}
        headers.update({name: value for name, value in differing.items() if name in headers})
        if "correlation_id" in properties:
            properties["correlation_id"] = correlation
        expected = encode(Envelope(body, content_type, "utf-8", headers, properties, "", "celery"))
        if envelopes is None:
            envelopes = AlikeEnvelopes(expected, DIFFERING)
        assert expected == envelopes.encode(body, headers, properties)


def test_what_is_no_text_is_left_to_encoding():
    """Text that cannot be encoded, such as a lone surrogate, is left to the encoder."""
    example = encode(Envelope(b"", None, None, {"id": "1"}, {}, "", ""))
    envelopes = AlikeEnvelopes(example, DIFFERING)
    assert envelopes.encode(b"", {"id": "\ud800"}, {}) is None
    assert example == envelopes.encode(b"", {"id": "1"}, {})

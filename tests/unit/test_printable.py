import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliq.errors import MessageRefused, NotFound, ReliqError
from reliq.printable import plain, word

HOSTILE = "a\n2026-01-01 ERROR forged\r\x1b[2J\x1b]0;owned\x07\u2028\u202e\x9b31m\udce9"


@given(st.text())
def test_any_text_becomes_one_printable_line(text):
    """Any text becomes one printable line, and printable text stays unchanged."""
    assert plain(text).isprintable()
    if text.isprintable():
        assert text == plain(text)


@pytest.fixture
def written():
    """Return the stream to which a handler writes the package's records."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("reliq")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_record_is_one_line(written):
    """A record stays on one line, whatever its arguments or its own text contain."""
    logger = logging.getLogger("reliq")
    logger.warning("of %s and %r: %d", HOSTILE, HOSTILE, 7)
    logger.warning(HOSTILE)
    lines = written.getvalue().split("\n")
    assert ["of a\\n2", "a\\n20", ""] == [lines[0][:7], lines[1][:5], lines[2]]
    assert all(line.isprintable() for line in lines)


def test_a_traceback_keeps_its_lines_to_itself(written):
    """Each error of a traceback is one line, and Python's lines about the frames are unchanged."""
    try:
        try:
            raise ValueError(HOSTILE)  # noqa: TRY301
        except ValueError as exc:
            raise KeyError("the second") from exc
    except KeyError:
        logging.getLogger("reliq").exception("failed")
    lines = written.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert "Traceback (most recent call last):" in lines
    assert "KeyError: 'the second'" in lines
    assert ["ValueError: a\\n2026"] == [line[:19] for line in lines if line.startswith("ValueErr")]
    assert not any(line.startswith("2026") for line in lines)


@pytest.mark.parametrize("kind", [ReliqError, MessageRefused, NotFound])
def test_an_error_is_one_line(kind):
    """An error's text is one line, so that code may print or log it without a check."""
    assert str(kind(f"no queue {HOSTILE}")).isprintable()
    assert str(kind("no queue orders")).endswith("no queue orders")


def test_a_name_is_one_word_of_a_command():
    """A name that an operator copies into a shell is quoted, so that the shell does not run it."""
    assert "orders" == word("orders")
    assert "'orders$(reboot)'" == word("orders$(reboot)")
    assert "'a\\n;reboot'" == word("a\n;reboot")

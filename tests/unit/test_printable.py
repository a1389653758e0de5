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
    """Whatever characters there are; what is printable already stays as it is."""
    assert plain(text).isprintable()
    if text.isprintable():
        assert text == plain(text)


@pytest.fixture
def written():
    """Return what a handler writes of the package's records."""
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
    """Text of others in the arguments, or in the text itself, does not leave its line."""
    logger = logging.getLogger("reliq")
    logger.warning("of %s and %r: %d", HOSTILE, HOSTILE, 7)
    logger.warning(HOSTILE)
    lines = written.getvalue().split("\n")
    assert ["of a\\n2", "a\\n20", ""] == [lines[0][:7], lines[1][:5], lines[2]]
    assert all(line.isprintable() for line in lines)


def test_a_traceback_keeps_its_lines_to_itself(written):
    """The errors in it are one line each; what Python says of the frames is as ever."""
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
    """So whoever prints or logs it need not look at it."""
    assert str(kind(f"no queue {HOSTILE}")).isprintable()
    assert str(kind("no queue orders")).endswith("no queue orders")


def test_a_name_is_one_word_of_a_command():
    """What an operator copies into a shell is not run by it."""
    assert "orders" == word("orders")
    assert "'orders$(reboot)'" == word("orders$(reboot)")
    assert "'a\\n;reboot'" == word("a\n;reboot")

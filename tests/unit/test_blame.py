"""The exceptions that count as the fault of a message."""

from types import SimpleNamespace

import pytest

from reliq.integrations.requests import is_to_blame


class BackendLostError(Exception):
    """An error of a result backend that has lost its connection."""


CONSUMER = SimpleNamespace(
    app=SimpleNamespace(
        backend=SimpleNamespace(
            # Kombu's Redis counts KeyError among its connection errors.
            exception_safe_to_retry=lambda exc: isinstance(exc, (BackendLostError, KeyError))
        )
    )
)


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, RecursionError, ValueError])
def test_what_content_brings_about(error):
    """Exceptions that code raises for an unexpected value are the fault of the message."""
    assert is_to_blame(CONSUMER, error("x"))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError,
        TimeoutError,
        OSError,
        MemoryError,
        BackendLostError,
        SystemExit,
        KeyboardInterrupt,
    ],
)
def test_what_would_have_happened_to_any_message(error):
    """Errors of a connection or the machine, and exits of the process, are not its fault."""
    assert not is_to_blame(CONSUMER, error("x"))

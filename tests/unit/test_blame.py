"""Which exceptions a message is at fault for."""

from types import SimpleNamespace

import pytest

from reliq.integrations.requests import is_to_blame


class BackendLostError(Exception):
    """What a result backend raises when its connection is lost."""


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
    """What code raises for a value that it did not expect."""
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
    """A connection, the machine, or somebody who wants the process to end."""
    assert not is_to_blame(CONSUMER, error("x"))

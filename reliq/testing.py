"""A real broker for the tests of an application: a folder of its own, gone when they end.

With pytest ``from reliq.testing import broker_fixture`` in a ``conftest.py``, or
``pytest_plugins = ["reliq.testing"]`` in the one of the root, and tests take the URL as ``broker``.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from .embedded.start import broker

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["broker"]

if importlib.util.find_spec("pytest") is not None:
    import pytest

    @pytest.fixture(name="broker")
    def broker_fixture() -> Iterator[str]:
        """Yield the URL of a broker of this test's own."""
        with broker() as url:
            yield url

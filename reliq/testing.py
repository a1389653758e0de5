"""A real broker for the tests of an application, in a temporary folder.

With pytest, use ``from reliq.testing import broker_fixture`` in a ``conftest.py``, or
``pytest_plugins = ["reliq.testing"]`` in the root one. The fixture ``broker`` is the URL.
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
        """Yield the URL of a broker for this test only."""
        with broker() as url:
            yield url

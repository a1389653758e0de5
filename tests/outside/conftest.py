"""Tests with foreign software: each test below this folder is marked ``outside`` and ``slow``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder, which need the packages of the extra ``outside``."""
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.outside)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def source_cache(tmp_path_factory, worker_id):
    """Return the folder in which the test processes of this run share their downloads."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "sources"
    folder.mkdir(exist_ok=True)
    return folder

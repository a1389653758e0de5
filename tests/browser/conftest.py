"""Shared fixtures of the browser tests: the browser, a broker, workers and `reliq web`.

Each of them starts once for this folder. Each test has its own queues.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import chromium
from tests.browser.looking import Browsing
from tests.browser.served import users
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.web import WebProcess

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
APP = "tests.integration.apps.jobs"
SERVED = ("orders", "mail", "import", "refunds")
"""The queues of the permanent worker."""


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder as slow, because a browser takes its time."""
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def browser():
    """Return the Chromium."""
    with chromium() as started:
        yield started


class Stand:
    """A broker, an application that uses it, and its `reliq web`."""

    def __init__(self, server: Any, directory: Path) -> None:
        self._stack = ExitStack()
        # A task is in flight until it has ended, and becomes a dead letter if it fails.
        config = {"task_acks_late": True, "task_acks_on_failure_or_timeout": False}
        config["result_backend"] = None
        self.site = CelerySite(server, "reliq", directory, config)
        self._stack.callback(self.site.close)
        self.directory = directory
        self.web = self.serve("--allow-actions")
        self.url = self.web.address

    def serve(self, *arguments: str, login: bool = True, **options: Any) -> WebProcess:
        """Start another `reliq web` for the same broker."""
        environment = {"RELIQ_WEB_USERS": users()} if login else {}
        environment["PYTHONWARNINGS"] = "error"
        started = WebProcess(self.site.broker, self.directory, *arguments, **options, **environment)
        self._stack.callback(started.kill_group)
        return started

    def close(self) -> None:
        """End all started processes."""
        self._stack.close()


@pytest.fixture(scope="package")
def stand(tmp_path_factory):
    """Return the stand shared by the tests: Redis, `reliq web` and a worker."""
    server = RedisServer()
    with ExitStack() as stack:
        stack.callback(server.destroy)
        stand = Stand(server.start(), tmp_path_factory.mktemp("stand"))
        stack.callback(stand.close)
        stand.site.worker(app=APP, pool="threads", concurrency=4, queues=SERVED)
        yield stand


@pytest.fixture
def sign_in(browser) -> Any:
    """Return a function that opens a user's browser; each must end without troubles."""
    with ExitStack() as stack:
        opened: list[Browsing] = []

        def start(url: str, user: str | None = "otto", **options: Any) -> Browsing:
            browsing = Browsing(browser, url, user, **options)
            stack.callback(browsing.close)
            opened.append(browsing)
            return browsing

        yield start
        for browsing in opened:
            browsing.clean()


@pytest.fixture
def as_operator(stand, sign_in) -> Callable[..., Browsing]:
    """Return the browser of otto, an operator."""
    return sign_in(stand.url, "otto")


@pytest.fixture
def as_viewer(stand, sign_in) -> Browsing:
    """Return the browser of vera, a viewer."""
    return sign_in(stand.url, "vera")

"""`reliq web` as a process, and a real Chromium that looks at it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.commands import RELIQ, environment
from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


class WebProcess(Process):
    """`reliq web` on a port of its own, which reads pages anew three times a second."""

    def __init__(self, url: str, directory: Path, *arguments: str, port: int = 0, **env: str):
        command = [*RELIQ, "web", "--port", str(port), "--interval", "0.3", *arguments]
        log_path = directory / "web.log"
        before = log_path.stat().st_size if log_path.exists() else 0
        super().__init__(command, log_path=log_path, env=environment(url, **env))
        wait_until(
            lambda: "serving" in self.log()[before:] or not self.running,
            timeout_s=40,
            what=self.log,
        )
        said = self.log()[before:].split("serving reliq on ")
        assert len(said) > 1, self.log()
        self.address = said[1].split()[0].rstrip("/")
        self.port = int(self.address.rpartition(":")[2])


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give Debian's Chromium, headless; a missing one is a failure, not a skip."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()

"""`reliq web` as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.support.commands import RELIQ, environment
from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


class WebProcess(Process):
    """`reliq web` on its own port, with live updates three times a second."""

    def __init__(
        self,
        url: str,
        directory: Path,
        *arguments: str,
        port: int = 0,
        begin: list[str] = RELIQ,
        **env: str,
    ):
        command = [*begin, "web", "--port", str(port), "--interval", "0.3", *arguments]
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
        self.port = urlsplit(self.address).port or 0

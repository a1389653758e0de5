"""`reliq web` as a subprocess, and who may look at it."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING

from reliq.web.passwords import hashed
from tests.support.commands import environment
from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PASSWORDS = {"vera": "to look", "otto": "to act"}
ROLES = {"vera": "viewer", "otto": "operator"}
INTERVAL_S = 0.3
"""A page that is looked at is read anew this often: the tests need not wait longer."""


@cache
def users() -> str:
    """Return the text of RELIQ_WEB_USERS: a viewer, vera, and an operator, otto."""
    return "; ".join(f"{name} {ROLES[name]} {hashed(PASSWORDS[name])}" for name in PASSWORDS)


class WebServer(Process):
    """`reliq web` on a loopback port, any that is free; *urls* are its brokers."""

    def __init__(
        self,
        urls: str | Sequence[str],
        directory: Path,
        *arguments: str,
        name: str = "web",
        login: bool = True,
        interval_s: float = INTERVAL_S,
        port: int = 0,
    ) -> None:
        command = [sys.executable, "-W", "error", "-m", "reliq.cli", "web", "--port", f"{port}"]
        command += ["--interval", f"{interval_s:g}", *arguments]
        more = {"RELIQ_WEB_USERS": users()} if login else {}
        super().__init__(command, log_path=directory / f"{name}.log", env=environment(urls, **more))
        self.url = ""
        """Where it is, without a slash at its end and without the path of a proxy."""

    def wait_ready(self) -> WebServer:
        """Wait until it listens."""

        def listening() -> re.Match[str] | None:
            assert self.running, f"reliq web ended ({self.returncode}):\n{self.tail()}"
            return re.search(r"serving reliq on (http://[\d.]+:\d+)", self.log())

        self.url = wait_until(listening, what=lambda: f"reliq web:\n{self.tail()}").group(1)
        return self

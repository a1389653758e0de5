"""Web servers under test: start, concurrent requests, and shutdown."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.support.processes import Process
from tests.support.servers import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import httpx


class WebServer:
    """A server that answers HTTP on a free loopback port; `{port}` in its command is replaced."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], directory: Path, ready: str = "/"
    ) -> None:
        import httpx  # of the extra `outside`; these tests can be collected without it

        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = Process(
            [part.replace("{port}", str(self.port)) for part in command],
            log_path=directory / "server.log",
            env=env,
            cwd=directory,
        )
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        try:
            wait_until(lambda: self._answers(ready), timeout_s=40, what=self.process.tail)
        except BaseException:
            self.close()
            raise

    def post_all(self, paths: Iterable[str], *, clients: int) -> list[httpx.Response]:
        """Send a POST to each path, at most *clients* at a time, and return the answers."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(self.client.post, paths))

    def stop(self) -> None:
        """Stop the server by SIGTERM, and fail unless it exits cleanly."""
        self.process.signal(signal.SIGTERM)
        assert self.process.wait() in {0, -signal.SIGTERM}, self.process.tail()

    def close(self) -> None:
        """Kill the server with all its children."""
        self.client.close()
        self.process.kill_group()

    def _answers(self, path: str) -> bool:
        assert self.process.running, self.process.tail()
        import httpx

        try:
            self.client.get(path)
        except httpx.TransportError:
            return False
        return True

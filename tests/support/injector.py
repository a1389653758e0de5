"""A proxy in front of a server that answers chosen commands with an error, and does not run them.

`decide` gets the parts of each command and returns the error, or None to forward the command.
Replies stay in the order of the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from reliq.lua import scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.servers import RedisServer

    Decide = Callable[[Sequence[bytes]], str | None]

ENDS = (OSError, EOFError, asyncio.IncompleteReadError)
SCRIPTS = {
    script.sha.encode(): name.lower()
    for name, script in vars(scripts).items()
    if isinstance(script, scripts.Script)
}
TEXTS = {
    script.text.encode(): name.lower()
    for name, script in vars(scripts).items()
    if isinstance(script, scripts.Script)
}


def name_of(parts: Sequence[bytes]) -> str:
    """Return the name of a command in upper case, or that of its script in lower case."""
    if parts[0] in {b"EVALSHA", b"EVAL"}:
        return SCRIPTS.get(parts[1]) or TEXTS.get(parts[1], "script")
    name = parts[0].decode().upper()
    return f"{name} {parts[1].decode().upper()}" if name in {"CLIENT", "CONFIG"} else name


def _forward(_: Sequence[bytes]) -> str | None:
    return None


class Injector:
    """Listens on its own loopback port until it is closed."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.decide: Decide = _forward
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def url(self, scheme: str = "reliq") -> str:
        """Return the URL of the server through this proxy."""
        return f"{scheme}://127.0.0.1:{self.port}/0"

    def close(self) -> None:
        """Close all connections and the port."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [back]
        try:
            replies, on = await asyncio.open_connection("127.0.0.1", self._server.port)
            ends.append(on)
            plan: asyncio.Queue[str | type[EOFError] | None] = asyncio.Queue()
            await asyncio.gather(self._up(client, on, plan), self._down(replies, back, plan))
        except (*ENDS, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in ends:
                end.close()
                with contextlib.suppress(*ENDS):
                    await end.wait_closed()

    async def _up(
        self,
        client: asyncio.StreamReader,
        on: asyncio.StreamWriter,
        plan: asyncio.Queue[str | type[EOFError] | None],
    ) -> None:
        try:
            while True:
                raw, parts = await _command(client)
                error = self.decide(parts)
                plan.put_nowait(error)
                if error is None:
                    on.write(raw)
                    await on.drain()
        except ENDS:
            plan.put_nowait(EOFError)
            on.close()

    async def _down(
        self,
        replies: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        plan: asyncio.Queue[str | type[EOFError] | None],
    ) -> None:
        while (error := await plan.get()) is not EOFError:
            reply = await _reply(replies) if error is None else f"-{error}\r\n".encode()
            back.write(reply)
            await back.drain()
        back.close()


async def _command(stream: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    """Return the bytes of the next command, and its parts."""
    line = await stream.readuntil(b"\r\n")
    raw, parts = [line], []
    for _ in range(int(line[1:])):
        head = await stream.readuntil(b"\r\n")
        body = await stream.readexactly(int(head[1:]) + 2)
        raw += [head, body]
        parts.append(body[:-2])
    return b"".join(raw), parts


async def _reply(stream: asyncio.StreamReader) -> bytes:
    """Return the bytes of the next reply."""
    line = await stream.readuntil(b"\r\n")
    kind, size = line[:1], line[1:]
    if kind == b"$" and int(size) >= 0:
        return line + await stream.readexactly(int(size) + 2)
    if kind == b"*" and int(size) > 0:
        return line + b"".join([await _reply(stream) for _ in range(int(size))])
    return line

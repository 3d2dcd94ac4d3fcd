"""A request as a server hands it to an ASGI app, with a client that does as a test likes."""

import asyncio
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive

from support.waiting import PATIENCE_SECONDS


async def post(
    app: ASGIApp,
    path: str,
    receive: Receive,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    sent: list[Message] | None = None,
) -> list[Message]:
    """What the app sends, which is in `sent` as soon as it is sent. Raises `TimeoutError` if it has not ended after 20 seconds."""
    sent = [] if sent is None else sent

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json"), *headers],
    }
    async with asyncio.timeout(PATIENCE_SECONDS):
        await app(scope, receive, send)
    return sent

"""Waits for the stream on which an older server says and asks what belongs to no request: until it is open, the server drops that."""

import asyncio
import contextlib

import httpx2

_SESSION = "mcp-session-id"
_MOST_SECONDS = 2.0  # some servers answer only with their first word: a call does not wait for that


class StandaloneStream(httpx2.AsyncBaseTransport):
    """Passes requests on, and sees which answers come."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner
        self._has_session = False  # without one there is no such stream
        self._answered = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer. Only streams are asked for by GET, this one first."""
        response = await self._inner.handle_async_request(request)
        self._has_session |= _SESSION in response.headers
        if request.method == "GET":
            self._answered.set()
        return response

    async def answered(self, seconds: float) -> None:
        """Wait until the server has opened or refused it: no longer than 2 s, nor than so many."""
        if self._has_session:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, _MOST_SECONDS)):
                    await self._answered.wait()

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()

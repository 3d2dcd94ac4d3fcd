"""Logs in as a person would, without a browser: follows the address that it is shown to the one where it comes back."""

import asyncio
from urllib.parse import parse_qs, urlsplit

import httpx
from mcp.shared.auth import AuthorizationCodeResult

_SECONDS = 10


class RobotPerson:
    """Nothing is served at `redirect_uri`: what would be sent there is read off the redirect."""

    redirect_uri = "http://127.0.0.1:9/callback"

    def __init__(self) -> None:
        self._came: asyncio.Queue[AuthorizationCodeResult] = asyncio.Queue()

    async def show(self, url: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=_SECONDS) as client:
            answer = await client.get(url)
        given = parse_qs(urlsplit(answer.headers["location"]).query)
        code, state, iss = (next(iter(given.get(name, ())), None) for name in ("code", "state", "iss"))
        await self._came.put(AuthorizationCodeResult(code=code or "", state=state, iss=iss))

    async def answer(self) -> AuthorizationCodeResult:
        return await self._came.get()

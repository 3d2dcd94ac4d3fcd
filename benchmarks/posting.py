"""Posting a call to its module, as fast as each kind of worker can: aiohttp, or http.client with kept connections."""

import http.client
import json
import socket
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from benchmarks.work import MODULE_URL, path_of

_HEADERS = {"content-type": "application/json"}
_SECONDS = 60


class BlockingPoster:
    """For threads, forked processes and greenlets alike: whoever is done leaves the connection to the next."""

    def __init__(self) -> None:
        self._idle: deque[http.client.HTTPConnection] = deque()

    def __call__(self, tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
        """Post, and read the answer. Raises what `http.client` does, and `RuntimeError` for a bad status."""
        connection = self._take()
        body = json.dumps({"tool_name": tool_name, "arguments": arguments, "user_id": user_id}).encode()
        connection.request("POST", path_of(tool_name), body=body, headers=_HEADERS)
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"the module answered {response.status}")
        self._idle.append(connection)
        return json.loads(answer)

    def _take(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            parts = urlsplit(MODULE_URL)
            connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=_SECONDS)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


class AsyncPoster:
    """For an event loop. The session is made at the first call: then the loop runs, and no child is forked any more."""

    def __init__(self) -> None:
        self._session: Any = None

    async def __call__(self, tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
        """Post, and read the answer. Raises what aiohttp does."""
        import aiohttp  # environments of synchronous systems have no aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=_SECONDS)
            )
        body = {"tool_name": tool_name, "arguments": arguments, "user_id": user_id}
        async with self._session.post(MODULE_URL + path_of(tool_name), json=body) as response:
            response.raise_for_status()
            return await response.json()

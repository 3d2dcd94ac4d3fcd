"""An HTTP client of httpx's behind the executor's port: a second one, so that the port is held to be one."""

from collections.abc import Callable, Mapping

import httpx

from support.servers.plain_http import PLAIN
from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.contracts.attempts import require_live
from toolfleet_workers.executors.module_client import SendProgress
from toolfleet_workers.executors.reply import ConnectionLost, NotConnected, ReplyBroken
from toolfleet_workers.executors.request import ModuleRequest, Origin


class HttpxResponse:
    """As `module_client.ModuleResponse`."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.plain: bytes | None = None
        self._response = response
        self._body = response.aiter_raw()

    def field(self, name: str) -> str | None:
        value: str | None = self._response.headers.get(name)
        return value

    async def read_chunk(self) -> bytes:
        try:
            return await anext(self._body, b"")
        except httpx.HTTPError as exc:
            raise ReplyBroken from exc

    def release(self) -> None:
        """With the client."""


class HttpxClient:
    """As `module_client.ModuleClient`, for modules without TLS."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(
            follow_redirects=False, trust_env=False, timeout=3 * PATIENCE_SECONDS, verify=PLAIN
        )

    async def post(self, request: ModuleRequest, progress: SendProgress) -> HttpxResponse:
        line, *fields = request.head().decode().removesuffix("\r\n\r\n").split("\r\n")
        method, path, _ = line.split(" ")
        headers = [(name, value) for name, _, value in (field.partition(": ") for field in fields)]
        url = f"http://{request.origin.host}:{request.origin.port}{path}"
        require_live(request.lease)
        progress.sent = True
        try:
            sent = self._client.build_request(method, url, headers=headers, content=request.body)
            return HttpxResponse(await self._client.send(sent, stream=True))
        except httpx.ConnectError as exc:
            progress.sent = False
            raise NotConnected("Connection refused") from exc
        except httpx.HTTPError as exc:
            raise ConnectionLost from exc

    async def probe(self, request: ModuleRequest) -> int:
        return (await self.post(request, SendProgress())).status

    def trust(self) -> None:
        raise NotImplementedError

    def guard(self, guards: Mapping[Origin, Callable[[str], bool]]) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._client.aclose()

"""An MCP server on the official SDK that wants tokens of a toy authorization server: `read` any, `write` one with the scope `owls:write`."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from support.hosts.mcp_server import HostedServer, hosted_server
from support.oauth.loopback_app import served
from support.oauth.robot_person import RobotPerson
from support.oauth.toy_authorization import ToyAuthorization, toy_authorization
from toolfleet_modules.hosts.mcp.http_transport import HttpServer
from toolfleet_modules.hosts.mcp.oauth_flow import OAuthOptions
from toolfleet_modules.hosts.mcp.oauth_tokens import Authorizer, log_in
from toolfleet_modules.hosts.secrets import Secrets

WRITING = "owls:write"
METADATA = "/.well-known/oauth-protected-resource/mcp"


@dataclass
class LockedServer:
    """`done` has the tools that were run, `heads` the `Authorization` of each request. `resource` is added to the metadata that it publishes, `elsewhere` where it sends all requests.

    `gate` is cleared to have the tool `slow` wait.
    """

    authorization: ToyAuthorization
    folder: Path
    url: str = ""
    done: list[str] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    elsewhere: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    heads: list[str] = field(default_factory=list)

    def options(self, **changed: Any) -> OAuthOptions:
        facts: dict[str, Any] = {
            "url": self.url,
            "file": self.folder / "nest.json",
            "login": "toolfleet host mcp nest --login",
        }
        return OAuthOptions(**{**facts, **changed})

    async def log_in(self, **changed: Any) -> None:
        await log_in(self.options(**changed), {}, RobotPerson())

    @asynccontextmanager
    async def hosted(self, **changed: Any) -> AsyncGenerator[HostedServer]:
        secrets = Secrets({})
        server = HttpServer(self.url, authorizer=Authorizer(self.options(**changed), secrets=secrets))
        async with hosted_server(server, self.folder / "notes", secrets=secrets) as hosted:
            yield hosted

    async def list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {}}
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema=schema) for name in ("read", "write", "slow", "repeat")]
        )

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.done.append(params.name)
        if params.name == "slow":
            await self.gate.wait()
        if params.name == "repeat":
            return types.CallToolResult(content=[types.TextContent(type="text", text=self.heads[-1])])
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"{params.name} done")])


class Lock:
    """Lets requests with tokens through, and says to others where to get one."""

    def __init__(self, app: ASGIApp, server: LockedServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        refusal = self._refusal(scope, body)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, replayed, send)

    def _refusal(self, scope: Scope, body: bytes) -> Response | None:
        server, origin = self._server, self._server.url.removesuffix("/mcp")
        if scope["path"] == METADATA:
            published = {"resource": server.url, "authorization_servers": [server.authorization.issuer]}
            return JSONResponse({**published, **server.resource})
        if scope["path"] != "/mcp":
            return Response(status_code=404)
        if server.elsewhere:
            return Response(status_code=307, headers={"Location": server.elsewhere})
        head = dict(scope["headers"]).get(b"authorization", b"").decode()
        server.heads.append(head)
        scopes = server.authorization.tokens.get(head.removeprefix("Bearer "))
        about = f'resource_metadata="{origin}{METADATA}"'
        if scopes is None:
            return Response(status_code=401, headers={"WWW-Authenticate": f'Bearer scope="owls:read", {about}'})
        asked = json.loads(body or b"{}")
        if (asked.get("params") or {}).get("name") == "write" and WRITING not in scopes:
            said = f'Bearer error="insufficient_scope", scope="{WRITING}", {about}'
            return Response(status_code=403, headers={"WWW-Authenticate": said})
        return None


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


@asynccontextmanager
async def locked_server(folder: Path) -> AsyncGenerator[LockedServer]:
    async with AsyncExitStack() as stack:
        authorization = await stack.enter_async_context(toy_authorization())
        server = LockedServer(authorization, folder)
        server.gate.set()
        protocol: Server[Any] = Server("locked", on_list_tools=server.list_tools, on_call_tool=server.call_tool)
        app = protocol.streamable_http_app(json_response=True)
        server.url = await stack.enter_async_context(served(Lock(app, server))) + "/mcp"
        yield server

"""Takes the request to watch a resource as a call: `resources/subscribe` of the protocol, as a hidden tool."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from toolfleet_modules.hosts.mcp.server_away import ServerAway
from toolfleet_modules.hosts.mcp.sessions import RETURN_SECONDS, McpSessions
from toolfleet_modules.hosts.mcp.watches.server_watch import ServerWatch
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.once.served_tool import RunMeans, ServedRun
from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.passed_methods import LONGEST_URI, WATCH_METHOD, PassedError, passing_method

_SECONDS = 30.0  # for a server to answer
_SCHEMA = {
    "type": "object",
    "properties": {"uri": {"type": "string", "minLength": 1, "maxLength": LONGEST_URI}},
    "required": ["uri"],
}


@dataclass(frozen=True, slots=True)
class WatchTool:
    """The tool. A resource is watched for as long as the fleet says so again."""

    definition: ToolDefinition
    watch: ServerWatch
    sessions: McpSessions
    secrets: Secrets
    argument_names: frozenset[str] = frozenset({"uri"})

    @classmethod
    def of(cls, module: str, watch: ServerWatch, sessions: McpSessions, secrets: Secrets) -> "WatchTool":
        """The tool for a module's server."""
        definition = ToolDefinition(
            name=f"{module}.{passing_method(WATCH_METHOD)}",
            description=f"Passes `{WATCH_METHOD}` of the Model Context Protocol on.",
            input_schema=_SCHEMA,
            effect="idempotent",
            listed=False,
        )
        return cls(definition, watch, sessions, secrets)

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "WatchRun":
        """A run for one resource."""
        return WatchRun(self, context, arguments, means.most_bytes)

    def without_secrets(self, reply: Reply) -> Reply:
        """The reply as it may leave the host."""
        return reply.rewritten(self.secrets.hide_json) if self.secrets else reply


@dataclass(frozen=True, slots=True)
class WatchRun(ServedRun[WatchTool]):
    """One run."""

    arguments: Mapping[str, Any]
    most_bytes: int

    async def run(self) -> Reply:
        """Have it watched. Raises `ModuleBusy` and `NotBegun`."""
        uri = self.arguments.get("uri")
        if not isinstance(uri, str) or not 0 < len(uri) <= LONGEST_URI:
            message = f"uri must be a text of at most {LONGEST_URI} characters."
            return self._answer({"error": {"code": types.INVALID_PARAMS, "message": message}})
        self.check_begin()
        try:
            async with asyncio.timeout(_SECONDS), self.tool.sessions.taken(self.context.user_id):
                await self.tool.watch.watch(uri)
        except ServerAway:
            raise ModuleBusy(RETURN_SECONDS) from None
        except MCPError as exc:
            return self._answer({"error": PassedError(exc.code, exc.message, exc.data).facts()})
        except TimeoutError:
            return Reply.failure(self.name, f"The server did not answer within {_SECONDS:g} s.", effect_state="unknown")
        return self._answer({"result": {}})

    def _answer(self, answer: dict[str, Any]) -> Reply:
        return self.tool.without_secrets(Reply.success(self.name, answer, most_bytes=self.most_bytes))

"""Passes prompts, resources, their watches, and completion of a server through as hidden tools: requested as calls are."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from toolfleet_modules.calls.reply import Reply
from toolfleet_modules.calls.work import RunMeans, ServedRun
from toolfleet_modules.hosts.mcp.exchanges import Lost, NotTaken, Refused
from toolfleet_modules.hosts.mcp.mcp_session import McpSession, ServerAway, refused_call
from toolfleet_modules.hosts.mcp.server_watch import ServerWatch
from toolfleet_modules.hosts.mcp.sessions import RETURN_SECONDS, McpSessions
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.sdk.tool import in_words
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.failures import ModuleBusy, ToolError
from toolfleet_registry.functions.passed_methods import (
    LONGEST_URI,
    PASSED_METHODS,
    WATCH_METHOD,
    PassedError,
    passing_method,
)

FORMS: Mapping[str, tuple[type[Any], type[BaseModel]]] = {
    "prompts/list": (types.ListPromptsRequest, types.PaginatedRequestParams),
    "prompts/get": (types.GetPromptRequest, types.GetPromptRequestParams),
    "resources/list": (types.ListResourcesRequest, types.PaginatedRequestParams),
    "resources/templates/list": (types.ListResourceTemplatesRequest, types.PaginatedRequestParams),
    "resources/read": (types.ReadResourceRequest, types.ReadResourceRequestParams),
    "completion/complete": (types.CompleteRequest, types.CompleteRequestParams),
}
"""The request of each method, and its parameters."""

_SECONDS = 60.0  # for a server to answer

_WATCH_SECONDS = 30.0  # for a server to answer
_SCHEMA = {
    "type": "object",
    "properties": {"uri": {"type": "string", "minLength": 1, "maxLength": LONGEST_URI}},
    "required": ["uri"],
}


def passed_methods(connection: McpSession) -> tuple[str, ...]:
    """Return the methods of a server other than for tools, by its capabilities."""
    has = connection.capabilities
    of_kind = {"prompts": has.prompts, "resources": has.resources, "completion": has.completions}
    return tuple(method for method in PASSED_METHODS if of_kind[method.partition("/")[0]] is not None)


@dataclass(frozen=True, slots=True)
class PassedTool:
    """The tool of one `method` of the protocol."""

    definition: ToolDefinition
    method: str
    sessions: McpSessions
    secrets: Secrets

    @classmethod
    def of(cls, module: str, method: str, sessions: McpSessions, secrets: Secrets) -> "PassedTool":
        """The tool for a module's server."""
        definition = ToolDefinition(
            name=f"{module}.{passing_method(method)}",
            description=f"Passes `{method}` of the Model Context Protocol on.",
            input_schema={"type": "object"},
            effect="read",
            listed=False,
        )
        return cls(definition, method, sessions, secrets)

    @property
    def argument_names(self) -> frozenset[str]:
        """The parameters of its method."""
        fields = FORMS[self.method][1].model_fields
        return frozenset(field.alias or name for name, field in fields.items())

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "PassedRun":
        """A run with these parameters."""
        return PassedRun(self, context, arguments, means.most_bytes)

    def without_secrets(self, reply: Reply) -> Reply:
        """The reply as it may leave the host."""
        return reply.rewritten(self.secrets.hide_json) if self.secrets else reply


@dataclass(frozen=True, slots=True)
class PassedRun(ServedRun[PassedTool]):
    """One run."""

    arguments: Mapping[str, Any]
    most_bytes: int

    async def run(self) -> Reply:
        """Ask the server. Raises `ModuleBusy` and `NotBegun`."""
        kind, form = FORMS[self.tool.method]
        try:
            request = kind(params=form.model_validate(dict(self.arguments), by_name=False))
        except ValidationError as exc:
            return self._answer({"error": {"code": types.INVALID_PARAMS, "message": in_words(exc)}})
        self.check_begin()
        try:
            async with asyncio.timeout(_SECONDS), self.tool.sessions.taken(self.context.user_id) as connection:
                return self._answer(await answer_of(connection, request))
        except ServerAway:
            raise ModuleBusy(RETURN_SECONDS) from None
        except ToolError as exc:
            return Reply.failure(self.name, self.tool.secrets.hide(str(exc)), effect_state="none")
        except TimeoutError:
            return Reply.failure(self.name, f"The server did not answer within {_SECONDS:g} s.", effect_state="none")

    def _answer(self, answer: dict[str, Any]) -> Reply:
        return self.tool.without_secrets(Reply.success(self.name, answer, most_bytes=self.most_bytes))


async def answer_of(connection: McpSession, request: Any) -> dict[str, Any]:
    """Return the server's `result`, or its `error`. Raises `ModuleBusy` and `ToolError` where it has none."""
    try:
        return {"result": await connection.request(request)}
    except Refused as exc:
        raise refused_call(exc.message) from None
    except (Lost, NotTaken):  # a started request only reads
        raise ModuleBusy(RETURN_SECONDS) from None
    except MCPError as exc:
        return {"error": PassedError(exc.code, exc.message, exc.data).facts()}
    except ValidationError:
        message = "The server's answer is none of the protocol."
        return {"error": {"code": types.INTERNAL_ERROR, "message": message}}


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
            async with asyncio.timeout(_WATCH_SECONDS), self.tool.sessions.taken(self.context.user_id):
                await self.tool.watch.watch(uri)
        except ServerAway:
            raise ModuleBusy(RETURN_SECONDS) from None
        except MCPError as exc:
            return self._answer({"error": PassedError(exc.code, exc.message, exc.data).facts()})
        except TimeoutError:
            return Reply.failure(
                self.name, f"The server did not answer within {_WATCH_SECONDS:g} s.", effect_state="unknown"
            )
        return self._answer({"result": {}})

    def _answer(self, answer: dict[str, Any]) -> Reply:
        return self.tool.without_secrets(Reply.success(self.name, answer, most_bytes=self.most_bytes))

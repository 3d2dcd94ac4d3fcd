"""Passes prompts, resources, their watches, and completion of a server through as hidden tools: requested as calls are."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
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

_SECONDS, _WATCH_SECONDS = 60.0, 30.0  # for a server to answer
_WATCH_SCHEMA = {
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
class ServerTool:
    """A tool that a server runs, in one of its sessions."""

    definition: ToolDefinition
    sessions: McpSessions
    secrets: Secrets

    def without_secrets(self, reply: Reply) -> Reply:
        """Return the reply as it may leave the host."""
        return reply.rewritten(self.secrets.hide_json) if self.secrets else reply


@dataclass(frozen=True, slots=True)
class PassedTool(ServerTool):
    """The tool of one `method` of the protocol. `watch`: of `WATCH_METHOD`, which has a resource watched for a while."""

    method: str
    watch: ServerWatch | None = None

    @classmethod
    def of(
        cls, module: str, method: str, sessions: McpSessions, secrets: Secrets, watch: ServerWatch | None = None
    ) -> "PassedTool":
        """Make the tool for a module's server."""
        definition = ToolDefinition(
            name=f"{module}.{passing_method(method)}",
            description=f"Passes `{method}` of the Model Context Protocol on.",
            input_schema={"type": "object"} if watch is None else _WATCH_SCHEMA,
            effect="read" if watch is None else "idempotent",
            listed=False,
        )
        return cls(definition, sessions, secrets, method, watch)

    @property
    def argument_names(self) -> frozenset[str]:
        """The parameters of its method."""
        if self.watch is not None:
            return frozenset({"uri"})
        fields = FORMS[self.method][1].model_fields
        return frozenset(field.alias or name for name, field in fields.items())

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "PassedRun":
        """Return a run with these parameters."""
        return PassedRun(self, context, arguments, means.most_bytes)


@dataclass(frozen=True, slots=True)
class PassedRun(ServedRun[PassedTool]):
    """One run."""

    arguments: Mapping[str, Any]
    most_bytes: int

    async def run(self) -> Reply:
        """Ask the server. Raises `ModuleBusy` and `NotBegun`."""
        tool, is_read = self.tool, self.tool.watch is None
        seconds = _SECONDS if is_read else _WATCH_SECONDS
        try:
            ask = self._question()
        except ValueError as exc:
            why = in_words(exc) if isinstance(exc, ValidationError) else str(exc)
            return self._answer({"error": {"code": types.INVALID_PARAMS, "message": why}})
        self.check_begin()
        try:
            async with asyncio.timeout(seconds), tool.sessions.taken(self.context.user_id) as connection:
                return self._answer(await ask(connection))
        except ServerAway:
            raise ModuleBusy(RETURN_SECONDS) from None
        except MCPError as exc:
            return self._answer({"error": PassedError(exc.code, exc.message, exc.data).facts()})
        except ToolError as exc:
            return Reply.failure(self.name, tool.secrets.hide(str(exc)), effect_state="none")
        except TimeoutError:
            text = f"The server did not answer within {seconds:g} s."
            return Reply.failure(self.name, text, effect_state="none" if is_read else "unknown")

    def _question(self) -> Callable[[McpSession], Awaitable[dict[str, Any]]]:
        """Return what asks a session. Raises `ValueError` for invalid parameters."""
        if (watch := self.tool.watch) is None:
            kind, form = FORMS[self.tool.method]
            request = kind(params=form.model_validate(dict(self.arguments), by_name=False))
            return partial(answer_of, request=request)
        uri = self.arguments.get("uri")
        if not isinstance(uri, str) or not 0 < len(uri) <= LONGEST_URI:
            raise ValueError(f"uri must be a text of at most {LONGEST_URI} characters.")

        async def watched(_: McpSession) -> dict[str, Any]:
            await watch.watch(uri)
            return {"result": {}}

        return watched

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

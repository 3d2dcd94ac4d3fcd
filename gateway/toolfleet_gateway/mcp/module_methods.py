"""Answers prompts, resources and completion of a module that has them, and the apps of all: each request is a call of its module's, with permission and audit."""

import asyncio
import contextlib
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from toolfleet_gateway.artifacts import opened_artifact, problem_of_artifact
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.mcp.client_request import Context, ViewOf, needing_redis
from toolfleet_gateway.mcp.tools import LIST_TTL_MS
from toolfleet_gateway.mcp.view import McpView, apps_in
from toolfleet_registry.contracts import ToolCall
from toolfleet_registry.contracts.artifacts import ARTIFACT_ID
from toolfleet_registry.contracts.attempts import foreign_meta
from toolfleet_registry.errors import ArtifactMissing, ArtifactStoreAway
from toolfleet_registry.formats.results import ARTIFACT_URI
from toolfleet_registry.functions.passed_methods import WATCH_METHOD, passing_method
from toolfleet_tasks.client.fleet import ToolFleet

_SECONDS = 60.0  # for the answer
_PARAMS: Final[Mapping[str, type[types.RequestParams]]] = {
    "prompts/list": types.PaginatedRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "completion/complete": types.CompleteRequestParams,
}
FIRST_METHODS: Final = ("prompts/list", "resources/list", "completion/complete")
"""The first method of each kind: a module that answers it has the kind."""

_LISTS: Final = {
    "resources/list": ("resources", "uri", types.Resource),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", types.ResourceTemplate),
}
_MOST_PAGES = 20  # of one module's resources, where the apps of all are listed
_APP = "ui://"
_ARTIFACT = re.compile(f"{ARTIFACT_URI}({ARTIFACT_ID.pattern})")  # a module may have others of that scheme

WATCH: Final = "watch"
"""The kind of a module whose resources can be watched."""

_CACHED = frozenset({"prompts/list", "resources/list", "resources/templates/list", "resources/read"})


class ModuleMethods:
    """The methods of modules other than for tools."""

    def __init__(self, fleet: ToolFleet, view_of: ViewOf, *, has_artifacts: bool = False) -> None:
        self._fleet = fleet
        self._view_of = view_of
        self._has_artifacts = has_artifacts

    async def kinds(self, view: McpView) -> frozenset[str]:
        """Return which kinds the endpoint has for this caller: `prompts`, `resources`, `completion`, `watch`. From memory.

        At that of all modules they are the same always, for a client asks once: one with an app may come later.
        """
        if view.module is None:
            return frozenset({"resources"})
        found = {method.partition("/")[0] for method in FIRST_METHODS if await self.has(view, method)}
        if self._has_artifacts:
            found.add("resources")
        if await self.has(view, WATCH_METHOD):
            found.add(WATCH)
        return frozenset(found)

    async def has(self, view: McpView, method: str) -> bool:
        """Return whether the endpoint answers a method for this caller. From memory."""
        if view.module is None:
            return method in _LISTS or method == "resources/read"
        name = f"{view.module}.{passing_method(method)}"
        return await self._fleet.begun_calls.tool(name, view.who.caller) is not None

    def add_to(self, server: Server[Any], kinds: frozenset[str]) -> None:
        """Have a server answer these kinds."""
        for method, params in _PARAMS.items():
            if method.partition("/")[0] in kinds:
                server.add_request_handler(method, params, self._handler(method))

    def _handler(self, method: str) -> Callable[[Context, types.RequestParams], Awaitable[dict[str, Any]]]:
        async def handle(context: Context, params: types.RequestParams) -> dict[str, Any]:
            stated = params.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})
            view = self._view_of(context)
            if self._has_artifacts and method == "resources/read" and (found := _ARTIFACT.fullmatch(stated["uri"])):
                return await self._artifact(view, found[1])
            if (
                self._has_artifacts and method in _LISTS and not await self.has(view, method)
            ):  # artifacts are not listed
                return {_LISTS[method][0]: [], "ttlMs": LIST_TTL_MS, "cacheScope": "private", "resultType": "complete"}
            return await (self.asked if view.module is not None else self._of_apps)(view, method, stated)

        return handle

    async def _artifact(self, view: McpView, artifact_id: str) -> dict[str, Any]:
        """Return a large result, whole. Raises `MCPError`."""
        try:
            with needing_redis():
                opened = await opened_artifact(self._fleet, artifact_id, view.who.caller)
            data = await opened.read(0, opened.size)
        except (Problem, ArtifactMissing, ArtifactStoreAway) as exc:
            problem = exc if isinstance(exc, Problem) else problem_of_artifact(exc)
            raise MCPError(types.INVALID_PARAMS, problem.detail, {"error_code": problem.error_code}) from None
        said = {"uri": f"{ARTIFACT_URI}{artifact_id}", "mimeType": opened.record.media_type}
        try:
            content = {**said, "text": data.decode()}
        except UnicodeDecodeError:
            content = {**said, "blob": b64encode(data).decode()}
        return {"contents": [content], "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}

    async def _of_apps(self, view: McpView, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return what the modules with apps have: their apps in one list, or one of their resources. Raises `MCPError`."""
        apps = apps_in(await self._fleet.tools(view.who.caller))
        if method == "resources/read":
            return await self._read(view, apps, params)
        member = _LISTS[method][0]
        lists = await asyncio.gather(*(self._apps_of(McpView(view.who, module), method) for module in sorted(apps)))
        shown = {member: [*chain.from_iterable(lists)], "ttlMs": LIST_TTL_MS}
        return {**shown, "cacheScope": "private", "resultType": "complete"}

    async def _apps_of(self, view: McpView, method: str) -> list[dict[str, Any]]:
        """Return the apps that a module lists.

        A module that fails, or lists invalid resources, does not affect the others.
        """
        member, address, kind = _LISTS[method]
        found, params = dict[str, dict[str, Any]](), dict[str, Any]()
        with contextlib.suppress(MCPError):
            for _ in range(_MOST_PAGES):
                page, known = await self.asked(view, method, params), len(found)
                found |= {each[address]: each for each in _valid(page.get(member), kind)}
                if len(found) == known or "nextCursor" not in page:
                    break
                params = {"cursor": page["nextCursor"]}
        return [each for name, each in found.items() if name.startswith(_APP)]

    async def _read(self, view: McpView, apps: Mapping[str, set[str]], params: dict[str, Any]) -> dict[str, Any]:
        """Return a resource of the one module that has it: none is shown in the place of another's. Raises `MCPError`."""
        named = sorted(module for module, addresses in apps.items() if params["uri"] in addresses)
        if len(named) > 1:
            raise _two_have(named)
        asked = named or sorted(apps)
        reads = (self.asked(McpView(view.who, module), "resources/read", params) for module in asked)
        answers = dict(zip(asked, await asyncio.gather(*reads, return_exceptions=True), strict=True))
        given = {name: each for name, each in answers.items() if isinstance(each, dict) and _has_contents(each)}
        if len(given) > 1:
            raise _two_have([*given])
        for answer in (*given.values(), *answers.values()):
            if isinstance(answer, BaseException):
                raise answer
            return answer
        raise MCPError(types.INVALID_PARAMS, "No module here has an app: its resources are at /mcp/{module}.")

    async def asked(self, view: McpView, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a method at a module's server. Raises `MCPError`: the server's, or that of a failed call."""
        call = ToolCall(tool_name=f"{view.module}.{passing_method(method)}", arguments=params)
        result = await self._fleet.call(call, view.who.caller, timeout=_SECONDS)
        if not result.success:
            data = {"error_code": result.error_code, "retryable": result.retryable, "hint": result.hint}
            raise MCPError(types.INTERNAL_ERROR, result.error or "The module does not answer.", data)
        match result.result:
            case {"error": {"code": int(code), "message": str(message), **more}}:
                raise MCPError(code, message, more.get("data"))
            case {"result": dict(said)}:
                given = {name: value for name, value in said.items() if value is not None}
            case _:
                raise MCPError(types.INTERNAL_ERROR, "The module's answer is none of the protocol.")
        if meta := foreign_meta(given.pop("_meta", None)):
            given["_meta"] = meta
        if method in _CACHED:
            given = {"ttlMs": LIST_TTL_MS if method.endswith("list") else 0, **given, "cacheScope": "private"}
        return {**given, "resultType": given.get("resultType", "complete")}


def _valid(listed: object, kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the valid items of a module's list. An invalid one would hide the whole list from clients."""
    for each in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValidationError):
            kind.model_validate(each, by_name=False)
            yield each


def _has_contents(answer: dict[str, Any]) -> bool:
    """Return whether a module has the resource that it was asked for: some answer with nothing where they do not."""
    return any(_valid([answer], types.ReadResourceResult)) and bool(answer["contents"])


def _two_have(modules: list[str]) -> MCPError:
    """Return the refusal of a resource that several modules have."""
    places = " or ".join(f"/mcp/{module}" for module in modules)
    return MCPError(types.INVALID_PARAMS, f"{', '.join(modules)} have it: read it at {places}.")

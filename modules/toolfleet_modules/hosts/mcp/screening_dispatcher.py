"""Takes out of a server's lists the tools that are none, so that the others are served."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from anyio.abc import TaskStatus
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolfleet_modules.hosts.mcp.inputs.server_inputs import TAKES_INPUT, asking
from toolfleet_modules.hosts.mcp.inputs.turns import Turns
from toolfleet_modules.hosts.mcp.transports.exchanges import Lost
from toolfleet_modules.hosts.mcp.transports.message_streams import MessageStreams
from toolfleet_registry.contracts.inputs import METHODS

RAW = "toolfleet/raw"
"""Stands in the answer to a call for what its server has answered, which the SDK would take apart by its models."""

_AS_IT_IS = frozenset({"inputSchema", "outputSchema", "requestedSchema", "structuredContent", "_meta"})
"""Members whose form is the server's own."""


class ScreeningDispatcher(JSONRPCDispatcher):
    """Takes tools that are none out of a server's lists, so that the others are served. `ended` is set when nothing comes any more; `asking` answers what the server asks."""

    def __init__(self, streams: MessageStreams) -> None:
        super().__init__(streams.incoming, streams.outgoing)
        self._requests, self._numbers = streams.requests, itertools.count(1)
        self.ended = asyncio.Event()
        self.refused_tools: list[tuple[str, str]] = []
        self.version = ""
        self.asking: Turns | None = None

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: types.RequestId | None = None,
    ) -> dict[str, Any]:
        """As the SDK's. Raises `MCPError` for the server's errors only, and `Unanswered` for everything else."""
        if method == "tools/call" and params is not None:
            params = _declared(params)
        options: CallOptions = {"request_id": next(self._numbers), **(opts or {})}
        with self._requests.begun(options["request_id"]) as request:
            try:
                raw = await super().send_raw_request(method, params, options, _related_request_id=_related_request_id)
            except MCPError as exc:
                error = request.error(exc)
                self._requests.is_doubtful |= isinstance(error, Lost)
                raise error from None
        if method == "tools/call":
            return {"content": [], "resultType": "complete", RAW: raw}
        raw = dict(without_nulls(raw))
        if self.version in MODERN_PROTOCOL_VERSIONS:
            raw.setdefault("resultType", "complete")  # as the protocol has clients assume; the SDK's models do not
        if method == "tools/list" and self.version:
            self._screen(raw)
        return raw

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] | None = None,
    ) -> None:
        """As the SDK's, until the server's end."""

        async def answered(context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
            if self.asking is not None and method in METHODS:
                return await self.asking.answer(method, params or {})
            return await on_request(context, method, params)

        try:
            more = {} if task_status is None else {"task_status": task_status}
            await super().run(answered, on_notify, on_notify_intercept, **more)
        finally:
            self.ended.set()

    def _screen(self, raw: dict[str, Any]) -> None:
        tools = raw.get("tools")
        if not isinstance(tools, list) or self._fault_of(raw, tools) is None:
            return
        faults = [(each, self._fault_of(raw, [each])) for each in tools]
        raw["tools"] = [each for each, fault in faults if fault is None]
        self.refused_tools += [(_name_of(each), fault) for each, fault in faults if fault is not None]

    def _fault_of(self, raw: dict[str, Any], tools: list[Any]) -> str | None:
        """Return what is wrong with a list of these, in a few words."""
        page = {key: value for key, value in raw.items() if key != "nextCursor"}
        try:
            methods.validate_server_result("tools/list", self.version, {**page, "tools": tools})
            types.ListToolsResult.model_validate({"tools": tools}, by_name=False)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"] if part != "tools" and not isinstance(part, int))
            return f"{first['msg']} ({place})" if place else first["msg"]
        return None


def without_nulls(value: Any) -> Any:
    """Return a message of the protocol in which null counts as absent, as many servers write what they do not say."""
    if isinstance(value, dict):
        return {
            name: member if name in _AS_IT_IS else without_nulls(member)
            for name, member in value.items()
            if member is not None
        }
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def _declared(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call's parameters, by which its client declares that it can be asked where its caller can."""
    meta = params.get("_meta") or {}
    if TAKES_INPUT not in meta:
        return params
    return {**params, "_meta": asking({key: value for key, value in meta.items() if key != TAKES_INPUT})}


def _name_of(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and name else "(a tool without a name)"

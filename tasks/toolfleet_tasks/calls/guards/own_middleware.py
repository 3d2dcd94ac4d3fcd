"""Asks the classes that an agent's profiles name in its own process, before a call is judged. Fails closed."""

import asyncio

from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.config.agents.middleware_specs import OwnMiddlewareSpec
from toolfleet_registry.contracts import Caller, ToolCall, ToolResult
from toolfleet_registry.errors import UnknownAgent
from toolfleet_registry.system.loggers import get_logger

_SECONDS = 2.0  # for each: an agent's user waits meanwhile

log = get_logger(__name__)


class OwnCallMiddleware:
    """Those of the profiles that the catalog knows."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def changed(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """The call with the arguments that they leave, or the first refusal."""
        own = self._catalog.profiles.own
        for spec in self._specs(call, caller):
            if own is None or not own.runs_here(spec):
                continue
            answer = await _asked(own, spec, call, caller)
            if isinstance(answer, ToolResult):
                return answer
            call = call.model_copy(update={"arguments": answer.arguments})
        return call

    def _specs(self, call: ToolCall, caller: Caller) -> list[OwnMiddlewareSpec]:
        profiles = self._catalog.profiles
        if caller.agent is None and profiles.is_empty:  # nearly every call
            return []
        try:
            profile, tool = profiles.of(caller), self._catalog.find(call.tool_name)
        except UnknownAgent:  # it is refused where it is judged
            return []
        if profile is None or tool is None:
            return []
        return list(profile.rules(tool.definition).own)


async def _asked(own: OwnClasses, spec: OwnMiddlewareSpec, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
    try:
        async with asyncio.timeout(_SECONDS):
            answer: object = await own.made(spec)(call, caller)
    except TimeoutError:
        return _failed(spec, call, "it did not answer in time")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever operators' own code raises
        return _failed(spec, call, f"it raised {type(exc).__name__}")
    if isinstance(answer, ToolResult) and not answer.success:
        return answer
    if isinstance(answer, ToolCall) and answer.tool_name == call.tool_name:
        return answer
    return _failed(spec, call, "what it returned is neither the call nor a refusal")


def _failed(spec: OwnMiddlewareSpec, call: ToolCall, reason: str) -> ToolResult:
    log.warning("own_middleware_failed", middleware=spec.name, tool=call.tool_name[:256], reason=reason)
    text = f"Tool call refused: the middleware {spec.name!r} of the agent's profile failed, and {reason}."
    return ToolResult.refused(call.tool_name, "internal", text)

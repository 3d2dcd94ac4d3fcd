"""Runs the functions of tags in this process, within their limits and past the agent's gate: for bots and tests without a broker."""

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from toolfleet_registry import fleet_clock
from toolfleet_registry.contracts import Audit, Caller, Conversation, ToolCall, ToolResult
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.handlers import handler_of
from toolfleet_registry.local_function import LocalFunction
from toolfleet_registry.loggers import get_logger
from toolfleet_registry.names import LOCAL
from toolfleet_registry.permissions import Access, denial
from toolfleet_registry.program_imports import found_at
from toolfleet_registry.reach import modules_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import TagResult, ToolContext, ToolDef
from toolfleet_tasks import endings
from toolfleet_tasks.evaluation import Circumstances, Evaluation
from toolfleet_tasks.limits import Limit, limits_of, refused_by, terms_for
from toolfleet_tasks.memory_limits import MemoryLimits

log = get_logger(__name__)

_SECONDS = 30.0  # for a function that says nothing else, as in a fleet
_GRACE_SECONDS = 0.5  # for a cancelled function to clean up


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a function is bound to."""

    arguments: Mapping[str, Any]
    user_id: str | None
    context: ToolContext | None


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """Has the face of a fleet for a `TagRegistry`, and knows no tool but the functions of its tags.

    Limits are counted in memory, for this process and as long as it lives; budgets are those of the settings in the environment.
    """

    settings: Settings = field(default_factory=Settings)
    _limits: MemoryLimits = field(default_factory=MemoryLimits)
    _functions: dict[str, LocalFunction] = field(default_factory=dict[str, LocalFunction])

    async def call_around(
        self,
        call: ToolCall,
        caller: Caller,
        around: Circumstances,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the call's deadline
    ) -> ToolResult:
        """Run a tag's function, as a worker would. Raises `SettingsError` for one that cannot be run here."""
        del conversation  # for modules
        if around.tag is None:
            raise SettingsError("Without a fleet there are the functions of tags, and no other tools.")
        local = self._function_of(around.tag)
        user_id = call.user_id if caller.user_id is None else caller.user_id
        asked = _Asked(call.arguments, user_id, around.context)
        began_at = asyncio.get_running_loop().time()
        refusal, own = await self._judged(local, asked, caller, around, seconds=_seconds_for(local, timeout))
        if refusal is not None:
            return refusal
        rest = None if timeout is None else timeout - (asyncio.get_running_loop().time() - began_at)
        if rest is not None and rest <= 0:
            return endings.expired(call.tool_name)
        limits = self._limits_for(local, user_id, around)
        if (answer := self._limits.judge(limits, _now_ms())) is not None:  # somebody was faster
            return refused_by(call.tool_name, limits, answer)
        self._limits.take(limits, _now_ms())
        return await _ran(local, own, seconds=_seconds_for(local, rest))

    async def _judged(
        self, local: LocalFunction, asked: _Asked, caller: Caller, around: Circumstances, *, seconds: float
    ) -> tuple[ToolResult | None, Mapping[str, Any]]:
        """What is against the call, in the order of a fleet, and the function's own arguments. Counts nothing."""
        tool = local.definition
        access = Access(tool.name, LOCAL, tool.required_permission)
        if reason := denial(access, caller.permission, modules_of(caller, self.settings.default_guest_modules)):
            return ToolResult.refused(tool.name, "permission_denied", reason), {}
        try:
            own = local.bind(asked)
        except ValueError as exc:
            text = f"Tool execution error: the arguments do not fit: {exc}"
            return ToolResult.refused(tool.name, "invalid_arguments", text), {}
        limits = self._limits_for(local, asked.user_id, around)
        if (answer := self._limits.judge(limits, _now_ms())) is not None:
            return refused_by(tool.name, limits, answer), {}
        gate = Evaluation(around.gate, self.settings)
        return await gate.refusal(tool, asked.arguments, asked.user_id, around, seconds=seconds), own

    def _limits_for(self, local: LocalFunction, user_id: str | None, around: Circumstances) -> tuple[Limit, ...]:
        terms = terms_for(local.definition, around.terms, self.settings)
        return limits_of(local.definition.name, user_id, terms, self.settings)

    def _function_of(self, tag: ToolDef) -> LocalFunction:
        local = self._functions.get(tag.name)
        if local is None:
            try:
                local = self._functions[tag.name] = LocalFunction.of_tag(tag, _handler_of(tag))
            except ValueError as exc:
                raise SettingsError(f"Tool {tag.name!r}: {exc}.") from exc
        return local


def _handler_of(tag: ToolDef) -> Callable[..., Awaitable[Any]]:
    """The function itself, or what its import path names. Raises `ValueError`, and `SettingsError` for a module's tool."""
    if not isinstance(tag.handler, str):
        return tag.handler
    if ":" not in tag.handler:
        raise SettingsError(
            f"Tool {tag.name!r} is the module's tool {tag.handler!r}: make its TagRegistry with a ToolFleet."
        )
    found = found_at(tag.handler, "its handler")
    handler_of(found, is_here=True)
    function: Callable[..., Awaitable[Any]] = found
    return function


def _seconds_for(local: LocalFunction, timeout: float | None) -> float:
    limit = local.definition.timeout_seconds or _SECONDS
    return limit if timeout is None else max(min(limit, timeout), 0)


def _now_ms() -> int:
    return int(fleet_clock.now() * 1000)


async def _ran(local: LocalFunction, own: Mapping[str, Any], *, seconds: float) -> ToolResult:
    """What comes of the function within `seconds`, in a task of its own: whatever it does to that one does not reach ours."""
    name, clock = local.definition.name, asyncio.get_running_loop().time
    began_at, task = clock(), asyncio.create_task(_called(local, own), name=f"tag-{local.definition.name}")
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
    if not done:
        result = endings.timed_out(name, seconds)
    elif task.cancelled():
        result = _failed(name, "Tool execution error: the function failed (CancelledError)")
    else:
        result = task.result()
    milliseconds = (clock() - began_at) * 1000
    audit = Audit(call_id="", tool=name, ts=fleet_clock.now(), attempts=1, duration_ms=milliseconds)
    return result.model_copy(update={"audit": audit})


async def _called(local: LocalFunction, own: Mapping[str, Any]) -> ToolResult:
    """The function's result. The text of its own error is for nobody's eyes."""
    name = local.definition.name
    try:
        returned = await local.function(**own)
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:  # noqa: BLE001 - nothing that a function does ends more than its call
        stack = "".join(traceback.format_tb(exc.__traceback__))
        log.error("local_tool_failed", kind=type(exc).__name__, stack=stack)  # noqa: TRY400 - with where, and without its text
        return _failed(name, f"Tool execution error: the function failed ({type(exc).__name__})")
    try:
        content = returned.model_dump(mode="json") if isinstance(returned, BaseModel) else returned
        value = json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        text = "Tool execution error: the function's result is invalid: it is no JSON"
        return ToolResult.failed(name, "invalid_response", text, effect_state="done")
    if isinstance(returned, TagResult) and not returned.success:
        said = _failed(name, returned.message or "The tool says that it failed.")
        return said.model_copy(update={"result": value})
    return ToolResult.ok(name, value)


def _failed(name: str, text: str) -> ToolResult:
    """It may have done part of its work."""
    return ToolResult.failed(name, "module_error", text, effect_state="unknown")

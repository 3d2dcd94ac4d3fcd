"""Calls an agent's tags: through the fleet, like any other tool, or in this process, for bots and tests without a broker."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from toolfleet_registry.contracts import Audit, Caller, Conversation, Terms, ToolCall, ToolResult
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.contracts.limits import limits_in
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.errors import BodyTooLarge, SettingsError, ToolNotFound, ToolRateLimited
from toolfleet_registry.functions.failures import ModuleBusy
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.local.local_function import Failure, FunctionRuns, LocalFunction, as_json
from toolfleet_registry.local.local_tools import found_at
from toolfleet_registry.permissions import Access, denial
from toolfleet_registry.policy.call_faults import modules_of
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tags import Tag, TagResult, Tags, ToolContext, ToolDef, handler_of
from toolfleet_tasks.calls.eval_gate import Circumstances, EvalGate, Evaluation
from toolfleet_tasks.limits import Limit, limits_of, refused_by, terms_for
from toolfleet_tasks.messages import fleet_results

if TYPE_CHECKING:
    from toolfleet_tasks.client.fleet import ToolFleet

log = get_logger(__name__)

_MANY_COUNTS = 10_000  # users and tools that are remembered before those of windows gone by are forgotten

_FUNCTION_SECONDS = 30.0  # for a function that says nothing else, as in a fleet


class TagRegistry(Tags):
    """The tags of an agent, run by a fleet. Without one their functions run in this process, for bots and tests without a broker.

    Args:
        fleet: The fleet that runs the tags; by default none.
        caller: Returns the caller of a tool. By default that is the context's user, as a guest, with that tool's module
            and no other: everybody who can write to the agent can call the tags that it has registered.
        gate: Is asked before a tag that requires it, instead of the fleet's gate.

    """

    def __init__(
        self,
        fleet: "ToolFleet | None" = None,
        *,
        caller: Callable[[ToolContext], Caller] | None = None,
        gate: EvalGate | None = None,
    ) -> None:
        super().__init__(runs_here=fleet is None)
        self._call = OwnProcess().call_around if fleet is None else fleet.call_around
        self._caller = caller
        self._gate = gate

    async def execute(
        self,
        name: str,
        ctx: ToolContext,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
    ) -> TagResult:
        """Run a tag's tool: within its limits, past the gate, in a worker.

        A module's tool gets the tag's groups as its arguments, by name and as text, without those that are empty. If it
        answers with `{"message": …}`, as a `TagResult` does, that is the message; otherwise its result is, as text or
        JSON.

        Without a fleet functions run here by the same rules, and limits are counted in memory.

        Args:
            name: The tag's name.
            ctx: The context, with the user and the tag's argument.
            conversation: As of `ToolFleet.call`.
            timeout: As of `ToolFleet.call`: seconds until the call has ended.

        Returns:
            The tool's message. Any failure other than those below is a result without success, whose message says what
            happened.

        Raises:
            ToolNotFound: The tool is not registered here, or not available in the fleet.
            ToolRateLimited: A limit is used up.
            SettingsError: Without a fleet: the tag calls a module's tool.

        """
        tag = self.tags().get(name)
        if tag is None:
            raise ToolNotFound(name)
        ctx = _completed(ctx, tag)
        call = _call_of(tag, ctx)
        # Of these and its handler's, the stricter apply.
        terms = Terms(**limits_in(tag.tool), requires_gate=tag.tool.requires_gate)
        began_at = machine_clock.monotonic()
        result = await self._call(
            call,
            self._caller_of(call, ctx),
            Circumstances(ctx, terms, tag.tool, ctx.raw_arg, self._gate),
            conversation=conversation,
            timeout=timeout,
        )
        if result.error_code in {"unknown_tool", "unknown_module"}:
            raise ToolNotFound(call.tool_name)
        if result.error_code == "rate_limited":
            text = result.error or "Tool call refused."
            raise ToolRateLimited(name, text, retry_after_seconds=result.retry_after_seconds)
        return _stamped(_said(result), result, name, seconds=machine_clock.monotonic() - began_at)

    def _caller_of(self, call: ToolCall, context: ToolContext) -> Caller:
        if self._caller is not None:
            return self._caller(context)
        return Caller(user_id=context.user or None, allowed_modules=frozenset({call.tool_name.partition(".")[0]}))


def _completed(context: ToolContext, tag: Tag) -> ToolContext:
    """Return the context with the groups of its argument, if it was made without them."""
    if context.groups:
        return context
    line = tag.pattern.prefix + b" " + context.raw_arg.encode()
    match = tag.pattern.match(line, 0, len(line))
    is_whole = match is not None and (match.start, match.end) == (0, len(line))
    if match is not None and is_whole:
        return context.model_copy(update={"groups": match.groups})
    names = tag.tool.arg_groups
    # What its pattern does not know is for a function to judge, if it is all that it takes.
    is_all = len(names) == 1 and tag.handler.tool is None
    return context.model_copy(update={"groups": {names[0]: context.raw_arg}}) if is_all else context


def _call_of(tag: Tag, context: ToolContext) -> ToolCall:
    if tag.handler.tool is not None:
        arguments: dict[str, Any] = {name: text for name, text in context.groups.items() if text}
        return ToolCall(tool_name=tag.handler.tool, arguments=arguments)
    # All else travels separately from the arguments, which a model can write as well.
    return ToolCall(tool_name=f"{LOCAL}.{tag.tool.name}", arguments=dict(context.groups))


def _said(result: ToolResult) -> TagResult:
    """Return the handler's own `TagResult`, if it gave one; otherwise one made of the call's result."""
    value = result.result
    if isinstance(value, dict) and "message" in value and value.keys() <= TagResult.model_fields.keys():
        try:
            said = TagResult.model_validate({"success": True, **value})
            return said.model_copy(update={"success": said.success and result.success})
        except ValidationError:
            pass
    if not result.success:
        return TagResult(success=False, message=result.error)
    if value is None or isinstance(value, str):
        return TagResult(success=True, message=value)
    return TagResult(success=True, message=json.dumps(value, ensure_ascii=False))


def _stamped(said: TagResult, result: ToolResult, name: str, *, seconds: float) -> TagResult:
    seen = result.audit
    milliseconds = seconds * 1000 if seen.duration_ms is None else seen.duration_ms
    ended_at = datetime.fromtimestamp(seen.ts, UTC) if seen.call_id else fleet_clock.utc_now()
    stamps = {"duration_ms": int(milliseconds), "tool": name, "ts": ended_at.isoformat()}
    if seen.call_id:
        stamps["call_id"] = seen.call_id
    return said.model_copy(update={"audit": {**said.audit, **stamps}})


@dataclass(slots=True)
class _Used:
    window: int
    count: int
    last_ms: int
    until_ms: int  # from then on nothing of it matters


class MemoryLimits:
    """The use of each limit by this process's calls. Times are passed in, in ms since the epoch."""

    def __init__(self) -> None:
        self._used: dict[str, _Used] = {}
        self._many = _MANY_COUNTS

    def judge(self, limits: Sequence[Limit], now_ms: int) -> tuple[int, int, int, int] | None:
        """Return which limit refuses another call now, as `limits.refused_by` reads it; `None` if none does.

        Takes nothing.
        """
        rests = [(*self._rest(limit, now_ms), number) for number, limit in enumerate(limits, 1)]
        rest_ms, kind, number = max(rests, default=(0, 0, 0))
        return (number, kind, rest_ms, now_ms) if rest_ms > 0 else None

    def take(self, limits: Sequence[Limit], now_ms: int) -> None:
        """Count a call that begins now."""
        for limit in limits:
            used, window = self._used.get(limit.key), now_ms // limit.window_ms
            count = used.count if used is not None and used.window == window else 0
            until_ms = max((window + 1) * limit.window_ms, now_ms + limit.cooldown_ms)
            self._used[limit.key] = _Used(window, count + 1, now_ms, until_ms)
        if len(self._used) > self._many:
            self._used = {key: used for key, used in self._used.items() if used.until_ms > now_ms}
            self._many = max(_MANY_COUNTS, 2 * len(self._used))

    def _rest(self, limit: Limit, now_ms: int) -> tuple[int, int]:
        """Return the ms until a call may begin, and 1 if that is for the window's limit."""
        used = self._used.get(limit.key)
        if used is None:
            return 0, 0
        window, rest_ms, kind = now_ms // limit.window_ms, 0, 0
        if limit.most and used.window == window and used.count >= limit.most:
            rest_ms, kind = (window + 1) * limit.window_ms - now_ms, 1
        if limit.cooldown_ms and used.last_ms + limit.cooldown_ms - now_ms > rest_ms:
            rest_ms, kind = used.last_ms + limit.cooldown_ms - now_ms, 0
        return rest_ms, kind


@dataclass(frozen=True, slots=True)
class _Asked:
    """The values that a function is bound to."""

    arguments: Mapping[str, Any]
    user_id: str | None
    context: ToolContext | None


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """A fleet's face for a `TagRegistry` that knows no tools but the functions of its tags.

    Limits are counted in memory, for this process and as long as it lives; budgets are those of the settings in the environment.
    """

    settings: Settings = field(default_factory=Settings)
    _limits: MemoryLimits = field(default_factory=MemoryLimits)
    _functions: dict[str, LocalFunction] = field(default_factory=dict[str, LocalFunction])
    _runs: WeakKeyDictionary[asyncio.AbstractEventLoop, FunctionRuns] = field(
        default_factory=WeakKeyDictionary[asyncio.AbstractEventLoop, FunctionRuns]
    )

    async def call_around(
        self,
        call: ToolCall,
        caller: Caller,
        around: Circumstances,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
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
            return fleet_results.expired(call.tool_name)
        limits = self._limits_for(local, user_id, around)
        if (answer := self._limits.judge(limits, _now_ms())) is not None:  # another call was faster
            return refused_by(call.tool_name, limits, answer)
        self._limits.take(limits, _now_ms())
        context = Context(local.definition.name, None, user_id, caller.permission)
        seconds, max_bytes = _seconds_for(local, rest), self.settings.max_reply_bytes
        return await _ran(self._runs_here(), local, own, context, seconds=seconds, max_bytes=max_bytes)

    async def _judged(
        self, local: LocalFunction, asked: _Asked, caller: Caller, around: Circumstances, *, seconds: float
    ) -> tuple[ToolResult | None, Mapping[str, Any]]:
        """Return the refusal of the call, judged in the order of a fleet, and the function's own arguments.

        Counts nothing.
        """
        tool, lines = local.definition, self.settings.module.get(LOCAL)
        tool = tool if lines is None else lines.on(tool, effect_of(tool))
        if tool.concurrency_key is not None:
            raise SettingsError(
                f"Calls of tool {tool.name!r} wait for each other: make its TagRegistry with a ToolFleet."
            )
        access = Access(tool.name, LOCAL, tool.required_permission)
        if reason := denial(access, caller.permission, modules_of(caller, self.settings.default_guest_modules)):
            return ToolResult.refused(tool.name, "permission_denied", reason), {}
        if tool.approval:
            text = "Tool call refused: a person has to approve it first, and without a fleet nobody can be asked."
            return ToolResult.refused(tool.name, "approval_denied", text), {}
        try:
            own = local.bind(asked.arguments, asked.user_id, asked.context)
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

    def _runs_here(self) -> FunctionRuns:
        """Return the runs of the running loop: a program may have several, one after the other."""
        loop = asyncio.get_running_loop()
        if loop not in self._runs:
            self._runs[loop] = FunctionRuns(threads=self.settings.local_threads, leaves_threads=True)
        return self._runs[loop]

    def _function_of(self, tag: ToolDef) -> LocalFunction:
        local = self._functions.get(tag.name)
        if local is None:
            try:
                local = self._functions[tag.name] = LocalFunction.of_tag(tag, _handler_of(tag))
            except ValueError as exc:
                raise SettingsError(f"Tool {tag.name!r}: {exc}.") from exc
        return local


def _handler_of(tag: ToolDef) -> Callable[..., Any]:
    """Return the function itself, or what its import path names.

    Raises `ValueError`, and `SettingsError` for a module's tool.
    """
    if not isinstance(tag.handler, str):
        return tag.handler
    if ":" not in tag.handler:
        raise SettingsError(
            f"Tool {tag.name!r} is the module's tool {tag.handler!r}: make its TagRegistry with a ToolFleet."
        )
    found = found_at(tag.handler, "its handler")
    handler_of(found, is_here=True)
    function: Callable[..., Any] = found
    return function


def _seconds_for(local: LocalFunction, timeout: float | None) -> float:
    limit = local.definition.timeout_seconds or _FUNCTION_SECONDS
    return limit if timeout is None else max(min(limit, timeout), 0)


def _now_ms() -> int:
    return int(fleet_clock.now() * 1000)


async def _ran(
    runs: FunctionRuns,
    local: LocalFunction,
    own: Mapping[str, Any],
    context: Context,
    *,
    seconds: float,
    max_bytes: int,
) -> ToolResult:
    """Run the function within `seconds` and return its result."""
    name, began_at = local.definition.name, machine_clock.monotonic()
    context._ends_at = began_at + seconds
    try:
        returned = await runs.run(local, own, context)
        result = await _judged(name, returned, max_bytes=max_bytes)
    except TimeoutError:
        result = fleet_results.timed_out(name, seconds)
    except (NotBegun, ModuleBusy):
        text = "Tool execution error: no thread was free for the function: others of them run for too long."
        result = ToolResult.failed(name, "busy", text, effect_state="none", retryable=True)
    milliseconds = (machine_clock.monotonic() - began_at) * 1000
    audit = Audit(call_id="", tool=name, ts=fleet_clock.now(), attempts=1, duration_ms=milliseconds)
    return result.model_copy(update={"audit": audit})


async def _judged(name: str, returned: Any, *, max_bytes: int) -> ToolResult:
    """Return the function's result. The text of its own error is shown to no caller."""
    if isinstance(returned, Failure):
        log.error("local_tool_failed", kind=returned.kind, stack=returned.stack)
        return _failed(name, returned.error)
    try:
        value, files = await as_json(returned, max_bytes=max_bytes)
    except BodyTooLarge as exc:
        text = f"Tool execution error: the function's result is larger than {exc.limit} bytes"
        return ToolResult.failed(name, "result_too_large", text, effect_state="done")
    except ValueError as exc:
        text = f"Tool execution error: the function's result is invalid: {exc}"
        return ToolResult.failed(name, "invalid_response", text, effect_state="done")
    if isinstance(returned, TagResult) and not returned.success:
        said = _failed(name, returned.message or "The tool says that it failed.")
        return said.model_copy(update={"result": value})
    return ToolResult.ok(name, value, files=files)


def _failed(name: str, text: str) -> ToolResult:
    """Return a failure: the function may have done part of its work."""
    return ToolResult.failed(name, "module_error", text, effect_state="unknown")

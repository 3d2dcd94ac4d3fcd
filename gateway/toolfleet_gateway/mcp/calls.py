"""Runs `tools/call`: starts the client's call once, reports its progress and its result, and cancels it if the client has gone."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.calls import absence_for, owner_of
from toolfleet_gateway.mcp.results import (
    PROGRESS,
    CallApproval,
    ClientApprovals,
    ProgressNotes,
    call_result,
    lacks_tasks,
    passed_failure,
    running_result,
    task_facts,
)
from toolfleet_gateway.mcp.tasks import InputRounds, Kinds
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.contracts import Conversation, Effect, ErrorCode, ToolCall, ToolResult
from toolfleet_registry.contracts.call_context import LogLevel
from toolfleet_registry.contracts.inputs import PendingInput
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import reaching_redis
from toolfleet_registry.system import fleet_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import Closing, end
from toolfleet_tasks.calls.begun_calls import BegunHandle, Owner
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.listeners import telling
from toolfleet_tasks.messages import fleet_results

log = get_logger(__name__)

_IDEMPOTENCY_KEY: Final = "toolfleet/idempotencyKey"
"""The name in a request's `_meta` of the client's idempotency key."""

_TOOL_USE_ID: Final = "claudecode/toolUseId"  # Claude Code names each use of a tool so, and a repeat has the same
_NAMES = (_IDEMPOTENCY_KEY, _TOOL_USE_ID)
_LONGEST = 256  # characters


_FOLLOWERS, _JOINS, _IS_ABANDONED = "followers", "joins", "abandoned"
WAIT_SECONDS: Final = 50.0
"""How long a client waits for a call that is not a task: most give up after a minute."""

_GRACE_SECONDS = 10.0  # for a repeat to join: clients reconnect within seconds, and the call is not wanted if none does
_MORE_SECONDS = 30.0  # that a note lasts beyond the time that a client follows a call and waits for others
_NOTE_MS = round((WAIT_SECONDS + 2 * _GRACE_SECONDS + _MORE_SECONDS) * 1000)
_HARMLESS: frozenset[Effect | None] = frozenset({"read", "idempotent"})

Report = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Takes a notification to the client: its method, and its parameters."""

MESSAGE: Final = "notifications/message"
"""The method of the notifications of a call's log."""

Ask = Callable[[PendingInput], Awaitable[dict[str, Any]]]
"""Asks the client, and brings its answers by the requests' keys. Raises `MCPError`."""

_Stop = ToolResult | PendingInput | CallApproval | None

TASK_SECONDS: Final = 0.5
"""The time after which a call becomes a task, for clients that take tasks: most calls end sooner, with one answer."""

_CONFIRMATION_SECONDS = 5.0  # for Redis to say that it has a call that becomes a task
_TIMES, _AGAIN_SECONDS = 10, 0.1  # that a call is started again which others have left repeatedly
_NO_SUCH_TOOL = frozenset({"unknown_tool", "unknown_module", "invalid_tool_name"})

RUN_ID: Final = "io.toolfleet/run_id"
"""The name in a request's `_meta` of the agent's turn: what a profile's `run_limit` counts by."""

CONVERSATION_ID: Final = "io.toolfleet/conversation_id"
"""The name of the conversation, for `thread_limit`; a token's conversation has precedence."""

_LONGEST_CONVERSATION_ID = 256  # characters


class WrongKey(ValueError):
    """A client's key is invalid; the text says why."""


def _client_key(meta: Mapping[str, Any] | None) -> str | None:
    """Return the key that a client gives; `None` if it gives none. Raises `WrongKey`."""
    for name in _NAMES:
        value = None if meta is None else meta.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
            raise WrongKey(f"_meta[{name!r}] must be a text of 1 to {_LONGEST} characters.")
        return f"{name}:{value}"
    return None


def _call_key(given: str, tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return the idempotency key of a call, made of the client's key, the tool and its arguments.

    Clients give the same id to other calls now and then; those are other intentions, and no conflict.
    """
    text = json.dumps([given, tool_name, arguments], sort_keys=True, separators=(",", ":"))
    return "mcp:" + hashlib.sha256(text.encode()).hexdigest()


class RepeatWindow:
    """The time in which a repeat joins its first call, over all gateways of a fleet; with `seconds` 0 there is none."""

    def __init__(self, fleet: ToolFleet, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._fleet = fleet
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def key(self, view: McpView, tool_name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the key of this call and its repeats within the window; `None` if a repeat does no harm, or is another call.

        Raises `FleetUnavailable`: without Redis it is unknown whether it is a repeat.
        """
        if not self._ms:
            return None
        tool = await self._fleet.begun_calls.tool(tool_name, view.who.caller)
        if tool is None or tool.effect in _HARMLESS:
            return None
        said = json.dumps([view.who.caller.user_id, tool_name, arguments], sort_keys=True, separators=(",", ":"))
        async with reaching_redis():
            return f"window:{await self._first(self._keys.mcp_window(said))}"

    async def _first(self, name: str) -> str:
        """Return the value of the first call of the window; ours, if it is the first."""
        own = randomness.uuid4().hex
        while not await self._redis.set(name, own, nx=True, px=self._ms):
            known = await self._redis.get(name)
            if known is not None:  # it may have expired just now
                return known.decode() if isinstance(known, bytes) else str(known)
        return own


class AbandonedCalls:
    """The abandoned calls of one gateway.

    Followers at others are known by a note in Redis. Belongs to the running loop.
    """

    def __init__(self, fleet: ToolFleet, redis: Redis, keys: GatewayKeys, closing: Closing) -> None:
        self._fleet = fleet
        self._redis = redis
        self._keys = keys
        self._closing = closing
        self._ending = set[asyncio.Task[None]]()

    async def joined(self, call_id: str) -> None:
        """Note that a repeat follows the call, too, perhaps one that was started at another gateway."""
        with contextlib.suppress(RedisError, OSError):
            await self._count(call_id, +1)

    async def was_abandoned(self, call_id: str) -> bool:
        """Return whether the call was cancelled because it had no followers any more, and not by request."""
        try:
            return bool(await self._redis.hexists(self._keys.mcp_followers(call_id), _IS_ABANDONED))
        except (RedisError, OSError):
            return False

    def leave(self, handle: BegunHandle, owner: Owner, *, has_key: bool) -> None:
        """Note that a client has gone. The calls of a gateway that ends go on: its clients come again at another one."""
        if self._closing.has_begun:
            return
        call = handle.published
        is_patient = call is None or call.effect not in _HARMLESS
        grace = (_GRACE_SECONDS if is_patient else 0.0) if has_key else None
        self._start(self._cancel(handle.id, owner, grace=grace))

    def take_back(self, call_id: str, owner: Owner) -> None:
        """Cancel a call that its client does not want any more, which is not a broken stream."""
        self._start(self._cancel(call_id, owner, grace=None))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._ending.add(task := asyncio.create_task(work, name="toolfleet-abandoned-call"))
        task.add_done_callback(self._ending.discard)

    async def settle(self, seconds: float) -> None:
        """Give running cancellations so long to finish."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=seconds)
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of those that wait."""
        await end(self._ending)

    async def _cancel(self, call_id: str, owner: Owner, *, grace: float | None) -> None:
        """Cancel it; after a `grace` period, in seconds, unless it has a follower then; `None`: there can be none."""
        try:
            handle = await self._fleet.begun_calls.attach(call_id, owner)
            if handle is None:
                return
            try:
                if grace is None or not await self._is_wanted(handle, grace):
                    await handle.cancel()
            finally:
                handle.leave()
        except FleetUnavailable as exc:  # its deadline ends it
            log.info("abandoned_call_not_cancelled", call_id=call_id, reason=str(exc))

    async def _is_wanted(self, handle: BegunHandle, grace: float) -> bool:
        """Return whether the call has ended, or has a follower at the end of the grace period.

        One that waits in its queue has no such period.
        """
        try:
            followers, joins = await self._count(handle.id, -1)
            if followers > 0:
                return True
            if await handle.status() != "queued":
                ended = await handle.end_within(grace, self._closing)
                # Who has come since has a grace of their own, also if they have gone again.
                if ended is not None or self._closing.has_begun or (await self._count(handle.id, 0))[1] > joins:
                    return True
            await self._redis.hset(self._keys.mcp_followers(handle.id), _IS_ABANDONED, "1")
        except (RedisError, OSError):
            return True  # it cannot be told to stop either
        return False

    async def _count(self, call_id: str, more: int) -> tuple[int, int]:
        """Return the number of followers, and how many have joined it: its starter is not counted when it comes, but when it leaves."""
        name = self._keys.mcp_followers(call_id)
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hincrby(name, _FOLLOWERS, more)
            pipeline.hincrby(name, _JOINS, max(more, 0))
            pipeline.pexpire(name, _NOTE_MS)
            noted, joins, _ = await pipeline.execute()
        return 1 + int(noted), int(joins)


class _TakenBack(Exception):
    """The call was cancelled, before it had started, as its other clients had left it."""


class UnknownTool(Exception):
    """There is no tool of this name at this endpoint, for this caller; the text says so."""


@dataclass(frozen=True, slots=True)
class McpCall:
    """A client's request. `progress_token`: it wants reports of progress; `takes_tasks`: it can follow a task.

    `takes_forms`: its user can be asked whether the call may start. `log_level`: the log messages it wants. `kinds`:
    the questions it can be asked; `state` and `responses`: those it continues with; `ask`: how an older one is asked.
    `began` is called with the call's id once it is under way.
    """

    name: str
    arguments: Mapping[str, Any]
    meta: Mapping[str, Any]
    progress_token: str | int | None = None
    log_level: LogLevel | None = None
    takes_tasks: bool = False
    takes_forms: bool = False
    kinds: Kinds = frozenset()
    state: str | None = None
    responses: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    began: Callable[[str], Awaitable[None]] | None = None


class ToolCalls:
    """The calls that one gateway runs for MCP clients."""

    def __init__(
        self,
        fleet: ToolFleet,
        settings: GatewaySettings,
        abandoned: AbandonedCalls,
        window: RepeatWindow,
        rounds: InputRounds,
        approvals: ClientApprovals,
    ) -> None:
        self._approvals = approvals
        self._window = window
        self._rounds = rounds
        self._fleet = fleet
        self._settings = settings
        self._abandoned = abandoned

    async def run(self, view: McpView, asked: McpCall, report: Report) -> dict[str, Any]:
        """Return the result of `tools/call`, or the task that the call has become.

        A cancelled request has left the call.

        Raises `UnknownTool`, `WrongKey` and `WrongState`, and `MCPError` if a server of the protocol has answered with
        one, or the client lacks what the tool needs.
        """
        name = await self._meant(view, asked.name)
        if not asked.takes_tasks and await self._needs_task(view, name):
            raise lacks_tasks()
        try:
            if asked.state is not None:
                handle, has_voted = await self._rounds.resume(view, name, asked.arguments, asked.state, asked.responses)
                asked = replace(asked, takes_forms=asked.takes_forms and not has_voted)
                return await self._waited(view, handle, asked, report, has_key=True)  # the state names it
            return await self._called(view, name, asked, report)
        except FleetUnavailable as exc:
            return call_result(fleet_results.fleet_unavailable(name, str(exc)), "")

    async def _called(self, view: McpView, name: str, asked: McpCall, report: Report) -> dict[str, Any]:
        """Start the call, or join it.

        One that was cancelled for a client that had left it is started again for this one.
        """
        key = await self._key(view, name, asked)
        for left in reversed(range(_TIMES)):
            handle = await self._begun(view, name, asked, key)
            if handle.refusal is not None:
                return await self._refused(view, asked.name, handle.id, handle.refusal)
            if handle.has_joined:
                await self._abandoned.joined(handle.id)
            with contextlib.suppress(_TakenBack):
                return await self._waited(view, handle, asked, report, has_key=key is not None, may_begin=left > 0)
            await asyncio.sleep(_AGAIN_SECONDS)
        raise AssertionError("the last event is the end")

    async def _waited(
        self,
        view: McpView,
        handle: BegunHandle,
        asked: McpCall,
        report: Report,
        *,
        has_key: bool,
        may_begin: bool = False,
    ) -> dict[str, Any]:
        """Follow it, and answer with its outcome. Raises `_TakenBack` for one that `may_begin` again."""
        try:
            if asked.began is not None:
                await asked.began(handle.id)
            stop = await self._stop(view, handle, asked, report)
            if may_begin and _was_taken_back(stop) and await self._abandoned.was_abandoned(handle.id):
                raise _TakenBack
            return await self._answer(view, handle, asked, stop, has_key=has_key)
        except asyncio.CancelledError:
            self._abandoned.leave(handle, owner_of(view.who), has_key=has_key)
            raise
        finally:
            if asked.state is not None:
                handle.leave()

    async def _key(self, view: McpView, name: str, asked: McpCall) -> str | None:
        given = _client_key(asked.meta) or await self._window.key(view, name, asked.arguments)
        return None if given is None else _call_key(given, name, asked.arguments)

    async def _meant(self, view: McpView, shown: str) -> str:
        tools = [] if view.module is not None or "." in shown else await self._fleet.tools(view.who.caller)
        name = view.meant(shown, tools)
        if name is None:
            raise UnknownTool(f"Unknown tool: {shown[:200]}")
        tool = await self._fleet.begun_calls.tool(name, view.who.caller)
        return name if tool is None else tool.name  # by which keys and open questions are told apart

    async def _asked(
        self, view: McpView, handle: BegunHandle, stop: PendingInput, ask: Ask, seconds: float
    ) -> ToolResult | PendingInput | None:
        """Have an older client answer, and wait on. A call whose client refuses is cancelled. Raises `MCPError`."""
        try:
            await self._rounds.answer(view, handle, stop, await ask(stop))
        except MCPError:
            await handle.cancel()
            raise
        return await handle.next_stop(seconds)

    async def _needs_task(self, view: McpView, name: str) -> bool:
        if not self._settings.mcp_task_tools:
            return False
        tool = await self._fleet.begun_calls.tool(name, view.who.caller)
        return tool is not None and not self._settings.mcp_task_tools.isdisjoint(tool.names)

    async def _begun(self, view: McpView, name: str, asked: McpCall, key: str | None) -> BegunHandle:
        who = view.who
        call = ToolCall(
            tool_name=name,
            arguments=dict(asked.arguments),
            idempotency_key=key,
            takes_input=bool(asked.kinds),
            log_level=asked.log_level,
        )
        where = _conversation_in(asked.meta, who.conversation_id)
        return await self._fleet.begun_calls.begin(call, who.caller, owner_of(who), conversation=where)

    async def _refused(self, view: McpView, shown: str, call_id: str, refusal: ToolResult) -> dict[str, Any]:
        result = await absence_for(self._fleet, view.who, refusal) or refusal
        if result.error_code in _NO_SUCH_TOOL:
            hint = f" {result.hint}" if result.hint and view.module is None else ""
            raise UnknownTool(f"Unknown tool: {shown[:200]}.{hint}")
        return call_result(result, call_id)

    async def _stop(self, view: McpView, handle: BegunHandle, asked: McpCall, report: Report) -> _Stop:
        """Return the call's end, or its question; `None` while it runs for longer than a client waits."""
        seconds = self._seconds(asked)
        async with _telling(handle, asked, report):
            waits = await self._waits(view, handle, asked)
            if waits is not None and asked.takes_tasks:
                return waits  # people take longer than a client waits for a task
            if waits is not None and waits.question is not None and asked.takes_forms:
                if asked.ask is None:
                    return waits
                await self._approvals.ask_older(view, handle, waits, asked.ask)
            stop = await (handle.next_stop(seconds) if asked.kinds else handle.end_within(seconds))
            while isinstance(stop, PendingInput) and asked.ask is not None:
                stop = await self._asked(view, handle, stop, asked.ask, seconds)
        return stop

    async def _waits(self, view: McpView, handle: BegunHandle, asked: McpCall) -> CallApproval | None:
        """Return the approval that it waits for. For a call that was just started that is known without Redis."""
        if not handle.waits_for_approval and not handle.has_joined and asked.state is None:
            return None
        if not handle.waits_for_approval and await handle.status() != "waiting_approval":
            return None
        return await self._approvals.waited_for(view, handle)

    def _seconds(self, asked: McpCall) -> float:
        return TASK_SECONDS if asked.takes_tasks else WAIT_SECONDS

    async def _answer(
        self,
        view: McpView,
        handle: BegunHandle,
        asked: McpCall,
        stop: _Stop,
        *,
        has_key: bool,
    ) -> dict[str, Any]:
        """Return the client's answer about it."""
        if isinstance(stop, CallApproval) and not asked.takes_tasks:
            return await self._rounds.ask_approval(view, handle, stop, asked.arguments)
        if isinstance(stop, PendingInput):
            return await self._rounds.ask(view, handle, stop, asked.kinds, asked.arguments)
        if isinstance(stop, ToolResult):
            return _ended(handle, stop)
        is_kept = await handle.is_kept_within(_CONFIRMATION_SECONDS)
        if (result := await handle.end_within(0)) is not None:
            return _ended(handle, result)
        if not is_kept:
            return call_result(_unconfirmed(handle, has_key=has_key), handle.id)
        return await self._going_on(view, handle, asked, stop)

    async def _going_on(
        self, view: McpView, handle: BegunHandle, asked: McpCall, waits: CallApproval | None
    ) -> dict[str, Any]:
        """Return the answer for a call that has not ended: a task, or how to ask for it."""
        if not asked.takes_tasks:
            return running_result(handle, await self._waits(view, handle, asked))
        message = None if waits is None else waits.sentence
        facts = task_facts(handle, "working", now=fleet_clock.now(), message=message)
        return {"resultType": "task", **facts}


@asynccontextmanager
async def _telling(handle: BegunHandle, asked: McpCall, report: Report) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        if asked.progress_token is not None:
            notes = ProgressNotes(asked.progress_token)
            steps = telling(handle.progress(), lambda step: report(PROGRESS, notes.note(step)))
            await stack.enter_async_context(steps)
        if asked.log_level is not None:
            logged = telling(handle.log(), lambda message: report(MESSAGE, message.fields()))
            await stack.enter_async_context(logged)
        yield


def _was_taken_back(stop: _Stop) -> bool:
    return isinstance(stop, ToolResult) and stop.error_code == "cancelled" and stop.effect_state == "none"


def _ended(handle: BegunHandle, result: ToolResult) -> dict[str, Any]:
    if (error := passed_failure(result)) is not None:
        raise error
    return call_result(result, handle.id)


def _unconfirmed(handle: BegunHandle, *, has_key: bool) -> ToolResult:
    """Return the result of a call that was sent to a Redis which was lost then.

    With a key a repeat joins it, wherever it is.
    """
    error = "The fleet's Redis has not confirmed the call: it may be in its queue, or not."
    code: ErrorCode = "fleet_unavailable" if has_key else "outcome_unknown"
    return ToolResult.failed(handle.tool_name, code, error, effect_state="unknown", retryable=has_key)


def _conversation_in(meta: Mapping[str, Any] | None, own: str | None) -> Conversation | None:
    """Return the client's conversation; `own` is its token's. Raises `WrongKey` for an invalid name."""
    run_id, said = _name_in(meta, RUN_ID), _name_in(meta, CONVERSATION_ID)
    conversation_id = own or said
    if run_id is None and conversation_id is None:
        return None
    return Conversation(conversation_id=conversation_id, run_id=run_id)


def _name_in(meta: Mapping[str, Any] | None, name: str) -> str | None:
    value = None if meta is None else meta.get(name)
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= _LONGEST_CONVERSATION_ID):
        raise WrongKey(f"_meta[{name!r}] must be a text of 1 to {_LONGEST_CONVERSATION_ID} characters.")
    return value

"""Runs one call: middleware around the executor of its module, one call in, one attempt out."""

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from toolfleet_registry.agents.profile_rules import NO_RULES, ToolRules
from toolfleet_registry.contracts import (
    Caller,
    EffectState,
    ErrorCode,
    PublishedCall,
    RetryTerms,
    Terms,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Health, Lease, Outcome, Standing, StatusMissing
from toolfleet_registry.contracts.calls import note_all
from toolfleet_registry.errors import ToolNotKnown
from toolfleet_registry.manifests.manifest_cache import SeenTool
from toolfleet_registry.policy.limits import strictest, terms_of
from toolfleet_registry.system import fleet_clock, machine_clock
from toolfleet_registry.system.loggers import get_logger

log = get_logger(__name__)

_NOT_EXECUTED = frozenset({Outcome.NOT_SENT, Outcome.TURNED_AWAY, Outcome.PERMANENT})

Proceed = Callable[[PublishedCall], Awaitable[Attempt]]
"""Runs the next step for a call."""

AskStatus = Callable[..., Awaitable[Standing]]
"""Asks for the state of a call that its module has accepted; takes the arguments of `CallRunner.status`."""

Middleware = Callable[[PublishedCall, Proceed], Awaitable[Attempt]]
"""One concern around every call: gets the call and the next step, and returns the attempt.

It calls the next step once at most. What that raises must pass: only the runner makes results of errors. An object may have
a method `decide` as well, which gives its `Verdict` on all plain calls of a `Case`.
"""

Verdict = Literal["pass", "ask", "refuse"]
"""A middleware's answer for plain calls: pass all of them, ask about each, or refuse all of them."""

Screen = Callable[[PublishedCall, Attempt], Awaitable[Attempt]]
"""Changes a module's answer about a call, before it is stored."""

# Until when the attempt of this context may run (monotonic), and on which lease: the steps are the same for all calls. Emptied
# at its end, for a connection that it has opened keeps the context.
_running: ContextVar[list[tuple[float, Lease]]] = ContextVar("toolfleet_attempt")

# Variables of structlog's kind, which it finds by their names. It would look its own up for each call, and keep them in a new dictionary.
_CALL_ID: ContextVar[object] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}call_id")
_TOOL: ContextVar[object] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}tool")
_logger = logging.getLogger(__name__)

MAX_BYTES = 2000  # of UTF-8: enough for a message and the end of a traceback, little enough for a prompt

_ELLIPSIS = "…"
_REMOVABLE = 4
_LINE_END = re.compile("\r\n?|[\u2028\u2029]")
# ECMA-48, in this order: strings such as window titles and links, colours and cursor moves, and the short ones. Only
# where they begin with ESC: as single characters they are far more often broken quotation marks.
_ESCAPE = re.compile("\x1b[\\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b\\[[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?")
# A JSON Web Token, or the start of one: a module that quotes its request shows its `Toolfleet-Caller`. Started where a word
# begins and never given back, for a text of 8 kB may be one word.
_TOKEN = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++\.eyJ[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+)?")
# Control characters, what turns the direction of text, zero-width spaces, half surrogates, and the tag characters
# in which text can be hidden from people. The joiners U+200C and U+200D stay: words and emoji are made with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def seconds_left() -> float:
    """Return how long the attempt that is running here may still take."""
    ((give_up_at, _),) = _running.get()
    return give_up_at - machine_clock.monotonic()


def unsuccessful(call: PublishedCall, outcome: Outcome, code: ErrorCode, error: str) -> Attempt:
    """Return an attempt that ended in `outcome`. Whether it may be repeated is decided by the tasks, which know the effect."""
    state: EffectState = "none" if outcome in _NOT_EXECUTED else "unknown"
    return Attempt(outcome, ToolResult.failed(call.tool_name, code, error, effect_state=state))


def too_late(call: PublishedCall) -> Attempt:
    """Return an attempt that was not started: its deadline has passed, or its lease is over, so that other workers may have the call."""
    if call.deadline_at <= fleet_clock.now():
        text = "Tool call expired: its deadline passed before the request was sent."
        return unsuccessful(call, Outcome.NOT_SENT, "expired", text)
    text = "Tool execution error: the worker stood still for too long to begin the call."
    return unsuccessful(call, Outcome.NOT_SENT, "internal", text)


def no_time_left(call: PublishedCall) -> Attempt:
    """Return an attempt that was not started: its limit was used up before it, or its deadline has passed.

    It says nothing of its module.
    """
    text = "Tool call expired: its time was over before it could be begun."
    return unsuccessful(call, Outcome.NOT_SENT, "expired", text)


def error_text(exc: Exception) -> str:
    """Return the text of an error for a log: its type, and the message of an operating system's, which contains addresses only.

    Other messages may quote a module's data.
    """
    return f"{type(exc).__name__}: {exc}" if isinstance(exc, OSError) else type(exc).__name__


@dataclass(slots=True)
class Case:
    """The facts that many calls share: a caller's rights, a tool as it is in effect, and the rules of the caller's agent for it.

    `noted`: what is decided of plain calls, for their audit lines. A middleware may narrow the `caller` for those after it.
    """

    caller: Caller
    tool: SeenTool
    rules: ToolRules
    noted: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True, eq=False)
class RunTicket:
    """The decisions that depend only on a caller's rights and a tool. Kept until anything changes that they were made from.

    `terms`: those of the tool and of the agent's profile, the stricter. `retry`: the profile's. `steps`: the middleware that
    a plain call has to pass, and the executor; `None` if it must pass all of it. A plain call names no version, no approval and no
    artifacts. `key`: under which it is kept. `in_turn`: the tool, if some of its calls wait for their turn.
    """

    key: Hashable = None
    terms: Terms | None = None
    retry: RetryTerms | None = None
    noted: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: Proceed | None = None
    in_turn: ToolDefinition | None = None


class Executor(Protocol):
    """Takes a call to where its tool is."""

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt:
        """Make one attempt within `seconds`. Raises `TimeoutError` if they are over after the request was sent.

        The `lease` is asked immediately before anything is sent or run: on one that is over, nothing is.
        """
        ...

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt | None:
        """Find out the outcome of a call that was started before, within `seconds`, on its `lease`, if possible."""
        ...

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Check whether the module is there, within `seconds` and without a call."""
        ...

    async def aclose(self) -> None:
        """Give back what calls share."""
        ...


class ToolLookup(Protocol):
    """The modules' tools as far as a worker knows them, and what operators have decided about them."""

    @property
    def is_old(self) -> bool:
        """Whether it should be read again before anything is decided on it."""
        ...

    def find(self, tool_name: str) -> SeenTool | None:
        """Return the tool as it is in effect; `None` if nothing is known of it."""
        ...

    def decided(self, key: Hashable) -> RunTicket | None:
        """Return the ticket kept under `key`; `None` if there is none, or everything should be read again before."""
        ...

    def keep(self, key: Hashable, ticket: RunTicket) -> None:
        """Keep a ticket that was made from what is known now, until that changes."""
        ...

    def retries_undeclared(self, module: str) -> bool:
        """Return whether the module declares that its undeclared tools are repeated after a failure."""
        ...

    def serves(self, module: str) -> bool:
        """Return whether there is such a module; the executor refuses calls of others."""
        ...

    def lacks(self, tool_name: str) -> bool:
        """Return whether the tool's module surely does not offer it."""
        ...

    def inquire(self, tool_name: str) -> float:
        """Have the tool's module asked. Returns after how many seconds something may be known of it."""
        ...

    async def is_approved(self, tool: ToolDefinition) -> bool:
        """Return whether this definition may be run, though another one is in effect."""
        ...

    async def refresh(self, *, reads_all: bool = True) -> None:
        """Read the changes, or everything again; returns soon, also if that fails."""
        ...

    async def prepare(self) -> None:
        """Return when everything has been read once."""
        ...

    async def ensure_modules(self, modules: Collection[str], *, is_new: bool) -> None:
        """Have these modules asked in the background, unless what they offer is known."""
        ...

    async def reload_modules(self, modules: Collection[str]) -> None:
        """Have those of these modules asked in the background of which something is known."""
        ...


class CallRunner:
    """The runner of a worker's app. The first of `middleware` is the outermost; what is in `closing` is called as it closes.

    `ask_status` asks for the states of calls that modules have accepted; their outcomes pass the last `checks` of the
    middleware.

    `wait_for` says how long a call of an unknown tool must wait; `None`: not at all. `rules_for`: the rules of the
    agent's profile for the call's tool. `replica_for` chooses which process of its module a call would go to.
    `screened` changes a module's later answer about a call, before it is stored.
    """

    def __init__(
        self,
        executor: Executor,
        middleware: Sequence[Middleware],
        *,
        ask_status: AskStatus | None = None,
        checks: int = 0,
        definitions: ToolLookup | None = None,
        wait_for: Callable[[PublishedCall], float | None] = lambda _: None,
        rules_for: Callable[[PublishedCall], ToolRules] = lambda _: NO_RULES,
        replica_for: Callable[[PublishedCall], str] = lambda _: "",
        screened: Screen | None = None,
        closing: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self._executor = executor
        self._definitions = definitions
        self._wait_for, self._rules_for = wait_for, rules_for
        self.replica_for = replica_for
        """Returns which process of its module a call would go to, as its lease notes it; "" for a module with one address."""
        self._middleware, self._steps = middleware, compose(middleware, self._execute)
        self._checks = middleware[len(middleware) - checks :]
        self._ask_status, self._screened = ask_status, screened
        self._closing = closing

    async def run(
        self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED, ticket: RunTicket | None = None
    ) -> Attempt:
        """Run one attempt of `call` within `seconds`, on its `lease`, by its `ticket` if that still holds.

        Every line that is logged meanwhile has `call_id` and `tool`; none has arguments or results, which are people's data. Lets `TimeoutError` (the executor's time is over) and `CancelledError` pass; anything else that is raised
        is a defect of ours: it is logged, and the call ends as `internal` with an unknown effect.
        """
        running = [(machine_clock.monotonic() + seconds, lease)]
        _running.set(running)
        _CALL_ID.set(call.call_id)
        _TOOL.set(call.tool_name)
        if _logger.isEnabledFor(logging.DEBUG):
            log.debug("tool_call_started")
        try:
            steps, tools = self._steps, self._definitions
            if tools is not None and ticket is not None and ticket.steps is not None:
                is_plain = call.tool_version is None and call.approval is None and not call.artifacts
                if is_plain and tools.decided(ticket.key) is ticket:
                    note_all(ticket.noted)
                    steps = ticket.steps
            return await steps(call)
        except (TimeoutError, asyncio.CancelledError):  # first: the pool's soft limit is both this and an Exception
            raise
        except Exception as exc:  # noqa: BLE001 - no defect of ours may cost the call its result
            # Where, but not the error's text: it may quote arguments, or what the module said.
            stack = "".join(traceback.format_tb(exc.__traceback__))
            kind = type(exc).__name__
            log.error("tool_call_crashed", call_id=call.call_id, tool=call.tool_name, kind=kind, stack=stack)  # noqa: TRY400
            text = f"Tool execution error: internal error ({type(exc).__name__})"
            return unsuccessful(call, Outcome.UNKNOWN, "internal", text)
        finally:
            running.clear()
            _CALL_ID.set(...)  # which is how structlog unbinds
            _TOOL.set(...)

    def ticket(self, call: PublishedCall) -> RunTicket | None:
        """Return the ticket of the call's caller and tool; `None` if nothing is decided about them that still holds."""
        return None if self._definitions is None else self._definitions.decided(_key_of(call))

    async def decide(self, call: PublishedCall) -> RunTicket:
        """Return the ticket of the call's caller and tool, made now. Raises `ToolNotKnown`.

        It is kept, unless the caller's calls are refused: before a refusal everything is read again.
        """
        tools = self._definitions
        if tools is None:
            return RunTicket()
        tool = tools.find(call.tool_name)
        if tool is None or tools.is_old:
            await tools.refresh(reads_all=False)
            tool = tools.find(call.tool_name)
        if tool is None:
            if (seconds := self._wait_for(call)) is not None:
                raise ToolNotKnown(call.tool_name, seconds)
            return RunTicket()
        case = Case(call.caller, tool, self._rules_for(call))
        terms = strictest(terms_of(tool.definition), case.rules.terms)
        ticket = RunTicket(_key_of(call), terms, case.rules.retry, case.noted)
        ticket.in_turn = None if tool.definition.concurrency_key is None else tool.definition
        verdicts = [(layer, _verdict(layer, case)) for layer in self._middleware]
        if all(verdict != "refuse" for _, verdict in verdicts):
            ticket.steps = compose([layer for layer, verdict in verdicts if verdict == "ask"], self._execute)
            tools.keep(ticket.key, ticket)
        return ticket

    def retries_undeclared(self, tool_name: str) -> bool:
        """Return whether the tool's module declares that its undeclared tools are repeated after a failure."""
        return self._definitions is not None and self._definitions.retries_undeclared(tool_name.partition(".")[0])

    async def prepare(self) -> None:
        """Return when the worker knows the modules' tools, as far as they are known at all."""
        if self._definitions is not None:
            await self._definitions.prepare()

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return the module's answer about a call whose end was not seen; `None` without one, within `seconds`.

        No middleware is around it, for nothing is executed. Lets `CancelledError` pass; a defect of ours is logged.
        """
        try:
            found = await self._executor.reconcile(call, seconds=seconds, lease=lease)
            return found if found is None or self._screened is None else await self._screened(call, found)
        except asyncio.CancelledError:  # first: the pool's soft limit is both this and an Exception
            raise
        except Exception as exc:  # noqa: BLE001 - with any error, the call's end is as unknown as before
            log.warning("reconcile_failed", call_id=call.call_id, tool=call.tool_name, error=error_text(exc))
            return None

    async def status(
        self, call: PublishedCall, handle: str, *, seconds: float, lease: Lease = UNBOUNDED, cancel: bool = False
    ) -> Standing:
        """Return the module's answer about a call that it has accepted.

        Lets `CancelledError` pass; a defect of ours is logged.
        """
        if self._ask_status is None:
            return StatusMissing()
        try:
            found = await self._ask_status(call, handle, seconds=seconds, lease=lease, cancel=cancel)
            if not isinstance(found, Attempt):
                return found
            return await compose(self._checks, _Ended(found))(call)
        except asyncio.CancelledError:  # first: the pool's soft limit is both this and an Exception
            raise
        except Exception as exc:  # noqa: BLE001 - the call goes on all the same, and is asked for again
            log.warning("status_failed", call_id=call.call_id, tool=call.tool_name, error=error_text(exc))
            return StatusMissing()

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Check whether the module is there.

        Lets `CancelledError` pass; a defect of ours is logged, and says nothing of the module.
        """
        try:
            return await self._executor.probe(module, seconds=seconds)
        except Exception as exc:  # noqa: BLE001 - no caller of the module must suffer from it
            log.warning("probe_failed", module=module, error=error_text(exc))
            return Health.WELL

    async def aclose(self) -> None:
        """Close the executor, and what else there is; no call may be running."""
        await self._executor.aclose()
        for close in self._closing:
            await close()

    async def _execute(self, call: PublishedCall) -> Attempt:
        ((give_up_at, lease),) = _running.get()
        sent_at = machine_clock.monotonic()
        try:
            return await self._executor.execute(call, seconds=give_up_at - sent_at, lease=lease)
        finally:
            ended_at = machine_clock.monotonic()
            lease.note_request(ended_at - sent_at, ended_at=ended_at)


def compose(middleware: Sequence[Middleware], innermost: Proceed) -> Proceed:
    """Put `middleware` around `innermost`, the first one outermost."""
    for layer in reversed(middleware):
        innermost = _around(layer, innermost)
    return innermost


def _around(layer: Middleware, rest: Proceed) -> Proceed:
    return lambda call: layer(call, rest)


def _verdict(layer: Middleware, case: Case) -> Verdict:
    decide: Callable[[Case], Verdict] | None = getattr(layer, "decide", None)
    return "ask" if decide is None else decide(case)


def _key_of(call: PublishedCall) -> Hashable:
    """Return what a ticket depends on: the tool, and the caller's rights to it. Of the caller's modules, whether the tool's is one."""
    caller, name = call.caller, call.tool_name
    modules: object = caller.allowed_modules
    if isinstance(modules, frozenset):
        modules = name.partition(".")[0] in modules
    return name, caller.permission, modules, caller.agent


@dataclass(frozen=True, slots=True)
class _Ended:
    """The innermost step of a call that has ended."""

    attempt: Attempt

    async def __call__(self, _: PublishedCall) -> Attempt:
        return self.attempt


class RoutedExecutor:
    """Gives a call to the executor of its module, and to `others` where it has none of its own."""

    def __init__(self, by_module: Mapping[str, Executor], *, others: Executor) -> None:
        self._by_module = by_module
        self._others = others

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """Make one attempt at the executor."""
        return await self._of(call).execute(call, seconds=seconds, lease=lease)

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return what the executor knows of a call that was started before."""
        return await self._of(call).reconcile(call, seconds=seconds, lease=lease)

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Check whether the module is there, by its executor."""
        return await self._by_module.get(module, self._others).probe(module, seconds=seconds)

    async def aclose(self) -> None:
        """Close them all."""
        for executor in (*self._by_module.values(), self._others):
            await executor.aclose()

    def _of(self, call: PublishedCall) -> Executor:
        return self._by_module.get(call.tool_name.partition(".")[0], self._others)


def readable(text: str, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the start of `text` without terminal escapes, invisible characters and signed tokens; newlines and tabs stay.

    At most `max_bytes` of UTF-8 and never half a character; an ellipsis shows that something is missing.
    """
    # One character is at least a byte; the factor leaves room for what is removed. Without it, 8 MiB would be searched.
    start = text[: max_bytes * _REMOVABLE]
    start = _LINE_END.sub("\n", _ESCAPE.sub("", start))
    start = _TOKEN.sub("[token]", _INVISIBLE.sub("", start)).strip()
    return _cut(start, max_bytes, was_cut=len(text) > max_bytes * _REMOVABLE)


def _cut(text: str, max_bytes: int, *, was_cut: bool) -> str:
    data = text.encode()
    if len(data) <= max_bytes and not was_cut:
        return text
    return data[: max_bytes - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS

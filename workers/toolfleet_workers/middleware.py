"""Surrounds every call that a worker runs: rights, profiles, approvals, own classes, personal data, results and spans.

Each class is one concern, and none knows another. `worker_app.py` says in which order they come.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from toolfleet_registry import spans
from toolfleet_registry.agents.data_guards import counted
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.own_classes import AttemptMiddleware, OwnClasses
from toolfleet_registry.agents.profile_rules import (
    NO_RULES,
    EffectiveProfile,
    ToolRules,
    approval_fault,
    approval_rules,
)
from toolfleet_registry.config.agent_profile import PiiSpec, Place
from toolfleet_registry.contracts import Caller, ErrorCode, PublishedCall, SealedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome, checked_part
from toolfleet_registry.contracts.call_context import (
    LogMessage,
    LogSink,
    Progress,
    current_log,
    current_sink,
    log_message,
    log_to,
    progress_of,
    report_to,
)
from toolfleet_registry.contracts.calls import CONVERSATION, USER, note, note_all, shown_user
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.errors import PersonalDataBlocked, UnknownAgent
from toolfleet_registry.manifests.manifest_cache import SeenTool
from toolfleet_registry.permissions import Modules, denial, module_denial, reaches
from toolfleet_registry.policy.call_faults import version_fault
from toolfleet_registry.policy.hints import CLOSED_TO_ALL
from toolfleet_registry.policy.redaction import REDACTED, redacted
from toolfleet_registry.schemas.arguments import size_of
from toolfleet_registry.spans import OpenSpan, TraceContext, Tracing, Unrecorded, carried
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.runner import Case, Middleware, Proceed, ToolLookup, Verdict, compose, unsuccessful

log = get_logger(__name__)

_MOST_NAMED = 1000  # unknown tools, each logged once; then their number must do

_PASSED_GATE = frozenset({"allowed", "asked_for_job"})  # what an agent notes of a gate that has let a call pass

_BLOCKED = "[blocked: personal data]"

_MOST_CONTENT = 8_192  # characters of a call's arguments, and of its result
_LOCAL = f"{LOCAL}."
_open: ContextVar[OpenSpan | None] = ContextVar("toolfleet_tool_span", default=None)  # where it has contents


@dataclass
class PermissionCheck:
    """Runs a call only if its caller may use the tool, by the same rule as when it was listed and published.

    A call that names a version is run only while that one is in effect, which is read from Redis again. If Redis does
    not answer, the last known state holds, as for everything here.

    `default_modules` are those of a caller if its agent does not say, as earlier ones did: it has decided by the same.
    `open_modules` are open to all.

    Fails closed: a call of an unknown tool has to wait (`wait_for`), and is `busy` if it comes all the same; `unknown`
    counts such calls, and the log names each tool once. Before it refuses for good, it has the manifests read again:
    they may have changed.
    """

    tools: ToolLookup
    default_modules: frozenset[str]
    open_modules: frozenset[str] = frozenset()
    unknown: int = field(default=0, init=False)
    _named: set[str] = field(default_factory=set[str], init=False)

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or refuse: with `permission_denied`, `unknown_tool`, `version_mismatch`, or `busy` if it cannot be decided."""
        modules = self._modules_of(call.caller)
        module = call.tool_name.partition(".")[0]
        if not reaches(module, modules):
            return _denied(call, module_denial(module))
        tool, reason = self._find(call, modules)
        is_old, is_refused = self.tools.is_old, tool is None or bool(reason)
        # A version may have changed since the call was published, and just now.
        if is_old or is_refused or call.tool_version is not None:
            await self.tools.refresh(reads_all=is_refused and not is_old)
            tool, reason = self._find(call, modules)
        if tool is None:
            return await self._unknown(call, proceed)
        if reason:
            return _denied(call, reason, hint=CLOSED_TO_ALL if reason == tool.access.closed else None)
        note("permission", "allowed")
        if fault := version_fault(tool.definition, call.tool_version):
            return _refused(call, Outcome.PERMANENT, "version_mismatch", fault)
        return await proceed(call)

    def decide(self, case: Case) -> Verdict:
        """Return whether the caller may use the tool as it is in effect now."""
        if denial(case.tool.access, case.caller.permission, self._modules_of(case.caller)):
            return "refuse"
        case.noted["permission"] = "allowed"
        return "pass"

    def wait_for(self, call: PublishedCall) -> float | None:
        """Return how many seconds a call of an unknown tool must wait; `None` if it can be decided now."""
        name = call.tool_name
        module = name.partition(".")[0]
        if not reaches(module, self._modules_of(call.caller)) or self.tools.find(name) is not None:
            return None
        if not self.tools.serves(module) or self.tools.lacks(name):
            return None
        self._note_unknown(name)
        return self.tools.inquire(name)

    def _find(self, call: PublishedCall, modules: Modules) -> tuple[SeenTool | None, str | None]:
        """Return the call's tool, and why its caller may not use it."""
        tool = self.tools.find(call.tool_name)
        return tool, None if tool is None else denial(tool.access, call.caller.permission, modules)

    async def _unknown(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        name = call.tool_name
        if not self.tools.serves(name.partition(".")[0]):  # its executor knows no address, and says so
            note("permission", "unknown_module")
            return await proceed(call)
        if self.tools.lacks(name):
            note("permission", "unknown_tool")
            return _refused(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {name}")
        self._note_unknown(name)
        note("permission", "not_known")
        return _refused(call, Outcome.NOT_SENT, "busy", f"Who may use {name!r} is not known now.")

    def _modules_of(self, caller: Caller) -> Modules:
        allowed = self.default_modules if caller.allowed_modules is None else caller.allowed_modules
        return allowed if allowed == "*" or not self.open_modules else allowed | self.open_modules

    def _note_unknown(self, tool_name: str) -> None:
        self.unknown += 1
        if tool_name not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(tool_name)
            log.warning("permission_not_known", unknown_tool=tool_name, calls=self.unknown)


def _denied(call: PublishedCall, reason: str, *, hint: str | None = None) -> Attempt:
    note("permission", "denied")
    return _refused(call, Outcome.PERMANENT, "permission_denied", reason, hint=hint)


def _refused(
    call: PublishedCall, outcome: Outcome, code: ErrorCode, reason: str, *, hint: str | None = None
) -> Attempt:
    log.warning("tool_call_refused", reason=reason, user_id=shown_user(call.caller.user_id))
    return Attempt(outcome, ToolResult.refused(call.tool_name, code, reason, hint=hint))


@dataclass
class ProfileCheck:
    """Runs a call only if its agent's profile allows the tool, and with no more rights than the profile leaves.

    A call must have passed a closed gate that its profile wants: its agent's signed note says so. Fails closed: an
    agent with a profile that is not known here, also after reading the registry's, may do nothing. `default_modules` are
    those of a caller if its message does not say.
    """

    tools: ToolLookup
    profiles: KnownProfiles
    default_modules: frozenset[str]

    def decide(self, case: Case) -> Verdict:
        """Return whether the profile allows the tool, and narrow the caller. Its gate is looked at for each call."""
        if case.caller.agent is None and self.profiles.is_empty:  # nearly every call
            return "pass"
        try:
            profile = self.profiles.of(case.caller)
        except UnknownAgent:
            return "refuse"
        if profile is not None:
            if profile.denial(case.tool.definition) is not None:
                return "refuse"
            case.caller = profile.narrowed(case.caller, self.default_modules)
        return "ask"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed with the narrowed caller, or refuse with `permission_denied`."""
        reason = self._reason(call)
        if reason is not None:  # it may have been changed just now
            await self.tools.refresh()
            reason = self._reason(call)
        if USER not in call.decisions:  # its agent has not known such a profile
            note_all(self.profiles.shown_ids(call.caller, call.user_id, call.decisions.get(CONVERSATION)))
        if reason is not None:
            note("agent", "denied")
            log.warning("tool_call_refused", reason=reason, user_id=shown_user(call.caller.user_id))
            return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", reason))
        profile = self.profiles.of(call.caller)
        if profile is not None:
            if self.rules_for(call).gate_fails_closed and call.decisions.get("gate") not in _PASSED_GATE:
                return _without_gate(call)
            note("agent", "allowed")
            call = self._narrowed(call, profile)
        return await proceed(call)

    def rules_for(self, call: PublishedCall) -> ToolRules:
        """Return the rules of the agent's profile for the call's tool; empty if there is none, or it is not known here."""
        if call.caller.agent is None and self.profiles.is_empty:
            return NO_RULES
        tool = self.tools.find(call.tool_name)
        if tool is None:
            return NO_RULES
        try:
            profile = self.profiles.of(call.caller)
        except UnknownAgent:  # such a call is refused before anything is run
            return NO_RULES
        return NO_RULES if profile is None else profile.rules(tool.definition)

    def _reason(self, call: PublishedCall) -> str | None:
        try:
            profile = self.profiles.of(call.caller)
        except UnknownAgent as exc:
            return str(exc)
        tool = self.tools.find(call.tool_name)
        return None if profile is None or tool is None else profile.denial(tool.definition)

    def _narrowed(self, call: PublishedCall, profile: EffectiveProfile) -> PublishedCall:
        caller = profile.narrowed(call.caller, self.default_modules)
        return call if caller == call.caller else call.model_copy(update={"caller": caller})


@dataclass
class ApprovalCheck:
    """Runs a call that needs an approval, by its tool, the settings or its agent's profile, only under an approval of this very call.

    The ledger has said whether that was given. It comes after the middleware that finds the tool. Fails closed: a call
    that names no approval is refused, from any publisher.
    """

    tools: ToolLookup
    rules_for: Callable[[PublishedCall], ToolRules]

    def decide(self, case: Case) -> Verdict:
        """Return "ask" if the tool needs an approval. A call that names one is not plain."""
        return "ask" if case.tool.definition.approval or case.rules.approvals else "pass"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or refuse a call that names no approval, or another than may have been given."""
        tool = self.tools.find(call.tool_name)
        if tool is None:  # its module is not served here, as what runs it says
            return await proceed(call)
        fault = approval_fault(call, tool.definition, approval_rules(tool.definition, self.rules_for(call).approvals))
        if fault is None:
            return await proceed(call)
        note("approval", "missing" if call.approval is None else "changed")
        log.warning("tool_call_refused", reason=fault, user_id=shown_user(call.caller.user_id))
        text = f"Tool call refused: {fault}."
        return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "approval_denied", text))


def _without_gate(call: PublishedCall) -> Attempt:
    """Refuse a call that no gate has let pass: its agent has none, knows another profile, or has made it past its gate."""
    note("gate", "missing")
    log.warning("tool_call_without_gate", user_id=shown_user(call.caller.user_id), agent=call.caller.agent)
    text = f"Tool call blocked: the profile of agent {call.caller.agent!r} requires a gate for it, and none has approved it."
    return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "blocked_by_gate", text))


@dataclass
class OwnMiddleware:
    """Runs the classes of a profile around a call: each proceeds once at most, changes only arguments, and returns an attempt.

    Fails closed: where a profile has gone meanwhile, or a class cannot be had any more, the call is refused.
    """

    tools: ToolLookup
    profiles: KnownProfiles
    own: OwnClasses

    def decide(self, case: Case) -> Verdict:
        """Return "ask" if the profile names a class for the tool."""
        return "ask" if case.rules.own else "pass"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed through all of them. What they raise passes."""
        tool = self.tools.find(call.tool_name)
        if tool is None:
            return await proceed(call)
        try:
            layers = self._layers(call, tool.definition)
        except (UnknownAgent, ValueError) as exc:
            log.warning("tool_call_refused", reason=str(exc), user_id=shown_user(call.caller.user_id))
            return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", str(exc)))
        if layers and isinstance(call, SealedCall):  # they may look at all of it
            call = call.whole()
        return await compose(layers, proceed)(call)

    def _layers(self, call: PublishedCall, tool: ToolDefinition) -> list["_Held"]:
        profile = self.profiles.of(call.caller)
        specs = () if profile is None else profile.rules(tool).own
        return [_Held(spec.name, self.own.made(spec)) for spec in specs if self.own.runs_here(spec)]


@dataclass(frozen=True, slots=True)
class _Held:
    name: str
    middleware: AttemptMiddleware

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        went_on = False

        async def once(changed: PublishedCall) -> Attempt:
            nonlocal went_on
            if went_on:
                raise RuntimeError(f"{self.name} has gone on twice with one call")
            if changed != call and changed.model_copy(update={"arguments": call.arguments}) != call:
                raise RuntimeError(f"{self.name} has changed more of a call than its arguments")
            went_on = True
            return await proceed(changed)

        try:
            return _attempt(self.name, await self.middleware(call, once))
        except SystemExit as exc:  # it would end the worker
            raise RuntimeError(f"{self.name} has raised SystemExit") from exc


def _attempt(name: str, returned: object) -> Attempt:
    if not isinstance(returned, Attempt):
        raise TypeError(f"{name} has returned no Attempt")
    return returned


@dataclass
class PersonalDataGuard:
    """Keeps personal data from tools, and from everything that stores their output: results, errors, progress and log messages.

    The agent has already done so with the arguments; if it has not, the worker does. If a profile blocks, a call with
    such arguments is refused, an answer with such data fails, and its effect has happened. Files of a result are passed
    on as they are.
    """

    tools: ToolLookup
    profiles: KnownProfiles

    def decide(self, case: Case) -> Verdict:
        """Return "ask" if the profile hides personal data from the tool."""
        return "ask" if case.rules.personal_data else "pass"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed without the personal data in the arguments, and hide it in the answer."""
        specs = self._specs(call)
        if not specs:
            return await proceed(call)
        guards, inputs = self.profiles.guards, call.inputs
        try:
            hidden = await guards.hide(specs, "arguments", call.arguments, size=size_of(call.arguments))
            if inputs is not None:
                given = guards.hide_now(specs, "arguments", list(inputs.responses.values()))
                inputs = inputs.model_copy(update={"responses": dict(zip(inputs.responses, given, strict=True))})
        except PersonalDataBlocked as exc:
            note("personal_data", "blocked")
            return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "invalid_arguments", str(exc)))
        if hidden.value is not call.arguments or inputs is not None:
            call = call.model_copy(update={"arguments": hidden.value, "inputs": inputs})
        self._screen_reports(specs)
        return await self._screened(specs, await proceed(call))

    async def screened(self, call: PublishedCall, attempt: Attempt) -> Attempt:
        """Return a module's later answer without the data to hide: about its state, or its outcome."""
        specs = self._specs(call)
        return await self._screened(specs, attempt) if specs else attempt

    async def hide(self, call: PublishedCall, tool_name: str, size: int, value: Any) -> Any:
        """Return a result of another tool, of about `size` bytes, as the profile of this call has it. Raises `PersonalDataBlocked`."""
        specs = self._specs(call.model_copy(update={"tool_name": tool_name}))
        return (await self.profiles.guards.hide(specs, "result", value, size=size)).value if specs else value

    def _specs(self, call: PublishedCall) -> Sequence[PiiSpec]:
        if self.profiles.is_empty:  # nearly every call
            return ()
        try:
            profile = self.profiles.of(call.caller)
        except UnknownAgent:  # an earlier check has refused it
            return ()
        tool = self.tools.find(call.tool_name)
        return () if profile is None or tool is None else profile.rules(tool.definition).personal_data

    async def _screened(self, specs: Sequence[PiiSpec], attempt: Attempt) -> Attempt:
        result, question = attempt.result, attempt.question
        place: Place = "result" if result.success or question is not None else "error"
        value = [result.result, result.hint] if result.success else [result.error, result.hint]
        if question is not None:  # its keys name the answers, and its state is for its module alone
            value = [request.params for request in question.requests.values()]
        try:
            hidden = await self.profiles.guards.hide(specs, place, value, size=size_of({"value": value}))
        except PersonalDataBlocked as exc:
            note("personal_data", "blocked")
            return _blocked(attempt, exc)
        if hidden.counts:
            note("personal_data", counted(hidden.counts))
        if hidden.value is value:
            return attempt
        if question is not None:
            asked = zip(question.requests.items(), hidden.value, strict=True)
            requests = {key: request.model_copy(update={"params": params}) for (key, request), params in asked}
            return dataclasses.replace(attempt, question=dataclasses.replace(question, requests=requests))
        said: dict[str, Any] = dict(zip((str(place), "hint"), hidden.value, strict=True))
        return dataclasses.replace(attempt, result=result.model_copy(update=said))

    def _screen_reports(self, specs: Sequence[PiiSpec]) -> None:
        """Hide personal data in the reports of this task and its subtasks."""
        sink, messages = current_sink(), current_log()
        if sink is not None:

            def take(progress: Progress) -> None:
                sink(progress_of(progress.fraction, str(self._said(specs, progress.message))))

            report_to(take)
        if messages is not None:

            def take_message(message: LogMessage) -> None:
                messages.take(log_message(message.level, self._said(specs, message.data), message.logger))

            log_to(LogSink(messages.least, take_message))

    def _said(self, specs: Sequence[PiiSpec], value: object) -> object:
        try:
            return self.profiles.guards.hide_now(specs, "progress", value)
        except PersonalDataBlocked:
            return _BLOCKED


def _blocked(attempt: Attempt, error: PersonalDataBlocked) -> Attempt:
    """Return the attempt for an answer that must not pass. The effect of its tool stays."""
    if not attempt.result.success:
        text = "Tool execution error: what the tool says of it holds personal data, and is not passed on."
        outcome = attempt.outcome if attempt.question is None else Outcome.PERMANENT  # it would ask the same again
        result = attempt.result.model_copy(update={"error": text, "hint": None})
        return dataclasses.replace(attempt, outcome=outcome, result=result, question=None)
    text = f"Tool execution error: the tool's answer is not passed on. {error}"
    log.warning("tool_result_blocked", kind=error.kind)
    result = ToolResult.failed(attempt.result.tool_name, "invalid_response", text, effect_state="done")
    return Attempt(Outcome.FAILED, result)


class NoArtifacts:
    """Leaves calls with artifacts among their arguments to workers that have the store: their tools would get the bare handles."""

    def decide(self, case: Case) -> Verdict:
        """Return "pass": a plain call has none."""
        del case
        return "pass"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, or say that nothing was sent."""
        if not call.artifacts:
            return await proceed(call)
        text = "Tool execution error: this worker has no store of artifacts, see TOOLFLEET_ARTIFACT_STORE."
        return unsuccessful(call, Outcome.NOT_SENT, "fleet_unavailable", text)


@dataclass
class ResultCheck:
    """Turns a result that does not match the tool's `output_schema` into `invalid_response`; its effect has happened.

    Fails open: for a tool that this worker does not know yet, as `result_fault` does, and if the module says that the
    schema does not cover this result, which the result says then. The text repeats nothing of the result. Only a call
    that is harmless to repeat is tried once more, as after any useless answer.
    """

    tools: ToolLookup

    def decide(self, case: Case) -> Verdict:
        """Return "ask" if the tool has a schema for its results."""
        return "pass" if case.tool.definition.output_schema is None else "ask"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed, and check the result."""
        attempt = await proceed(call)
        if not attempt.result.success:
            return attempt
        tool = self.tools.find(call.tool_name)
        if tool is None or tool.definition.output_schema is None:
            return attempt
        if attempt.unchecked is not None:
            return _unchecked(attempt)
        from toolfleet_registry.schemas.validation import result_fault  # not every worker has such a tool

        fault = result_fault(tool.definition, checked_part(attempt.result.result))
        if fault is None:
            note("result_check", "passed")
            return attempt
        note("result_check", "failed")
        log.warning("tool_result_invalid", call_id=call.call_id, tool=call.tool_name, fault=fault)
        text = f"Tool execution error: the module's result is not what its schema says: {fault}"
        result = ToolResult.failed(call.tool_name, "invalid_response", text, effect_state="done")
        return Attempt(Outcome.UNKNOWN, result)


def _unchecked(attempt: Attempt) -> Attempt:
    """Return the attempt with a result that says that it was not checked, and why."""
    note("result_check", "not_checked")
    words = f"The result was not checked against the tool's schema: {attempt.unchecked}."
    hint = f"{attempt.result.hint}\n{words}" if attempt.result.hint else words
    return replace(attempt, result=attempt.result.model_copy(update={"hint": hint}))


class ToolSpan:
    """A span around all other middleware: it shows a call as all of them let it pass."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Implements `Middleware`. A call that is not recorded has no span, unless a function here runs it, which may start some."""
        tracing = self._tracing
        if type(carried()) is Unrecorded and not call.tool_name.startswith(_LOCAL):
            return await proceed(call)
        started = tracing.start(
            spans.execute_name(call.tool_name),
            "internal",
            {spans.GEN_AI_OPERATION: spans.EXECUTE_TOOL, spans.GEN_AI_TOOL_NAME: call.tool_name},
            parent=carried(),
        )
        with tracing.within(started):
            return await (proceed(call) if isinstance(started, TraceContext) else self._run(started, call, proceed))

    async def _run(self, span: OpenSpan, call: PublishedCall, proceed: Proceed) -> Attempt:
        span.note(
            {
                spans.GEN_AI_TOOL_TYPE: "function",
                spans.GEN_AI_TOOL_CALL_ID: call.call_id,
                spans.GEN_AI_AGENT_NAME: call.caller.agent,
            }
        )
        if self._tracing.has_contents:
            _open.set(span)
        try:
            attempt = await proceed(call)
            self._say(span, call, attempt)
        except TimeoutError:
            span.fail("timed_out")
            raise
        except asyncio.CancelledError:
            span.fail("cancelled")
            raise
        finally:
            span.end()
        return attempt

    def _say(self, span: OpenSpan, call: PublishedCall, attempt: Attempt) -> None:
        if attempt.goes_on:
            return
        result = attempt.result
        span.note({spans.EFFECT_STATE: result.effect_state})
        if not result.success:
            span.fail(result.error_code or spans.OTHER_ERROR)
        elif self._tracing.has_contents:
            is_hidden = call.hides_results or attempt.hides_results
            span.note({spans.GEN_AI_RESULT: REDACTED if is_hidden else _text(result.result)})


class ShownArguments:
    """Notes the arguments in the tool's span, before `check`, the last middleware: without what the others hide."""

    def __init__(self, check: Middleware) -> None:
        self._check = check

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Implements `Middleware`."""
        span = _open.get()
        if span is not None:
            span.note({spans.GEN_AI_ARGUMENTS: _text(redacted(call.arguments, call.sensitive))})
        return await self._check(call, proceed)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:_MOST_CONTENT]

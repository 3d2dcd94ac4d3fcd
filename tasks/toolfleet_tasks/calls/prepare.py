"""Prepares a call for publishing: judges it, routes it, and gives it its deadline and its tool's facts.

Redis is asked only for a tool that requires a gate, before the gate is. Everything else is known in memory.
"""

import asyncio
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolfleet_registry.agents import profile_rules as rules_of
from toolfleet_registry.agents.data_guards import counted
from toolfleet_registry.agents.known_profiles import Reach
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.agents.profile_rules import terms_of_approval
from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.config.agent_profile import OwnMiddlewareSpec, PiiSpec
from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    PublishedCall,
    Terms,
    ToolCall,
    ToolDefinition,
    ToolResult,
    Turn,
)
from toolfleet_registry.contracts.call_context import ToolContext, running_call
from toolfleet_registry.contracts.calls import (
    CONVERSATION,
    ApprovalRule,
    ArtifactArgument,
    collecting,
    facts_of,
    note,
)
from toolfleet_registry.contracts.names import LOCAL, RUN_PROGRAM
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import PersonalDataBlocked, UnknownAgent
from toolfleet_registry.local.scheduler_tools import ADD_JOB, is_newer_job
from toolfleet_registry.policy.call_faults import LONGEST, fault_in_version, resolved, version_fault
from toolfleet_registry.policy.hints import OWN_TURN
from toolfleet_registry.policy.limits import strictest
from toolfleet_registry.policy.redaction import has_sensitive_results, sensitive_paths
from toolfleet_registry.schemas.arguments import size_of
from toolfleet_registry.schemas.checker import Checker
from toolfleet_registry.schemas.validation import input_checker
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.calls.audit_trail import AuditTrail, asked_by_here, credential_here
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances, Evaluation, requires_gate
from toolfleet_tasks.calls.pending_call import new_call_id
from toolfleet_tasks.limits import Within, limits_of, terms_for, unnamed
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.messages.envelope import size_fault_with
from toolfleet_tasks.queues import lane_of, limit_of

if TYPE_CHECKING:
    from toolfleet_tasks.calls.artifact_arguments import ArtifactBinding, Bound

_NO_CONTEXT = ToolContext(raw_arg="")
_CONTEXT_BEFORE = ToolContext.model_fields.keys() - {"user"}

log = get_logger(__name__)

_LONGEST_TIMEOUT = 10 * 365 * 86400.0  # seconds: longer is for ever, which clocks and brokers cannot count
_NOTHING = frozenset[str]()
_PLATFORM = frozenset({"platform", "platform_channel_id", "platform_thread_id"})
_RESUMES = frozenset({"conversation_id"})
_RESUMED_BY = frozenset({ADD_JOB, RUN_PROGRAM})  # the tools that must wake the right conversation later

LimitCheck = Callable[..., Awaitable[ToolResult | None]]
"""Returns what its limits have against a call now, or `None`: `check(tool_name, limits, *, intent, seconds)`.

`intent` is the key of its intention; takes `seconds` at most, and fails open. Nothing is counted.
"""

_MOST_TICKETS = 10_000  # each takes about half a kB

_OWN_MIDDLEWARE_SECONDS = 2.0  # for each: an agent's user waits meanwhile


@dataclass(frozen=True, slots=True)
class Step:
    """A call as a job's step: its id, its job, its user, its latest end, its check, and who has asked for the job.

    `gate` replaces an agent's, which is not there to be asked, if one is required.
    """

    call_id: str
    job_id: str
    user_id: str | None
    ends_by: float
    gate: Callable[[ToolDefinition, Mapping[str, Any]], ToolResult | None]
    asked_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ticket:
    """The decisions that depend only on a caller and a tool that it may use, until anything that they rest on changes.

    `caller`: as it is sent. `has_context`: whether the module gets fields of the conversation. `seconds`: the time of a
    call whose caller gives it none. `facts`: what its message says of the tool. `checker` returns the tool's compiled schema.
    """

    tool: ToolDefinition
    reach: Reach
    caller: Caller
    has_context: bool
    seconds: float
    terms: Terms | None
    hides_results: bool
    facts: Mapping[str, Any]
    checker: Callable[[], Checker | None]
    approval_rules: tuple[ApprovalRule, ...]


@dataclass(slots=True)
class _JudgedCall(Judged):
    ticket: Ticket
    artifacts: tuple[ArtifactArgument, ...] = ()


class CallPreparation:
    """Prepares calls by the catalog.

    `gate` asks the agent's gate, `limited` checks the limits before that, `trail` writes down refusals, and `new_call_id`
    names calls.

    Classes of the operators' own stand before all of that. `artifacts` binds arguments in a fleet that has a store.
    """

    def __init__(
        self,
        catalog: Catalog,
        known: KnownModules,
        settings: Settings,
        *,
        gate: Evaluation,
        limited: LimitCheck,
        trail: AuditTrail,
        new_call_id: Callable[[], str] = new_call_id,
        artifacts: "ArtifactBinding | None" = None,
    ) -> None:
        self._artifacts = artifacts
        self._own = OwnCallMiddleware(catalog)
        self._new_call_id = new_call_id
        self._catalog = catalog
        self._known = known
        self._settings = settings
        self._context_modules, self._guest_modules = settings.context_modules, settings.default_guest_modules
        self._between_seconds = 2 * HARD_LIMIT_MARGIN + 2 * settings.lease_seconds  # around two attempts
        self._gate = gate
        self._limited = limited
        self._trail = trail
        self._tickets = OrderedDict[tuple[Caller, str], Ticket]()  # those used last at the end
        self._latest: tuple[Caller, str, Ticket] | None = None  # whom it was made for, which tool, and the ticket
        self._made_from: tuple[object, ...] = (None,) * 4  # all of them: the revisions of catalog, profiles and modules

    async def prepare(
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None = None,
        seconds: float | None = None,
        *,
        around: Circumstances = NOTHING_MORE,
        replay_of: str | None = None,
        step: Step | None = None,
    ) -> PublishedCall | ToolResult:
        """Judge a call that is to end in `seconds`, an agent's own or a job's `step`. A refusal has its audit line."""
        user_id = step.user_id if step is not None else call.user_id if caller.user_id is None else caller.user_id
        has_profile = caller.agent is not None or not self._catalog.profiles.is_empty
        noted = collecting(self.facts_of(caller, user_id, conversation) if has_profile or conversation else None)
        is_owner = user_id is None and self._artifacts is not None  # of what the call will leave
        asked_by = self.asked_by(user_id, conversation, around, step) if is_owner else ()
        if has_profile or self._artifacts is not None:
            judged = await self._judged(call, caller, conversation, around)
            judged = await self._bound(judged, caller, user_id, asked_by)
        else:  # nearly every call
            judged = self.judge(call, caller, conversation, around)
        if isinstance(judged, ToolResult):
            return self._trail.refused(call, caller, judged, noted)
        tool, arguments, ticket = judged.tool, judged.arguments, judged.ticket
        around = around if judged.reach.profile is None else self.ruled(tool, caller, conversation, around)
        now, left = fleet_clock.now(), ticket.seconds if seconds is None else min(seconds, _LONGEST_TIMEOUT)
        deadline_at = now + left
        refusal = fleet_results.expired(tool.name) if left <= 0 else None
        turn: Turn | None = None
        if tool.concurrency_key is not None:
            turn, fault = self._turn_of(tool, arguments, user_id)
            refusal = refusal or fault
        if refusal is None and around.terms is not None:
            refusal = unnamed(tool.name, around.terms, around.within)
        if refusal is None and step is not None:
            deadline_at = min(deadline_at, step.ends_by)
            refusal = step.gate(tool, arguments) if requires_gate(tool, around) else None
        elif refusal is None and (tool.requires_gate or around.terms is not None) and requires_gate(tool, around):
            refusal = await self._gate_refusal(call, judged, user_id, around, left)
            now = fleet_clock.now()
        if refusal is not None:
            return self._trail.refused(call, caller, refusal, noted, tool)
        facts = ticket.facts
        is_usual = around is NOTHING_MORE and step is None and tool.name != ADD_JOB
        if not is_usual or call.tool_version is not None or call.takes_input or call.log_level is not None:
            facts = {**facts, **self._facts_of(ticket, arguments, around, asked=call, is_step=step is not None)}
        if not is_owner and (ticket.approval_rules or tool.name in _RESUMED_BY):
            asked_by = self.asked_by(user_id, conversation, around, step)
        published = PublishedCall(
            call_id=self._new_call_id() if step is None else step.call_id,
            arguments=arguments,
            user_id=user_id,
            caller=ticket.caller,
            published_at=now,
            deadline_at=deadline_at,
            idempotency_key=call.idempotency_key or None,  # an empty one names nothing
            replay_of=replay_of,
            decisions=noted,
            job_id=None if step is None else step.job_id,
            asked_by=_sent_asked_by(tool.name, asked_by) if tool.name in _RESUMED_BY or is_owner else (),
            artifacts=judged.artifacts,
            turn=turn,
            **facts,
        )
        return with_approval(published, ticket, published.asked_by or asked_by) if ticket.approval_rules else published

    def asked_by(
        self,
        user_id: str | None,
        conversation: Conversation | None,
        around: Circumstances = NOTHING_MORE,
        step: Step | None = None,
    ) -> tuple[str, ...]:
        """Return who asks in the name of another user, or without one; that is the conversation in a fleet that has a store of artifacts.

        For a job's step it is who has asked for the job: its conversation may be what a model has written.
        """
        if step is not None:
            return step.asked_by
        here, before = asked_by_here(user_id), around.asked_by
        # Without a user the first one owns what the call leaves: of a replay who asked for the old call.
        found = tuple(dict.fromkeys((*before, *here) if user_id is None else (*here, *before)))
        if found or user_id is not None or self._artifacts is None:
            return found
        from toolfleet_registry.contracts.artifacts import asked_in  # of a fleet that has a store

        return asked_in(conversation)

    def facts_of(self, caller: Caller, user_id: str | None, conversation: Conversation | None) -> dict[str, str]:
        """Return the facts of a call before any decision, as its audit line may have them."""
        facts = facts_of(conversation) if conversation else {}
        if self._catalog.profiles.is_empty:  # nearly every call
            return facts
        return facts | self._catalog.profiles.shown_ids(caller, user_id, facts.get(CONVERSATION))

    def approval_rules(self, tool_name: str, caller: Caller) -> tuple[ApprovalRule, ...]:
        """Return the rules of the tool and of the agent's profile by which such a call needs an approval now."""
        judged = self._catalog.reached(tool_name, caller)
        return () if judged is None else approval_rules(*judged)

    def _turn_of(
        self, tool: ToolDefinition, arguments: Mapping[str, Any], user_id: str | None
    ) -> tuple[Turn | None, ToolResult | None]:
        """Return the turn that a call waits for, and the refusal of one that would wait for the call that makes it.

        Known are calls that a Python function, as a tool of a module, a folder or a worker, makes in its own process by
        a `ToolFleet`, until it returns. Not known are calls through a gateway, from a process that the function has
        started, or through a further tool: those wait, until their deadline at most.
        """
        from toolfleet_registry.policy.turns import turn_of  # hardly any tool has a key

        turn, outer = turn_of(tool, arguments, user_id), running_call()
        if turn is None or outer is None or outer._arguments is None:
            return turn, None
        known = self._catalog.find(outer.tool_name)
        held = None if known is None else turn_of(known.definition, outer._arguments, outer.user_id)
        if held is None or held.line != turn.line:
            return turn, None
        text = f"Tool call refused: it would wait for the call of {outer.tool_name!r} that makes it: both have the same {tool.concurrency_key!r}."
        return turn, ToolResult.refused(tool.name, "conflict", text, hint=OWN_TURN)

    async def _judged(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, around: Circumstances
    ) -> _JudgedCall | ToolResult:
        changed = await self._own.changed(call, caller)
        judged = changed if isinstance(changed, ToolResult) else self.judge(changed, caller, conversation, around)
        if isinstance(judged, ToolResult):
            return judged
        hidden = await hidden_arguments(judged.tool, judged.reach, judged.arguments, self._catalog)
        if isinstance(hidden, ToolResult):
            return hidden
        return judged if hidden is judged.arguments else dataclasses.replace(judged, arguments=hidden)

    async def _bound(
        self, judged: _JudgedCall | ToolResult, caller: Caller, user_id: str | None, asked_by: tuple[str, ...]
    ) -> _JudgedCall | ToolResult:
        if self._artifacts is None or isinstance(judged, ToolResult):
            return judged
        from toolfleet_registry.contracts.artifacts import owner_for  # of a fleet that has a store

        bound = await self.bound(judged.tool, judged.arguments, caller, owner_for(user_id, asked_by))
        if isinstance(bound, ToolResult):
            return bound
        return dataclasses.replace(judged, arguments=bound[0], artifacts=bound[1])

    async def bound(
        self, tool: ToolDefinition, arguments: dict[str, Any], caller: Caller, owner: str | None
    ) -> "Bound | ToolResult":
        """Return arguments bound to the artifacts that they name, and these; or the refusal as of `ArtifactBinding`."""
        if self._artifacts is None:  # what looks like one is an argument like any other
            return arguments, ()
        return await self._artifacts.bound(tool, arguments, caller, owner)

    def has_profile(self, caller: Caller) -> bool:
        """Return whether an agent's profile may apply to the caller."""
        return caller.agent is not None or not self._catalog.profiles.is_empty

    async def hidden(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """Return the call with personal data hidden as its profile wants; or the refusal if the profile blocks the data."""
        reached = self._catalog.reached(call.tool_name, caller)
        if reached is None or not isinstance(call.arguments, dict):  # its judgement refuses it
            return call
        found = await hidden_arguments(*reached, call.arguments, self._catalog)
        return found if isinstance(found, ToolResult) else call.model_copy(update={"arguments": found})

    def hidden_input(self, tool_name: str, caller: Caller, said: Any) -> Any:
        """Return a person's input to a running call, as the tool may have it. Raises `PersonalDataBlocked`."""
        reached, profiles = self._catalog.reached(tool_name, caller), self._catalog.profiles
        specs = profiles.personal_data(caller) if reached is None else specs_of(*reached)
        return profiles.guards.hide_now(specs, "arguments", said)

    def judge(
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        around: Circumstances = NOTHING_MORE,
    ) -> _JudgedCall | ToolResult:
        """Return what may be published for the call, with the conversation's facts for its module; or the refusal.

        Neither its limits nor a gate are asked.
        """
        ticket, modules = self._ticket(call, caller), self._context_modules
        if isinstance(ticket, ToolResult):
            return ticket
        tool = ticket.tool
        if around.tag is not None or call.tool_version is not None:
            if fault := _version_fault(tool, call):
                return ToolResult.refused(tool.name, "version_mismatch", fault)
            call = as_before(call, tool, around)
        shared: dict[str, Any] | None = None
        if ticket.has_context:
            shared, call = conversation_for(conversation, call.tool_name, modules), models_part(call, modules)
        checker, taking = ticket.checker(), tool
        if self._artifacts is not None and (taking := self._artifacts.opened(tool, call.arguments)) is not tool:
            checker = None
        arguments = self._catalog.judge_arguments(call, caller, taking, shared, checker)
        if isinstance(arguments, ToolResult):
            return arguments
        if around.context is not None:
            context = context_for(tool, around, modules)
            if fault := size_fault_with(context, arguments, most=self._settings.max_arguments_bytes):
                return ToolResult.refused(tool.name, "invalid_arguments", fault)
        return _JudgedCall(tool, arguments, ticket.reach, ticket)

    def _ticket(self, call: ToolCall, caller: Caller) -> Ticket | ToolResult:
        """Return the ticket of the call's caller and tool; or the refusal, which is never kept.

        After any change of what there is, of what operators have decided, of profiles or of modules' settings, all are
        made again, so that none of them keeps alive what was there before.
        """
        tickets, known, catalog = self._tickets, self._known, self._catalog
        revision, profiles, names, settings = self._made_from
        if not (
            revision is catalog.revision
            and profiles is catalog.profiles.revision
            and names is known.names
            and settings is known.settings
        ):
            tickets.clear()
            self._latest = None
            self._made_from = catalog.revision, catalog.profiles.revision, known.names, known.settings
        latest, key = self._latest, (caller, call.tool_name)
        if latest is not None and latest[0] is caller and latest[1] == call.tool_name:
            return latest[2]
        try:
            ticket = tickets.get(key)
        except TypeError:  # a caller that is no valid one, and cannot be looked up
            return self._made_ticket(call, caller)
        if ticket is not None:
            tickets.move_to_end(key)
            self._latest = (*key, ticket)
            return ticket
        made = self._made_ticket(call, caller)
        # The calls of a caller with a longer id are refused.
        if isinstance(made, Ticket) and len(caller.user_id or "") <= LONGEST:
            if len(tickets) >= _MOST_TICKETS:
                tickets.popitem(last=False)
            tickets[key] = made
            self._latest = (*key, made)
        return made

    def _made_ticket(self, call: ToolCall, caller: Caller) -> Ticket | ToolResult:
        found, settings = self._catalog.found(call, caller), self._known.settings
        if isinstance(found, ToolResult):
            return found
        tool, reach = found
        limit, terms, hides_results = (
            limit_of(tool, settings),
            terms_for(tool, None, self._settings),
            has_sensitive_results(tool),
        )
        facts = {
            "tool_name": tool.name,
            "effect": effect_of(tool),
            "limit_seconds": limit,
            "terms": terms,
            "lane": lane_of(tool.name.partition(".")[0], settings),
            "sensitive": sensitive_paths(tool),
            "hides_results": hides_results,
        }
        return Ticket(
            tool,
            reach,
            resolved(reach.caller, self._guest_modules),
            bool(_fields_for(call.tool_name, self._context_modules)),
            self._bounded(limit, None),
            terms,
            hides_results,
            facts,
            input_checker(tool),
            approval_rules(tool, reach),
        )

    def tool_of(self, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        """Return the call's tool, with any arguments; or the refusal of a caller who may not use it."""
        return self._catalog.usable(call, caller)

    def ruled(
        self,
        tool: ToolDefinition,
        caller: Caller,
        conversation: Conversation | None,
        around: Circumstances = NOTHING_MORE,
    ) -> Circumstances:
        """Return the circumstances of a call of a usable tool, with those of its agent's profile."""
        profile = self._catalog.profiles.of(caller)
        if profile is None:
            return around
        rules, where = profile.rules(tool), conversation or Conversation()
        return replace(
            around,
            terms=strictest(around.terms, rules.terms),
            fails_closed=rules.gate_fails_closed,
            within=Within.of_conversation(where),
            retry=rules.retry,
        )

    def terms_beside(self, caller: Caller) -> Callable[[ToolDefinition], Terms | None] | None:
        """Return a function from a tool to the terms of the caller's profile for it; `None` without a profile.

        Raises `UnknownAgent`.
        """
        profile = self._catalog.profiles.of(caller)
        return None if profile is None else lambda tool: profile.rules(tool).terms

    def limit_of(self, tool: ToolDefinition) -> float:
        """Return how many seconds a module has for a call of the tool, once it runs."""
        return limit_of(tool, self._known.settings)

    def seconds_for(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float | None
    ) -> float:
        """Return how many seconds such a call would have from now on, if it is to end in `seconds`; 0 for one that would be refused."""
        judged = self.judge(call, caller, conversation)
        return 0 if isinstance(judged, ToolResult) else self._bounded(self.limit_of(judged.tool), seconds)

    def _bounded(self, limit: float, seconds: float | None) -> float:
        """Return the time of a call; by default two full attempts, each delivered twice. Nothing waits for ever."""
        if seconds is None:
            seconds = 2 * limit + self._between_seconds
        return min(seconds, _LONGEST_TIMEOUT)

    async def _gate_refusal(
        self, call: ToolCall, judged: Judged, user_id: str | None, around: Circumstances, seconds: float
    ) -> ToolResult | None:
        tool, key = judged.tool, call.idempotency_key

        def limited(seconds: float) -> Awaitable[ToolResult | None]:
            """Ask whether the call's limits refuse it now; they are checked once more when it is published, and it counts."""
            terms = terms_for(tool, around.terms, self._settings)
            limits = limits_of(tool.name, user_id, terms, self._settings, around.within)
            intent = self._settings.keys.intent(user_id, key) if key else None
            return self._limited(tool.name, limits, intent=intent, seconds=seconds)

        return await self._gate.refusal(tool, judged.arguments, user_id, around, seconds=seconds, first=limited)

    def _facts_of(
        self,
        ticket: Ticket,
        arguments: Mapping[str, Any],
        around: Circumstances,
        *,
        asked: ToolCall,
        is_step: bool,  # which has no client that answers or listens
    ) -> dict[str, Any]:
        """Return the message's facts about the tool in addition to those of its ticket, of which some may be others.

        A call with sensitive results has no log messages: they could quote them.
        """
        tool, hides_results = ticket.tool, ticket.hides_results
        return {
            "terms": ticket.terms if around.terms is None else terms_for(tool, around.terms, self._settings),
            "context": None if around.context is None else context_for(tool, around, self._context_modules),
            "newer_job": tool.name == ADD_JOB and is_newer_job(tool.name, arguments),
            "tool_version": asked.tool_version,
            "takes_input": asked.takes_input and not is_step,
            "log_level": None if is_step or hides_results else asked.log_level,
            **({} if around is NOTHING_MORE else _said_by_profile(around)),
        }


def _sent_asked_by(tool_name: str, asked_by: tuple[str, ...]) -> tuple[str, ...]:
    """Return who has asked for a call; of a program also the credential of its own user: its calls are made as long as there is that key."""
    return tuple(dict.fromkeys((*asked_by, *credential_here()))) if tool_name == RUN_PROGRAM else asked_by


def check_timeout(seconds: float | None) -> None:
    """Check the time that a caller gives a call. Raises `ValueError` for a value that is no number."""
    if seconds is not None and math.isnan(seconds):
        raise ValueError("timeout must be a number of seconds, not nan")


def _said_by_profile(around: Circumstances) -> dict[str, Any]:
    """Return the fields that are set only by a profile: older workers cannot read them."""
    said = {"retry": around.retry, "run_id": around.within.run_id, "thread_id": around.within.thread_id}
    return {name: value for name, value in said.items() if value is not None}


def _version_fault(tool: ToolDefinition, call: ToolCall) -> str | None:
    """Return what is wrong with the call's version.

    Nothing for a call with an idempotency key: its first one may have been executed, whose result it must return.

    If it is the first, the worker refuses it. Nor for a text that is no version at all: that is always wrong, and is
    found with the call's other names.
    """
    if call.idempotency_key or fault_in_version(call.tool_version):
        return None
    return version_fault(tool, call.tool_version)


def conversation_for(
    conversation: Conversation | None, tool_name: str, context_modules: frozenset[str]
) -> dict[str, Any]:
    """Return the fields of the conversation that the tool's module is told."""
    fields = _fields_for(tool_name, context_modules) if conversation else None
    return conversation.model_dump(include=set(fields), exclude_none=True) if conversation and fields else {}


def models_part(call: ToolCall, context_modules: frozenset[str]) -> ToolCall:
    """Return the call without values that the model wrote for fields of the conversation that the module is told.

    Where a message is sent to, and which conversation wakes up, is never for a model to say, also outside of one.
    """
    fields = _fields_for(call.tool_name, context_modules)
    if not fields or not isinstance(call.arguments, dict) or fields.isdisjoint(call.arguments):
        return call
    kept = {key: value for key, value in call.arguments.items() if key not in fields}
    return call.model_copy(update={"arguments": kept})


def _fields_for(tool_name: str, context_modules: frozenset[str]) -> frozenset[str]:
    if tool_name == RUN_PROGRAM:
        return _RESUMES | _PLATFORM  # for its calls
    if tool_name in _RESUMED_BY:
        return _RESUMES | (_PLATFORM if tool_name.partition(".")[0] in context_modules else _NOTHING)
    return _PLATFORM if tool_name.partition(".")[0] in context_modules else _NOTHING


def specs_of(tool: ToolDefinition, reach: Reach) -> tuple[PiiSpec, ...]:
    """Return what the caller's agent has hidden around calls of the tool."""
    return () if reach.profile is None else reach.profile.rules(tool).personal_data


async def hidden_arguments(
    tool: ToolDefinition, reach: Reach, arguments: dict[str, Any], catalog: Catalog
) -> dict[str, Any] | ToolResult:
    """Return arguments with personal data hidden, the same object if there is nothing to hide; or the refusal."""
    specs = specs_of(tool, reach)
    if not specs:
        return arguments
    try:
        hidden = await catalog.profiles.guards.hide(specs, "arguments", arguments, size=size_of(arguments))
    except PersonalDataBlocked as exc:
        note("personal_data", "blocked")
        return ToolResult.refused(tool.name, "invalid_arguments", f"Tool call refused: {exc}")
    if hidden.counts:
        note("personal_data", counted(hidden.counts))
    found: dict[str, Any] = hidden.value
    return found


class OwnCallMiddleware:
    """The operators' own middleware in the profiles that the catalog knows."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def changed(self, call: ToolCall, caller: Caller) -> ToolCall | ToolResult:
        """Return the call with the arguments as the middleware leaves them, or the first refusal."""
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
        async with asyncio.timeout(_OWN_MIDDLEWARE_SECONDS):
            answer: object = await own.made(spec)(call, caller)
    except TimeoutError:
        return _failed(spec, call, "it did not answer in time")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - operators' own code raises anything
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


def approval_rules(tool: ToolDefinition, reach: Reach) -> tuple[ApprovalRule, ...]:
    """Return the rules by which calls of the tool need an approval: its own, and those of the profile, if there is one."""
    specs = () if reach.profile is None else reach.profile.rules(tool).approvals
    return rules_of.approval_rules(tool, specs)


def with_approval(call: PublishedCall, ticket: Ticket, asked_by: tuple[str, ...]) -> PublishedCall:
    """Return the call with what people have to approve of it, and the credentials by which it was asked for."""
    approval = terms_of_approval(call, ticket.tool, ticket.approval_rules)
    return call.model_copy(update={"approval": approval, "asked_by": asked_by})


def context_for(tool: ToolDefinition, around: Circumstances, modules: frozenset[str]) -> ToolContext | None:
    """Return the part of the agent's context that travels to the tool.

    Without the user, who travels with the call, and the groups, which are its arguments.

    `modules` are those that may have it, in addition to the fleet's own functions; a module's own declaration does not
    count.
    """
    if around.context is None or not tool.takes_context or tool.name.partition(".")[0] not in {LOCAL, *modules}:
        return None
    context = around.context.model_copy(update={"raw_arg": around.raw_arg, "user": "", "groups": {}})
    return None if context == _NO_CONTEXT else context


def as_before(call: ToolCall, tool: ToolDefinition, around: Circumstances) -> ToolCall:
    """Return a tag's call as workers of the version before take it: with the context among the arguments."""
    if around.tag is None or around.context is None or tool.takes_context:
        return call
    properties = (tool.input_schema or {}).get("properties")
    if not isinstance(properties, dict) or not properties.keys() >= _CONTEXT_BEFORE:
        return call
    arguments = around.context.model_dump(mode="json", exclude={"user"}, exclude_defaults=True)
    return call.model_copy(update={"arguments": arguments})

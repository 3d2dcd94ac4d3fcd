"""Hides personal data around a call, as its agent's profile says: in what its tool is told, and in all that the tool says."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.agents.data_guards import counted
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.config.agent_profile import PiiSpec, Place
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
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
from toolfleet_registry.contracts.calls import note
from toolfleet_registry.errors import PersonalDataBlocked, UnknownAgent
from toolfleet_registry.schemas.arguments import size_of
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.runner import Proceed, ToolLookup

log = get_logger(__name__)

_BLOCKED = "[blocked: personal data]"


@dataclass
class PersonalDataGuard:
    """Keeps personal data from tools, and from everything that stores their output: results, errors, progress and log messages.

    The agent has already done so with the arguments; if it has not, the worker does. If a profile blocks, a call with
    such arguments is refused, an answer with such data fails, and its effect has happened. Files of a result are passed
    on as they are.
    """

    tools: ToolLookup
    profiles: KnownProfiles

    def skips(self, _: PublishedCall) -> bool:
        """Return whether there are no profiles: nearly every call."""
        return self.profiles.is_empty

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed with what the tool may be told, and hide what it says."""
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
    """An answer that may not pass. What its tool has done, it has."""
    if not attempt.result.success:
        text = "Tool execution error: what the tool says of it holds personal data, and is not passed on."
        outcome = attempt.outcome if attempt.question is None else Outcome.PERMANENT  # it would ask the same again
        result = attempt.result.model_copy(update={"error": text, "hint": None})
        return dataclasses.replace(attempt, outcome=outcome, result=result, question=None)
    text = f"Tool execution error: the tool's answer is not passed on. {error}"
    log.warning("tool_result_blocked", kind=error.kind)
    result = ToolResult.failed(attempt.result.tool_name, "invalid_response", text, effect_state="done")
    return Attempt(Outcome.FAILED, result)

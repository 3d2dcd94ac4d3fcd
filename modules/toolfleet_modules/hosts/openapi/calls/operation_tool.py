"""Makes a module's tool of an operation: a call is a request to its service."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfleet_modules.hosts.openapi.calls.answer_reply import reply_of
from toolfleet_modules.hosts.openapi.calls.http_sender import (
    AnswerMissing,
    AnswerUnreadable,
    HttpSender,
    NothingSent,
)
from toolfleet_modules.hosts.openapi.calls.outgoing_request import OutgoingRequest, RequestForm
from toolfleet_modules.hosts.openapi.calls.parameter_values import ValueRefused
from toolfleet_modules.hosts.openapi.documents.output_schema import DescribedAnswer
from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_modules.requests.reply import Reply
from toolfleet_modules.sdk.served_run import ServedRun
from toolfleet_modules.sdk.tool_run import RunMeans
from toolfleet_registry.contracts import EffectState, ToolDefinition
from toolfleet_registry.functions.call_context import Context
from toolfleet_registry.functions.threads import NotBegun
from toolfleet_registry.schemas.validation import checked

_LONGEST_SECONDS = 300.0  # for a call whose caller has set no end
_SUCCEEDING, _REFUSING = range(200, 300), range(400, 500)


@dataclass(frozen=True, slots=True)
class OperationTool:
    """`form` makes its requests, `sender` sends them; what comes back is shown without `secrets`."""

    definition: ToolDefinition
    form: RequestForm
    sender: HttpSender
    secrets: Secrets
    described: Mapping[str, DescribedAnswer] = field(default_factory=dict)

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of the arguments that a model writes."""
        return frozenset(each.argument for each in self.form.plan.fields)

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "OperationRun | Reply":
        """A run with these arguments, or what to tell whoever sent them."""
        name = context.tool_name
        held = checked(self.definition, dict(arguments))
        if held.arguments is None:
            return Reply.failure(name, f"Invalid arguments for {name}: {held.fault}", effect_state="none")
        try:
            request = self.form.request(held.arguments, context.call_id)
        except ValueRefused as exc:
            return Reply.failure(name, f"Invalid arguments for {name}: {exc}", effect_state="none")
        return OperationRun(self, context, request, means.most_bytes)


@dataclass(frozen=True, slots=True)
class OperationRun(ServedRun[OperationTool]):
    """One run."""

    request: OutgoingRequest
    most_bytes: int

    async def run(self) -> Reply:
        """Send the request. Raises `ModuleBusy`, `NotBegun` and `asyncio.CancelledError`."""
        reply = await self._replied()
        return reply.rewritten(self.tool.secrets.hide_json)

    async def _replied(self) -> Reply:
        name, is_repeatable = self.name, self.is_repeatable
        left = self.context.seconds_left
        seconds = _LONGEST_SECONDS if left is None else min(left, _LONGEST_SECONDS)
        if seconds <= 0:
            raise NotBegun
        may_begin = self.context._may_begin  # noqa: SLF001 - asked immediately before it is sent
        try:
            answer = await self.tool.sender.send(self.request, seconds=seconds, may_begin=may_begin)
        except NothingSent as exc:
            return Reply.failure(
                name, f"{name}: its service was not reached: {exc}.", effect_state="none", retryable=True
            )
        except AnswerMissing as exc:
            error = f"{name}: it is not known what its service has done: {exc}."
            return Reply.lost(name, error, retryable=is_repeatable)
        except AnswerUnreadable as exc:
            state: EffectState = (
                "done" if exc.status in _SUCCEEDING else "none" if exc.status in _REFUSING else "unknown"
            )
            return Reply.failure(name, f"{name} has answered with status {exc.status}: {exc}.", effect_state=state)
        return reply_of(
            name,
            answer,
            described=self.tool.described,
            is_checked=self.tool.definition.output_schema is not None,
            is_repeatable=is_repeatable,
            most_bytes=self.most_bytes,
            secrets=self.tool.secrets,
        )

"""Puts the classes that an agent's profiles name around a call's attempt, in the order in which they stand there."""

from dataclasses import dataclass

from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.own_classes import AttemptMiddleware, OwnClasses
from toolfleet_registry.contracts import PublishedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import shown_user
from toolfleet_registry.errors import UnknownAgent
from toolfleet_registry.system.loggers import get_logger
from toolfleet_workers.runner import Proceed, ToolLookup, compose

log = get_logger(__name__)


@dataclass
class OwnMiddleware:
    """Holds each class to its word: it goes on once at most, with the same call but for its arguments, and returns an attempt.

    Fails closed: where a profile has gone meanwhile, or a class cannot be had any more, the call is refused.
    """

    tools: ToolLookup
    profiles: KnownProfiles
    own: OwnClasses

    def skips(self, call: PublishedCall) -> bool:
        """Return whether no profile can name a class for the call: nearly every call."""
        return call.caller.agent is None and self.profiles.is_empty

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed through all of them. What they raise passes."""
        tool = self.tools.definition(call.tool_name)
        if tool is None:
            return await proceed(call)
        try:
            layers = self._layers(call, tool)
        except (UnknownAgent, ValueError) as exc:
            log.warning("tool_call_refused", reason=str(exc), user_id=shown_user(call.caller.user_id))
            return Attempt(Outcome.PERMANENT, ToolResult.refused(call.tool_name, "permission_denied", str(exc)))
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

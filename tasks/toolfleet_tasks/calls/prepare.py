"""Prepares a call for publishing: judges it, routes it, and gives it its deadline and its tool's facts."""

import math
from typing import Any

from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.manifests.effects import effect_of
from toolfleet_registry.policy.call_faults import version_fault
from toolfleet_registry.policy.identities import fault_in_version
from toolfleet_registry.policy.sensitive_arguments import sensitive_paths
from toolfleet_registry.policy.sensitive_results import has_sensitive_results
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.admission.limits import terms_for
from toolfleet_tasks.calls.context import as_before, context_for, size_fault_with
from toolfleet_tasks.calls.conversation import conversation_for, models_part
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances
from toolfleet_tasks.queues import Route, lane_of, route_for

_LONGEST_TIMEOUT = 10 * 365 * 86400.0  # seconds: longer is for ever, which clocks and brokers cannot count


class CallPreparation:
    """Judges by the catalog, and costs no round trip."""

    def __init__(self, catalog: Catalog, settings: Settings, known: KnownModules | None = None) -> None:
        self._catalog = catalog
        self._settings = settings
        self._known = KnownModules(settings) if known is None else known

    def judge(
        self,
        call: ToolCall,
        caller: Caller,
        conversation: Conversation | None,
        around: Circumstances = NOTHING_MORE,
    ) -> Judged | ToolResult:
        """What may be published for the call, with what its module is told of the conversation; or the refusal."""
        modules = self._settings.context_modules
        shared = conversation_for(conversation, call.tool_name, modules)
        is_checked = around.tag is not None or call.tool_version is not None
        if is_checked and isinstance(tool := self.tool_of(call, caller), ToolDefinition):
            if fault := _version_fault(tool, call):
                return ToolResult.refused(tool.name, "version_mismatch", fault)
            call = as_before(call, tool, around)
        judged = self._catalog.judge(models_part(call, modules), caller, shared)
        if around.context is None or isinstance(judged, ToolResult):
            return judged
        most, context = self._settings.max_arguments_bytes, context_for(judged.tool, around)
        fault = size_fault_with(context, judged.arguments, most=most)
        return judged if fault is None else ToolResult.refused(judged.tool.name, "invalid_arguments", fault)

    def tool_of(self, call: ToolCall, caller: Caller) -> ToolDefinition | ToolResult:
        """The call's tool, whatever its arguments are; or the refusal of a caller who may not use it."""
        return self._catalog.usable(call, caller)

    def seconds_for(
        self, call: ToolCall, caller: Caller, conversation: Conversation | None, seconds: float | None
    ) -> float:
        """How long such a call would have from now on, if it is to end in `seconds`; 0 for one that would be refused."""
        judged = self.judge(call, caller, conversation)
        if isinstance(judged, ToolResult):
            return 0
        return self.deadline(self.route(judged.tool), seconds) - fleet_clock.now()

    def route(self, tool: ToolDefinition) -> Route:
        """Where a call of the tool goes, and how long it may take."""
        return route_for(tool, self._known.settings)

    def facts_of(self, tool: ToolDefinition, route: Route, around: Circumstances) -> dict[str, Any]:
        """What a call's message says of its tool, and when."""
        return {
            "tool_name": tool.name,
            "effect": effect_of(tool),
            "limit_seconds": route.limit,
            "published_at": fleet_clock.now(),
            "terms": terms_for(tool, around.terms, self._settings),
            "lane": lane_of(tool.name.partition(".")[0], self._known.settings),
            "sensitive": sensitive_paths(tool),
            "hides_results": has_sensitive_results(tool),
            "context": context_for(tool, around),
        }

    def deadline(self, route: Route, seconds: float | None) -> float:
        """Without a wish of the caller's: two full attempts, each delivered twice. Nothing waits for ever."""
        if seconds is None:
            seconds = 2 * route.hard_limit + 2 * self._settings.lease_seconds
        return fleet_clock.now() + min(seconds, _LONGEST_TIMEOUT)


def check_timeout(seconds: float | None) -> None:
    """Check the time that a caller gives a call. Raises `ValueError` for what is no number."""
    if seconds is not None and math.isnan(seconds):
        raise ValueError("timeout must be a number of seconds, not nan")


def _version_fault(tool: ToolDefinition, call: ToolCall) -> str | None:
    """Of a call with an idempotency key nothing: its first one may have been executed, whose result it must bring.

    Where it is the first, the worker refuses it. Nor of what is no version at all: that is wrong whatever is in effect, and
    is found with the call's other names.
    """
    if call.idempotency_key or fault_in_version(call.tool_version):
        return None
    return version_fault(tool, call.tool_version)

"""Defines the common properties of a tool's runs."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.functions.call_context import Context
from toolfleet_registry.functions.threads import NotBegun


class DefinedTool(Protocol):
    """A tool, as far as its runs need to know it."""

    @property
    def definition(self) -> ToolDefinition:
        """The tool's definition in the manifest."""
        ...


RunTool = TypeVar("RunTool", bound=DefinedTool)


@dataclass(frozen=True, slots=True)
class ServedRun(Generic[RunTool]):
    """One run of `tool`, for the call that `context` tells of."""

    tool: RunTool
    context: Context

    @property
    def name(self) -> str:
        """The tool's name as the call has it, which may be a former one."""
        return self.context.tool_name

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run does nothing more than the first."""
        return self.tool.definition.effect in {"read", "idempotent"}

    @property
    def reruns_failures(self) -> bool:
        """Whether a call that failed runs again when it is repeated."""
        return self.is_repeatable

    def check_begin(self) -> None:
        """Raise `NotBegun` if it is too late to begin. To be asked immediately before the effect."""
        if not self.context._may_begin():  # noqa: SLF001 - made for this run
            raise NotBegun

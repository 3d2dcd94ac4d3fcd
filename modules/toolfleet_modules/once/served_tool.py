"""Says what a module's routes need of a tool, in this process or in another one, and of each run of it."""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.threads import NotBegun, Threads


@dataclass(frozen=True, slots=True)
class RunMeans:
    """The shared means of a module's runs: `threads` for plain functions, and the largest size of a result.

    `accepts`: whether a tool may continue by itself. `shows_exceptions`: whether a model reads the texts of exceptions.
    """

    threads: Threads
    most_bytes: int
    accepts: bool = False
    shows_exceptions: bool = False


class ServedTool(Protocol):
    """Is offered by a module, and run for its calls."""

    @property
    def definition(self) -> ToolDefinition:
        """The tool's definition in the manifest."""
        ...

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of the arguments that a model writes."""
        ...

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> "ServedRun[Any] | Reply":
        """Return a run with these arguments, or the reply to invalid ones."""
        ...


RunTool = TypeVar("RunTool", bound=ServedTool)


@dataclass(frozen=True, slots=True)
class ServedRun(Generic[RunTool]):
    """One run of `tool`, for the call that `context` tells of. Subclasses implement `run`."""

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

    def run(self) -> Coroutine[Any, Any, Reply]:
        """Run the tool once."""
        raise NotImplementedError

    def check_begin(self) -> None:
        """Raise `NotBegun` if it is too late to begin. To be asked immediately before the effect."""
        if not self.context._may_begin():  # noqa: SLF001 - made for this run
            raise NotBegun

"""Says what a module's routes need of a tool, in this process or in another one."""

from collections.abc import Mapping
from typing import Any, Protocol

from toolfleet_modules.once.idempotency import Runnable
from toolfleet_modules.requests.reply import Reply
from toolfleet_modules.sdk.tool_run import RunMeans
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.functions.call_context import Context


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

    def begin(self, arguments: Mapping[str, Any], context: Context, means: RunMeans) -> Runnable | Reply:
        """Return a run with these arguments, or the reply to invalid ones."""
        ...

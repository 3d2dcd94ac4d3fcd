"""Names the queue that a module's calls wait in, the lane that serves it, and how long a call may take."""

from typing import Literal

from toolfleet_registry.contracts import PublishedCall, ToolDefinition
from toolfleet_registry.directory.entries import module_limit
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings

Lane = Literal["fast", "slow", "all"]

CONTROL = "toolfleet.control"
"""The queue of our own tasks: refresh, jobs. They are short, so the fast lane serves it."""

IDLE = "toolfleet.idle"
"""What a worker consumes whose lane has no module yet, as Celery has one without a queue consume the default one."""

SOFT_LIMIT_MARGIN = 1  # seconds: the module's request ends first, then the task still has time to say so


def queue_of(module: str) -> str:
    """Return the queue of a module: each has its own, so that one that is stuck does not block others."""
    return f"tools.{module}"


def queue_for(call: PublishedCall) -> str:
    """Return the queue that a call waits in: its module's."""
    return f"tools.{call.tool_name.partition('.')[0]}"  # as `queue_of` has it: each call comes here


def limit_of(tool: ToolDefinition, settings: Settings) -> float:
    """Return for how many seconds a module may run a call of the tool.

    Its own limit comes first, then the setting for its module, then its lane's; never over the maximum.
    """
    limit = tool.timeout_seconds or module_limit(tool.name.partition(".")[0], settings)
    return min(limit, settings.max_timeout)


def nets_around(limit: float) -> tuple[float, float]:
    """Return the soft and the hard limit of a task, in seconds: the nets around a module's own limit."""
    return limit + SOFT_LIMIT_MARGIN, limit + HARD_LIMIT_MARGIN


def queues_of(lane: Lane, settings: Settings) -> list[str]:
    """Return the queues that a worker of this lane consumes by its settings, sorted; without any, one that is always empty."""
    modules = sorted(module for module in settings.modules if lane in {"all", lane_of(module, settings)})
    return [queue_of(module) for module in modules] + ([] if lane == "slow" else [CONTROL]) or [IDLE]


def lane_of(module: str, settings: Settings) -> Literal["fast", "slow"]:
    """Return the lane of the workers that run this module's calls."""
    return "slow" if module in settings.slow_modules else "fast"

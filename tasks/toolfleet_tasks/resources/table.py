"""Lists all operations on the resources of operators, by name."""

from collections.abc import Mapping
from typing import Final

from toolfleet_tasks.resources import (
    agents,
    approvals,
    audit,
    calls,
    dead_letters,
    jobs,
    keys,
    modules,
    programs,
    queues,
    tools,
    wakeups,
)
from toolfleet_tasks.resources.operation import AnyOperation, ResourceOperation

_RESOURCES = (agents, approvals, audit, calls, dead_letters, jobs, keys, modules, programs, queues, tools, wakeups)

OPERATIONS: Final[Mapping[str, AnyOperation]] = {
    each.name: each
    for resource in _RESOURCES
    for each in vars(resource).values()
    if isinstance(each, ResourceOperation)
}

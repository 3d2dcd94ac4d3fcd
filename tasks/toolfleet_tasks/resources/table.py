"""Lists the resources of operators, and all their operations by name."""

from collections.abc import Mapping
from types import ModuleType
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
    queues,
    status,
    tools,
    wakeups,
)
from toolfleet_tasks.resources.operation import AnyOperation, ResourceOperation

RESOURCES: Final[tuple[ModuleType, ...]] = (
    agents,
    approvals,
    audit,
    calls,
    dead_letters,
    jobs,
    keys,
    modules,
    queues,
    status,
    tools,
    wakeups,
)

OPERATIONS: Final[Mapping[str, AnyOperation]] = {
    each.name: each for resource in RESOURCES for each in vars(resource).values() if isinstance(each, ResourceOperation)
}

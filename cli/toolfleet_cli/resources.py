"""Loads the operations of operators' resources when a command asks for one: its help needs none of them."""

# ruff: noqa: PLC0414 - a name that is imported as itself is exported

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolfleet_tasks.resources import agents as agents
    from toolfleet_tasks.resources import approvals as approvals
    from toolfleet_tasks.resources import audit as audit
    from toolfleet_tasks.resources import calls as calls
    from toolfleet_tasks.resources import dead_letters as dead_letters
    from toolfleet_tasks.resources import jobs as jobs
    from toolfleet_tasks.resources import keys as keys
    from toolfleet_tasks.resources import modules as modules
    from toolfleet_tasks.resources import programs as programs
    from toolfleet_tasks.resources import queues as queues
    from toolfleet_tasks.resources import tools as tools
    from toolfleet_tasks.resources import wakeups as wakeups
else:
    from toolfleet_registry.system.lazy_names import LazyModule

    _NAMES = "agents approvals audit calls dead_letters jobs keys modules programs queues tools wakeups".split()
    globals().update({name: LazyModule(f"toolfleet_tasks.resources.{name}") for name in _NAMES})

"""Says, once a process, how many tools a listing leaves out because of their modules, and why."""

from toolfleet_registry.catalog.toolset import ToolSet
from toolfleet_registry.contracts import Caller
from toolfleet_registry.permissions import Modules
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process

_log = get_logger(__name__)

_MOST_NAMED = 5  # modules


def say_hidden(tools: ToolSet, caller: Caller, modules: Modules) -> None:
    """Log what `caller` would be listed beyond `modules`: a warning where nobody has chosen them, for information otherwise."""
    reason = _NOT_NAMED if caller.allowed_modules is None else _NAMED
    if modules == "*" or reason in (said := this_process().part(_said)):
        return
    listed = tools.usable(caller.permission, modules)
    everywhere = tools.usable(caller.permission, "*")
    if len(everywhere) == len(listed):
        return
    said.add(reason)
    left_out = sorted({tool.name.partition(".")[0] for tool in everywhere} - {*modules})
    named = ", ".join(left_out[:_MOST_NAMED]) + (" …" if len(left_out) > _MOST_NAMED else "")
    log = _log.warning if reason is _NOT_NAMED else _log.info
    log("tools_hidden", hidden=len(everywhere) - len(listed), listed=len(listed), modules=named, reason=reason)


def _said() -> set[str]:
    return set()


_NOT_NAMED = (
    "the caller is a guest without allowed_modules, and TOOLFLEET_DEFAULT_GUEST_MODULES does not have these modules"
)
_NAMED = "the caller's allowed_modules do not have these modules"

"""Asks a gateway for tools, and for what does not load."""

from typing import TYPE_CHECKING, Any

from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts import ModuleStatus, ToolDefinition
from toolfleet_registry.contracts.load_errors import ToolLoadError
from toolfleet_registry.contracts.tool_definition import ToolSource

if TYPE_CHECKING:
    from toolfleet_registry.directory.reload_requests import ReloadAnswer

_PAGE = 1_000
_RELOAD_SECONDS = 30.0  # beyond the ten that a gateway waits


def listed(gateway: Gateway) -> tuple[list[ToolDefinition], dict[str, ModuleStatus]]:
    """Return the tools of the key, and the statuses of their modules, in a fleet's form."""
    found, query = list[dict[str, Any]](), dict[str, Any](limit=_PAGE)
    while True:
        page = gateway.get("/tools", query)
        found += page["tools"]
        if page.get("next") is None:
            break
        query["cursor"] = page["next"]
    return [ToolDefinition.model_validate(each) for each in found], _statuses(gateway, found)


def found(
    gateway: Gateway, words: str, tags: list[str], limit: int
) -> tuple[list[ToolDefinition], dict[str, ModuleStatus]]:
    """Return the tools of the key with such words and tags, the best first, and the statuses of their modules."""
    tools = gateway.get("/tools", {"q": words or None, "tag": tags or None, "limit": limit})["tools"]
    return [ToolDefinition.model_validate(each) for each in tools], _statuses(gateway, tools)


def shown(gateway: Gateway, name: str) -> tuple[ToolDefinition, dict[str, ModuleStatus]]:
    """One tool; one that is not there ends the command."""
    found = gateway.get(place("tools", name))
    return ToolDefinition.model_validate(found), _statuses(gateway, [found])


def errors(gateway: Gateway) -> list[ToolLoadError]:
    """Return the load errors."""
    return [ToolLoadError.model_validate(each) for each in gateway.get("/tools/errors")["errors"]]


def reloaded(gateway: Gateway) -> "list[ReloadAnswer]":
    """Return the hosts' answers, by module; unfinished ones first."""
    from toolfleet_registry.directory.reload_requests import ReloadAnswer

    report = gateway.post("/tools/reload", seconds=_RELOAD_SECONDS)
    pending = [ReloadAnswer(module=module) for module in report["pending"]]
    if not report["hosts"] > len(pending):
        return pending
    errors = [ToolLoadError.model_validate(each) for each in report["errors"]]
    return [*pending, ReloadAnswer(module="all", is_done=True, tools=report["count"], errors=errors)]


def _statuses(gateway: Gateway, tools: list[dict[str, Any]]) -> dict[str, ModuleStatus]:
    sources = [
        ToolSource(tool_name=each["name"], file=each["source"], python_module=each["module"], digest="")
        for each in tools
        if each["source"] != "programmatic"
    ]
    statuses = dict[str, ModuleStatus]()
    for each in gateway.get("/modules")["modules"]:
        known = {name: each[name] for name in ("module", "ok", "tools", "age_seconds", "is_stale") if name in each}
        errors = tuple(ToolLoadError.model_validate(one) for one in each.get("load_errors", ()))
        own = tuple(source for source in sources if source.tool_name.startswith(f"{each['module']}."))
        statuses[each["module"]] = ModuleStatus(**known, load_errors=errors, sources=own)
    return statuses

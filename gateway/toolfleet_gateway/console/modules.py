"""Shows modules: where each is, how it is, and what it offers; and has operators pin, remove, refresh and reload them."""

from typing import Any

from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, RouteQuestion, Shown, Visit, window_of
from toolfleet_gateway.console.tools import KnownTools
from toolfleet_gateway.http.problems import invalid_request, not_found


def module_pages(tools: KnownTools) -> list[ConsolePage]:
    """The pages."""
    about = _AboutModulePages(tools)
    return [
        ConsolePage("GET", "/modules", about.listed),
        ConsolePage("POST", "/modules", about.refreshed, "operator"),
        ConsolePage("GET", "/modules/{module}", about.shown),
        ConsolePage("POST", "/modules/{module}", about.changed, "operator"),
        ConsolePage("GET", "/errors", _list_errors),
        ConsolePage("POST", "/errors", _reload_tools, "operator"),
    ]


class _AboutModulePages:
    def __init__(self, tools: KnownTools) -> None:
        self._tools = tools

    async def listed(self, visit: Visit) -> Outcome:
        window = window_of(visit.query)
        return Shown("modules", "Modules", window.cut(await self._modules(visit)))

    async def refreshed(self, visit: Visit) -> Outcome:
        found = await visit.ask("refreshTools")
        bad = [module["module"] for module in found["modules"] if not module["ok"]]
        if bad:
            return Done(f"All were asked; these have not answered well: {', '.join(bad[:20])}.", "/modules", "bad")
        return Done("All were asked, and have answered.", "/modules")

    async def shown(self, visit: Visit) -> Outcome:
        name = visit.path["module"]
        module = next((each for each in await self._modules(visit) if each["module"] == name), None)
        if module is None:
            raise not_found("There is no such module, or not any more.")
        window = window_of(visit.query)
        tools = await self._tools.of_module(name)
        state = await visit.ask("getToolState", RouteQuestion(query={"module": name}))
        own = {tool: why for tool, why in state["closed"].items() if tool.partition(".")[0] == name}
        values = {"module": module, "closed": own, "pending": state["pending"], **window.cut(tools)}
        return Shown("module", name, values)

    async def changed(self, visit: Visit) -> Outcome:
        name, action = visit.path["module"], visit.form.get("action", "")
        here, path = f"/modules/{name}", {"module": name}
        match action:
            case "pin":
                found = await visit.ask("pinModule", RouteQuestion(path))
                return Done(f"Pinned: {len(found['digests'])} tools are approved as they are.", here)
            case "unpin":
                await visit.ask("unpinModule", RouteQuestion(path))
                return Done("It is not pinned any more.", here)
            case "remove":
                await visit.ask("removeModule", RouteQuestion(path))
                return Done(f"{name} takes no more calls; those that wait are run.", "/modules")
            case _:
                raise invalid_request("A module is pinned, unpinned or removed.")

    async def _modules(self, visit: Visit) -> list[dict[str, Any]]:
        """Return each module with its address, its status, and whether it is pinned."""
        placed = (await visit.ask("listPlacedModules"))["modules"]
        known = {module["module"]: module for module in (await visit.ask("listModules"))["modules"]}
        pinned = set((await visit.ask("getToolState"))["pinned"])
        names = {module["module"] for module in placed}
        found = [{**known.get(each["module"], {}), **each} for each in placed]
        found += [each for name, each in known.items() if name not in names]
        return [
            {**each, "is_pinned": each["module"] in pinned} for each in sorted(found, key=lambda one: one["module"])
        ]


async def _list_errors(visit: Visit) -> Outcome:
    window = window_of(visit.query)
    return Shown("tool_errors", "Tool files", window.cut((await visit.ask("listToolErrors"))["errors"]))


async def _reload_tools(visit: Visit) -> Outcome:
    found = await visit.ask("reloadTools")
    if not found["hosts"]:
        return Done("No host of a tool folder has answered.", "/errors", "bad")
    pending = f" Still at it: {', '.join(found['pending'])}." if found["pending"] else ""
    return Done(f"{found['hosts']} hosts serve {found['count']} tools.{pending}", "/errors", "good")

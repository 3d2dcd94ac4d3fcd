"""Shows tools and modules, has operators change what is in effect, and people try a tool in a form made of its schema.

A value of a simple type has a field of its own; any other is typed as JSON. The schema's own rules are checked where
calls are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit, window_of
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.tool_definition import tool_named
from toolfleet_registry.policy.call_faults import LONGEST
from toolfleet_registry.policy.limits import Remaining, terms_of
from toolfleet_registry.policy.redaction import EVERYTHING, sensitive_paths
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import randomness
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_tasks.client.fleet import ToolFleet

_EVERYBODY: Final = Caller(permission="owner", allowed_modules="*")
_MOST_FOUND = 1_000

_PREFIX: Final = "argument."
"""Before the names of arguments, in those of fields."""

MOST_FIELDS: Final = 60
"""A tool with more arguments is called with JSON."""

_WHOLE: Final = "arguments"
"""The field for all arguments as JSON."""

_Kind = Literal["text", "lines", "integer", "number", "boolean", "choice", "json"]

_SIMPLE: Mapping[str, _Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_LONG = 200  # characters that a text may have and still be typed into one line

_ROUTES: Final[Mapping[str, tuple[str, str]]] = {
    "disable": ("disableTool", "No caller may use it until it is enabled."),
    "enable": ("enableTool", "It may be used again."),
    "approve": ("approveTool", "It is accepted as it is offered."),
    "rollback": ("rollBackTool", "The earlier version is in force."),
    "forget": ("forgetTool", "The registry knows nothing of it any more."),
}
_ABSENT = frozenset({404, 409})

_WAIT_SECONDS = 5  # then the page says that it goes on, as one that waits for people does for hours
_SERVER_ERROR = 500

_REFUSALS = "rate_limited"
_SHOWN_REFUSALS = 20


@dataclass(frozen=True, slots=True)
class KnownTools:
    """The tools of the fleet. From memory: costs no round trip."""

    fleet: ToolFleet

    async def of_module(self, module: str) -> list[ToolDefinition]:
        """Return the tools of a module by name."""
        return [tool for tool in await self.all() if tool.name.partition(".")[0] == module]

    async def all(self) -> list[ToolDefinition]:
        """Return all tools by name."""
        return await self.fleet.tools(_EVERYBODY)

    async def find(self, words: str) -> list[ToolDefinition]:
        """Return the tools with one of these words, the best first; all without a word."""
        return await self.fleet.search(words, _EVERYBODY, limit=_MOST_FOUND) if words else await self.all()

    async def one(self, name: str) -> ToolDefinition | None:
        """Return the tool of that name, if it is in effect."""
        return tool_named(name, await self.all())


def tool_pages(tools: KnownTools, settings: Settings) -> list[ConsolePage]:
    """Return the pages, those of trials first."""
    about, trials, limits = _AboutToolPages(tools), _AboutTrials(tools.fleet), _AboutLimits(tools, settings)
    return [
        ConsolePage("GET", "/tools/{name}/try", trials.form),
        ConsolePage("POST", "/tools/{name}/try", trials.tried),
        ConsolePage("GET", "/tools/{name}/try/{call_id}", trials.followed),
        ConsolePage("GET", "/tools", about.listed),
        ConsolePage("GET", "/tools/{name}", about.shown),
        ConsolePage("POST", "/tools/{name}", about.changed, "operator"),
        ConsolePage("GET", "/limits", limits.shown),
    ]


class _AboutToolPages:
    def __init__(self, tools: KnownTools) -> None:
        self._tools = tools

    async def listed(self, visit: Visit) -> Outcome:
        window, words = window_of(visit.query), visit.query.get("q", "").strip()[:1_000]
        state = await visit.ask("getToolState")
        pending = {each["tool_name"]: each["kind"] for each in state["pending"]}
        values = {"q": words, "closed": state["closed"], "pending": pending, "drift": state["pending"][:50]}
        return Shown("tools", "Tools", {**window.cut(await self._tools.find(words)), **values})

    async def shown(self, visit: Visit) -> Outcome:
        name = visit.path["name"]
        tool = await self._tools.one(name)
        state = await visit.ask("getToolState", query={"module": name.partition(".")[0]})
        known = await visit.find("listToolVersions", name, absent=_ABSENT)
        versions = [] if known is None else known["versions"]
        pending = next((each for each in state["pending"] if each["tool_name"] == name), None)
        closed = state["closed"].get(name)
        if tool is None and not versions and pending is None and closed is None:
            raise not_found("There is no such tool, or not any more.")
        values = {
            "name": name,
            "tool": tool,
            "schema": None if tool is None else input_schema(tool),
            "versions": versions,
            "pending": pending,
            "closed": closed,
        }
        return Shown("tool", name, values)

    async def changed(self, visit: Visit) -> Outcome:
        name, action = visit.path["name"], visit.form.get("action", "")
        if action not in _ROUTES:
            raise invalid_request("A tool is disabled, enabled, approved, rolled back or forgotten.")
        route, said = _ROUTES[action]
        bodies: dict[str, dict[str, Any]] = {
            "approve": {"digest": visit.form.get("digest") or None},
            "rollback": {"version": visit.form.get("version", "")},
        }
        await visit.ask(route, name, body=bodies.get(action))
        return Done(f"{name}: {said}", "/tools" if action == "forget" else f"/tools/{name}")


class _AboutTrials:
    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet

    async def form(self, visit: Visit) -> Outcome:
        return self._page(await self._tool(visit), {})

    async def tried(self, visit: Visit) -> Outcome:
        """Call the tool. A form that is sent again joins the call that it made, by its idempotency key."""
        tool = await self._tool(visit)
        fields = None if "json" in visit.form else fields_of_schema(input_schema(tool))
        headers = {"prefer": f"wait={_WAIT_SECONDS}"}
        if key := visit.form.get("key"):
            headers["idempotency-key"] = key.encode("ascii", "ignore").decode()[:200]
        try:
            body = {"tool_name": tool.name, "arguments": arguments_of(fields, visit.form)}
            found = await visit.ask("beginCall", body=body, headers=headers)
        except Problem as exc:
            if exc.status >= _SERVER_ERROR:
                raise
            return self._page(tool, visit.form, refusal=str(exc), status=exc.status)
        return self._page(tool, visit.form, answer=found)

    async def followed(self, visit: Visit) -> Outcome:
        tool = await self._tool(visit)
        return self._page(tool, {}, answer=await visit.ask("getCall", visit.path["call_id"]))

    async def _tool(self, visit: Visit) -> ToolDefinition:
        """Return the tool if the key may call it. Raises `Problem` as if it did not exist, as for other clients."""
        found = await visit.ask("getTool", visit.path["name"])
        tools = await self._fleet.tools(visit.who.caller)
        return next(tool for tool in tools if tool.name == found["name"])

    @staticmethod
    def _page(
        tool: ToolDefinition,
        form: Mapping[str, str],
        *,
        refusal: str | None = None,
        answer: Any = None,
        status: int = 200,
    ) -> Shown:
        fields = None if "json" in form else fields_of_schema(input_schema(tool))
        hidden = {path.split("/")[1] if path else EVERYTHING for path in sensitive_paths(tool)}
        result = answer if answer is None or "success" in answer else answer.get("result")
        state = answer if answer is not None and "state" in answer else None
        values = {
            "tool": tool,
            "fields": fields,
            "hidden": hidden,
            "prefix": _PREFIX,
            "form": {
                name: text for name, text in form.items() if not {EVERYTHING, name.removeprefix(_PREFIX)} & hidden
            },
            "key": f"console-{randomness.uuid4().hex}",
            "refusal": refusal,
            "result": result,
            "state": state,
        }
        return Shown("trial", f"Try {tool.name}", values, status)


class _AboutLimits:
    def __init__(self, tools: KnownTools, settings: Settings) -> None:
        self._tools = tools
        self._settings = settings

    async def shown(self, visit: Visit) -> Outcome:
        window, user = window_of(visit.query), visit.query.get("user", "").strip()
        limited = [tool for tool in await self._tools.all() if terms_of(tool) is not None]
        refused = await visit.ask("listCalls", query={"error": _REFUSALS, "limit": _SHOWN_REFUSALS})
        values = {
            **window.cut(limited),
            "user": user,
            "left": await self._left(user) if user else None,
            "budgets": self._settings.cost_budgets,
            "refused": [each["line"] for each in refused["calls"]],
        }
        return Shown("limits", "Limits", values)

    async def _left(self, user: str) -> Remaining:
        if len(user) > LONGEST:
            raise invalid_request(f"A user's id has at most {LONGEST} characters.")
        everything = Caller(user_id=user, permission="owner", allowed_modules="*")
        return await self._tools.fleet.remaining(everything)


@dataclass(frozen=True, slots=True)
class _SchemaField:
    """A field for one argument. `choices` are the texts of a closed set, as JSON."""

    name: str
    kind: _Kind
    is_required: bool
    description: str = ""
    usual: str = ""
    choices: tuple[str, ...] = ()


def fields_of_schema(schema: Mapping[str, Any]) -> list[_SchemaField] | None:
    """Return the fields of a schema's properties, or `None` if the arguments can only be typed as JSON."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) > MOST_FIELDS:
        return None
    required = schema.get("required")
    wanted = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set[str]()
    return [_field(str(name), about, is_required=name in wanted) for name, about in properties.items()]


def arguments_of(fields: list[_SchemaField] | None, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a form. Empty optional ones are left out. Raises `Problem`."""
    if fields is None:
        return _whole(form.get(_WHOLE, ""))
    arguments = dict[str, Any]()
    for field in fields:
        text = form.get(_PREFIX + field.name, "")
        if text == "" and not (field.is_required and field.kind in {"text", "lines"}):
            continue
        arguments[field.name] = _value(field, text)
    return arguments


def typed(arguments: Mapping[str, Any], fields: list[_SchemaField] | None) -> dict[str, str]:
    """Return the form's field values for these arguments."""
    if fields is None:
        return {_WHOLE: json.dumps(arguments, indent=2, ensure_ascii=False)}
    return {_PREFIX + each.name: _text(each, arguments[each.name]) for each in fields if each.name in arguments}


def _field(name: str, about: Any, *, is_required: bool) -> _SchemaField:
    known: Mapping[str, Any] = about if isinstance(about, dict) else {}
    closed = known.get("enum")
    choices = tuple(json.dumps(each, ensure_ascii=False) for each in closed) if isinstance(closed, list) else ()
    kind = "choice" if choices else _SIMPLE.get(str(known.get("type")), "json")
    if kind == "text" and not _is_short(known.get("maxLength")):
        kind = "lines" if "maxLength" in known else "text"
    usual = known.get("default")
    found = _SchemaField(
        name,
        kind,
        is_required,
        description=str(known.get("description", "")),
        choices=choices,
    )
    return found if usual is None else replace(found, usual=_text(found, usual))


def _is_short(most: Any) -> bool:
    return isinstance(most, int) and most <= _LONG


def _text(field: _SchemaField, value: Any) -> str:
    if field.kind in {"text", "lines"} and isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(field: _SchemaField, text: str) -> Any:
    match field.kind:
        case "text":
            return text
        case "lines":
            return text.replace("\r\n", "\n")
        case "choice" if text not in field.choices:
            raise invalid_request(f"The argument {field.name[:80]!r} has no such choice.")
        case _:
            try:
                return loads_strict(text.strip().encode("utf-8", "replace"))
            except ValueError:
                article = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
                what = article.get(field.kind, "JSON")
                raise invalid_request(f"The argument {field.name[:80]!r} must be {what}.") from None


def _whole(text: str) -> dict[str, Any]:
    try:
        value = loads_strict((text.strip() or "{}").encode("utf-8", "replace"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise invalid_request("The arguments must be a JSON object.")
    return value


def module_pages(tools: KnownTools) -> list[ConsolePage]:
    """Return the pages of modules."""
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
        state = await visit.ask("getToolState", query={"module": name})
        own = {tool: why for tool, why in state["closed"].items() if tool.partition(".")[0] == name}
        values = {"module": module, "closed": own, "pending": state["pending"], **window.cut(tools)}
        return Shown("module", name, values)

    async def changed(self, visit: Visit) -> Outcome:
        name, action = visit.path["module"], visit.form.get("action", "")
        here = f"/modules/{name}"
        match action:
            case "pin":
                found = await visit.ask("pinModule", name)
                return Done(f"Pinned: {len(found['digests'])} tools are approved as they are.", here)
            case "unpin":
                await visit.ask("unpinModule", name)
                return Done("It is not pinned any more.", here)
            case "remove":
                await visit.ask("removeModule", name)
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

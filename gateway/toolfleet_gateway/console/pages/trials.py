"""Has people try a tool in a form made of its schema: a call of their own, with the rights of their key."""

from collections.abc import Mapping
from typing import Any

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.schema_form import PREFIX, arguments_of, fields_of_schema
from toolfleet_gateway.http.problems import Problem
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.policy.redaction import EVERYTHING, sensitive_paths
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.system import randomness
from toolfleet_tasks.client.fleet import ToolFleet

_WAIT_SECONDS = 5  # then the page says that it goes on, as one that waits for people does for hours
_SERVER_ERROR = 500


def trial_pages(fleet: ToolFleet) -> list[ConsolePage]:
    """The page, and that of a call which takes longer."""
    about = _AboutTrials(fleet)
    return [
        ConsolePage("GET", "/tools/{name}/try", about.form),
        ConsolePage("POST", "/tools/{name}/try", about.tried),
        ConsolePage("GET", "/tools/{name}/try/{call_id}", about.followed),
    ]


class _AboutTrials:
    def __init__(self, fleet: ToolFleet) -> None:
        self._fleet = fleet

    async def form(self, visit: Visit) -> Outcome:
        return self._page(await self._tool(visit), {})

    async def tried(self, visit: Visit) -> Outcome:
        """A form that is sent again joins the call that it has made: its key says so."""
        tool = await self._tool(visit)
        fields = None if "json" in visit.form else fields_of_schema(input_schema(tool))
        headers = {"prefer": f"wait={_WAIT_SECONDS}"}
        if key := visit.form.get("key"):
            headers["idempotency-key"] = key.encode("ascii", "ignore").decode()[:200]
        try:
            body = {"tool_name": tool.name, "arguments": arguments_of(fields, visit.form)}
            found = await visit.ask("beginCall", RouteQuestion(body=body, headers=headers))
        except Problem as exc:
            if exc.status >= _SERVER_ERROR:
                raise
            return self._page(tool, visit.form, refusal=str(exc), status=exc.status)
        return self._page(tool, visit.form, answer=found)

    async def followed(self, visit: Visit) -> Outcome:
        tool = await self._tool(visit)
        return self._page(
            tool, {}, answer=await visit.ask("getCall", RouteQuestion({"call_id": visit.path["call_id"]}))
        )

    async def _tool(self, visit: Visit) -> ToolDefinition:
        """The tool, if the key may call it: else it is as if there were none, as for its other clients."""
        found = await visit.ask("getTool", RouteQuestion({"name": visit.path["name"]}))
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
            "prefix": PREFIX,
            "form": {name: text for name, text in form.items() if not {EVERYTHING, name.removeprefix(PREFIX)} & hidden},
            "key": f"console-{randomness.uuid4().hex}",
            "refusal": refusal,
            "result": result,
            "state": state,
        }
        return Shown("trial", f"Try {tool.name}", values, status)

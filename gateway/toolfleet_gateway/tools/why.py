"""Answers why a caller may call a tool, or may not: about itself anybody, about others operators."""

import asyncio
import contextlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.auth.identity import AgentNames, UserName
from toolfleet_gateway.calls.outcomes import unknown_tool
from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.rights.roles import require_role
from toolfleet_registry.access.api_keys import ApiKeys
from toolfleet_registry.agents.explanation import ToolExplanation
from toolfleet_registry.contracts import Caller, Conversation, Level
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet


class WhyQuery(BaseModel):
    """About whom: without anything about the caller itself."""

    model_config = ConfigDict(extra="forbid")

    agent: AgentNames | None = Field(None, description="As this agent, by its profile.")
    run_id: str | None = Field(None, max_length=256, description="In this run: how much it has used of its limits.")
    conversation_id: str | None = Field(None, max_length=256, description="In this conversation, likewise.")
    user_id: Annotated[UserName, Field(min_length=1)] | None = Field(
        None, description="Of this user; for operators, as all that follows."
    )
    permission: Level | None = Field(None, description="With this permission; else as a guest.")
    modules: str | None = Field(None, max_length=10_000, description="With these modules, comma-separated; `*` is all.")
    key: str | None = Field(None, max_length=256, description="Of the holder of the API key with this id.")


def why_route(fleet: ToolFleet, settings: Settings) -> AnyRoute:
    """The one route."""
    return Route(
        method="GET",
        path="/tools/{name}/why",
        name="explainTool",
        summary="Which rules have a say in a call of a tool, and where each stands",
        handle=_Explaining(fleet, settings).answer,
        query=WhyQuery,
        answers={200: Answer("What decides.", ToolExplanation)},
        problems=(404, 431),  # names of modules alone can be more than a URL holds
        tag="tools",
    )


class _Explaining:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet, self._settings = fleet, settings

    async def answer(self, request: RouteRequest[None, WhyQuery]) -> Response:
        """What operators ask for, or of the caller itself what it may know."""
        query, who, name = request.query, request.who, request.path["name"]
        where = Conversation(run_id=query.run_id, conversation_id=query.conversation_id)
        if not query.model_dump(exclude_none=True, exclude={"agent", "run_id", "conversation_id"}):
            caller, is_operator = who.caller_for(None, query.agent), who.has_role("operator")
            if not is_operator and not await self._fleet.begun_calls.reaches(name, who.caller):
                raise await unknown_tool(self._fleet, who, name)
            found = await self._fleet.modules.explain(name, caller, conversation=where)
            return json_answer(found if is_operator else found.for_outsiders())
        require_role(who, "operator")
        caller = await self._caller(query)
        return json_answer(await self._fleet.modules.explain(name, caller, conversation=where))

    async def _caller(self, query: WhyQuery) -> Caller:
        if query.key is None:
            names = None if query.modules is None else [one.strip() for one in query.modules.split(",")]
            allowed: frozenset[str] | Literal["*"] | None = None if names is None else frozenset(filter(None, names))
            return Caller.model_validate(
                {
                    "user_id": query.user_id,
                    "permission": query.permission or "guest",
                    "allowed_modules": "*" if names is not None and "*" in names else allowed,
                    "agent": query.agent,
                }
            )
        if query.user_id is not None or query.permission is not None or query.modules is not None:
            raise invalid_request("The key says that: leave user_id, permission and modules out.")
        found = await asyncio.to_thread(self._holder, query.key)
        if found is None:
            raise not_found("There is no such key, or not any more.")
        return found if query.agent is None else found.model_copy(update={"agent": query.agent})

    def _holder(self, key_id: str) -> Caller | None:
        with contextlib.closing(ApiKeys.of(self._settings)) as keys:
            return next((each.key.caller for each in keys.records() if each.key.id == key_id), None)

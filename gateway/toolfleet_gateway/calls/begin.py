"""Serves `POST /calls`, `POST /calls/batch` and `POST /api/modules/{module}/execute`."""

import asyncio
from dataclasses import dataclass

from starlette.responses import Response

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.calls.bodies import (
    BatchAnswer,
    BatchBody,
    BatchedAnswer,
    BatchedCall,
    CallBody,
    CallState,
    ExecuteBody,
)
from toolfleet_gateway.calls.calling import CALLS, Calling, first_state
from toolfleet_gateway.calls.preferences import IDEMPOTENCY_KEY, PREFER, Preference, idempotency_key_of, preference_of
from toolfleet_gateway.http.problems import Problem, invalid_request, problem_of
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest, json_answer
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import FleetError

_PROBLEMS = (403, 404, 409, 422, 429, 503)
_LOCATION = {"Location": "Where to follow the call.", "Retry-After": "Seconds until a look makes sense."}
_ANSWERS = {
    200: Answer("The call has ended: a tool's failure is a result, too.", ToolResult),
    202: Answer("The call is under way.", CallState, headers=_LOCATION),
}


@dataclass(frozen=True, slots=True)
class BeginningRoutes:
    """The routes that begin calls."""

    calling: Calling

    def routes(self) -> list[AnyRoute]:
        """Return the routes."""
        begin = Route(
            method="POST", path=CALLS, name="beginCall", summary="Call a tool", handle=self.begin, answers=_ANSWERS,
            body=CallBody, headers=(IDEMPOTENCY_KEY, PREFER), problems=_PROBLEMS,
        )  # fmt: skip
        batch = Route(
            method="POST", path=f"{CALLS}/batch", name="beginCalls", summary="Call up to 50 tools side by side",
            handle=self.batch, answers={200: Answer("What became of each.", BatchAnswer)}, body=BatchBody,
            headers=(PREFER,), problems=_PROBLEMS,
        )  # fmt: skip
        execute = Route(
            method="POST", path="/api/modules/{module}/execute", name="executeTool", summary="Call a tool of one module",
            handle=self.execute, answers=_ANSWERS, body=ExecuteBody, headers=(IDEMPOTENCY_KEY, PREFER),
            problems=_PROBLEMS, tag="modules",
        )  # fmt: skip
        return [begin, batch, execute]

    async def begin(self, asked: RouteRequest[CallBody, None]) -> Response:
        """Call a tool."""
        key, preference = idempotency_key_of(asked.raw.headers), self._preference(asked)
        return await self.calling.answer(await self.calling.begin(asked.who, asked.body, key), preference)

    async def execute(self, asked: RouteRequest[ExecuteBody, None]) -> Response:
        """Call a tool of the module in the path."""
        key, preference = idempotency_key_of(asked.raw.headers), self._preference(asked)
        module, name = asked.path["module"], asked.body.tool_name
        if "." in name and not name.startswith(f"{module}."):
            raise invalid_request(f"The tool {name[:200]!r} is not one of the module {module[:200]!r}.")
        full = name if "." in name else f"{module}.{name}"
        # Not checked again: of what is no tool's name, however long, the call itself says so.
        said = asked.body
        body = CallBody.model_construct(
            tool_name=full, arguments=said.arguments, user_id=said.user_id, agent=said.agent
        )
        return await self.calling.answer(await self.calling.begin(asked.who, body, key), preference)

    async def batch(self, asked: RouteRequest[BatchBody, None]) -> Response:
        """Call tools side by side: what keeps one from its queue is its own matter."""
        path, preference = asked.raw.url.path, self._preference(asked)
        one = [self._one(asked.who, call, preference, path) for call in asked.body.calls]
        return json_answer(BatchAnswer(calls=await asyncio.gather(*one)), headers=preference.headers)

    async def _one(self, who: Identity, call: BatchedCall, preference: Preference, path: str) -> BatchedAnswer:
        try:
            handle = await self.calling.begin(who, call, call.idempotency_key)
            result = await self.calling.end_of(handle, preference)
        except (Problem, FleetError) as exc:  # each has its own answer
            problem = problem_of(exc)
            return BatchedAnswer(status=problem.status, problem=problem.body(path))
        if result is not None:
            return BatchedAnswer(status=200, result=result)
        return BatchedAnswer(status=202, call=first_state(handle))

    def _preference(
        self,
        asked: RouteRequest[BatchBody, None] | RouteRequest[CallBody, None] | RouteRequest[ExecuteBody, None],
    ) -> Preference:
        settings = self.calling.settings
        return preference_of(asked.raw.headers, settings, usual=settings.gateway_wait_seconds)

"""Offers the fleet's tools to agents of the OpenAI Agents SDK: its function tools, listed for each turn."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agents import Agent, FunctionTool, RunContextWrapper, Tool
from agents.exceptions import AgentsException
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from toolfleet_registry.contracts import Caller, Conversation, ResultFile, ToolDefinition, ToolResult
from toolfleet_registry.formats.calls import spoken_arguments
from toolfleet_registry.policy.hints import ends_run
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.system import randomness
from toolfleet_tasks.adapters.calling import AdapterCalls, FrameworkCall, caller_of, conversation_of, in_run
from toolfleet_tasks.adapters.offers import ToolOffers
from toolfleet_tasks.adapters.result_text import shown_parts
from toolfleet_tasks.client.fleet import ToolFleet

TContext = TypeVar("TContext")

Context = RunContextWrapper[Any]
_Output = str | Sequence[ToolOutputText | ToolOutputImage | ToolOutputFileContent]


class FleetTools:
    """The tools that `caller` may use, for a `FleetAgent`.

    `caller`, `conversation` and `run_id` may be functions of the run's context, for agents with many users. The `run_id` is a part of
    the calls' keys: without one each run has its own. A run that another process goes on with, from a `RunState`, needs one
    that is the same there. `timeout`: seconds for a call. `where` says which tools are offered. A run that is cancelled takes its
    calls back.
    """

    def __init__(
        self,
        fleet: ToolFleet,
        caller: Caller | Callable[[Context], Caller],
        *,
        conversation: Conversation | Callable[[Context], Conversation | None] | None = None,
        run_id: Callable[[Context], str] | None = None,
        timeout: float | None = None,
        where: Callable[[ToolDefinition], bool] | None = None,
    ) -> None:
        self._fleet = fleet
        self._caller = caller
        self._conversation = conversation
        self._run_id = run_id
        self._where = where
        self._calls = AdapterCalls(fleet, timeout=timeout)
        self._runs: WeakKeyDictionary[Context, ToolOffers[FunctionTool]] = WeakKeyDictionary()

    async def of(self, run: Context) -> list[FunctionTool]:
        """What the run's caller may use now. While nothing changes, the same objects in each of its turns.

        Raises `FleetUnavailable` if nothing is known yet, and Redis is silent.
        """
        offers = self._runs.get(run)
        if offers is None:
            run_id = randomness.uuid4_text() if self._run_id is None else self._run_id(run)
            offered = functools.partial(self._offered, run_id)
            offers = self._runs[run] = ToolOffers(self._fleet, offered, self._where)
        return list((await offers.of(caller_of(self._caller, run))).values())

    def _offered(self, run_id: str, tool: ToolDefinition, name: str) -> FunctionTool:
        return FunctionTool(
            name=name,
            description=tool.description,
            params_json_schema=input_schema(tool),
            on_invoke_tool=functools.partial(self._invoke, run_id, tool, name),
            strict_json_schema=False,  # else the schema is rewritten in place
        )

    async def _invoke(
        self, run_id: str, tool: ToolDefinition, name: str, run: ToolContext[Any], arguments: str
    ) -> _Output:
        asked = FrameworkCall(
            tool,
            name,
            spoken_arguments(arguments),
            caller_of(self._caller, run),
            run_id,
            run.tool_call_id,
            in_run(conversation_of(self._conversation, run), run_id),
        )
        result = await self._calls.call(asked)
        if ends_run(result):  # the SDK ends its run with it
            raise AgentsException(shown_parts(result)[0])
        return _shown(result)


@dataclass
class FleetAgent(Agent[TContext]):
    """An agent that has the fleet's tools beside its own: `FleetAgent(name="…", fleet_tools=FleetTools(fleet, caller))`."""

    fleet_tools: FleetTools | None = None
    """What it has of the fleet; `None` for nothing."""

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """As `Agent` has it, with the fleet's tools as they are at this turn."""
        own = await super().get_all_tools(run_context)
        return own if self.fleet_tools is None else [*own, *await self.fleet_tools.of(run_context)]


def _shown(result: ToolResult) -> _Output:
    """The SDK repeats no call, and has no mark for a failure: its text says all."""
    text, files = shown_parts(result)
    return [ToolOutputText(text=text), *map(_part, files)] if files else text


def _part(file: ResultFile) -> ToolOutputImage | ToolOutputFileContent:
    url = f"data:{file.media_type};base64,{file.data}"
    if file.kind == "image":
        return ToolOutputImage(image_url=url)
    return ToolOutputFileContent(file_data=url, filename=file.name or "file.pdf")

"""Offers tools that the model searches for: by a provider's deferred loading, or by two tools that find and call them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from toolfleet_registry.contracts import ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.names import provider_name
from toolfleet_registry.formats.calls import field_of, named_call, spoken_arguments, spoken_call
from toolfleet_registry.formats.dialects import Format, dialect_of
from toolfleet_registry.formats.gemini import gemini_schema
from toolfleet_registry.formats.offers import convert
from toolfleet_registry.formats.relaxing import Converted, Notes
from toolfleet_registry.formats.results import from_result

SEARCH_TOOL: Final = "search_tools"
"""The name of the tool that finds the others; no tool of a module has it."""
CALL_TOOL: Final = "call_tool"
"""The name of the tool that calls the others, where the model cannot be given their definitions."""

MOST_BYTES: Final = 5_000_000
"""The bytes of definitions that a request may have; the model does not read them, and each request sends them again."""
MOST_TOOLS: Final = 10_000
"""The number of tools that Anthropic takes in a request, including the search."""
_FOUND, _MOST_FOUND = 5, 20  # tools that one search finds
_MOST_NAMED = 1000  # characters for the modules' names in the search's description

_NOTHING = "No tool has one of these words. Other words may find one."
_CALL_ABOUT = "Call a tool that a search has found, with arguments that fit its definition."
_CALL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
}
_SEARCH_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "A few telling words of what the tool is to do."},
        "limit": {"type": "integer", "minimum": 1, "maximum": _MOST_FOUND, "description": f"By default {_FOUND}."},
    },
    "required": ["query"],
}


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A model's search for tools, to be answered by `ToolFleet.search`."""

    query: str
    """The words."""
    limit: int
    """The greatest number of tools that it asks for."""


class ToolsOnDemand:
    """The tools of one caller for a model that searches for them, in the place of all definitions in each request.

    - Anthropic: the request has all definitions with `defer_loading`, which the model does not read. A search is
      answered with `tool_reference` blocks.
    - OpenAI's Responses: the request has a `tool_search` that the client executes. A search is answered with the
      definitions, in a `namespace` for each module.
    - The other formats, and Anthropic where the request would have more than 10,000 tools or 5 MB: the request has
      `search_tools`, which is answered with definitions, and `call_tool`.

    A tool that is not among `tools` is not found, and its call is one of an unknown tool, as in `to_call`. Search for a
    selection with a `limit` of all: an answer has the best of it, as many as the model asked for. The fleet decides at
    each search and call what the caller may use.

    Make one for each conversation: an answer in its history may refer to any of these tools. With thousands of tools
    for Anthropic it takes a second: make it in a thread.

    Args:
        tools: The tools, as `ToolFleet.tools` lists them for the caller, or a selection.
        format: The provider's format.
        always: Tells which tools are in each request as they are; by default none.
        programmatic: See `convert`.

    Raises:
        ValueError: The format is unknown.

    """

    def __init__(
        self,
        tools: Iterable[ToolDefinition],
        format: Format,
        *,
        always: Callable[[ToolDefinition], bool] | None = None,
        programmatic: bool = False,
    ) -> None:
        dialect_of(format)
        self._format: Format = format
        self._programmatic = programmatic
        self._tools = {tool.name: tool for tool in tools}
        first = [tool for tool in self._tools.values() if always is not None and always(tool)]
        native = self._native(first) if format == "anthropic" else None
        self.is_native: bool = format == "openai_responses" or native is not None
        """Whether the provider's own deferred loading is used."""
        self.offers: Converted = self._request(first) if native is None else native
        """The value for `tools` of each request, with the notes of `convert`."""

    def search(self, obj: Any) -> SearchRequest | None:
        """Read a tool call as a search for tools.

        Args:
            obj: One tool call, as `to_call` takes it; or OpenAI's output item of type `tool_search_call`.

        Returns:
            The search; `None` for a call of a tool.

        """
        if field_of(obj, "type") == "tool_search_call":
            said = spoken_arguments(field_of(obj, "arguments"))
        else:
            name, spoken = spoken_call(obj, self._format)
            if name != SEARCH_TOOL:
                return None
            said = spoken_arguments(spoken)
        query, limit = field_of(said, "query"), field_of(said, "limit")
        most = limit if isinstance(limit, int) and not isinstance(limit, bool) else _FOUND
        return SearchRequest(query if isinstance(query, str) else "", min(max(most, 1), _MOST_FOUND))

    def call(self, obj: Any) -> ToolCall:
        """Read a tool call as `to_call` does; a call by `call_tool` is a call of the tool that it names.

        Args:
            obj: One tool call, as `to_call` takes it.

        Returns:
            The call, ready for `ToolFleet.call`.

        """
        name, spoken = spoken_call(obj, self._format)
        if name == CALL_TOOL:
            said = spoken_arguments(spoken)
            inner = field_of(said, "name")
            name, spoken = inner if isinstance(inner, str) else "", field_of(said, "arguments")
        return named_call(name, spoken, self._format, self._tools.values())

    def answer(self, obj: Any, outcome: ToolResult | Sequence[ToolDefinition]) -> Any:
        """Write what has become of a tool call, in the provider's form.

        Args:
            obj: The tool call.
            outcome: The result of the call, or the tools that the search has found, the best first.

        Returns:
            The dictionary, as `from_result` returns it; for a `tool_search_call` an item of type `tool_search_output`.

        """
        if not isinstance(outcome, ToolResult):
            return self._found(obj, outcome)
        message = from_result(outcome, self._format, self._id_of(obj), caller=field_of(obj, "caller"))
        if self._format == "gemini":  # it matches an answer with its call by the name that was called
            message["functionResponse"]["name"] = spoken_call(obj, "gemini")[0]
        return message

    def _native(self, first: Sequence[ToolDefinition]) -> Converted | None:
        """Return Anthropic's request with all definitions; `None` if they are too many for one."""
        if len(self._tools) >= MOST_TOOLS:
            return None
        shown = {tool.name for tool in first}
        later = [tool for tool in self._tools.values() if tool.name not in shown]
        request, deferred = self._request(first, has_all=True), self._converted(later)
        offers = [*request, *({**offer, "defer_loading": True} for offer in deferred)]
        is_small = len(json.dumps(offers, ensure_ascii=False).encode("utf-8", "replace")) <= MOST_BYTES
        return Converted(offers, (*request.notes, *deferred.notes)) if is_small else None

    def _request(self, first: Sequence[ToolDefinition], *, has_all: bool = False) -> Converted:
        """Return the search and the `first` tools; with `call_tool`, unless the request has all tools."""
        shown = self._converted(first)
        about = f"Find tools by words: all tools but those listed here. {_modules_of(self._tools)}"
        if self._format == "openai_responses":
            search = {"type": "tool_search", "execution": "client", "description": about, "parameters": _SEARCH_SCHEMA}
            return Converted([search, *shown], shown.notes)
        own = [_own_offer(self._format, SEARCH_TOOL, about, _SEARCH_SCHEMA)]
        if not has_all:
            own.append(_own_offer(self._format, CALL_TOOL, _CALL_ABOUT, _CALL_SCHEMA))
        offers = [*own, *shown]
        return Converted([{"functionDeclarations": offers}] if self._format == "gemini" else offers, shown.notes)

    def _converted(self, tools: Iterable[ToolDefinition], *, programmatic: bool = True) -> Converted:
        """Return each tool's offer, in Gemini's format its declaration, sorted by name."""
        converted = convert(tools, self._format, programmatic=programmatic and self._programmatic)
        if self._format != "gemini":
            return converted
        return Converted(converted[0]["functionDeclarations"] if converted else [], converted.notes)

    def _found(self, obj: Any, found: Iterable[ToolDefinition]) -> Any:
        asked = self.search(obj)
        offered = (tool for tool in found if tool.name in self._tools)
        tools = {tool.name: tool for tool in islice(offered, asked.limit if asked else _FOUND)}
        if self._format == "anthropic" and self.is_native:
            references = [{"type": "tool_reference", "tool_name": provider_name(name)} for name in tools]
            content: Any = references or _NOTHING
            return {"type": "tool_result", "tool_use_id": self._id_of(obj), "content": content}
        self._tools |= tools  # as the model reads them now
        by_name = dict(zip(sorted(tools), self._converted(tools.values(), programmatic=self.is_native), strict=True))
        offers = {name: by_name[name] for name in tools}  # the best first
        if self.is_native:
            output = {"type": "tool_search_output", "call_id": self._id_of(obj), "execution": "client"}
            return {**output, "status": "completed", "tools": _namespaces(offers)}
        said = ToolResult.ok(SEARCH_TOOL, {"tools": [offer.get("function", offer) for offer in offers.values()]})
        return self.answer(obj, said if offers else ToolResult.ok(SEARCH_TOOL, _NOTHING))

    def _id_of(self, obj: Any) -> str:
        member = "call_id" if self._format == "openai_responses" else "id"
        call = (
            (field_of(obj, "function_call") or field_of(obj, "functionCall") or obj)
            if self._format == "gemini"
            else obj
        )
        return str(field_of(call, member) or "")


def _own_offer(format: Format, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    offer = {"name": name, "description": description}
    if format == "openai_chat":
        return {"type": "function", "function": {**offer, "parameters": schema}}
    if format == "gemini":
        return {**offer, "parameters": gemini_schema(schema, Notes(name))}
    return {**offer, "input_schema" if format == "anthropic" else "inputSchema": schema}


def _modules_of(names: Iterable[str]) -> str:
    """Return a sentence that names the tools' modules, as many as fit."""
    modules = sorted({name.partition(".")[0] for name in names})
    text = ", ".join(modules)
    if len(text) > _MOST_NAMED:
        named = text[:_MOST_NAMED].rpartition(", ")[0]
        text = f"{named} and {len(modules) - named.count(', ') - 1} more"
    return f"There are tools of: {text}." if modules else "There are none now."


def _namespaces(offers: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the offers of tools, each in the namespace of its module."""
    by_module = dict[str, list[dict[str, Any]]]()
    for name, offer in offers.items():
        by_module.setdefault(name.partition(".")[0], []).append({**offer, "defer_loading": True})
    return [
        {"type": "namespace", "name": module, "description": f"Tools of {module}.", "tools": within}
        for module, within in by_module.items()
    ]

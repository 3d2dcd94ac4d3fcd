"""Writes tools as a provider is offered them."""

import json
import re
from collections.abc import Iterable
from typing import Any

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats.dialects import Dialect, Format, Strictness, dialect_of, offered_name
from toolfleet_registry.formats.gemini import gemini_schema
from toolfleet_registry.formats.references import JsonObject, localized
from toolfleet_registry.formats.relaxing import Converted, Note, Notes, relaxed, rooted
from toolfleet_registry.formats.strictness import StrictBudget, strict_schema
from toolfleet_registry.schemas.definition import input_schema
from toolfleet_registry.specs import effect_of

_REF = re.compile(r'"\$ref": "([^"]*)"')


def convert(
    tools: Iterable[ToolDefinition],
    format: Format,
    strict: bool = False,  # noqa: FBT001, FBT002 - a call reads convert(tools, "openai_chat", strict=True)
    dotted: bool = False,  # noqa: FBT001, FBT002 - as above
    *,
    programmatic: bool = False,
    previews: bool = False,
) -> Converted:
    """Convert tools to a provider's format, for the `tools` of a request.

    A converted schema forbids no call that the tool's own schema allows. It can allow more: the catalog refuses these
    calls.

    Args:
        tools: The tools to offer.
        format: The provider's format.
        strict: Whether a tool is marked as strict if its schema can be enforced to the letter. A note says why another
            tool cannot.
        dotted: Whether names keep the form `module.method` where the provider accepts dots.
        programmatic: Whether the provider's own programs may call the tools that only read and have an output schema,
            with Anthropic and OpenAI's Responses. The request needs the provider's tool for programs, too.
        previews: Whether results may be previews of large ones. MCP clients check results by output schemas, which then
            allow a preview, too.

    Returns:
        The converted tools, sorted by name so that prompt caches hold; `.notes` says what differs from the definitions.
        For Gemini the list holds one element with all declarations, or is empty.

    Raises:
        ValueError: The format is unknown.

    """
    dialect = dialect_of(format)
    notes: list[Note] = []
    budget = StrictBudget(dialect.strictness)
    offers = [
        _offer(tool, format, dotted, budget if strict else None, notes, programmatic, previews=previews)
        for tool in sorted(tools, key=lambda tool: tool.name)
    ]
    if dialect.tools is not None and len(offers) > dialect.tools:
        why = f"{len(offers)} tools; a request may have {dialect.tools}: offer fewer, such as those that a search finds"
        notes.append(Note("", "tools", "refused", why))
    if strict and dialect.strictness is None:
        notes.append(Note("", "strict", "refused", f"{format} has no strict tools"))
    if format == "gemini":
        return Converted([{"functionDeclarations": offers}] if offers else [], notes)
    return Converted(offers, notes)


def tools_to_openai_format(tools: Iterable[ToolDefinition], *, dotted: bool = False) -> Converted:
    """Convert tools to OpenAI's Chat Completions format, which most servers understand: `convert(tools, "openai_chat")`.

    Args:
        tools: The tools to offer.
        dotted: Whether names keep the form `module.method`, for servers that accept it, such as vLLM, Ollama and LiteLLM.
            OpenAI itself refuses such a request, which a note says.

    Returns:
        The converted tools, sorted by name, with notes.

    """
    listed = sorted(tools, key=lambda tool: tool.name)
    converted = convert(listed, "openai_chat")
    if not dotted:
        return converted
    for offer, tool in zip(converted, listed, strict=True):
        offer["function"]["name"] = offered_name(tool.name, "mcp", dotted=True)  # which takes any usual name with dots
    why = "OpenAI's own API refuses names with dots; this is for servers that take them"
    return Converted(converted, (*converted.notes, *([Note("", "name", "refused", why)] if listed else ())))


def shown_schema(tool: ToolDefinition, dialect: Dialect, notes: Notes) -> JsonObject:
    """Return the schema of a tool's arguments as a provider sees it that is not strict."""
    return relaxed(rooted(localized(input_schema(tool)), notes), dialect, notes)


def strict_form(schema: JsonObject, rules: Strictness, tool: str) -> tuple[JsonObject | None, list[Note]]:
    """Return the strict form of a shown schema, if it has one, and the notes on it."""
    notes = Notes(tool)
    return strict_schema(schema, rules, notes), notes.taken


def _offer(
    tool: ToolDefinition,
    format: Format,
    dotted: bool,  # noqa: FBT001 - private
    budget: StrictBudget | None,
    all_notes: list[Note],
    programmatic: bool,  # noqa: FBT001 - private
    *,
    previews: bool,
) -> dict[str, Any]:
    notes = Notes(tool.name)
    name = offered_name(tool.name, format, dotted=dotted)
    if dotted and name != tool.name:
        notes.add("name", "renamed", f"is shown as {name!r}")
    if format == "mcp":
        offer = _mcp(tool, name, notes, previews=previews)
    else:
        dialect = dialect_of(format)
        own = input_schema(tool)
        schema = shown_schema(tool, dialect, notes)
        description = _description(tool, own, dialect, notes)
        is_strict = False
        if budget is not None and dialect.strictness is not None:
            strict, taken = strict_form(schema, dialect.strictness, tool.name)
            is_strict = strict is not None and budget.takes(strict, notes)
            schema = strict if strict is not None and is_strict else schema
            notes.taken += taken if is_strict or strict is None else []
        offer = _of_provider(format, name, description, schema, is_strict, notes)
        # Anthropic's programs call no strict tools.
        if programmatic and not (is_strict and format == "anthropic"):
            offer = _for_programs(offer, tool, format)
    all_notes += notes.taken
    return offer


def _of_provider(
    format: Format,
    name: str,
    description: str,
    schema: JsonObject,
    is_strict: bool,  # noqa: FBT001 - private
    notes: Notes,
) -> dict[str, Any]:
    if format == "openai_chat":
        function = {"name": name, "description": description, "parameters": schema}
        return {"type": "function", "function": {**function, "strict": True} if is_strict else function}
    if format == "openai_responses":
        # Always said: left out, OpenAI makes the schema strict in its own way, and refuses it if it cannot.
        return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": is_strict}
    if format == "anthropic":
        offer = {"name": name, "description": description, "input_schema": schema}
        return {**offer, "strict": True} if is_strict else offer
    parameters = gemini_schema(schema, notes)
    declaration: dict[str, Any] = {"name": name, "description": description}
    return declaration if parameters is None else {**declaration, "parameters": parameters}


def _for_programs(offer: dict[str, Any], tool: ToolDefinition, format: Format) -> dict[str, Any]:
    """Return the offer with what the provider's programs need, if they may call the tool."""
    schema = tool.output_schema
    if schema is None or schema.get("type") != "object" or effect_of(tool) != "read":
        return offer
    if format == "openai_responses":
        return {**offer, "output_schema": localized(schema), "allowed_callers": ["direct", "programmatic"]}
    if format == "anthropic":
        text = json.dumps(localized(schema), ensure_ascii=False, separators=(",", ":"))
        returns = f"\nReturns JSON that fits: {text}" if len(text) <= _LONGEST_OUTPUT else "\nReturns a JSON object."
        description = f"{offer['description']}{returns}".strip()
        return {**offer, "description": description, "allowed_callers": ["direct", _ANTHROPIC_PROGRAMS]}
    return offer


def _mcp(tool: ToolDefinition, name: str, notes: Notes, *, previews: bool) -> dict[str, Any]:
    """Return the protocol takes any JSON Schema of an object, so that a tool stays as it is."""
    schema = tool.input_schema if tool.is_foreign and tool.input_schema is not None else input_schema(tool)
    offer: dict[str, Any] = {
        "name": name,
        **({"title": tool.title} if tool.title is not None else {}),
        **({"description": tool.description} if tool.description or not tool.is_foreign else {}),
        "inputSchema": {**schema, "type": "object"},
    }
    if tool.output_schema is not None:
        if tool.output_schema.get("type") != "object":
            notes.add("output_schema", "dropped", "before 2026-07-28 the protocol takes only that of an object")
        elif (shown := _with_preview(tool.output_schema) if previews else tool.output_schema) is not None:
            offer["outputSchema"] = shown
        else:
            notes.add("output_schema", "dropped", "refers to itself as a whole, so that it has no form with a preview")
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    effect = effect_of(tool)
    if effect is not None and not tool.is_foreign:
        hints = {"readOnlyHint": effect == "read", "idempotentHint": effect != "once", **hints}
    more = {"annotations": hints, "icons": tool.icons, "_meta": tool.meta}
    return {**offer, **{member: value for member, value in more.items() if value}}


def _with_preview(schema: JsonObject) -> JsonObject | None:
    """Return an output schema that allows a preview; `None` where the schema refers to itself as a whole."""
    if any(not ref.startswith("#/$defs/") for ref in _REF.findall(json.dumps(schema))):
        return None
    shared: JsonObject = {name: schema[name] for name in ("$schema", "$defs") if name in schema}
    own = {name: value for name, value in schema.items() if name not in shared}
    preview: JsonObject = {"required": ["artifact", "preview"]}
    return {"type": "object", **shared, "anyOf": [own, preview]}


def _description(tool: ToolDefinition, own: JsonObject, dialect: Dialect, notes: Notes) -> str:
    text = tool.description or tool.title or ""
    combined = {keyword: own[keyword] for keyword in ("allOf", "anyOf", "oneOf", "not") if keyword in own}
    condition = json.dumps(combined, ensure_ascii=False) if combined else ""
    # What refers to definitions says nothing by itself.
    if condition and "$ref" not in condition and len(condition) <= _LONGEST_CONDITION:
        text = f"{text}\nThe arguments must also fit: {condition}".strip()
    if dialect.description is not None and len(text) > dialect.description:
        notes.add("description", "dropped", f"has {len(text)} characters, of which {dialect.description} are shown")
        text = f"{text[: dialect.description - 1]}…"
    return text


_LONGEST_CONDITION = 600
_LONGEST_OUTPUT = 2000  # characters of a schema; Anthropic has no field for it
_ANTHROPIC_PROGRAMS = "code_execution_20260120"  # since this version programs call tools without a beta header

"""Makes a module's tool of one that was made for something else: a tag tool, a `ToolDef`, or a tool of LangChain's.

Neither library is imported here: a file that has such a tool has imported it.
"""

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from toolfleet_modules.hosts.folder.frames import PACKAGE
from toolfleet_modules.sdk.tool import Facts, in_words
from toolfleet_registry.contracts.call_context import Context, ToolContext
from toolfleet_registry.contracts.limits import limits_in
from toolfleet_registry.functions.failures import ToolError
from toolfleet_registry.functions.signature import without_titles

_TEXT = "raw_arg"  # the group of a tag without groups
_TAGS = "toolfleet_registry.tags"  # is not in every installation
_LANGCHAIN = "langchain_core.tools"
_FILLED_IN = frozenset({"callbacks", "run_manager"})  # by LangChain itself, as what is annotated as `RunnableConfig`


def tag_tools_in(module: ModuleType) -> Iterator[Any]:
    """Yield the tools at a file's top level, alone or in lists, except those with a handler of another file."""
    tags = sys.modules.get(_TAGS)
    if tags is None:
        return
    seen: list[Any] = []
    for each in _things_in(module):
        if isinstance(each, tags.ToolDef) and each not in seen and _is_of(module, each.handler):
            seen.append(each)
            yield each


def _things_in(module: ModuleType) -> Iterator[Any]:
    """Yield what a file has at its top, alone or in lists, each once."""
    seen = set[int]()
    for value in list(vars(module).values()):
        for each in value if isinstance(value, list | tuple) else [value]:
            if id(each) not in seen:
                seen.add(id(each))
                yield each


def tag_function(tool: Any) -> tuple[Callable[..., Any], Facts]:
    """Return the function of its calls, and the facts about it. Raises `ValueError` if it is invalid."""
    sys.modules[_TAGS].checked(tool, is_here=True)
    handler = _handler_of(tool)
    groups = tuple(tool.arg_groups)
    takes = _takes(handler, groups)
    needed = [each for each in groups if takes.get(each, True)]
    facts: Facts = {
        "name": tool.name,
        "description": tool.description,
        "permission": "guest",  # everybody who can write to an agent can call its tags
        "requires_gate": tool.requires_gate,
        "input_schema": {
            "type": "object",
            "properties": {each: {"type": "string"} for each in groups},
            "required": needed,
            "additionalProperties": False,
        },
        "output_schema": None,
    }
    facts.update(cast("Facts", limits_in(tool)))
    return _called_as_a_tag(handler, groups, takes), facts


def takes_context(tool: Any) -> bool:
    """Return whether its handler takes an agent's context of the conversation."""
    return ToolContext in _contexts(_handler_of(tool), tuple(tool.arg_groups)).values()


def _called_as_a_tag(handler: Callable[..., Any], groups: tuple[str, ...], takes: Mapping[str, bool]) -> Any:
    contexts = _contexts(handler, groups)

    def given(context: Context, texts: Mapping[str, str]) -> dict[str, Any]:
        own: dict[str, Any] = {name: texts[name] for name in takes if texts.get(name) is not None}
        for name, kind in contexts.items():
            own[name] = context if kind is Context else _tool_context(context, groups, texts)
        return own

    if inspect.iscoroutinefunction(handler):

        async def run(context: Context, **texts: str) -> Any:
            return await handler(**given(context, texts))

        return run

    def run_plain(context: Context, **texts: str) -> Any:
        return handler(**given(context, texts))

    return run_plain


def _tool_context(context: Context, groups: tuple[str, ...], texts: Mapping[str, str]) -> ToolContext:
    """Return the agent's context, if this module may have it, with the groups; the user is always the call's."""
    said = context._agent_context or ToolContext(raw_arg="")
    raw = texts.get(_TEXT) or said.raw_arg or " ".join(texts[name] for name in groups if texts.get(name))
    own = {"raw_arg": raw, "user": context.user_id or "", "groups": {name: texts.get(name, "") for name in groups}}
    return said.model_copy(update=own)


def _takes(handler: Callable[..., Any], groups: tuple[str, ...]) -> dict[str, bool]:
    """Return the groups that it takes by name, each with whether it is required."""
    contexts = _contexts(handler, groups)
    found = {
        name: each.default is each.empty
        for name, each in inspect.signature(handler).parameters.items()
        if name not in contexts
    }
    if unknown := [name for name, is_needed in found.items() if is_needed and name not in groups]:
        raise ValueError(f"its handler wants {unknown[0]!r}, which is none of the tag's groups")
    return {name: is_needed for name, is_needed in found.items() if name in groups}


def _contexts(handler: Callable[..., Any], groups: tuple[str, ...]) -> dict[str, type]:
    """Return its parameters for contexts: the call's, by annotation; and the agent's, which is also a single one that is no group."""
    hints = typing.get_type_hints(handler)
    names = [name for name in inspect.signature(handler).parameters if name not in groups]
    found: dict[str, type] = {name: Context for name in names if hints.get(name) is Context}
    rest = [name for name in names if name not in found]
    found |= {name: ToolContext for name in rest if name == "context" or ToolContext in _kinds(hints.get(name))}
    if len(rest) == 1 and not set(rest) & found.keys() and len(names) == 1 and rest[0] not in hints:
        found[rest[0]] = ToolContext
    return found


def _kinds(hint: Any) -> tuple[Any, ...]:
    return (hint, *typing.get_args(hint))


def _handler_of(tool: Any) -> Callable[..., Any]:
    handler = tool.handler
    if not isinstance(handler, str):
        return typing.cast("Callable[..., Any]", handler)
    module, colon, name = handler.partition(":")
    found = getattr(importlib.import_module(module), name, None) if colon else None
    if not callable(found):
        raise ValueError(f"its handler {handler!r} is no function: a module's tool is served by its module")
    return typing.cast("Callable[..., Any]", found)


def _is_of(module: ModuleType, handler: Any) -> bool:
    """Return whether it is served from there: not if its handler is a function of another file of the folder."""
    place = handler.partition(":")[0] if isinstance(handler, str) else getattr(handler, "__module__", "")
    return place == module.__name__ or not str(place).startswith(f"{PACKAGE}.")


def langchain_tools_in(module: ModuleType) -> list[Any]:
    """Return those that a file has at its top, alone or in lists, but for those of another file."""
    return [each for each in _things_in(module) if is_langchain_tool(each) and _is_langchain_tool_of(module, each)]


def is_langchain_tool(thing: Any) -> bool:
    """Return whether it is a `BaseTool` of LangChain's."""
    tools = sys.modules.get(_LANGCHAIN)
    return tools is not None and isinstance(thing, tools.BaseTool)


def langchain_function(tool: Any) -> tuple[Callable[..., Any], Facts]:
    """Return the function of its calls, and the facts about it.

    Raises `TypeError` or `ValueError` for a tool that only an agent of LangChain's can call.
    """
    own_schema, names = _schema_of(tool)
    schema: dict[str, Any] = {"properties": {}, "additionalProperties": False, **own_schema}
    if missing := sorted(_needed(tool) - schema["properties"].keys() - names):
        raise ValueError(f"{tool.name} needs {missing[0]!r}, which only an agent of LangChain's fills in.")
    facts: Facts = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
        "output_schema": None,
    }
    own = tool.model_copy(
        update={"handle_tool_error": False, "handle_validation_error": False}
    )  # else a failure is a result
    if not _is_async(tool):

        def run_plain(**arguments: Any) -> Any:
            with _refusals(tool, arguments):
                return own.invoke(arguments)

        return run_plain, facts

    async def run(**arguments: Any) -> Any:
        with _refusals(tool, arguments):
            return await own.ainvoke(arguments)

    return run, facts


def _schema_of(tool: Any) -> tuple[dict[str, Any], AbstractSet[str]]:
    """Return the schema of what a model writes, as the tool's own model of the arguments reads it, and that model's names of them."""
    model = tool.args_schema
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        convert = importlib.import_module("langchain_core.utils.function_calling").convert_to_openai_function
        return dict(model if isinstance(model, dict) else convert(tool)["parameters"]), frozenset()
    names = tool.tool_call_schema.model_fields.keys()
    schema = without_titles(model.model_json_schema())
    for field in model.model_fields.keys() - names:  # what LangChain fills in, and no model
        name = model.model_fields[field].alias or field
        schema["properties"].pop(name, None)
        schema["required"] = [each for each in schema.get("required", ()) if each != name]
    schema.pop("description", None)  # of the arguments' model
    return schema, names


@contextmanager
def _refusals(tool: Any, arguments: Mapping[str, Any]) -> Generator[None]:
    """Hold the arguments against the model of them, and raise what the tool says to its model as `ToolError`."""
    model = tool.args_schema
    if isinstance(model, type) and issubclass(model, BaseModel):
        try:
            model.model_validate(dict(arguments))
        except ValidationError as exc:
            raise ToolError(f"Invalid arguments for {tool.name}: {in_words(exc)}", effect_state="none") from exc
    try:
        yield
    except sys.modules[_LANGCHAIN].ToolException as exc:
        how = tool.handle_tool_error
        raise ToolError(how if isinstance(how, str) else str(how(exc) if callable(how) else exc)) from exc


def _is_langchain_tool_of(module: ModuleType, tool: Any) -> bool:
    place = getattr(_function_of(tool), "__module__", "")
    is_others = place != module.__name__ and place.startswith(f"{PACKAGE}.")
    return not (is_others and any(tool is each for each in _things_in(sys.modules[place])))


def _function_of(tool: Any) -> Any:
    return getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)._run  # noqa: SLF001 - what a subclass defines


def _is_async(tool: Any) -> bool:
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not sys.modules[_LANGCHAIN].BaseTool._arun  # noqa: SLF001 - as above


def _needed(tool: Any) -> set[str]:
    """Return the parameters of its function that have no default, and that LangChain does not fill in for every caller."""
    parameters = list(inspect.signature(_function_of(tool)).parameters.values())
    if not hasattr(tool, "func"):
        del parameters[:1]  # self
    elif tool.args_schema is None:
        return set()  # one text, under any name
    return {
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        and each.name not in _FILLED_IN
        and "RunnableConfig" not in str(each.annotation)
    }

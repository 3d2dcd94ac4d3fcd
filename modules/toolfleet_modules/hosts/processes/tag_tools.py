"""Makes a module's tool of a tag tool, a `ToolDef`: its groups are its arguments, and its handler is called as an agent's is."""

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from toolfleet_modules.hosts.processes.load_plan import PACKAGE
from toolfleet_modules.sdk.offer import Facts
from toolfleet_registry.contracts.call_context import Context, ToolContext

_TEXT = "raw_arg"  # the group of a tag without groups
_TAGS = "toolfleet_registry.tags.tags"  # is not in every installation: who has made a `ToolDef` has imported it


def tag_tools_in(module: ModuleType) -> Iterator[Any]:
    """Yield the tools at a file's top level, alone or in lists, except those whose handler is another file's."""
    tags = sys.modules.get(_TAGS)
    if tags is None:
        return
    seen: list[Any] = []
    for each in things_in(module):
        if isinstance(each, tags.ToolDef) and each not in seen and _is_of(module, each.handler):
            seen.append(each)
            yield each


def things_in(module: ModuleType) -> Iterator[Any]:
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
        "cost": tool.cost,
        "requires_gate": tool.requires_gate,
        "cooldown_seconds": tool.cooldown_seconds or None,
        "daily_limit": tool.daily_limit or None,
        "input_schema": {
            "type": "object",
            "properties": {each: {"type": "string"} for each in groups},
            "required": needed,
            "additionalProperties": False,
        },
        "output_schema": None,
    }
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
    said = context._agent_context or ToolContext(raw_arg="")  # noqa: SLF001 - for this
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
        raise ValueError(f"its handler {handler!r} is no function: a module's tool is served by its module")  # noqa: TRY004 - one kind for all that is wrong with it
    return typing.cast("Callable[..., Any]", found)


def _is_of(module: ModuleType, handler: Any) -> bool:
    """Return whether it is served from there: not if its handler is a function of another file of the folder."""
    place = handler.partition(":")[0] if isinstance(handler, str) else getattr(handler, "__module__", "")
    return place == module.__name__ or not str(place).startswith(f"{PACKAGE}.")

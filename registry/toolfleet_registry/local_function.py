"""One function as a tool: what it offers, and how a call's arguments become its own."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from toolfleet_registry.contracts import Level, PublishedCall, ToolDefinition
from toolfleet_registry.functions.docstrings import words_of
from toolfleet_registry.functions.signature import USER, Signature
from toolfleet_registry.functions.titles import without_titles
from toolfleet_registry.names import LOCAL
from toolfleet_registry.permissions import OF_FUNCTIONS, level_fault
from toolfleet_registry.tags import ToolContext, ToolDef

Function = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Function)
R = TypeVar("R")

CONTEXT = "context"
"""A parameter of this name gets a `ToolContext`."""


def local_tool(*, permission: Level | None = None, **facts: Any) -> Callable[[F], F]:
    """Say more of a function that becomes a tool: who may use it (`user` and above, unless said otherwise), its `effect` or `timeout_seconds`.

    Anything that a `ToolDefinition` has, but for `name` and `parameters`. Raises `ValueError` for what it has not.
    """
    if unknown := facts.keys() - ToolDefinition.model_fields.keys() | facts.keys() & {"name", "parameters"}:
        raise ValueError(f"A local tool has no {', '.join(sorted(unknown))}.")
    if permission is not None:
        facts["required_permission"] = permission
    if "required_permission" in facts and (fault := level_fault(facts["required_permission"])):
        raise ValueError(f"A local tool's {fault}.")

    def mark(function: F) -> F:
        setattr(function, _FACTS, facts)
        return function

    return mark


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """A tool and its function, which gets a context if `takes_context`.

    `signature` reads a call's arguments; without one the function is called as a tag is, and `groups` says which of the tag's
    groups it takes, and whether each must be there.
    """

    definition: ToolDefinition
    function: Function
    signature: Signature | None
    groups: Mapping[str, bool]
    takes_context: bool

    @classmethod
    def of(cls, function: Function) -> Self:
        """A function by itself: its name, its docstring and its parameters make the tool, as in a module of the SDK.

        One whose only parameter is `context` is called as a tag is. Raises `ValueError`.
        """
        name = f"{LOCAL}.{function.__name__}"
        facts = {"required_permission": OF_FUNCTIONS, **_facts_of(function)}
        words = words_of(function.__doc__)
        if [*_parameters_of(function)] == [CONTEXT]:
            definition = _definition(name, _tag_schema(), {"description": words.description, **facts})
            return cls(definition, function, None, {}, takes_context=True)
        try:
            signature = Signature.of(function, words, is_context=_is_context, is_lenient=True)
        except TypeError as exc:
            raise ValueError(f"the parameters of {function.__name__!r} cannot be described: {exc}") from exc
        definition = _definition(name, dict(signature.schema), {"description": words.description, **facts})
        return cls(definition, function, signature, {}, signature.context is not None)

    @classmethod
    def of_tag(cls, tool: ToolDef, function: Function) -> Self:
        """The function of a tag: it takes `context`, the tag's groups by name, or both. Raises `ValueError`.

        It asks for no more than `guest`: whoever can write to an agent can call its tags, and is a guest of the fleet.
        """
        parameters = _parameters_of(function)
        takes_context = parameters.pop(CONTEXT, None) is not None
        groups = {name: parameter.default is parameter.empty for name, parameter in parameters.items()}
        if missing := [each for each, is_needed in groups.items() if is_needed and each not in tool.arg_groups]:
            raise ValueError(f"its handler wants {missing[0]!r}, which is none of the tag's groups")
        facts = {
            **_facts_of(function),
            "description": tool.description,
            "cost": tool.cost,
            "requires_gate": tool.requires_gate,
            "cooldown_seconds": tool.cooldown_seconds or None,
            "daily_limit": tool.daily_limit or None,
        }
        return cls(_definition(f"{LOCAL}.{tool.name}", _tag_schema(), facts), function, None, groups, takes_context)

    def bind(self, call: PublishedCall) -> Mapping[str, Any]:
        """The function's own arguments. Raises `ValueError`, with a reason that repeats no value, if they do not fit."""
        return self._bound_to_tag(call) if self.signature is None else self._bound(self.signature, call)

    def _bound(self, signature: Signature, call: PublishedCall) -> Mapping[str, Any]:
        own = _read(signature.read, call.arguments)
        if signature.needs_user and call.user_id is None:
            raise ValueError("it needs to know for which user, and the call has none")
        if signature.user:
            own[USER] = call.user_id
        if signature.context is not None:
            own[signature.context] = ToolContext(raw_arg="", user=call.user_id or "")
        return own

    def _bound_to_tag(self, call: PublishedCall) -> Mapping[str, Any]:
        # Who asks is not for the arguments to say: they may be a model's.
        context = _read(ToolContext.model_validate, {**call.arguments, "user": call.user_id or ""})
        own = dict[str, Any]()
        for name, is_needed in self.groups.items():
            text = context.groups.get(name)
            if is_needed and text is None:
                raise ValueError(f"'groups': {name!r} is missing")
            if text or is_needed:
                own[name] = text
        return {**own, CONTEXT: context} if self.takes_context else own


def _facts_of(function: Function) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = getattr(function, _FACTS, {})
    return facts


def _is_context(name: str, _: Any) -> bool:
    return name == CONTEXT


def _parameters_of(function: Function) -> dict[str, inspect.Parameter]:
    """Those of the function. Raises `ValueError` where arguments cannot be given by name."""
    parameters = dict(inspect.signature(function).parameters)
    for name, parameter in parameters.items():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise ValueError(f"the parameter {name!r} of {function.__name__!r} takes no single argument by name")
    return parameters


def _tag_schema() -> dict[str, Any]:
    schema = without_titles(ToolContext.model_json_schema())
    del schema["properties"]["user"], schema["description"]  # that is for whoever writes a handler
    return schema


def _definition(name: str, schema: dict[str, Any], facts: Mapping[str, Any]) -> ToolDefinition:
    try:
        return ToolDefinition.model_validate({"input_schema": schema, **facts, "name": name})
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{name!r} is wrong at {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from exc


def _read(read: Callable[[dict[str, Any]], R], arguments: Mapping[str, Any]) -> R:
    try:
        return read(dict(arguments))
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step)[:_SHOWN] for step in fault["loc"][:_MOST_STEPS])
        raise ValueError(f"{place!r}: {fault['msg']}") from None


_FACTS = "__toolfleet_facts__"
_SHOWN, _MOST_STEPS = 40, 3

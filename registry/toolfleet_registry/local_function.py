"""One function as a tool: what it offers, and how a call's arguments become its own."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from toolfleet_registry.contracts import PublishedCall, ToolDefinition
from toolfleet_registry.names import LOCAL
from toolfleet_registry.tags import ToolContext, ToolDef

Function = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Function)
M = TypeVar("M", bound=BaseModel)

CONTEXT = "context"
"""A parameter of this name gets a `ToolContext`."""


def local_tool(**facts: Any) -> Callable[[F], F]:
    """Say more of a function that becomes a tool: its `effect`, for example, `required_permission` or `timeout_seconds`.

    Anything that a `ToolDefinition` has, but for `name` and `parameters`. Raises `ValueError` for what it has not.
    """
    if unknown := facts.keys() - ToolDefinition.model_fields.keys() | facts.keys() & {"name", "parameters"}:
        raise ValueError(f"A local tool has no {', '.join(sorted(unknown))}.")

    def mark(function: F) -> F:
        setattr(function, _FACTS, facts)
        return function

    return mark


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """A tool and its function, which takes `parameters` (whether each must be there), and a context if `takes_context`.

    `arguments` reads a call's arguments: `ToolContext` where the function is called as a tag is.
    """

    definition: ToolDefinition
    function: Function
    arguments: type[BaseModel]
    parameters: Mapping[str, bool]
    takes_context: bool

    @classmethod
    def of(cls, function: Function) -> Self:
        """A function by itself: its name, its docstring's first paragraph and its parameters make the tool.

        One whose only parameter is `context` is called as a tag is. Raises `ValueError`.
        """
        name = f"{LOCAL}.{function.__name__}"
        parameters = _parameters_of(function)
        takes_context = parameters.pop(CONTEXT, None) is not None
        is_tag = takes_context and not parameters
        arguments = ToolContext if is_tag else _model_of(function, parameters)
        facts = {"description": _described(function), **_facts_of(function)}
        return cls(_definition(name, arguments, facts), function, arguments, _needs(parameters), takes_context)

    @classmethod
    def of_tag(cls, tool: ToolDef, function: Function) -> Self:
        """The function of a tag: it takes `context`, the tag's groups by name, or both. Raises `ValueError`."""
        name = f"{LOCAL}.{tool.name}"
        parameters = _parameters_of(function)
        takes_context = parameters.pop(CONTEXT, None) is not None
        needs = _needs(parameters)
        if missing := [each for each, is_needed in needs.items() if is_needed and each not in tool.arg_groups]:
            raise ValueError(f"its handler wants {missing[0]!r}, which is none of the tag's groups")
        facts = {
            **_facts_of(function),
            "description": tool.description,
            "cost": tool.cost,
            "requires_gate": tool.requires_gate,
            "cooldown_seconds": tool.cooldown_seconds or None,
            "daily_limit": tool.daily_limit or None,
        }
        return cls(_definition(name, ToolContext, facts), function, ToolContext, needs, takes_context)

    def bind(self, call: PublishedCall) -> Mapping[str, Any]:
        """The function's own arguments. Raises `ValueError`, with a reason that repeats no value, if they do not fit."""
        user = call.user_id or ""
        if self.arguments is not ToolContext:
            read = _validated(self.arguments, call.arguments)
            own = {name: getattr(read, name) for name in read.model_fields_set}
            return {**own, CONTEXT: ToolContext(raw_arg="", user=user)} if self.takes_context else own
        # Who asks is not for the arguments to say: they may be a model's.
        context = _validated(ToolContext, {**call.arguments, "user": user})
        own = dict[str, Any]()
        for name, is_needed in self.parameters.items():
            text = context.groups.get(name)
            if is_needed and text is None:
                raise ValueError(f"'groups': {name!r} is missing")
            if text or is_needed:
                own[name] = text
        return {**own, CONTEXT: context} if self.takes_context else own


def _facts_of(function: Function) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = getattr(function, _FACTS, {})
    return facts


def _described(function: Function) -> str:
    return (inspect.getdoc(function) or "").partition("\n\n")[0]


def _parameters_of(function: Function) -> dict[str, inspect.Parameter]:
    """Those of the function. Raises `ValueError` where arguments cannot be given by name."""
    parameters = dict(inspect.signature(function).parameters)
    for name, parameter in parameters.items():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise ValueError(f"the parameter {name!r} of {function.__name__!r} takes no single argument by name")
    return parameters


def _needs(parameters: Mapping[str, inspect.Parameter]) -> dict[str, bool]:
    return {name: parameter.default is parameter.empty for name, parameter in parameters.items()}


def _model_of(function: Function, parameters: Mapping[str, inspect.Parameter]) -> type[BaseModel]:
    """What reads a call's arguments for these parameters, by their annotations."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {
            name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in parameters.items()
        }
        return create_model(function.__name__, __config__=_STRICT_NAMES, **fields)
    except (PydanticUserError, NameError, TypeError) as exc:
        raise ValueError(f"the parameters of {function.__name__!r} cannot be described: {exc}") from exc


def _definition(name: str, arguments: type[BaseModel], facts: Mapping[str, Any]) -> ToolDefinition:
    try:
        schema = arguments.model_json_schema()
        if arguments is ToolContext:
            del schema["properties"]["user"]
        return ToolDefinition.model_validate({"input_schema": schema, **facts, "name": name})
    except (PydanticUserError, PydanticInvalidForJsonSchema) as exc:
        raise ValueError(f"the parameters of {name!r} cannot be described: {exc}") from exc
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{name!r} is wrong at {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from exc


def _validated(model: type[M], arguments: Mapping[str, Any]) -> M:
    try:
        return model.model_validate(arguments)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step)[:_SHOWN] for step in fault["loc"][:_MOST_STEPS])
        raise ValueError(f"{place!r}: {fault['msg']}") from None


_FACTS = "__toolfleet_facts__"
_STRICT_NAMES = ConfigDict(extra="forbid", hide_input_in_errors=True, protected_namespaces=())
_SHOWN, _MOST_STEPS = 40, 3

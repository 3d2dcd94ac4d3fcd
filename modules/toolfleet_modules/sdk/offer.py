"""Derives a tool's definition from its function: what the signature and the docstring do not say, the decorator does."""

import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from pydantic import ValidationError

from toolfleet_registry.contracts import CostClass, Effect, Level, ToolDefinition, ToolParameter
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.signature import (
    Signature,
    function_behind,
    output_schema_of,
    signature_of_given,
    words_of,
)
from toolfleet_registry.permissions import OF_FUNCTIONS, level_fault


class ApproverFacts(TypedDict, total=False):
    """The approvers of calls: users with `permission` or a higher one, these `users`, or the holders of these API `keys`."""

    permission: Level
    users: tuple[str, ...] | list[str]
    keys: tuple[str, ...] | list[str]


class Facts(TypedDict, total=False):
    """The facts of a tool: the fields of a `ToolDefinition`, with `permission` for `required_permission`.

    `approval`: people have to approve each call before it starts: admins, or these `approvers`, of which a list names
    users. `sensitive` names parameters that are stored nowhere after a call. `output_schema`: `None` for none, instead
    of the return annotation's. `input_schema`: of the arguments, instead of the signature's; a function with
    `**arguments` gets all that it allows.
    """

    name: str
    description: str
    permission: Level
    effect: Effect | None
    timeout_seconds: float | None
    version: str | None
    tags: tuple[str, ...] | list[str]
    cost: CostClass | None
    cooldown_seconds: float | None
    daily_limit: int | None
    requires_gate: bool
    approval: bool
    approvers: ApproverFacts | tuple[str, ...] | list[str]
    deprecated: bool
    successor: str | None
    sensitive: tuple[str, ...] | list[str]
    output_schema: dict[str, Any] | None
    input_schema: dict[str, Any]


def definition_from(module: str, function: Callable[..., Any], facts: Facts) -> tuple[ToolDefinition, Signature]:
    """The tool that a function makes. Raises `TypeError` or `ValueError`, in one sentence."""
    method = str(facts.get("name") or getattr(function, "__name__", type(function).__name__))
    if not _METHOD.fullmatch(method):
        raise ValueError(
            f"{str(method)[:80]!r} is no name for a tool: letters, digits and _, at most 64, beginning with a letter."
        )
    name = f"{module}.{method}"
    words = words_of(function_behind(function).__doc__)
    signature = (
        signature_of_given(function, words, facts["input_schema"], is_context=_is_context)
        if "input_schema" in facts
        else Signature.of(function, words, is_context=_is_context)
    )
    sensitive = _sensitive(name, facts, signature)
    fields: dict[str, Any] = {key: value for key, value in facts.items() if key not in _NO_FIELDS}
    if "output_schema" not in facts:
        fields["output_schema"] = output_schema_of(function)
    _check(name, facts)
    if "approvers" in facts:
        who = facts["approvers"]
        fields["approval"] = who if isinstance(who, Mapping) else {"users": list(who)}
    try:
        definition = ToolDefinition.model_validate(
            {
                "description": words.description,
                **fields,
                "name": name,
                "required_permission": facts.get("permission", OF_FUNCTIONS),
                "tags": list(facts.get("tags", ())),
                "parameters": _parameters(signature.schema, sensitive),
                "input_schema": signature.schema,
            }
        )
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{name} is wrong at {'.'.join(map(str, fault['loc']))}: {fault['msg']}.") from None
    if "input_schema" in facts:
        from toolfleet_registry.schemas.validation import schema_fault  # noqa: PLC0415 - most tools are given no schema

        if wrong := schema_fault(definition):
            raise ValueError(f"{name}: {wrong}.")
    return definition, signature


def _is_context(_: str, hint: Any) -> bool:
    plain = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return plain is Context


def _check(name: str, facts: Facts) -> None:
    if unknown := facts.keys() - Facts.__annotations__.keys():
        raise TypeError(f"{name}: a tool has no {min(unknown)!r}.")
    if isinstance(facts.get("approvers"), str) or ("approvers" in facts and facts.get("approval") is False):
        raise TypeError(
            f"{name}: approvers takes several users, or who may approve by permission, users and keys; and approval is then not False."
        )
    if fault := level_fault(facts.get("permission", OF_FUNCTIONS)):
        raise ValueError(f"{name}: {fault}.")
    if (cost := facts.get("cost")) not in {None, "free", "cheap", "expensive"}:
        raise ValueError(f"{name}: cost must be free, cheap or expensive, not {cost!r}.")


def _sensitive(name: str, facts: Facts, signature: Signature) -> frozenset[str]:
    named = facts.get("sensitive", ())
    if isinstance(named, str):  # type: ignore[unreachable] # an easy mistake
        raise TypeError(f"{name}: sensitive takes several names, such as ({named!r},).")
    if unknown := set(named) - set(signature.schema["properties"]):
        raise ValueError(f"{name}: {min(unknown)!r}, which is to be sensitive, is no argument of it.")
    return frozenset(named)


def _parameters(schema: Mapping[str, Any], sensitive: frozenset[str]) -> list[ToolParameter]:
    """The flat form, for those who read no schemas: of several types the first, and what a reference stands for."""
    return [
        ToolParameter(
            name=name,
            type=_type(it, schema),
            description=str(it.get("description", "")),
            required=name in schema.get("required", ()),
            enum=it.get("enum"),
            sensitive=name in sensitive,
        )
        for name, it in ((name, it if isinstance(it, dict) else {}) for name, it in schema["properties"].items())
    ]


def _type(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    for _ in range(_STEPS):
        if isinstance(part.get("type"), str):
            return str(part["type"])
        if "$ref" in part:
            part = schema.get("$defs", {}).get(str(part["$ref"]).rpartition("/")[2], {})
            continue
        several = part.get("anyOf") or part.get("oneOf") or part.get("allOf") or ()
        part = next((each for each in several if each.get("type") != "null"), {})
    return "any"


_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_NO_FIELDS = frozenset({"approvers", "input_schema", "name", "permission", "sensitive", "tags"})
_STEPS = 8  # of references

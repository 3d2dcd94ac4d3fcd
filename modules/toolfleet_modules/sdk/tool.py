"""Makes a tool of one function, in a module or marked in a file, from its signature, its docstring and its decorator."""

import inspect
import logging
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from toolfleet_modules.calls.reply import Reply
from toolfleet_registry.contracts import Effect, Level, ToolDefinition, ToolParameter
from toolfleet_registry.contracts.attempts import UNEXPLAINED
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.contracts.limits import LimitFacts
from toolfleet_registry.contracts.tool_definition import concurrency_fault
from toolfleet_registry.functions.signature import (
    USER,
    Signature,
    function_behind,
    output_schema_of,
    signature_of_given,
    words_of,
)
from toolfleet_registry.permissions import OF_FUNCTIONS, level_fault

if TYPE_CHECKING:  # a manifest runs nothing
    from toolfleet_modules.calls.work import RunMeans
    from toolfleet_modules.sdk.tool_run import ToolRun

_log = logging.getLogger("toolfleet.sdk")  # not structlog: its tracebacks may show variables, and those are arguments

_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_NO_FIELDS = frozenset({"approvers", "input_schema", "name", "permission", "sensitive", "tags"})
_STEPS = 8  # of references

_MISTAKES = 4  # told at once: a table can have thousands
_SHOWN = 60  # characters of a place, some of which a model makes up
_PLAIN_WORDS = {  # for what pydantic says in Python's terms, which a model does not see
    "missing": "This argument is required",
    "extra_forbidden": "There is no such argument",
}

F = TypeVar("F", bound=Callable[..., Any])
RunsIn = Literal["thread", "process"]

_ATTRIBUTE = "__toolfleet_tool__"


class ApproverFacts(TypedDict, total=False):
    """The approvers of calls: users with `permission` or a higher one, these `users`, or the holders of these API `keys`."""

    permission: Level
    users: tuple[str, ...] | list[str]
    keys: tuple[str, ...] | list[str]


class Facts(LimitFacts, total=False):
    """The facts of a tool: the fields of a `ToolDefinition`, with `permission` for `required_permission`.

    `approval`: people have to approve each call before it starts: admins, or these `approvers`, of which a list names
    users. `concurrency_key`: the path of an argument; calls with the same value wait for their turn, `concurrency_limit`
    run at once, of all users unless `concurrency_per_user`. `sensitive` names parameters that are stored nowhere after a call. `output_schema`: `None` for none, instead
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
    concurrency_key: str | None
    concurrency_limit: int
    concurrency_per_user: bool
    requires_gate: bool
    approval: bool
    approvers: ApproverFacts | tuple[str, ...] | list[str]
    deprecated: bool
    successor: str | None
    sensitive: tuple[str, ...] | list[str]
    output_schema: dict[str, Any] | None
    input_schema: dict[str, Any]


def _definition_from(module: str, function: Callable[..., Any], facts: Facts) -> tuple[ToolDefinition, Signature]:
    """Return the tool that a function makes. Raises `TypeError` or `ValueError`, with a message of one sentence."""
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
    wrong = concurrency_fault(definition)
    if "input_schema" in facts:
        from toolfleet_registry.schemas.validation import schema_fault  # most tools are given no schema

        wrong = schema_fault(definition) or wrong
    if wrong:
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
    """Return the flat form of a schema, for readers without JSON Schema: the first of several types, references resolved."""
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


@dataclass(frozen=True, slots=True)
class Tool:
    """A definition and its function. `is_plain`: it runs in a thread.

    `is_rerun`: a failure that says nothing of its effect may be run again, with any effect. `is_given`: its arguments
    are validated by the schema that it was given, as its function's signature does not state it.
    """

    definition: ToolDefinition
    function: Callable[..., Any]
    signature: Signature
    is_plain: bool
    is_rerun: bool = False
    is_given: bool = False

    @classmethod
    def of(cls, module: str, function: Callable[..., Any], facts: Facts, *, is_rerun: bool = False) -> Self:
        """Read the function. Raises `TypeError` or `ValueError` for what cannot be a tool."""
        if not callable(function):
            raise TypeError(f"{function!r} is no function.")
        definition, signature = _definition_from(module, function, facts)
        call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
            raise TypeError(
                f"{definition.name} yields; a tool returns one result, and reports with context.progress()."
            )
        is_plain = not inspect.iscoroutinefunction(call)
        return cls(definition, function, signature, is_plain, is_rerun, "input_schema" in facts)

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run does nothing more than the first."""
        return self.definition.effect in {"read", "idempotent"}

    @property
    def reruns_failures(self) -> bool:
        """Whether a call that failed runs again when it is repeated."""
        return self.is_repeatable or (self.is_rerun and self.definition.effect is None)

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of the arguments that a model writes."""
        return frozenset(self.signature.names.values())

    def begin(self, arguments: Mapping[str, Any], context: "Context", means: "RunMeans") -> "ToolRun | Reply":
        """Return a run with these arguments, or the reply to invalid ones."""
        from toolfleet_modules.sdk.tool_run import ToolRun

        if self.definition.concurrency_key is not None:
            context._arguments = arguments
        read = self.read(arguments, context.user_id)
        return read if isinstance(read, Reply) else ToolRun(self, context, read, means)

    def read(self, arguments: Mapping[str, Any], user_id: str | None) -> dict[str, Any] | Reply:
        """Return the function's arguments, or the reply to invalid ones."""
        name = self.definition.name
        if self.is_given:
            from toolfleet_registry.schemas.validation import checked  # most tools are given no schema

            held = checked(self.definition, dict(arguments))
            if held.arguments is None:
                return Reply.failure(name, f"Invalid arguments for {name}: {held.fault}", effect_state="none")
            arguments = held.arguments
        try:
            own = self.signature.read(arguments)
        except ValidationError as exc:
            return Reply.failure(name, f"Invalid arguments for {name}: {in_words(exc)}", effect_state="none")
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001 - a validator is an author's: it may raise anything
            _log.error("%s cannot read its arguments", name, exc_info=exc)
            error = f"{name} failed over its arguments inside the module ({type(exc).__name__}); its {UNEXPLAINED}"
            return Reply.failure(name, error, effect_state="none")
        if self.signature.needs_user and user_id is None:
            return Reply.failure(name, f"{name} needs to know for which user; the call has none.", effect_state="none")
        return {**own, USER: user_id} if self.signature.user else own


def in_words(exc: ValidationError) -> str:
    """Describe each mistake in one sentence, without the value, which may be long or secret."""
    errors = exc.errors(include_url=False, include_input=False)
    words = [
        f"{'.'.join(map(str, error['loc']))[:_SHOWN] or 'request'}: {_said_of(error)}." for error in errors[:_MISTAKES]
    ]
    return " ".join([*words, "And more."] if len(errors) > _MISTAKES else words)


def _said_of(error: ErrorDetails) -> str:
    if error["type"] == "union_tag_invalid":  # pydantic's words quote the value
        known = error.get("ctx", {})
        return f"{known.get('discriminator')} should be one of {known.get('expected_tags')}"
    return _PLAIN_WORDS.get(error["type"], error["msg"])


@dataclass(frozen=True, slots=True)
class ToolMark:
    """The declaration of a tool function: its facts, where it runs, and the names of the secrets that it gets."""

    facts: Facts = field(default_factory=Facts)
    runs_in: RunsIn = "thread"
    secrets: tuple[str, ...] = ()


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(*, runs_in: RunsIn = "thread", secrets: Sequence[str] = (), **facts: Unpack[Facts]) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    runs_in: RunsIn = "thread",
    secrets: Sequence[str] = (),
    **facts: Unpack[Facts],
) -> F | Callable[[F], F]:
    """Mark a function of a tool folder as a tool: as a decorator, with or without arguments. The function is not changed.

    ::

        @tool(effect="read")
        def count(day: int) -> dict[str, int]:
            \"\"\"Count the owls of a day.\"\"\"

    The same rules hold as for `Module.tool`. An async function runs in the event loop of the folder's process.

    Args:
        function: The function, async or plain.
        runs_in: Where a plain function runs: in a thread of the folder's process, or each call in a process of its own,
            which is ended when the call's time is over. Choose a process for a function that computes.
        secrets: The names of the host's secrets whose values a call finds in `context.secrets`.
        **facts: What the function does not say of itself, see `Facts`.

    Returns:
        The function, or the decorator.

    Raises:
        TypeError: The function cannot be marked, or an argument has a wrong type.
        ValueError: `runs_in` is neither of the two.
    """
    if runs_in not in {"thread", "process"}:
        raise ValueError(f"runs_in is 'thread' or 'process', not {runs_in!r}.")
    if isinstance(secrets, str):  # an easy mistake
        raise TypeError(f"secrets takes several names, such as [{secrets!r}].")
    mark = ToolMark(facts, runs_in, tuple(map(str, secrets)))
    return _marked(function, mark) if function is not None else lambda each: _marked(each, mark)


def mark_of(thing: object) -> ToolMark | None:
    """Return what `tool` has said of it; `None` if it is no tool."""
    mark = getattr(thing, "__dict__", {}).get(_ATTRIBUTE)
    return mark if isinstance(mark, ToolMark) else None


def _marked(function: F, mark: ToolMark) -> F:
    if not callable(function):
        raise TypeError(f"{function!r} is no function.")
    try:
        setattr(function, _ATTRIBUTE, mark)
    except AttributeError:
        raise TypeError(f"{function!r} cannot be marked as a tool; write a function that calls it.") from None
    return function

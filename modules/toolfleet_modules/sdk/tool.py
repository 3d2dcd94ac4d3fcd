"""Makes a tool of one function: defines it, and runs it."""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from toolfleet_modules.requests.reply import Reply
from toolfleet_modules.sdk.offer import Facts, definition_from
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.outcomes import UNEXPLAINED
from toolfleet_registry.functions.signature import USER, Signature

if TYPE_CHECKING:  # a manifest runs nothing
    from toolfleet_modules.once.served_tool import RunMeans
    from toolfleet_modules.sdk.tool_run import ToolRun
    from toolfleet_registry.contracts.call_context import Context

_log = logging.getLogger("toolfleet.sdk")  # not structlog: its tracebacks may show variables, and those are arguments

_MISTAKES = 4  # told at once: a table can have thousands
_SHOWN = 60  # characters of a place, some of which a model makes up
_PLAIN_WORDS = {  # for what pydantic says in Python's terms, which a model does not see
    "missing": "This argument is required",
    "extra_forbidden": "There is no such argument",
}


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
        definition, signature = definition_from(module, function, facts)
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
        from toolfleet_modules.sdk.tool_run import ToolRun  # noqa: PLC0415 - as above

        read = self.read(arguments, context.user_id)
        return read if isinstance(read, Reply) else ToolRun(self, context, read, means)

    def read(self, arguments: Mapping[str, Any], user_id: str | None) -> dict[str, Any] | Reply:
        """Return the function's arguments, or the reply to invalid ones."""
        name = self.definition.name
        if self.is_given:
            from toolfleet_registry.schemas.validation import checked  # noqa: PLC0415 - most tools are given no schema

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
    """One sentence a mistake, without the value: it may be long, or secret."""
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

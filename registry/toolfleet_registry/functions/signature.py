"""Reads a function's signature and docstring as a tool: the JSON Schema of its arguments, and how a call's arguments become its own.

What stands before the first section is the tool's description. `Args:` (or `Arguments:`, `Parameters:`) describes
parameters, one `name: text` or `name (type): text` each, indented; longer texts go on in lines that are indented further.
Other sections (`Returns:`, `Raises:`, `Examples:` …) are for readers of the code and are left out.

A model reads every word, and some providers take no defaults.

Every mistake of an author's is a `TypeError` or a `ValueError` here, when the tool is defined: never at a call.
"""

import inspect
import itertools
import json
import re
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import PydanticJsonSchemaWarning

from toolfleet_registry.functions.files import tell_encodings, with_base64

_ABOUT_PARAMETERS = frozenset({"Args", "Arguments", "Parameters"})
_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|Warns?|Warnings?|See Also|Todo"
    r"|References):"
)
_PARAMETER = re.compile(r"\**(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)")
_KEPT = re.compile(
    r"^(\s|[-*+] |\d+[.)] |```|\|)", re.MULTILINE
)  # lists, tables and code lose their meaning in one line

_OF_SCHEMAS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})

_VALUES = frozenset({"default", "const", "enum", "examples"})

USER = "user_id"
"""A parameter of this name gets the call's user, who is never for the arguments to say."""

_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True, protected_namespaces=())


@dataclass(frozen=True, slots=True)
class DocstringWords:
    """The tool's description, and those of the parameters that have one. Lines within a paragraph are joined."""

    description: str
    parameters: Mapping[str, str]


def words_of(docstring: str | None) -> DocstringWords:
    """Read a docstring; without one, there are no words."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    heads = [number for number, line in enumerate(lines) if _SECTION.fullmatch(line)]
    parameters: dict[str, str] = {}
    for start, end in itertools.pairwise([*heads, len(lines)]):
        if lines[start].strip(":") in _ABOUT_PARAMETERS:
            parameters |= _parameters(lines[start + 1 : end])
    return DocstringWords(_paragraphs(lines[: heads[0]] if heads else lines), parameters)


def _parameters(lines: list[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    depth = min((_indent(line) for line in lines if line.strip()), default=0)
    name: str | None = None
    for line in lines:
        begun = _PARAMETER.fullmatch(line.strip()) if line.strip() and _indent(line) == depth else None
        if begun:
            name = str(begun["name"])
            texts[name] = [str(begun["text"])]
        elif name is not None:
            texts[name].append(line.strip())
    return {name: " ".join(filter(None, text)) for name, text in texts.items()}


def _paragraphs(lines: list[str]) -> str:
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(block if _KEPT.search(block) else " ".join(block.split()) for block in blocks)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy; a property that is called `title` stays."""
    return {
        keyword: {name: _copied(each) for name, each in value.items()}
        if keyword in _OF_SCHEMAS and isinstance(value, dict)
        else value
        if keyword in _VALUES
        else _copied(value)
        for keyword, value in schema.items()
        if keyword != "title" and not (keyword == "default" and value is None)
    }


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return without_titles(value)
    return [_copied(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Signature:
    """`schema`: of the arguments that a model writes. `context` names the parameter that gets a context, if there is one.

    `user`: whether the function takes the user's id; `needs_user`: whether it takes no call without one.
    """

    model: type[BaseModel]
    names: Mapping[str, str]  # the parameters' by the model's fields': any parameter's name is good, also `schema`
    schema: Mapping[str, Any]
    context: str | None
    user: bool
    needs_user: bool

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        words: DocstringWords,
        *,
        is_context: Callable[[str, Any], bool],
        is_lenient: bool = False,
        is_open: bool = False,
    ) -> Self:
        """Read a function; `is_context` knows the parameter that gets one by name and annotation.

        Raises `TypeError` for what no call could give it, `ValueError` for a docstring of another. `is_lenient`: parameters
        without annotation take anything, and defaults and docstrings are believed. `is_open`: it may have `**arguments`,
        which are left out here.
        """
        name = getattr(function, "__name__", type(function).__name__)
        parameters, hints = _parameters_of(function, name, is_lenient=is_lenient, is_open=is_open)
        contexts = [each for each in parameters if is_context(each, hints[each])]
        if len(contexts) > 1:
            raise TypeError(f"{name}() has two contexts, {contexts[0]!r} and {contexts[1]!r}.")
        offered = {each: it for each, it in parameters.items() if each not in {*contexts, USER}}
        if (unknown := words.parameters.keys() - parameters.keys()) and not is_lenient:
            raise ValueError(f"{name}() has no parameter {min(unknown)!r}, which its docstring describes.")
        fields: dict[str, Any] = {}
        for number, (each, parameter) in enumerate(offered.items()):
            if not is_lenient:
                _check_default(name, each, hints[each], parameter.default)
            fields[f"p{number}"] = _field(each, parameter, hints[each], words)
        model, schema = _model(name, fields)
        return cls(
            model,
            dict(zip(fields, offered, strict=True)),
            schema,
            contexts[0] if contexts else None,
            USER in parameters,
            USER in parameters and not _accepts(hints[USER], None),
        )

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function's own arguments, without those that were not given.

        Raises pydantic's `ValidationError`.
        """
        read = self.model.model_validate(dict(arguments))
        return {self.names[field]: getattr(read, field) for field in read.model_fields_set}


def output_schema_of(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the schema of what the function returns, if its annotation names the fields of an object; `None` otherwise."""
    try:
        hint = typing.get_type_hints(function_behind(function), include_extras=True).get("return", Any)
        schema = without_titles(TypeAdapter(hint).json_schema(mode="serialization"))
    except (PydanticUserError, PydanticInvalidForJsonSchema, NameError, TypeError):
        return None  # a tool may return what has no schema, as long as it is JSON in the end
    return schema if schema.get("type") == "object" and schema.get("properties") else None


def function_behind(function: Callable[..., Any]) -> Any:
    """Return the object with the annotations and the docstring: a callable object's `__call__`, a partial's function."""
    target = inspect.unwrap(function)
    if inspect.isfunction(target) or inspect.ismethod(target):
        return target
    partial = getattr(target, "func", None)  # functools.partial
    return function_behind(partial) if partial is not None else type(target).__call__


def _parameters_of(
    function: Callable[..., Any], name: str, *, is_lenient: bool, is_open: bool
) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    taken = inspect.signature(function).parameters
    parameters = {each: it for each, it in taken.items() if not (is_open and it.kind is it.VAR_KEYWORD)}
    try:
        hints = typing.get_type_hints(function_behind(function), include_extras=True)
    except (NameError, TypeError, SyntaxError) as exc:
        raise TypeError(f"The annotations of {name}() cannot be read: {exc}.") from exc
    for each, parameter in parameters.items():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise TypeError(f"{name}() takes {str(parameter).partition(':')[0]!r}; every parameter must have a name.")
        if each not in hints and each == USER:
            hints[each] = str | None
        if each not in hints and is_lenient:
            hints[each] = Any
        elif each not in hints:
            raise TypeError(f"The parameter {each!r} of {name}() has no annotation, so that a model could not know it.")
        hints[each] = with_base64(hints[each])
    return parameters, hints


def _field(name: str, parameter: inspect.Parameter, hint: Any, words: DocstringWords) -> tuple[Any, Any]:
    """Return the parameter as pydantic's `create_model` takes it: under its own name outside, and described."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        hint = Annotated[hint, default]
    info: Any = (
        Field(alias=name)
        if default is parameter.empty or isinstance(default, FieldInfo)
        else Field(default, alias=name)
    )
    if (text := words.parameters.get(name)) and not _is_described(hint):
        info.description = text
        info._attributes_set["description"] = text  # noqa: SLF001 - how pydantic merges it with that of Annotated
    return hint, info


def _check_default(function: str, name: str, hint: Any, default: Any) -> None:
    """Refuse a default that the annotation does not allow: it would be shown to models, and refused when one sends it."""
    if isinstance(default, FieldInfo):
        raise TypeError(
            f"The parameter {name!r} of {function}() has a Field as its default; write Annotated[type, Field(...)] instead."
        )
    if default is inspect.Parameter.empty:
        return
    try:
        TypeAdapter(hint).validate_python(default)
    except ValidationError:
        raise TypeError(f"The default of {name!r} of {function}() is not what its annotation allows.") from None
    except PydanticUserError as exc:
        raise TypeError(
            f"The parameter {name!r} of {function}() has a type without a JSON Schema: {_first(exc)}"
        ) from exc


def _model(name: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            model = create_model(name, __config__=_STRICT, **fields)
            return model, tell_encodings(without_titles(model.model_json_schema()))
    except PydanticJsonSchemaWarning as exc:
        raise TypeError(f"A default of {name}() cannot be written as JSON: {exc}") from exc
    except (PydanticUserError, PydanticInvalidForJsonSchema, NameError, TypeError) as exc:
        raise TypeError(f"The parameters of {name}() have no JSON Schema: {_first(exc)}") from exc


def _is_described(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated and any(
        isinstance(each, FieldInfo) and each.description for each in typing.get_args(hint)[1:]
    )


def _accepts(hint: Any, value: object) -> bool:
    try:
        TypeAdapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


def _first(exc: Exception) -> str:
    return str(exc).partition("\n")[0]


@dataclass(frozen=True, slots=True)
class OpenSignature(Signature):
    """The signature of a function with `**arguments`, which takes anything that its schema allows."""

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they came: only the schema describes them."""
        return dict(arguments)


def signature_of_given(
    function: Callable[..., Any], words: DocstringWords, given: Any, *, is_context: Callable[[str, Any], bool]
) -> Signature:
    """Read a function that is to have this schema, as a bridge to other servers does. Raises `TypeError` or `ValueError` where they do not agree."""
    name = getattr(function, "__name__", type(function).__name__)
    schema = _plain(name, given)
    taken = inspect.signature(function).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in taken):
        signature = Signature.of(function, words, is_context=is_context)
        _compare(name, schema, signature.schema)
        return replace(signature, schema=schema)
    read = Signature.of(function, DocstringWords("", {}), is_context=is_context, is_open=True)
    if read.names:
        own = min(read.names.values())
        raise TypeError(
            f"{name}() takes {own!r} beside its **arguments; with a schema that is given it takes one or the other."
        )
    filled = {each for each in (read.context, USER if read.user else None) if each is not None}
    if clash := filled & schema["properties"].keys():
        raise ValueError(f"The input_schema of {name}() has {min(clash)!r}, which is filled in.")
    names = {each: each for each in schema["properties"]}
    return OpenSignature(read.model, names, schema, read.context, read.user, read.needs_user)


def _plain(name: str, given: Any) -> dict[str, Any]:
    """Return a copy, of an object with properties."""
    if not isinstance(given, dict):
        raise TypeError(f"The input_schema of {name}() is no dictionary.")
    try:
        schema: dict[str, Any] = {"type": "object", "properties": {}, **json.loads(json.dumps(given, allow_nan=False))}
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(f"The input_schema of {name}() is no JSON: {exc}.") from exc
    if schema["type"] != "object" or not isinstance(schema["properties"], dict):
        raise ValueError(f"The input_schema of {name}() is not that of an object.")
    return schema


def _compare(name: str, schema: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Check that each property is a parameter, and that each parameter without a default is required."""
    if unknown := schema["properties"].keys() - own["properties"].keys():
        raise ValueError(f"The input_schema of {name}() has {min(unknown)!r}, which is no parameter of it.")
    if missing := set(own.get("required", ())) - set(schema.get("required", ())):
        raise ValueError(f"The input_schema of {name}() does not require {min(missing)!r}, which has no default.")

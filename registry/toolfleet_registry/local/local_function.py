"""Makes a tool of one function: what it offers, and how a call's arguments become its own.

Nothing that a function does ends more than its call. One that does not end with its call is left behind, and a plain one
keeps its thread for so long.
"""

import asyncio
import dataclasses
import functools
import hashlib
import inspect
import json
import marshal
import re
import sys
import threading
import traceback
import typing
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from types import CodeType
from typing import Any, Self, TypeVar, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolfleet_registry.contracts import Level, ToolDefinition
from toolfleet_registry.contracts.attempts import UNEXPLAINED
from toolfleet_registry.contracts.call_context import Context, ToolContext, run_for
from toolfleet_registry.contracts.calls import MOST_FILES, ResultFile
from toolfleet_registry.contracts.limits import limits_in
from toolfleet_registry.contracts.names import LOCAL, ToolName, name_fault
from toolfleet_registry.contracts.tool_definition import concurrency_fault
from toolfleet_registry.errors import BodyTooLarge, InvalidToolName
from toolfleet_registry.functions.files import File, Gathered
from toolfleet_registry.functions.signature import USER, Signature, function_behind, words_of
from toolfleet_registry.functions.threads import NotBegun, Threads
from toolfleet_registry.permissions import OF_FUNCTIONS, level_fault
from toolfleet_registry.system.http_bodies import loads_strict
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tags import ToolDef

log = get_logger(__name__)

Function = Callable[..., Any]
"""An async function, or a plain one, which runs in a thread."""
F = TypeVar("F", bound=Function)
R = TypeVar("R")

_OWN = {"parameters", "takes_context", "code_digest"}  # that the function says itself
_FACTS = "__toolfleet_facts__"
_GROUP_NAME = "raw_arg"  # what a tag's only group is called unless it says otherwise
_SHOWN, _MOST_STEPS = 40, 3

_CONTEXT_NAME = "context"
_CONTEXT_ANNOTATION = re.compile(r"\bToolContext\b")

_TURN_BYTES = 2**16  # written before other calls get their turn

_GRACE_SECONDS = 0.5  # for a cancelled function to clean up before it is left behind; less than the pool gives us

ANSWER_SECONDS = 0.5
"""For the answer that there was no thread: what is left of a call's time, so that it reaches the agent before the deadline."""


@overload
def local_tool(function: F, /) -> F: ...
@overload
def local_tool(*, name: str | None = None, permission: Level | None = None, **facts: Any) -> Callable[[F], F]: ...
def local_tool(
    function: F | None = None, /, *, name: str | None = None, permission: Level | None = None, **facts: Any
) -> F | Callable[[F], F]:
    """Declare facts of a function that becomes a tool. Without parentheses it only marks the function as a tool.

    Args:
        function: The function, if the decorator has no parentheses.
        name: The tool's name, if it is not the function's.
        permission: The lowest permission that can use it. None: `user`.
        facts: Other fields of `ToolDefinition`, such as `effect` or `timeout_seconds`, except `parameters`,
            `takes_context` and `code_digest`.

    Returns:
        The function, or a decorator for it.

    Raises:
        ValueError: Tools do not have such facts.
        TypeError: It is not a function.

    """
    if function is not None and not callable(function):
        raise TypeError(f"local_tool() takes a function, or facts by their names; not a {type(function).__name__}.")
    if unknown := facts.keys() - ToolDefinition.model_fields.keys() | facts.keys() & _OWN:
        raise ValueError(f"A local tool has no {', '.join(sorted(unknown))}.")
    if name is not None:
        facts["name"] = _checked_name(name)
    if permission is not None:
        facts["required_permission"] = permission
    if "required_permission" in facts and (fault := level_fault(facts["required_permission"])):
        raise ValueError(f"A local tool's {fault}.")

    def mark(function: F) -> F:
        setattr(function, _FACTS, facts)
        return function

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """A tool and its function.

    Its parameter `context`, if it has one, gets the agent's context, and `call_context` the call's.

    `signature` reads a call's arguments; without one the function is called as a tag is: `texts` are its arguments,
    which are the tag's groups, in their order, and `groups` says which of them the function takes by name, and whether
    each is required.
    """

    definition: ToolDefinition
    function: Function
    signature: Signature | None
    context: str | None
    texts: Sequence[str] = ()
    groups: Mapping[str, bool] = field(default_factory=dict[str, bool])
    call_context: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it must run in a thread, since it would block an event loop."""
        return not inspect.iscoroutinefunction(self.function)

    @classmethod
    def of(cls, function: Function) -> Self:
        """Return the tool of a plain function: its name, its docstring and its parameters define it, as in a module of the SDK.

        A function with a context as its only parameter is called as a tag is, with one text. Raises `ValueError`.
        """
        facts = {"required_permission": OF_FUNCTIONS, **_facts_of(function), "code_digest": code_digest(function)}
        name = f"{LOCAL}.{facts.get('name', function.__name__)}"
        words = words_of(function.__doc__)
        facts = {"description": words.description, **facts}
        given = _call_context_of(function)
        names, texts = [each for each in _parameters_of(function) if each != given], (_GROUP_NAME,)
        if len(names) == 1 and _is_context(names[0], _hints_of(function).get(names[0])):
            definition = _definition(name, _schema(texts, texts), facts, names[0])
            return cls(definition, function, None, names[0], texts, call_context=given)
        try:
            signature = Signature.of(function, words, is_context=_is_any_context, is_lenient=True)
        except TypeError as exc:
            raise ValueError(f"the parameters of {function.__name__!r} cannot be described: {exc}") from exc
        context = None if given is not None else signature.context
        definition = _definition(name, dict(signature.schema), facts, context)
        return cls(definition, function, signature, context, call_context=given)

    @classmethod
    def of_tag(cls, tool: ToolDef, function: Function) -> Self:
        """Return the tool of a tag's function: it takes contexts, the tag's groups by name, or both.

        Raises `ValueError`.

        Its permission is `guest`: everybody who can write to an agent can call its tags, and is a guest of the fleet.
        """
        given, texts = _call_context_of(function), tuple(tool.arg_groups)
        parameters = {name: each for name, each in _parameters_of(function).items() if name != given}
        context = context_of(function, parameters, texts)
        groups = {
            name: parameter.default is parameter.empty for name, parameter in parameters.items() if name != context
        }
        if missing := [each for each, is_needed in groups.items() if is_needed and each not in texts]:
            raise ValueError(f"its handler wants {missing[0]!r}, which is none of the tag's groups")
        facts = {
            **_facts_of(function),
            "code_digest": code_digest(function),
            "description": tool.description,
            **limits_in(tool),
            "requires_gate": tool.requires_gate,
            "listed": tool.listed,
        }
        needed = [each for each in texts if groups.get(each, context is not None)]
        definition = _definition(f"{LOCAL}.{tool.name}", _schema(texts, needed), facts, context)
        return cls(definition, function, None, context, texts, groups, given)

    def bind(
        self, arguments: Mapping[str, Any], user_id: str | None = None, context: ToolContext | None = None
    ) -> Mapping[str, Any]:
        """Return the function's own arguments, but for the call's context.

        A model may have written the `arguments` of the call; it cannot write the user for whom it is made, and the
        agent's `context` of the conversation. Raises `ValueError`, with a reason that repeats no value, if they do not fit.
        """
        if self.signature is None:
            return self._bound_to_tag(arguments, user_id, context)
        return self._bound(self.signature, arguments, user_id, context)

    def _bound(
        self, signature: Signature, arguments: Mapping[str, Any], user_id: str | None, context: ToolContext | None
    ) -> Mapping[str, Any]:
        own = _read(signature.read, arguments)
        if signature.needs_user and user_id is None:
            raise ValueError("it needs to know for which user, and the call has none")
        if signature.user:
            own[USER] = user_id
        if self.context is not None:
            own[self.context] = _context_of(user_id, context, {})
        return own

    def _bound_to_tag(
        self, arguments: Mapping[str, Any], user_id: str | None, context: ToolContext | None
    ) -> Mapping[str, Any]:
        texts = _texts_in(arguments, self.texts)
        own = dict[str, Any]()
        for name, is_needed in self.groups.items():
            text = texts.get(name)
            if is_needed and text is None:
                raise ValueError(f"{name!r} is missing")
            if text or is_needed:
                own[name] = text
        return own if self.context is None else {**own, self.context: _context_of(user_id, context, texts)}


def _is_any_context(name: str, hint: Any) -> bool:
    return _is_context(name, hint) or _is_call_context(hint)


def _context_of(user_id: str | None, context: ToolContext | None, texts: Mapping[str, str]) -> ToolContext:
    """Return the context of a call: what the agent says, with the texts among the arguments, which it may have said, too."""
    said = context or ToolContext(raw_arg="")
    written = " ".join(text for text in texts.values() if text)
    raw_arg = texts.get(_GROUP_NAME) or said.raw_arg or written
    return said.model_copy(update={"raw_arg": raw_arg, "user": user_id or "", "groups": dict(texts)})


def _texts_in(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the texts of a tag's groups, in their order. Raises `ValueError` for anything else: a context is none of a model's arguments."""
    if unknown := arguments.keys() - set(names):
        raise ValueError(f"{min(unknown)[:_SHOWN]!r}: Extra inputs are not permitted")
    if wrong := [name for name in names if name in arguments and not isinstance(arguments[name], str)]:
        raise ValueError(f"{wrong[0][:_SHOWN]!r}: Input should be a valid string")
    return {name: arguments[name] for name in names if name in arguments}


def _checked_name(name: str) -> str:
    """Return the name of a tool among the others of `local`. Raises `ValueError`."""
    try:
        ToolName.parse(f"{LOCAL}.{name}")
    except InvalidToolName:
        raise ValueError(f"A local tool's name must be 1 to 192 characters without blanks, not {name!r}.") from None
    if fault := name_fault(name):
        raise ValueError(f"A local tool cannot be called so: {fault}.")
    return name


def _facts_of(function: Function) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = getattr(function, _FACTS, {})
    return facts


def _parameters_of(function: Function) -> dict[str, inspect.Parameter]:
    """Return the function's parameters. Raises `ValueError` if one cannot be given by name."""
    parameters = dict(inspect.signature(function).parameters)
    for name, parameter in parameters.items():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise ValueError(f"the parameter {name!r} of {function.__name__!r} takes no single argument by name")
    return parameters


def _schema(texts: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in texts}
    return {
        "type": "object",
        "properties": properties,
        "required": list(needed),
        "additionalProperties": False,
    }


def _definition(name: str, schema: dict[str, Any], facts: Mapping[str, Any], context: str | None) -> ToolDefinition:
    own = {"name": name, "takes_context": context is not None}
    try:
        definition = ToolDefinition.model_validate({"input_schema": schema, **facts, **own})
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{name!r} is wrong at {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from exc
    if wrong := concurrency_fault(definition):
        raise ValueError(f"{name!r}: {wrong}")
    return definition


def _read(read: Callable[[dict[str, Any]], R], arguments: Mapping[str, Any]) -> R:
    try:
        return read(dict(arguments))
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step)[:_SHOWN] for step in fault["loc"][:_MOST_STEPS])
        raise ValueError(f"{place!r}: {fault['msg']}") from None


def code_digest(function: Callable[..., Any]) -> str:
    """Return `sha256:` and 64 hex digits: the digest of the files that define the function and its wrappers.

    If a file differs from the running code, because it was changed after its import or rewritten by it, the running
    code counts too; without a file, as in a console, only the code counts. Imports of these files do not count.
    """
    digest = hashlib.sha256()
    for code, module in _codes_of(function):
        source = _source_of(code, module)
        if source is not None:
            digest.update(hashlib.sha256(source).digest())
        if source is None or not _is_of(source, code):
            digest.update(hashlib.sha256(marshal.dumps(code)).digest())
    return f"sha256:{digest.hexdigest()}"


def _codes_of(function: Any) -> Iterator[tuple[CodeType, str]]:
    """Yield the code of the function, and of each function that wraps it."""
    layers = [function]
    while (inner := getattr(layers[-1], "__wrapped__", None)) is not None and inner not in layers:
        layers.append(inner)
    for layer in layers:
        code = getattr(layer, "__code__", None)
        if isinstance(code, CodeType):
            yield code, getattr(layer, "__module__", "")


def _source_of(code: CodeType, module: str) -> bytes | None:
    """Return the file's present content, also from an archive; `None` if there is none."""
    read = getattr(getattr(sys.modules.get(module), "__loader__", None), "get_data", None)
    try:
        return None if read is None else bytes(read(code.co_filename))
    except (OSError, ImportError):
        return None


def _is_of(source: bytes, code: CodeType) -> bool:
    """Return whether the running code is compiled from this source."""
    try:
        waiting = [compile(source, code.co_filename, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    while waiting:
        each = waiting.pop()
        if each == code:
            return True
        waiting += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    return False


def _is_context(name: str, hint: Any) -> bool:
    """Return whether a parameter with this annotation gets a `ToolContext`: also an optional one, or an annotation as text.

    Other parameters may get the call's context: the `Context` that functions of modules have, too.
    """
    if _is_call_context(hint):
        return False
    if isinstance(hint, str):
        return name == _CONTEXT_NAME or _CONTEXT_ANNOTATION.search(hint) is not None
    return name == _CONTEXT_NAME or ToolContext in (hint, *typing.get_args(hint))


def _is_call_context(hint: Any) -> bool:
    """Return whether a parameter with this annotation gets the call's `Context`: also an optional one."""
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return Context in (bare, *typing.get_args(bare))


def _call_context_of(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that gets the call's context, `None` if there is none. Raises `ValueError` if there are two."""
    found = [name for name, hint in _hints_of(function).items() if name != "return" and _is_call_context(hint)]
    if len(found) > 1:
        raise ValueError(f"{function.__name__!r} has two contexts, {found[0]!r} and {found[1]!r}")
    return found[0] if found else None


def context_of(
    function: Callable[..., Any], parameters: Mapping[str, Parameter], arguments: Container[str]
) -> str | None:
    """Return the name of the parameter that gets the context, `None` if there is none.

    Raises `ValueError` if there are two.

    The only parameter of a function is it, under any name, if it has no annotation and is none of the `arguments`.
    """
    hints = _hints_of(function)
    found = [name for name in parameters if name not in arguments and _is_context(name, hints.get(name))]
    if len(found) > 1:
        raise ValueError(f"{function.__name__!r} has two contexts, {found[0]!r} and {found[1]!r}")
    if found:
        return found[0]
    names = list(parameters)
    return names[0] if len(names) == 1 and names[0] not in arguments and names[0] not in hints else None


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations; as they are written, where their names are known to type checkers only."""
    behind = function_behind(function)
    try:
        return typing.get_type_hints(behind, include_extras=True)
    except (NameError, TypeError, SyntaxError):
        return dict(getattr(behind, "__annotations__", {}))


async def as_json(value: Any, *, max_bytes: int) -> tuple[Any, tuple[ResultFile, ...]]:
    """Return the value as decoded JSON, and its files, which are replaced by their labels.

    Tuples are lists, names are strings; a pydantic model or a dataclass is its fields. Raises `BodyTooLarge` for more
    than `max_bytes`, files as base64 included, and `ValueError`, with a reason that repeats no value, for a value that
    is no JSON.
    """
    gathered, text, turn = _Bounded(max_bytes), bytearray(), _TURN_BYTES
    try:
        for piece in json.JSONEncoder(allow_nan=False, default=gathered.plain).iterencode(value):
            text += piece.encode()
            gathered.require_space(len(text))
            if len(text) > turn:
                turn = len(text) + _TURN_BYTES
                await asyncio.sleep(0)
    except BodyTooLarge:
        raise
    except TypeError as exc:  # names types only
        raise ValueError(str(exc)) from None
    except (ValueError, RecursionError, RuntimeError) as exc:
        gathered.require_space(len(text))  # it may be this that pydantic words in its own way
        raise ValueError(_reason(exc)) from None
    except Exception:  # noqa: BLE001 - a model's own code runs here, which may raise anything
        gathered.require_space(len(text))
        raise ValueError("a part of it cannot be read") from None
    if len(gathered.files) > MOST_FILES:
        raise ValueError(f"it has {len(gathered.files)} files; at most {MOST_FILES} can be sent")
    return loads_strict(bytes(text)), tuple(gathered.files)


class _Bounded(Gathered):
    """Takes no more than so many bytes of files as base64, before it encodes them."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._taken = 0

    def require_space(self, text_bytes: int = 0) -> None:
        """Raise `BodyTooLarge` if what has come until now is more, with so much text."""
        if self._taken + text_bytes > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)

    def add(self, value: object) -> str:
        """Add a file and return its label. Raises `TypeError` for any other value."""
        if not isinstance(value, File):
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
        self._taken += len(value.data) * 4 // 3
        self.require_space()
        return super().add(value)

    def plain(self, value: object) -> Any:
        """Return the JSON form of a value that JSON does not have. Raises `TypeError` if there is none."""
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", context=self, fallback=self.add, warnings=False)  # they quote values
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return to_jsonable_python(value, inf_nan_mode="constants", context=self, fallback=self.add)
        return self.add(value)


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError) or "Circular" in str(exc):
        return "it is nested too deeply, or contains itself"
    if isinstance(exc, PydanticSerializationError):  # whose words may quote values
        return "a part of it is no JSON"
    if isinstance(exc, RuntimeError):
        return "it was changed while it was being read"
    return "it has a number that is not finite, or too long"


@dataclass(frozen=True, slots=True)
class Failure:
    """The type and place of a function's exception, without its text, which may quote anything."""

    kind: str
    stack: str

    @classmethod
    def of(cls, exc: BaseException) -> Self:
        """Describe it."""
        return cls(type(exc).__name__, "".join(traceback.format_tb(exc.__traceback__)))

    @property
    def error(self) -> str:
        """The message for the caller."""
        return f"Tool execution error: the function failed ({self.kind}); its {UNEXPLAINED}"


class FunctionRuns:
    """Runs functions of one event loop; at most `threads` of them in threads at once, further ones wait.

    With `leaves_threads`, threads of ended calls do not keep the loop from ending.
    """

    def __init__(self, *, threads: int, leaves_threads: bool = False) -> None:
        self._threads = Threads(threads, leaves=leaves_threads)
        self._left_behind = set[asyncio.Task[Any]]()

    async def run(
        self,
        local: LocalFunction,
        arguments: Mapping[str, Any],
        context: Context,
        *,
        require: Callable[[], object] = lambda: None,
    ) -> Any:
        """Run the function within the call's time and return its result, or the `Failure` that it raised.

        Raises `TimeoutError` if the time is over: the function is cancelled then, and told so by its context. Raises
        `NotBegun` if it was over before there was a thread, `ModuleBusy` if the machine has none or all hang, and
        anything that `require` raises, which is called immediately before the function; nothing has happened then.
        """
        begun = threading.Event()
        # In a task of its own: what the function does to its task, or with a cancellation, does not reach ours.
        called = self._called(local, arguments, context, require, begun)
        task = asyncio.create_task(called, name=f"local-{local.definition.name}")
        done = False
        try:
            if not local.is_plain or await _is_begun(task, begun, context.seconds_left):
                await asyncio.wait({task}, timeout=context.seconds_left)
            done = task.done()
        finally:
            context._arguments = None
            if not task.done():
                context._cancelled = True
                await self._end(task)
        if done:
            return Failure("CancelledError", "") if task.cancelled() else task.result()
        if task.done() and not task.cancelled() and isinstance(task.exception(), NotBegun):
            raise NotBegun
        raise TimeoutError

    async def aclose(self) -> None:
        """Give functions that have outlived their calls a last chance to end."""
        for task in self._left_behind:
            task.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=_GRACE_SECONDS)

    async def _called(
        self,
        local: LocalFunction,
        arguments: Mapping[str, Any],
        context: Context,
        require: Callable[[], object],
        begun: threading.Event,
    ) -> Any:
        run_for(context)
        given = arguments if local.call_context is None else {**arguments, local.call_context: context}
        if not local.is_plain:
            require()
            return await _kept(functools.partial(local.function, **given))

        def may_begin() -> bool:
            require()
            if not context.cancelled:
                begun.set()
            return begun.is_set()

        returned = await self._threads.run(_keeping(local.function), given, may_begin)
        if not inspect.isawaitable(returned):
            return returned
        if context.cancelled:  # a thread's end is waited for though the call has ended; the next step is not started
            if isinstance(returned, Coroutine):
                returned.close()
            return None
        return await _kept(lambda: returned)  # a plain function that makes a coroutine, as a decorated one may

    async def _end(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._left_behind.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
        finally:  # also where its agent takes a call back whose time is over here already
            if not task.done():
                log.warning("local_tool_left_behind", function=task.get_name(), grace_seconds=_GRACE_SECONDS)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # seen: asyncio would write it to the log


async def _is_begun(task: asyncio.Task[Any], begun: threading.Event, seconds: float | None) -> bool:
    """Wait for the task's end, or until it is too late to start: a call that waited in vain gets its answer while its client still listens."""
    if seconds is not None:
        await asyncio.wait({task}, timeout=seconds - min(ANSWER_SECONDS, seconds / 4))
    return task.done() or begun.is_set()


async def _kept(begin: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result, or the `Failure` that was raised. `SystemExit` would otherwise end the process."""
    try:
        return await begin()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:  # noqa: BLE001 - nothing that a function does ends more than its call
        return Failure.of(exc)


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a plain one: what it raises cannot be mistaken for what its thread says."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except BaseException as exc:  # noqa: BLE001 - as above
            return Failure.of(exc)

    return call

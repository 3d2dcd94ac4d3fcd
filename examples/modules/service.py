"""A module as a service: answers for its manifest, runs its tools, and counts what became of the calls.

A module is an object whose asynchronous methods are its tools: `files.read` is the method `read` of the module
`files`. Arguments are checked against the method's annotations. A method that has a `user_id` gets the request's.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs
from starlette.requests import ClientDisconnect

from modules.callers import CallerCheck, CallerRefused
from modules.replies import Replies
from toolfleet_registry.contracts import ModuleManifest, ModuleMessage, ToolResult

_MAX_REQUEST_BYTES = 8 * 2**20
_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it is what the access log shows
_TOLD_MISTAKES = 4  # a table can have thousands
_PLAIN_WORDS = {  # for what pydantic says in Python's terms, which a model does not see
    "missing_keyword_only_argument": "This argument is required",
    "unexpected_keyword_argument": "There is no such argument",
}
_REPLY_FIELDS = {"tool_name", "success", "result", "error"}

logger = logging.getLogger(__name__)


class ToolError(Exception):
    """A tool cannot do what was asked. The message is for the model: it says what to do instead."""


class ModuleBusy(Exception):
    """There is no room for this call now, and nothing was started. The fleet comes back later."""

    def __init__(self, *, retry_after_seconds: int) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(f"Busy. Come back in {retry_after_seconds} s.")


class ExecuteRequest(ModuleMessage):
    """What `POST /execute` takes."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    user_id: str | None = None


class ReconcileRequest(ModuleMessage):
    """What `POST /reconcile` takes."""

    call_id: str


@dataclass(slots=True)
class Counts:
    """What became of the calls since the module started. `cancelled`: the client went away before the end."""

    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


def create_app(manifest: ModuleManifest, module: object, *, replies: Replies | None = None) -> FastAPI:
    """The module contract over HTTP. With `replies`, the fleet may ask what became of a call.

    Raises `TypeError` if the manifest offers a tool that `module` does not have.
    """
    tools = {tool.name: _Tool.of(module, tool.name) for tool in manifest.tools}
    counts = Counts()
    callers = CallerCheck.of(manifest.module_name)
    app = FastAPI(title=manifest.module_name, description=manifest.description)

    @app.get("/manifest", response_model_exclude_none=True)
    async def _manifest() -> ModuleManifest:
        return manifest

    @app.get("/health")
    async def _health() -> dict[str, Any]:
        return {"status": "ok", "module": manifest.module_name, **asdict(counts)}

    @app.post("/execute")
    async def _execute(request: Request) -> Response:
        try:
            call = ExecuteRequest.model_validate_json(await _body(request))
            callers.check(request.headers, tool=call.tool_name, sub=call.user_id or "")
            work = _counted(_while_connected(request, _run(tools, call)), counts)
            call_id = request.headers.get("Idempotency-Key")
            return await (_reply(work) if replies is None or call_id is None else _noted(work, call_id, replies))
        except ValidationError as exc:
            return JSONResponse({"detail": _in_words(exc)}, 422)
        except CallerRefused as exc:
            return _forbidden(exc)
        except _TooLarge:
            return JSONResponse({"detail": f"The request is larger than {_MAX_REQUEST_BYTES} bytes."}, 413)
        except ModuleBusy as exc:
            return JSONResponse({"detail": str(exc)}, 503, {"Retry-After": str(exc.retry_after_seconds)})
        except ClientDisconnect:
            return Response(status_code=_CLIENT_CLOSED_REQUEST)

    if replies is not None:
        _answer_questions(app, replies, callers)
    return app


def _answer_questions(app: FastAPI, replies: Replies, callers: CallerCheck) -> None:
    @app.post("/reconcile", response_model=None)
    async def _reconcile(question: ReconcileRequest, request: Request) -> dict[str, Any] | Response:
        try:
            callers.check(request.headers, jti=question.call_id)
        except CallerRefused as exc:
            return _forbidden(exc)
        return replies.answer(question.call_id)


class _TooLarge(Exception):
    """The request's body passed the limit."""


@dataclass(frozen=True, slots=True)
class _Tool:
    call: TypeAdapter[Any]  # "validating" arguments calls the method with them
    takes_user: bool

    @classmethod
    def of(cls, module: object, tool_name: str) -> "_Tool":
        method: Any = getattr(module, tool_name.partition(".")[2], None)
        is_tool = inspect.iscoroutinefunction(method)
        if not is_tool:
            raise TypeError(f"The manifest offers {tool_name!r}, but {module!r} has no such asynchronous method.")
        return cls(TypeAdapter(method), "user_id" in inspect.signature(method).parameters)

    def start(self, call: ExecuteRequest) -> Coroutine[Any, Any, Any]:
        """Check the arguments. Raises `ValidationError`."""
        # The request's user overrides one among the arguments, which a model may have written.
        user = {"user_id": call.user_id} if self.takes_user else {}
        coroutine: Coroutine[Any, Any, Any] = self.call.validate_python(ArgsKwargs((), {**call.arguments, **user}))
        return coroutine


async def _run(tools: dict[str, _Tool], call: ExecuteRequest) -> ToolResult:
    """Run one call: whatever the tool raises is a result, apart from `ModuleBusy`."""
    tool = tools.get(call.tool_name)
    if tool is None:
        return _failed(call, f"Unknown tool: {call.tool_name!r}. This module has {', '.join(sorted(tools))}.")
    try:
        work = tool.start(call)
    except ValidationError as exc:
        return _failed(call, f"Invalid arguments for {call.tool_name}: {_in_words(exc)}")
    try:
        return ToolResult(tool_name=call.tool_name, success=True, result=await work)
    except ToolError as exc:
        return _failed(call, str(exc))
    except ModuleBusy:
        raise
    except Exception as exc:
        logger.exception("%s failed", call.tool_name)
        # The exception's text may hold paths or data of this machine; it is in the log only.
        return _failed(call, f"{call.tool_name} failed inside the module ({type(exc).__name__}); its log says why.")


async def _counted(work: Coroutine[Any, Any, ToolResult], counts: Counts) -> ToolResult:
    counts.running += 1
    try:
        result = await work
    except (ClientDisconnect, asyncio.CancelledError):
        counts.cancelled += 1
        raise
    finally:
        counts.running -= 1
    if result.success:
        counts.succeeded += 1
    else:
        counts.failed += 1
    return result


async def _while_connected(request: Request, work: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    """Await `work`, and cancel it when the client goes away: a server would let it run on for nobody."""
    running = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise ClientDisconnect
    finally:
        running.cancel()
        gone.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_REQUEST_BYTES:
            raise _TooLarge
    return bytes(body)


def _forbidden(exc: CallerRefused) -> Response:
    return JSONResponse({"detail": str(exc)}, 403)


async def _noted(work: Coroutine[Any, Any, ToolResult], call_id: str, replies: Replies) -> Response:
    replies.note(call_id, "running")
    try:
        response = await _reply(work)
    except BaseException:  # it was turned away, or stopped in the middle
        replies.note(call_id, "unknown")
        raise
    replies.note(call_id, "done", bytes(response.body))
    return response


async def _reply(work: Coroutine[Any, Any, ToolResult]) -> Response:
    result = await work
    try:
        return JSONResponse(result.model_dump(include=_REPLY_FIELDS))
    except (TypeError, ValueError) as exc:  # a tool's result that is no JSON, NaN and half characters included
        logger.exception("%s returned no JSON", result.tool_name)
        error = f"{result.tool_name} returned what cannot be sent as JSON ({exc})."
        reply = {"tool_name": result.tool_name, "success": False, "result": None, "error": error}
        return Response(json.dumps(reply), media_type="application/json")


def _failed(call: ExecuteRequest, error: str) -> ToolResult:
    return ToolResult(tool_name=call.tool_name, success=False, error=error)


def _in_words(exc: ValidationError) -> str:
    """One sentence a mistake, without the value: it may be long, or secret."""
    errors = exc.errors(include_url=False, include_input=False)
    words = [
        f"{'.'.join(map(str, error['loc'])) or 'request'}: {_PLAIN_WORDS.get(error['type'], error['msg'])}."
        for error in errors[:_TOLD_MISTAKES]
    ]
    return " ".join([*words, "And more."] if len(errors) > _TOLD_MISTAKES else words)

"""Passes prompts, resources and completion of a server through: `POST /mcp/{method}`, for whoever serves them to others."""

import asyncio
import json
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolfleet_modules.hosts.mcp.mcp_session import McpSession
from toolfleet_modules.hosts.mcp.passed_tool import FORMS, answer_of
from toolfleet_modules.hosts.mcp.server_away import ServerAway
from toolfleet_modules.hosts.mcp.sessions import McpSessions
from toolfleet_modules.hosts.serving.secrets import Secrets
from toolfleet_modules.requests.authentication import CallerCheck, CallerRefused
from toolfleet_modules.requests.request import TooLarge, TooSlow, read_body
from toolfleet_modules.sdk.tool import in_words
from toolfleet_registry.functions.failures import ModuleBusy, ToolError
from toolfleet_registry.functions.passed_methods import PASSED_METHODS

PREFIX = "/mcp/"
_REQUEST_BYTES = 2**20
_SECONDS = 60.0  # for a server to answer
_BUSY_SECONDS = "1"

METHODS = PASSED_METHODS
"""The protocol's names of what may be asked."""


class PassedHost(Protocol):
    """A host whose server is asked."""

    name: str
    key: str

    @property
    def sessions(self) -> McpSessions | None:
        """The sessions with the server, while the host runs."""
        ...

    @property
    def secrets(self) -> Secrets:
        """What is hidden in answers."""
        ...


class PassedQuestion(BaseModel, extra="forbid"):
    """What `POST /mcp/{method}` takes: the protocol's `params`, and whom they are asked for."""

    params: dict[str, Any] = {}
    user_id: str | None = None


class PassedAnswer(BaseModel):
    """What `POST /mcp/{method}` answers: the protocol's result."""

    result: dict[str, Any]


class Passthrough:
    """The routes of one host."""

    def __init__(self, host: PassedHost) -> None:
        self._host = host
        self._callers = CallerCheck(host.name, host.key)

    @property
    def route(self) -> Route:
        """`POST /mcp/{method}`."""
        return Route(f"{PREFIX}{{method:path}}", self._answer, methods=["POST"])

    async def _answer(self, request: Request) -> Response:
        try:
            caller = self._callers.verify(request.headers)
            question = PassedQuestion.model_validate_json(await read_body(request, _REQUEST_BYTES))
            self._callers.permission(caller, sub=question.user_id or "")
            return await self._asked(request.path_params["method"], question)
        except ValidationError as exc:
            return _refusal(422, in_words(exc))
        except CallerRefused as exc:
            return _refusal(403, str(exc))
        except TooLarge:
            return _refusal(413, f"The request is larger than {_REQUEST_BYTES} bytes.")
        except TooSlow as exc:
            return JSONResponse({"detail": str(exc)}, 408, {"Connection": "close"})
        except ClientDisconnect:
            return Response(status_code=499)

    async def _asked(self, method: str, question: PassedQuestion) -> Response:
        """The server's answer, or why there is none. Raises `ValidationError` for parameters that are none."""
        form = FORMS.get(method)
        if form is None:
            return _refusal(404, f"There is no method {method[:80]!r}; there are: {', '.join(METHODS)}.")
        kind, params = form
        request = kind(params=params.model_validate(question.params, by_name=False))
        sessions = self._host.sessions
        try:
            if sessions is None:
                return _away()
            async with asyncio.timeout(_SECONDS), sessions.taken(question.user_id) as connection:
                return await self._sent(connection, request)
        except (ModuleBusy, ServerAway):
            return _away()
        except ToolError as exc:
            return _refusal(403, self._host.secrets.hide(str(exc)))
        except TimeoutError:
            return _refusal(504, f"The server did not answer within {_SECONDS:g} s.")

    async def _sent(self, connection: McpSession, request: Any) -> Response:
        found = await answer_of(connection, request)
        if "error" in found:
            error = found["error"]
            shown = {"code": error["code"], "message": self._host.secrets.hide(error["message"])}
            return JSONResponse({"error": shown}, 502)
        result = found["result"]
        if result.get("resultType", "complete") != "complete":
            return _refusal(502, "The server asks for input, which nobody here can give.")
        answer = PassedAnswer(result=result).model_dump()
        written = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return Response(self._host.secrets.hide_json(written), media_type="application/json")


def _away() -> Response:
    return JSONResponse({"detail": "The server is away."}, 503, {"Retry-After": _BUSY_SECONDS})


def _refusal(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)

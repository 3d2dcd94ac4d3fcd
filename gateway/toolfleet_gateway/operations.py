"""Makes a route of each operation of the operators' resources, which checks the role and gives refusals their status."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.http.entrance import operator_of, require_role
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_gateway.http.routes import (
    Answer,
    AnyRoute,
    HeaderParameter,
    Route,
    RouteRequest,
    json_text,
    nothing,
    text_answer,
)
from toolfleet_registry.errors import OperationRefused, ProfileChanged
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.operations.call_index import CallIndex
from toolfleet_tasks.resources.operation import AnyOperation, OperationRequest
from toolfleet_tasks.resources.table import OPERATIONS

_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "approval_forbidden": 403,
    "beyond_own_rights": 403,
    "role_needed": 403,
    "not_found": 404,
    "profile_changed": 412,
    "unknown_queue": 404,
    "unknown_tool": 404,
    "invalid_arguments": 422,
}
"""The status of a refused operation by its error code; any other one is a conflict (409)."""

_TAGS = {"ETag": 'The version of the stored profile in quotation marks; `"0"`: there is none.'}
_KEPT = {"ETag": "Changes with the page."}
_IF_MATCH = HeaderParameter(
    "If-Match",
    'The version that was seen, as `ETag` has it: with another one there, nothing is changed. `"0"`: there is none.',
    pattern=r'^("[0-9]{1,15}"|\*)$',
)
_VERSION = re.compile(r'"([0-9]{1,15})"')


def resource_routes(fleet: ToolFleet, settings: Settings, calls: CallIndex) -> list[AnyRoute]:
    """Return the routes of all operations of operators."""

    async def opened() -> ToolFleet:
        return fleet

    def asked(operation: AnyOperation, request: RouteRequest[object, object]) -> OperationRequest[object, object]:
        return OperationRequest(
            settings=settings,
            operator=operator_of(request.who),
            fleet=opened,
            body=request.body,
            query=request.query,
            calls=calls,
            path=request.path,
            expected_version=_expected(request.raw) if operation.is_versioned and operation.method != "GET" else None,
        )

    return [_route(operation, asked) for operation in OPERATIONS.values()]


def problem_of(refusal: OperationRefused) -> Problem:
    """Return the problem that tells of a refused operation."""
    version = refusal.version if isinstance(refusal, ProfileChanged) else None
    headers = {} if version is None else {"etag": f'"{version}"'}
    status = _STATUSES.get(refusal.error_code, 409)
    return Problem(status, refusal.error_code, str(refusal), hint=refusal.hint, headers=headers)


def _route(
    operation: AnyOperation,
    asked: Callable[[AnyOperation, RouteRequest[object, object]], OperationRequest[object, object]],
) -> AnyRoute:
    async def handle(request: RouteRequest[object, object]) -> Response:
        if not operation.is_for_owner:
            require_role(request.who, operation.role)
        try:
            answer = await operation.run(asked(operation, request))
        except OperationRefused as exc:
            raise problem_of(exc) from exc
        if answer is None:
            return nothing(operation.status)
        text = await aside(
            lambda: json_text(answer, with_none=operation.keeps_none), is_large=operation.is_long(answer)
        )
        if operation.is_cached:
            return _kept(request.raw, text)
        headers = {"etag": f'"{answer.version}"'} if operation.is_versioned else {}
        return text_answer(text, operation.status, headers)

    is_change = operation.method != "GET"
    tags = _TAGS if operation.is_versioned and operation.answer else _KEPT if operation.is_cached else {}
    answers = {operation.status: Answer(operation.answers, operation.answer, headers=tags)}
    if operation.is_cached:
        answers[304] = Answer("The page is as the client has it, by `If-None-Match`.")
    return Route(
        method=operation.method,
        path=operation.path,
        name=operation.name,
        summary=operation.summary,
        handle=handle,
        answers=answers,
        body=operation.body,
        query=operation.query,
        headers=(_IF_MATCH,) if operation.is_versioned and is_change else (),
        problems=operation.problems,
        tag=operation.tag,
    )


def _kept(request: Request, text: str) -> Response:
    """Answer with the text and its `ETag`; with 304 if the client has it already. Weak tags compare as strong."""
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "authorization, x-api-key"}
    values = request.headers.getlist("if-none-match")
    if {tag, "*"} & {one.strip().removeprefix("W/") for value in values for one in value.split(",")}:
        return Response(None, 304, headers)
    return text_answer(text, headers=headers)


def _expected(request: Request) -> int | None:
    """Return the version that the client has seen; `None`: any. Raises `Problem`."""
    said = request.headers.getlist("if-match")
    if not said or said == ["*"]:
        return None
    found = _VERSION.fullmatch(said[0].strip())
    if len(said) > 1 or found is None:
        raise invalid_request('If-Match must be the version that was seen, as the header ETag has it: "3".')
    return int(found[1])

"""A REST service which tells what it was asked: for hosts of OpenAPI documents."""

import asyncio
import base64
import gzip
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from support.modules.example_modules import serving

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


async def _echo(request: Request) -> Response:
    """What came: the path and the query as they were sent, headers, and the body as text."""
    request.app.state.asked.append(f"{request.method} {request.url.path}")
    return JSONResponse(
        {
            "method": request.method,
            "path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "arguments": dict(request.query_params),
            "headers": dict(request.headers),
            "body": (await request.body()).decode(),
        }
    )


async def _status(request: Request) -> Response:
    """The status that is in the path, with `retry-after` and `location` of the query."""
    request.app.state.asked.append(f"{request.method} {request.url.path}")
    headers = {name: value for name, value in request.query_params.items() if name in {"retry-after", "location"}}
    text = "" if request.path_params["code"] == 304 else f"You have said {request.headers.get('authorization')}."
    return Response(text, request.path_params["code"], headers, "text/plain")


async def _say(request: Request) -> Response:
    """The status of the path, with the body of the request, and the header fields that its `headers` has as JSON."""
    request.app.state.asked.append(f"{request.method} {request.url.path}")
    response = Response(await request.body(), request.path_params["code"])
    for name, value in json.loads(request.query_params.get("headers", "{}")).items():
        response.headers[name] = value
    return response


async def _content(request: Request) -> Response:
    """A body of some kind."""
    bodies: dict[str, tuple[bytes, str, dict[str, str]]] = {
        "text": ("hoot ü".encode("latin-1"), "text/plain; charset=latin-1", {}),
        "image": (PNG, "image/png", {}),
        "mislabelled": (PNG, "image/jpeg", {}),
        "named": (b"%PDF-1.7", "application/pdf", {"content-disposition": 'attachment; filename="../owls.pdf"'}),
        "empty": (b"", "application/json", {}),
        "broken": (b'{"owls": ', "application/json", {}),
        "large": (json.dumps("o" * 200_000).encode(), "application/json", {}),
        "bomb": (gzip.compress(b"0" * 50_000_000), "application/json", {"content-encoding": "gzip"}),
        "gzip": (gzip.compress(b'{"owls": 5}'), "application/json", {"content-encoding": "gzip"}),
        "wrong": (b'{"owls": "five"}', "application/json", {}),
        "cookie": (b"{}", "application/json", {"set-cookie": "session=of-somebody; Path=/"}),
    }
    body, media_type, headers = bodies[request.path_params["kind"]]
    return Response(body, 200, headers, media_type)


async def _slow(request: Request) -> Response:
    asked: list[str] = request.app.state.asked
    asked.append(f"{request.method} {request.url.path}")
    while not await request.is_disconnected():  # noqa: ASYNC110 - nothing else announces it
        await asyncio.sleep(0.02)
    asked.append(f"{request.method} {request.url.path} is gone")
    return Response()


_ANY = ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"]
_ROUTES = [
    Route("/status/{code:int}", _status, methods=_ANY),
    Route("/say/{code:int}", _say, methods=_ANY),
    Route("/content/{kind}", _content, methods=_ANY),
    Route("/slow", _slow, methods=_ANY),
    Route("/{rest:path}", _echo, methods=_ANY),
]


@dataclass
class BirdService:
    """Where it is, and the requests that came, as `GET /owls`; not those for contents."""

    url: str
    asked: list[str]


@contextmanager
def bird_service() -> Generator[BirdService]:
    """The service, until the end of the block, in a thread: programs may ask it as well."""
    app = Starlette(routes=_ROUTES)
    app.state.asked = list[str]()
    with serving("birds", app) as module:
        yield BirdService(module.url, app.state.asked)


def document(paths: dict[str, Any], *, version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    """An OpenAPI document with these paths."""
    return {"openapi": version, "info": {"title": "Birds", "version": "1"}, "paths": paths, **more}


def operation(operation_id: str | None, *parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An operation; its parameters are as the document has them."""
    named = {} if operation_id is None else {"operationId": operation_id}
    return {**named, "parameters": list(parameters), "responses": {"200": {"description": "Fine."}}, **more}


def parameter(name: str, place: str = "query", schema: Any = None, **more: Any) -> dict[str, Any]:
    """A parameter, of any type."""
    return {"name": name, "in": place, "required": place == "path", "schema": schema or {}, **more}


def json_body(schema: dict[str, Any], *, required: bool = True, media_type: str = "application/json") -> dict[str, Any]:
    """A request's body."""
    return {"required": required, "content": {media_type: {"schema": schema}}}

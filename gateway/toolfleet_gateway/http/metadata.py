"""Serves the document that says where tokens for this gateway come from (RFC 9728)."""

import json
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from toolfleet_gateway.auth.protected_resource import WELL_KNOWN, ProtectedResource
from toolfleet_gateway.http.answers import text_answer
from toolfleet_gateway.http.problems import not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest

ENDPOINT: Final = "/mcp"
"""The endpoint of the Model Context Protocol, which is a resource of its own: clients ask for tokens by its URL."""


def metadata_routes(resource: ProtectedResource | None) -> list[AnyRoute]:
    """Return the routes at which clients look for the metadata: with the gateway's path appended, and without.

    None: it takes no tokens.
    """
    if resource is None:
        return []
    where = resource.metadata_path

    def serving(path: str, number: int) -> AnyRoute:
        async def metadata(request: RouteRequest[None, None]) -> Response:
            return text_answer(json.dumps(resource.metadata(_endpoint_of(request.path))))

        return Route(
            method="GET", path=path, name=f"resourceMetadata{number or ''}", summary="Where tokens come from",
            handle=metadata, answers={200: Answer("The metadata of RFC 9728.")}, tag="health", is_public=True,
        )  # fmt: skip

    endpoints = ("", "/{endpoint}", "/{endpoint}/{module}")
    paths = dict.fromkeys([WELL_KNOWN, where(), *(where(endpoint) for endpoint in endpoints[1:])])
    return [serving(path, number) for number, path in enumerate(paths)]


def _endpoint_of(path: Mapping[str, str]) -> str:
    """The endpoint that is asked about. Raises `Problem` for one that is no resource of its own."""
    names = [path[name] for name in ("endpoint", "module") if name in path]
    endpoint = "".join(f"/{name}" for name in names)
    if endpoint and f"/{names[0]}" != ENDPOINT:
        raise not_found("There is nothing at this path.")
    return endpoint

"""Serves the document that says where tokens for this gateway come from (RFC 9728)."""

import json

from starlette.responses import Response

from toolfleet_gateway.auth.protected_resource import WELL_KNOWN, ProtectedResource
from toolfleet_gateway.http.answers import text_answer
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest


def metadata_routes(resource: ProtectedResource | None) -> list[AnyRoute]:
    """Where clients look for it: with the gateway's path behind, and without. None: it takes no tokens."""
    if resource is None:
        return []
    text = json.dumps(resource.metadata())

    async def metadata(_: RouteRequest[None, None]) -> Response:
        return text_answer(text)

    paths = dict.fromkeys([WELL_KNOWN, resource.metadata_path()])
    return [
        Route(
            method="GET", path=path, name=f"resourceMetadata{number or ''}", summary="Where tokens come from",
            handle=metadata, answers={200: Answer("The metadata of RFC 9728.")}, tag="health", is_public=True,
        )
        for number, path in enumerate(paths)
    ]  # fmt: skip

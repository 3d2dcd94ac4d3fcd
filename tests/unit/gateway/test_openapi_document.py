"""The gateway's OpenAPI document is valid, and says all that routes answer."""

from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from toolfleet import ToolFleet
from toolfleet_gateway.gateway import routes_of
from toolfleet_gateway.http.open_streams import OpenStreams
from toolfleet_gateway.http.openapi import openapi_document
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.closing import Closing


@pytest.fixture
def document() -> dict[str, Any]:
    settings = Settings(redis_url="redis://127.0.0.1:1/0")
    closing = Closing()
    streams = OpenStreams(1, closing, None, None)  # type: ignore[arg-type] # nobody opens one
    routes = routes_of(ToolFleet(settings=settings), settings, closing, streams)
    return openapi_document(routes, root_path="/fleet")


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    """It is an OpenAPI 3.1 document, below the path that the gateway is served at."""
    OpenAPIV31SpecValidator(document).validate()

    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": "/fleet"}]


def test_each_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    """Generated clients name their functions so."""
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]

    assert len(names) > 5
    assert len(set(names)) == len(names)


def test_each_operation_says_its_problems(document: dict[str, Any]) -> None:
    """Whoever asks for a key answers 401, and whoever takes a body 413 and 415; each is a problem."""
    begin = document["paths"]["/calls"]["post"]["responses"]

    assert {"200", "202", "400", "401", "403", "404", "409", "413", "415", "422", "429", "503"} <= set(begin)
    assert set(begin["413"]["content"]) == {"application/problem+json"}
    assert {parameter["name"] for parameter in document["paths"]["/calls"]["post"]["parameters"]} == {
        "Idempotency-Key",
        "Prefer",
    }

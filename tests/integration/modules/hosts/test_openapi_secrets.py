"""Security schemes of an OpenAPI document: made of secrets, sent where they belong, and shown to nobody."""

import json
import logging
from base64 import b64encode, encodebytes
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from support.hosts.bird_service import BirdService, bird_service, document, json_body, operation, parameter
from support.hosts.openapi_document import hosted_document
from toolfleet_modules.hosts.secrets import Secrets

pytestmark = pytest.mark.asyncio

VALUE = 'planted/"ü 0123456789'
SECRETS = Secrets({"KEY": VALUE})
SCHEMES: dict[str, Any] = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Owl-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "owl_key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "owl"},
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "oauth": {"type": "oauth2", "flows": {}},
    "digest": {"type": "http", "scheme": "digest"},
    "tls": {"type": "mutualTLS"},
}
PLAIN = "planted-secret-0123456789"


@pytest.fixture(scope="module")
def service() -> Iterator[BirdService]:
    with bird_service() as running:
        yield running


def secured(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return document(paths, components={"securitySchemes": SCHEMES}, **more)


@pytest.mark.parametrize("scheme", ["header", "query", "cookie", "basic", "bearer", "oauth"])
async def test_a_value_that_comes_back_is_hidden(
    service: BirdService, tmp_path: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that echoes all that it is sent shows names only: in results, in errors, in logs and in the manifest."""
    caplog.set_level(logging.DEBUG)
    paths = {
        "/echo": {"get": operation("echo", security=[{scheme: []}])},
        "/status/{code}": {"get": operation("status", parameter("code", "path"), security=[{scheme: []}])},
    }
    text = "ada:${KEY}" if scheme == "basic" else "${KEY}"
    value = PLAIN if scheme == "header" else VALUE  # a header's echo, in latin-1, is another text
    secrets = Secrets({"KEY": PLAIN if scheme in {"header", "bearer", "oauth", "basic"} else value})
    async with hosted_document(
        tmp_path, secured(paths), base=service.url, auth={scheme: text}, secrets=secrets
    ) as birds:
        echoed = await birds.call("echo")
        failed = await birds.call("status", code=400)

        assert echoed.success, echoed.error
        assert "[secret " in json.dumps(echoed.result)
        shown = json.dumps([echoed.result, failed.error, birds.host.manifest.model_dump()]) + caplog.text
        for planted in (PLAIN, VALUE, "0123456789", b64encode(f"ada:{PLAIN}".encode()).decode()):
            assert planted not in shown


async def test_a_scheme_is_sent_where_the_document_says(service: BirdService, tmp_path: Path) -> None:
    """What a model writes in its place is no argument at all."""
    paths = {
        "/echo": {
            "get": operation(
                "echo",
                parameter("owl_key", "query"),
                parameter("x-owl-key", "header"),
                parameter("X_Owl_Key", "header"),  # servers of CGI's kind read `_` and `-` as the same
                parameter("day"),
                security=[{"query": [], "header": []}],
            )
        }
    }
    auth = {"query": "q-${KEY}", "header": "h-${KEY}"}
    async with hosted_document(
        tmp_path, secured(paths), base=service.url, auth=auth, secrets=Secrets({"KEY": PLAIN})
    ) as birds:
        echoed = await birds.call("echo", day=3)

        assert set(birds.input_schema("echo")["properties"]) == {"day"}
        assert echoed.result["query"] == "day=3&owl_key=[secret of query]"
        assert echoed.result["headers"]["x-owl-key"] == "[secret of header]"


QUOTED = PLAIN.replace("-", "\\u002D")


ENCODED = {
    ".NET's JSON": json.dumps({"echo": QUOTED}).replace("\\\\u", "\\u"),
    "a URL in JSON in JSON": json.dumps({"error": json.dumps({"echo": PLAIN}).replace("-", "%2d")}),
    "entities": "&#x70;lanted&#45;secret&#45;0123456789",
    "base64 in lines": encodebytes(f"{'-' * 50}{PLAIN}".encode()).decode(),
    "where an error is cut": f"{'x' * 1490} {PLAIN}",
}


async def test_a_value_that_comes_back_encoded_is_hidden(service: BirdService, tmp_path: Path) -> None:
    """In results and in errors, whatever the service says that it is."""
    body = json_body({"type": "string"}, media_type="text/plain")
    paths = {
        f"/say/{code}": {
            "post": operation(f"say{code}", parameter("headers"), requestBody=body, security=[{"header": []}])
        }
        for code in (200, 400, 429, 500)
    }
    secrets = Secrets({"KEY": PLAIN})
    async with hosted_document(
        tmp_path, secured(paths), base=service.url, auth={"header": "${KEY}"}, secrets=secrets
    ) as birds:
        for kind, written in ENCODED.items():
            for tool, media_type in product(birds.host.tools, ("application/json", "text/plain")):
                headers = json.dumps({"content-type": media_type})
                said = await birds.client.send(tool, {"body": written, "headers": headers})
                shown = unquote(json.dumps([said.result, said.error]))
                assert "0123456789" not in shown, (kind, tool, media_type)
                assert b64encode(PLAIN.encode()).decode()[4:20] not in shown.replace("\\n", "")


OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": {}}
BODIES = {
    kind: {"requestBody": json_body(OBJECT, media_type=kind)}
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data")
}
EXPLODED = {"encoding": {"filter": {"style": "form", "explode": True}}, "schema": {"properties": {"filter": OBJECT}}}


NAMES = ("owl_key", "OWL_Key", "owl%5Fkey", " owl_key", "owl_key[]", "owl_key[a]")


@pytest.mark.parametrize(
    ("place", "argument", "said"),
    [
        ("query", "filter", {"parameters": [parameter("filter", "query", OBJECT)]}),
        ("query", "filter", {"parameters": [parameter("filter", "query", OBJECT, allowReserved=True)]}),
        ("cookie", "filter", {"parameters": [parameter("filter", "cookie", OBJECT)]}),
        ("query", "body", BODIES["application/x-www-form-urlencoded"]),
        ("query", "body", BODIES["multipart/form-data"]),
        (
            "query",
            "filter",
            {"requestBody": {"required": True, "content": {"application/x-www-form-urlencoded": EXPLODED}}},
        ),
    ],
    ids=["query", "reserved query", "cookie", "form", "parts", "exploded part of a form"],
)
async def test_no_member_of_an_object_names_a_credential(
    service: BirdService, tmp_path: Path, place: str, argument: str, said: dict[str, Any]
) -> None:
    """In any case and quoted: nothing is sent. Nor does it where the service would take another credential."""
    schemes = {
        "key": {"type": "apiKey", "in": place, "name": "owl_key"},
        "other": {"type": "apiKey", "in": "header", "name": "X-Owl"},
    }
    for used in schemes:
        post = operation("post", security=[{used: []}], **{"parameters": [], **said})
        body = document({"/named": {"post": post}}, components={"securitySchemes": schemes})
        options: dict[str, Any] = {"auth": {used: "${KEY}"}, "secrets": Secrets({"KEY": PLAIN})}
        async with hosted_document(tmp_path, body, base=service.url, **options) as birds:
            for name in NAMES:
                refused = await birds.call("post", **{argument: {name: "mine"}})
                assert (refused.success, refused.effect_state) == (False, "none"), (used, name)
                assert "which a credential is sent in" in str(refused.error)
            assert (await birds.call("post", **{argument: {"day": "3"}})).success


async def test_an_operation_without_its_secret_is_closed_and_listed(service: BirdService, tmp_path: Path) -> None:
    """The first alternative that can be met is taken; nothing at all only where that is one of them."""
    paths = {
        "/either": {"get": operation("either", security=[{"header": []}, {"bearer": []}])},
        "/both": {"get": operation("both", security=[{"header": [], "bearer": []}])},
        "/free": {"get": operation("free", security=[{}, {"header": []}])},
        "/none": {"get": operation("none", security=[])},
        "/global": {"get": operation("global")},
    }
    body = secured(paths, security=[{"header": []}])
    async with hosted_document(
        tmp_path, body, base=service.url, auth={"bearer": "${KEY}"}, secrets=Secrets({"KEY": PLAIN})
    ) as birds:
        assert birds.errors() == {"GET /both": "CredentialMissing", "GET /global": "CredentialMissing"}
        either, free = await birds.call("either"), await birds.call("free")
        assert either.result["headers"]["authorization"] == "Bearer [secret KEY]"
        assert "authorization" not in free.result["headers"]


async def test_schemes_that_a_secret_is_not_enough_for_are_named(service: BirdService, tmp_path: Path) -> None:
    """And those that the document does not have."""
    auth = {"digest": "${KEY}", "tls": "${KEY}", "other": "${KEY}", "header": "${MISSING}"}
    async with hosted_document(
        tmp_path, secured({}), base=service.url, auth=auth, secrets=Secrets({"KEY": PLAIN})
    ) as birds:
        assert birds.errors() == {f"auth {name}": "SchemeUnknown" for name in auth}
        assert "no secret named 'MISSING'" in [each.message for each in birds.errors_listed()][-1]


async def test_fixed_headers_are_sent_with_each_request(service: BirdService, tmp_path: Path) -> None:
    """No model writes them, a secret in one is hidden, and a credential counts more."""
    paths = {
        "/echo": {"get": operation("echo", parameter("Bird-Version", "header"), parameter("authorization", "header"))},
        "/own": {"get": operation("own", security=[{"bearer": []}])},
    }
    headers = {"bird-version": "2026-01-01", "Authorization": "Token ${KEY}"}
    secrets = Secrets({"KEY": PLAIN, "OTHER": "another-secret-0123"})
    options: dict[str, Any] = {"auth": {"bearer": "${OTHER}"}, "headers": headers, "secrets": secrets}
    async with hosted_document(tmp_path, secured(paths), base=service.url, **options) as birds:
        echoed, own = await birds.call("echo"), await birds.call("own")

        assert birds.input_schema("echo")["properties"] == {}
        assert echoed.result["headers"]["bird-version"] == own.result["headers"]["bird-version"] == "2026-01-01"
        assert echoed.result["headers"]["authorization"] == "Token [secret KEY]"
        assert own.result["headers"]["authorization"].startswith("Bearer [secret")

"""OpenAPI documents: read from files and URLs, in JSON and YAML, also while they change or break."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.hosts.bird_service import document, json_body, operation, parameter
from support.hosts.openapi_document import hosted_document
from support.servers.web_site import web_site
from support.waiting import wait_until

pytestmark = pytest.mark.asyncio

BASE = "http://127.0.0.1:1"
OWLS = document({"/owls": {"get": operation("owls")}})
MORE = document({"/owls": {"get": operation("owls")}, "/larks": {"get": operation("larks")}})


async def test_a_change_of_the_file_is_served_and_told(tmp_path: Path) -> None:
    """A tool that is in both is never away; a document that breaks leaves the tools as they are, and is an error."""
    async with hosted_document(tmp_path, OWLS, base=BASE) as birds:
        assert set(birds.host.tools) == {"birds.owls"}
        birds.write(MORE)
        await birds.wait_for_tools("owls", "larks")
        birds.write('{"openapi": ')
        await wait_until(lambda: birds.errors() == {"": "DocumentWrong"}, "the error is listed")
        assert set(birds.host.tools) == {"birds.owls", "birds.larks"}
        assert birds.errors_listed()[0].in_effect == "previous"
        birds.write(OWLS)
        await birds.wait_for_tools("owls")

        assert birds.errors() == {}
        assert birds.changes == [1, 2, 2, 1]
        birds.file.unlink()
        await wait_until(lambda: birds.errors() == {"": "DocumentWrong"}, "a file that has gone is an error")
        assert set(birds.host.tools) == {"birds.owls"}
        birds.write(OWLS)
        await wait_until(lambda: birds.errors() == {}, "it is back")


async def test_a_url_is_asked_whether_there_is_something_new(tmp_path: Path) -> None:
    """By the ETag that it gave. A server that breaks meanwhile leaves the tools as they are."""
    async with web_site() as site:
        site.page("/birds.json", json.dumps(OWLS).encode(), 'ETag: "1"')
        url = f"http://127.0.0.1:{site.port}/birds.json"
        async with hosted_document(tmp_path, OWLS, source=url, base=BASE, refresh_seconds=0.1) as birds:
            await wait_until(lambda: any('if-none-match: "1"' in each.lower() for each in site.asked), "it is asked")
            site.page("/birds.json", b"", status="304 Not Modified")
            asked = len(site.asked)
            await wait_until(lambda: len(site.asked) > asked + 2, "it is asked more")
            assert (birds.errors(), birds.changes) == ({}, [1])
            site.page("/birds.json", b"", status="500 No")
            await wait_until(lambda: len(birds.errors_listed()) == 1, "the error is listed")
            assert set(birds.host.tools) == {"birds.owls"}
            site.page("/birds.json", json.dumps(MORE).encode(), 'ETag: "2"')

            await birds.wait_for_tools("owls", "larks")
            assert birds.errors() == {}


@pytest.mark.parametrize("to", ["/birds.json", "http://127.0.0.1:1/birds.json"], ids=["within", "elsewhere"])
async def test_a_document_is_redirected_within_its_origin_only(tmp_path: Path, to: str) -> None:
    """Another server's document is another document."""
    async with web_site() as site:
        site.page("/birds.json", json.dumps(OWLS).encode())
        site.redirect("/moved", to)
        url = f"http://127.0.0.1:{site.port}/moved"
        async with hosted_document(tmp_path, OWLS, source=url, base=BASE) as birds:
            assert bool(birds.host.tools) == (to == "/birds.json")
            assert len(birds.errors_listed()) == (to != "/birds.json")


async def test_yaml_is_read_as_json_would_be(tmp_path: Path) -> None:
    """Numbers as keys are texts, `no` is a text, and so is a date; aliases are what they stand for."""
    text = yaml.safe_dump(document({"/owls": {"get": operation("owls", parameter("day", "query", {"$ref": "#/x"}))}}))
    text += "x: {type: string, enum: [no, 2026-01-01, 1.5, 7]}\n"
    text += "y: &owl {description: hoot}\nz: {200: *owl}\n"
    async with hosted_document(tmp_path, text, base=BASE) as birds:
        assert birds.errors() == {}
        assert birds.input_schema("owls")["$defs"].popitem()[1]["enum"] == ["no", "2026-01-01", 1.5, 7]


MERGED = """
openapi: 3.0.3
info: {title: Birds, version: "1"}
x-common: &common
  parameters: [{name: tenant, in: query, required: true, schema: {type: string}}]
  summary: Common.
x-night: &night {tags: [night]}
paths:
  /one:
    get:
      <<: *common
      operationId: one
      responses: &responses {"200": {description: ok}}
  /two:
    get:
      operationId: two
      summary: Own.
      <<: [*night, *common]
      responses:
        <<: *responses
        "404": {description: no}
  /three:
    get:
      operationId: three
      "<<": *common
      responses: *responses
      parameters: [{name: sign, in: query, schema: {type: string, enum: [<<, ">>"]}}]
"""


async def test_merge_keys_of_yaml_are_merged(tmp_path: Path) -> None:
    """What stands there itself counts more, and the first of several; a key in quotes and a value are texts."""
    async with hosted_document(tmp_path, MERGED, base=BASE) as birds:
        assert birds.errors() == {}
        tools = {name.removeprefix("birds."): tool.definition for name, tool in birds.host.tools.items()}
        assert (
            list(birds.input_schema("one")["properties"]) == list(birds.input_schema("two")["properties"]) == ["tenant"]
        )
        assert (tools["two"].description, tools["two"].tags) == ("Own.", ["night"])
        assert birds.input_schema("three")["properties"] == {"sign": {"type": "string", "enum": ["<<", ">>"]}}


def laughs() -> str:
    """Few lines that stand for billions."""
    lines = ["openapi: 3.1.0", "paths: {}", "x0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines)


NONE = {
    "empty": ("", "no JSON object"),
    "a list": ("[]", "no JSON object"),
    "text": ("hoot", "no JSON object"),
    "older": ('{"swagger": "2.0"}', "Swagger 2"),
    "newer": ('{"openapi": "4.0.0"}', "OpenAPI 3.0 and 3.1"),
    "paths": ('{"openapi": "3.1.0", "paths": []}', "paths are no object"),
    "broken yaml": ("openapi: [", "line 2"),
    "python": ("openapi: !!python/object/apply:os.system [true]", "no YAML"),
    "laughs": (laughs(), "more than"),
    "a merged number": ("a: {<<: 3}", "merging"),
    "circle": ("x: &x [*x]", "nested deeper"),
    "deep list": ("[" * 500 + "]" * 500, "nested"),
    "deep braces": ("{" * 20_000, "not JSON"),
    "deep json": ('{"a":' * 5_000 + "1" + "}" * 5_000, "nested"),
    "large": (" " * (8 * 2**20 + 1), "more than 8388608 bytes"),
}


async def test_what_is_no_document_is_one_clear_error(tmp_path: Path) -> None:
    """The module is there all the same, without tools, and waits for a better one."""
    async with hosted_document(tmp_path, "{}", base=BASE) as birds:
        for kind, (text, words) in NONE.items():
            birds.write(text)
            await birds.host.reload()
            (error,) = birds.errors_listed()
            assert words in error.message, kind
            assert (error.error_type, error.in_effect) == ("DocumentWrong", "none")
        birds.write(OWLS)
        await birds.wait_for_tools("owls")


@pytest.mark.parametrize(
    ("more", "is_yaml", "chosen", "is_served"),
    [
        (9, False, {"paths": ["/owls"]}, True),
        (9, False, {"tags": ["night"]}, True),
        (9, False, {}, False),
        (9, True, {"paths": ["/owls"]}, False),
        (33, False, {"paths": ["/owls"]}, False),
    ],
)
async def test_a_large_document_is_read_where_something_is_chosen(
    tmp_path: Path, more: int, chosen: dict[str, Any], *, is_yaml: bool, is_served: bool
) -> None:
    """In JSON only, up to 32 MiB; the error says so."""
    text = json.dumps(document({"/owls": {"get": operation("owls", tags=["night"])}}))
    text = f"# {'x' * more * 2**20}\n{text}" if is_yaml else f"{text}{' ' * more * 2**20}"
    async with hosted_document(tmp_path, text, base=BASE, **chosen) as birds:
        assert set(birds.host.tools) == ({"birds.owls"} if is_served else set())
        messages = [each.message for each in birds.errors_listed()]
        assert bool(messages) is not is_served
        assert is_served or more == 33 or "33554432 with tags or paths" in messages[0]


async def test_operations_that_cannot_be_tools_are_listed(tmp_path: Path) -> None:
    """Each with its reason; the others are served."""
    reference = {"schema": {"$ref": "other.json#/x"}}
    paths: dict[str, Any] = {
        "/fine": {"get": operation("fine")},
        "/outside": {"get": operation("outside", {"name": "n", "in": "query", "required": True, **reference})},
        "/nowhere": {"get": operation("nowhere", {"$ref": "#/components/parameters/none"})},
        "/circle": {"get": operation("circle", {"$ref": "#/paths/~1circle/get/parameters/0"})},
        "/pattern": {"get": operation("pattern", parameter("n", "query", {"pattern": "(" * 50}))},
        "/path/{id}": {"get": operation("path")},
        "/xml": {"post": operation("xml", requestBody={"required": True, "content": {"application/xml": {}}})},
        "/same": {"get": operation("fine")},
        "/list": {"get": []},
        "/circles": {"get": operation("circles", parameter("n", "query", {"properties": {"a": 3}}, required=True))},
        "/parts": {"post": operation("parts", requestBody=json_body({"allOf": 3}, media_type="multipart/form-data"))},
    }
    async with hosted_document(tmp_path, document(paths), base=BASE) as birds:
        assert set(birds.host.tools) == {"birds.fine"}
        assert birds.errors() == {
            "GET /outside": "ExternalReference",
            "GET /nowhere": "ReferenceUnknown",
            "GET /circle": "ReferenceUnknown",
            "GET /pattern": "InvalidSchema",
            "GET /path/{id}": "InvalidOperation",
            "POST /xml": "UnsupportedBody",
            "GET /same": "DuplicateTool",
            "GET /list": "InvalidOperation",
            "GET /circles": "InvalidSchema",
            "POST /parts": "InvalidOperation",
        }


async def test_operations_are_chosen_by_tag_and_path(tmp_path: Path) -> None:
    """Those with one of the tags, and a path like one of the patterns."""
    paths = {
        "/owls": {"get": operation("a", tags=["night"]), "post": operation("b", tags=["day"])},
        "/owls/barn": {"get": operation("c", tags=["night", "day"])},
        "/larks": {"get": operation("d", tags=["day"])},
    }
    for tags, chosen, names in (
        ((), (), "abcd"),
        (("night",), (), "ac"),
        ((), ("/owls*",), "abc"),
        (("day",), ("/owls/*", "/larks"), "cd"),
        (("none",), (), ""),
    ):
        async with hosted_document(tmp_path, document(paths), base=BASE, tags=tags, paths=chosen) as birds:
            assert set(birds.host.tools) == {f"birds.{name}" for name in names}


@pytest.mark.parametrize(
    ("servers", "base"),
    [
        ([{"url": "http://owls.test/v1/"}], "http://owls.test/v1"),
        ([{"url": "{s}://owls.test", "variables": {"s": {"default": "https"}}}], "https://owls.test"),
        ([{"url": "/v1"}], None),
        ([{"url": "file:///etc"}], None),
        ([{"url": "http://ada:pass@owls.test"}], None),
        ([], None),
    ],
)
async def test_the_documents_server_counts_without_a_base(
    tmp_path: Path, servers: list[dict[str, Any]], base: str | None
) -> None:
    """If it is one of HTTP; a base that is given counts in any case."""
    async with hosted_document(tmp_path, {**OWLS, "servers": servers}) as birds:
        assert [tool.form.base for tool in birds.host.tools.values()] == ([] if base is None else [base])
        assert birds.errors() == ({"GET /owls": "ServerUnknown"} if base is None else {})
    async with hosted_document(tmp_path, {**OWLS, "servers": servers}, base=BASE) as birds:
        assert [tool.form.base for tool in birds.host.tools.values()] == [BASE]


async def test_a_changed_operation_has_another_digest(tmp_path: Path) -> None:
    """And only that: a pinned module's changed tool is withheld by it."""
    async with hosted_document(tmp_path, MORE, base=BASE) as birds:
        before = {each.name: each.code_digest for each in birds.host.definitions}
        changed = document({**MORE["paths"], "/larks": {"get": operation("larks", parameter("day"))}})
        birds.write(changed)
        await wait_until(lambda: len(birds.changes) == 2, "the change is served")
        after = {each.name: each.code_digest for each in birds.host.definitions}

        assert after["birds.owls"] == before["birds.owls"]
        assert after["birds.larks"] != before["birds.larks"]

        birds.file.touch()
        assert await birds.host.reload() is False, "the same content is no change"
        assert len(birds.changes) == 2

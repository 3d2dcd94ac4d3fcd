"""`web_search`: what it asks a search service, and what it makes of its answers. The service is a server on the loopback interface."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from modules.research.manifest import module_for
from modules.research.settings import ResearchSettings
from modules.research.tools import Research
from modules.research.web_search import WebResult, bounded
from support.modules.example_modules import Module, in_process
from support.servers.web_site import WebSite, web_site
from toolfleet_cli.local.redis_server import free_port

JSON = "Content-Type: application/json"
PAGES = [("Barn owl", "https://owls.example/barn", "It hunts at night."), ("Eagle owl", "http://owls.example/", "")]


@pytest.fixture
async def searxng() -> AsyncIterator[WebSite]:
    async with web_site() as site:
        yield site


def answers(site: WebSite, results: Any, **more: Any) -> None:
    """Have it answer as a SearXNG does, whatever is asked."""
    document = {"query": "owls", "number_of_results": 0, "results": results, "answers": [], "corrections": []}
    document |= {"infoboxes": [], "suggestions": [], "unresponsive_engines": [], **more}
    site.page("/search", json.dumps(document).encode(), JSON)


def found(title: Any, url: Any, content: Any) -> dict[str, Any]:
    """One result in SearXNG's words."""
    known = {"title": title, "url": url, "content": content}
    return known | {"engine": "ddg", "engines": ["ddg"], "positions": [1], "score": 1.0, "category": "general"}


def research_with(site: WebSite, path: str = "", **settings: Any) -> Module:
    """The module, with that service."""
    return in_process(
        "research", module_for(ResearchSettings(search_url=f"http://127.0.0.1:{site.port}{path}", **settings)).app
    )


async def test_without_a_service_the_tool_says_what_to_set(research: Module) -> None:
    """By default there is none, and nothing is asked."""
    reply = await research("web_search", query="owls")

    assert not reply["success"]
    assert reply["effect_state"] == "none"
    assert reply["error"] == (
        "No web search is set up here: RESEARCH_SEARCH_URL must name a search service, such as a SearXNG's "
        "http://searxng:8080."
    )


async def test_pages_are_found(searxng: WebSite) -> None:
    """Each with its title, address and snippet, in the service's order; it is asked for JSON."""
    answers(searxng, [found(*page) for page in PAGES])
    reply = await research_with(searxng)("web_search", query=" barn\n owls & mice ")

    assert reply["result"]["results"] == [
        {"title": title, "url": url, "snippet": snippet} for title, url, snippet in PAGES
    ]
    assert searxng.asked[0].startswith("GET /search?q=barn+owls+%26+mice&format=json HTTP/1.1\r\n")


async def test_no_more_pages_come_than_were_asked_for(searxng: WebSite) -> None:
    """The best ones; the service knows no such limit itself."""
    answers(searxng, [found(f"Owl {n}", f"http://owls.example/{n}", "") for n in range(30)])
    reply = await research_with(searxng)("web_search", query="owls", max_results=3)

    assert [result["title"] for result in reply["result"]["results"]] == ["Owl 0", "Owl 1", "Owl 2"]


@pytest.mark.parametrize(
    "arguments", [{"query": ""}, {"query": "x" * 401}, {"query": "owls", "max_results": 21}, {"query": " \u200b\n"}]
)
async def test_a_query_has_some_words_and_not_too_many(searxng: WebSite, arguments: dict[str, Any]) -> None:
    """What is none is refused, and the service is not asked."""
    reply = await research_with(searxng).post("web_search", **arguments)

    assert not reply.json()["success"]
    assert searxng.asked == []


async def test_a_query_of_broken_characters_is_asked_without_them(searxng: WebSite) -> None:
    """Half a character cannot be sent."""
    answers(searxng, [])
    service = Research.of(ResearchSettings(search_url=f"http://127.0.0.1:{searxng.port}", docs_root=Path("/nowhere")))

    assert (await service.web_search("owls\ud800"))["results"] == []
    assert "q=owls&" in searxng.asked[0]


async def test_an_address_may_say_more(searxng: WebSite) -> None:
    """With its own path, `/search` or not, and with parameters that are sent along."""
    answers(searxng, [])
    searxng.pages["/x/search"] = searxng.pages["/search"]
    for path in ("/search", "/search/", "/?language=de", "/x/"):
        assert (await research_with(searxng, path)("web_search", query="owls"))["success"]

    lines = [request.split()[1] for request in searxng.asked]
    assert lines[2] == "/search?language=de&q=owls&format=json"
    assert lines[3].startswith("/x/search?")


async def test_a_key_goes_into_its_header(searxng: WebSite) -> None:
    """And neither into errors nor into what the settings show of themselves."""
    searxng.page("/search", b"", status="401 Unauthorized")
    reply = await research_with(searxng, search_key="owl-secret", search_key_header="X-Api-Key")(
        "web_search", query="owls"
    )
    settings = ResearchSettings(search_url="http://owls.example", search_key=SecretStr("owl-secret"))

    assert "\r\nX-Api-Key: owl-secret\r\n" in searxng.asked[0]
    assert reply["error"] == "The search service answered with status 401. It wants a key: RESEARCH_SEARCH_KEY."
    assert "owl-secret" not in repr(settings) + repr(Research.of(settings).provider)


@pytest.mark.parametrize(
    ("body", "headers", "status", "error"),
    [
        (b"<html>no</html>", [], "200 OK", "no JSON object"),
        (b"", [], "200 OK", "no JSON object"),
        (b'["results"]', [JSON], "200 OK", "no JSON object"),
        (b"[" * 100_000, [JSON], "200 OK", "no JSON object"),
        (b'{"results": ' + b"9" * 100_000 + b"}", [JSON], "200 OK", "no JSON object"),
        (b'{"results": {}}', [JSON], "200 OK", "does not speak as SearXNG"),
        (b"{}", [JSON], "200 OK", "does not speak as SearXNG"),
        (b'{"results": ["' + b"x" * 2**20 + b'"]}', [JSON], "200 OK", "more than 1048576 bytes"),
        (b"\x1f\x8b", [JSON, "Content-Encoding: gzip"], "200 OK", "compressed"),
        (b"", ["Location: http://192.0.2.1/"], "302 Found", "not followed"),
        (b"", ["Location: /search"], "308 Permanent Redirect", "not followed"),
        (b"", [], "403 Forbidden", r"status 403\. .*search\.formats"),
        (b"", [], "429 Too Many Requests", "asked too often"),
        (b"", [], "500 Internal Server Error", r"status 500\.$"),
        # No engine answered: that is not the same as no page.
        (b'{"results": [], "unresponsive_engines": [["ddg", "timeout"]]}', [JSON], "200 OK", "engines answered"),
    ],
)
async def test_what_is_no_answer_is_one_error(
    searxng: WebSite, body: bytes, headers: list[str], status: str, error: str
) -> None:
    """Whatever the service sends; nobody else is asked, and it is asked once."""
    searxng.page("/search", body, *headers, status=status)
    reply = await research_with(searxng)("web_search", query="owls")

    assert not reply["success"]
    assert re.search(error, reply["error"])
    assert len(searxng.asked) == 1


@pytest.mark.parametrize("path", ["/silent", "/trickle"])
async def test_a_service_that_takes_too_long_is_given_up(searxng: WebSite, path: str) -> None:
    """Whether it says nothing more, or a byte now and then."""
    searxng.pages[f"{path}/search"] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"
    reply = await research_with(searxng, path, search_seconds=0.3)("web_search", query="owls")

    assert reply["error"] == "The search service took longer than 0.3 s; try again later."


async def test_a_service_that_is_away_is_said_to_be() -> None:
    """Without its address, which is the operator's business."""
    settings = ResearchSettings(search_url=f"http://127.0.0.1:{free_port()}")
    reply = await in_process("research", module_for(settings).app)("web_search", query="owls")

    assert reply["error"] == "The search service cannot be reached (ConnectError); try again later."


async def test_odd_results_are_left_out(searxng: WebSite) -> None:
    """What is no page of the web, or was there before, is none; a page without a title has its address for one."""
    odd = [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "http://",
        "//x",
        "http://u:p@x/",
        "http://x/ y",
        "http://x/\n",
        7,
    ]
    odd += ["http://x/" + "y" * 2000, "http://[x", None]
    answers(
        searxng,
        [
            *(found("Odd", url, "") for url in odd),
            "text",
            7,
            {},
            found(*PAGES[0]),
            found(*PAGES[0]),
            found(7, "http://x/", []),
        ],
    )
    reply = await research_with(searxng)("web_search", query="owls", max_results=20)

    assert [(page["title"], page["snippet"]) for page in reply["result"]["results"]] == [
        ("Barn owl", "It hunts at night."),
        ("http://x/", ""),
    ]


def test_results_are_bounded_whoever_found_them() -> None:
    """In number, in characters for each text, and in bytes for all of them; what cannot be seen is left out."""
    long = [WebResult("\u00e4" * 5000, f"http://x/{n}", "\U0001f989" * 100_000) for n in range(200)]
    (one,) = bounded([WebResult("a\x00\u202eb\n c", "http://x/", "")], 5)

    assert one.title == "a b c"
    assert 0 < sum(len(repr(result).encode()) for result in bounded(long, 200)) < 2**16 + 10_000
    assert {(len(result.title), len(result.snippet)) for result in bounded(long, 3)} == {(300, 600)}
    assert bounded((WebResult("", "", "") for _ in iter(int, 1)), 5) == []  # endless


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"search_url": "searxng:8080"}, "must begin with http"),
        ({"search_url": "ftp://searxng"}, "must begin with http"),
        ({"search_url": "http://"}, "must begin with http"),
        ({"search_url": "http://[x"}, "is no address"),
        ({"search_url": "http://me:hush@searxng"}, "no user or password"),
        ({"search_key": "hush\r\nX: y"}, "plain ASCII"),
        ({"search_key": "hüsh"}, "plain ASCII"),
        ({"search_key": "hush", "search_key_header": "X Key"}, "a header's name"),
        ({"search_seconds": 0}, "greater than 0"),
    ],
)
def test_wrong_settings_are_one_clear_error(settings: dict[str, Any], error: str) -> None:
    """As the module starts, and without the secret in it."""
    with pytest.raises(ValidationError, match=error) as caught:
        ResearchSettings(**settings)

    assert "hush" not in str(caught.value)

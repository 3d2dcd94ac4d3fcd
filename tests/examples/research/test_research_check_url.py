"""`check_url`: what it says of an address, and that it goes nowhere else than `fetch_webpage`. The web is on the loopback interface."""

import json
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest

from modules.research.fetch import PageFetcher
from modules.research.tools import Research
from support.servers.web_site import WebSite, web_site
from toolfleet import url_poll
from toolfleet.sdk import ToolError
from toolfleet_registry.conditions import check_condition, fulfils

STATE: dict[str, Any] = {"build": {"state": "done", "steps": [{"ok": True}]}, "status": "x", "large": "x" * 20_000}


@pytest.fixture
async def site() -> AsyncIterator[WebSite]:
    async with web_site() as site:
        site.page("/state", json.dumps(STATE).encode(), "Content-Type: application/json")
        site.page("/broken", b'{"build": {"state": NaN}}', status="503 Service Unavailable")
        site.page("/deep", b"[" * 9_000)
        site.redirect("/moved", "/state")
        yield site


@pytest.fixture
def tools() -> Research:
    """For which 127.0.0.1 is the public internet, and all else is not."""
    fetcher = PageFetcher(may_connect=lambda address: address == ip_address("127.0.0.1"), seconds=20, max_bytes=100_000)
    return Research(fetcher, None, None)  # type: ignore[arg-type] # nothing is searched


def at(site: WebSite, path: str) -> str:
    return f"http://127.0.0.1:{site.port}{path}"


@pytest.mark.parametrize(
    ("path", "field", "told"),
    [
        ("/state", "build.state", {"status": 200, "value": "done"}),
        ("/state", "build.steps.0.ok", {"status": 200, "value": True}),
        ("/state", "build.steps.7.ok", {"status": 200, "value": None}),
        ("/state", "build.state.upper", {"status": 200, "value": None}),
        ("/state", None, {"status": 200}),
        ("/broken", "build.state", {"status": 503, "value": None}),
        ("/deep", "0.0", {"status": 200, "value": None}),
        ("/nothing", None, {"status": 404}),
    ],
)
async def test_a_status_and_a_field_are_told(
    site: WebSite, tools: Research, path: str, field: str | None, told: dict[str, Any]
) -> None:
    """Whatever the status is; what is no JSON has no fields."""
    assert await tools.check_url(at(site, path), field) == {"url": at(site, path), **told}


async def test_a_redirect_is_followed(site: WebSite, tools: Research) -> None:
    """To where the same holds: the fetch checks each."""
    assert (await tools.check_url(at(site, "/moved")))["url"] == at(site, "/state")
    site.redirect("/away", "http://127.0.0.2/")
    with pytest.raises(ToolError, match="is not a public host"):
        await tools.check_url(at(site, "/away"))


async def test_a_value_is_bounded(site: WebSite, tools: Research) -> None:
    """It is kept with the job, and perhaps told."""
    with pytest.raises(ToolError, match="more than 10,000 characters"):
        await tools.check_url(at(site, "/state"), "large")


async def test_where_nobody_answers_is_no_failure(tools: Research) -> None:
    """Whoever waits for a service to come up asks again."""
    told = await tools.check_url("http://127.0.0.1:1/")
    assert told["status"] == 0
    assert "cannot be fetched" in told["error"]


@pytest.mark.parametrize(
    ("path", "expected", "is_over"),
    [
        ("/state", {}, True),
        ("/nothing", {}, False),
        ("/nothing", {"status": [404, 410]}, True),
        ("/state", {"field": "build.state", "value": "done"}, True),
        ("/state", {"field": "build.state", "value": ["failed", "done"]}, True),
        ("/state", {"field": "build.state", "value": "failed"}, False),
        ("/state", {"field": "build.steps.0.ok", "value": True}, True),
        ("/broken", {"field": "build.state", "value": "done"}, False),
    ],
)
async def test_a_poll_of_an_address_is_over_when_it_answers_so(
    site: WebSite, tools: Research, path: str, expected: dict[str, Any], is_over: bool
) -> None:
    """What `url_poll` asks for is what the tool tells."""
    poll = url_poll(at(site, path), **expected)
    assert poll.until is not None
    check_condition(poll.until)
    assert fulfils(poll.until, await tools.check_url(**poll.arguments)) is is_over

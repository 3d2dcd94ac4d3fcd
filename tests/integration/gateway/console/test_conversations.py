"""The page of a conversation: its calls in their order, and what else belongs to it."""

import asyncio
import uuid

import pytest

from support.console.plain_browser import ConsoleBrowser, Page, browsing
from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until_answered
from toolfleet import Caller, Conversation, ToolCall, ToolFleet

BOB = Caller(user_id="bob", permission="user", allowed_modules="*")


@pytest.fixture
def talk() -> str:
    """A conversation that nobody else has; its name has signs that an address must escape."""
    return f"chat/{uuid.uuid4().hex} ä&?"


async def called(fleet: ToolFleet, talk: str, tool: str, *, text: str = "hoo") -> str:
    """The id of a call that has ended in the conversation."""
    call = ToolCall(tool_name=f"owls.{tool}", arguments={"text": text})
    result = await fleet.call(call, BOB, conversation=Conversation(conversation_id=talk))
    return str(result.audit.call_id)


async def shown_when(browser: ConsoleBrowser, talk: str, text: str, **query: str) -> Page:
    """Its page, once it says that."""
    last = list[Page]()

    async def says() -> bool:
        last[:] = [await browser.get("/conversation", params={"id": talk, **query})]
        return text in last[0].text

    await wait_until_answered(says, f"the page says {text!r}")
    return last[0]


def calls_on(page: Page) -> list[str]:
    return [link.rpartition("/")[2] for link in page.links if link.startswith("/console/calls/")]


async def test_its_calls_stand_in_their_order(gateway: KeyedGateway, fleet: ToolFleet, talk: str) -> None:
    """Also those that failed or were refused; of other conversations there are none, nor anybody's arguments."""
    made = [await called(fleet, talk, tool, text="secret hoo") for tool in ("echo", "fail", "none", "echo")]
    await called(fleet, f"{talk}-2", "echo")
    async with browsing(gateway, "vera") as browser:
        page = await shown_when(browser, talk, "4 of 4")

    assert calls_on(page) == made
    assert talk in page.text
    for text in ("refused", "unknown_tool", "module_error"):
        assert text in page.text
    assert "secret hoo" not in page.html


async def test_long_ones_are_paged(gateway: KeyedGateway, fleet: ToolFleet, talk: str) -> None:
    """The first page has the latest; a link leads to the earlier ones, and back."""
    made = [await called(fleet, talk, "echo") for _ in range(55)]
    async with browsing(gateway, "vera") as browser:
        first = await shown_when(browser, talk, "50 of 55")
        earlier = next(link for link in first.links if "cursor=" in link)
        second = await browser.get(earlier.removeprefix("/console"))

    assert [*calls_on(second), *calls_on(first)] == made
    assert [link for link in second.links if "cursor=" in link] == []
    assert any("/console/conversation?" in link for link in second.links)


async def test_its_jobs_wakeups_and_approvals_are_shown(gateway: KeyedGateway, talk: str) -> None:
    """A job that has ended, whose wake-up waits for a reader until that confirms it; and a call that waits for people."""
    start = {"tool_name": "owls.echo", "arguments": {"text": "hoo"}}
    job = {"name": "count them", "start": start, "conversation": {"conversation_id": talk}}
    job_id = (await gateway.post("bob", "/jobs", job)).json()["job_id"]
    asks = {"tool_name": "owls.feed", "arguments": {"n": 1, "pin": "1234"}, "conversation_id": talk}
    approval_id = (await gateway.post("bob", "/calls", asks)).json()["call_id"]
    async with browsing(gateway, "vera") as browser:
        page = await shown_when(browser, talk, "waits for a reader", user="bob")
    async with browsing(gateway, "ada") as browser:
        await browser.send((await browser.get(f"/approvals/{approval_id}")).form(approval_id), decision="reject")
        after = await shown_when(browser, talk, "rejected", user="bob")

    for link in (f"/console/jobs/{job_id}", f"/console/approvals/{approval_id}", f"/console/audit?tool={job_id}"):
        assert link in page.links
    for text in ("count them", "completed", "job.completed", "owls.feed", "waiting"):
        assert text in page.text
    assert "1234" not in page.html
    assert f"/console/calls/{approval_id}" in after.links


async def test_it_is_reached_from_calls_jobs_and_approvals(gateway: KeyedGateway, fleet: ToolFleet, talk: str) -> None:
    """By a link on each of their pages, and from the list of calls by a filter."""
    call_id = await called(fleet, talk, "echo")
    later = {"schedule": {"delay_seconds": 3600}, "conversation": {"conversation_id": talk}}
    job_id = (await gateway.post("bob", "/jobs", later)).json()["job_id"]
    asks = {"tool_name": "owls.feed", "arguments": {"n": 1}, "conversation_id": talk}
    approval_id = (await gateway.post("bob", "/calls", asks)).json()["call_id"]
    async with browsing(gateway, "vera") as browser:
        await shown_when(browser, talk, "1 of 1")
        pages = [f"/calls/{call_id}", f"/jobs/{job_id}", "/jobs?user_id=bob", f"/approvals/{approval_id}"]
        shown = await asyncio.gather(*(browser.get(below) for below in pages))
        filtered = await browser.get("/calls", params={"conversation": talk})
        found = [
            await browser.get(next(link for link in page.links if "/console/conversation?" in link)[8:])
            for page in (*shown[:2], shown[3], filtered)
        ]
    await gateway.delete("bob", f"/jobs/{job_id}")
    await gateway.delete("bob", f"/calls/{approval_id}")

    assert "1 of this filter" in filtered.text
    assert [calls_on(page) for page in found] == [[call_id]] * 4
    assert any("/console/conversation?" in link for link in shown[2].links)


async def test_what_is_none_is_said(gateway: KeyedGateway, talk: str) -> None:
    """An unknown conversation has nothing; one without an id, or with one that is too long, is no question."""
    async with browsing(gateway, "vera") as browser:
        page = await browser.get("/conversation", params={"id": talk})
        wrong = [await browser.get("/conversation", params=each) for each in ({}, {"id": "x" * 300})]

    assert (page.status, page.text.count("There are none")) == (200, 3)
    assert [each.status for each in wrong] == [400, 400]

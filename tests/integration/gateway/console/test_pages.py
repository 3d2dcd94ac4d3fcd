"""What pages of the console show, and what comes of their forms."""

import json
import re
from typing import Any

import pytest
from redis import Redis

from support.console.console_fleet import HOSTILE, bury
from support.console.plain_browser import ConsoleBrowser, Page, browsing
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_gateway.console import tools
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters.store import MOST_SEARCHED

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def asked(gateway: KeyedGateway, **arguments: object) -> str:
    """The id of a call of Bob's that waits for people."""
    answer = await gateway.post("bob", "/calls", {"tool_name": "owls.feed", "arguments": arguments})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["call_id"])


async def shown_when(browser: ConsoleBrowser, below: str, text: str) -> Page:
    """The page, once it says that."""
    last = list[Page]()

    async def says() -> bool:
        last[:] = [await browser.get(below)]
        return text in last[0].text

    await wait_until_answered(says, f"{below} says {text!r}")
    return last[0]


async def test_the_overview_counts_what_has_ended(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """Rates, times, queues, lanes and modules, as of now; the same without JavaScript."""
    for _ in range(3):
        assert (await fleet.call(ToolCall(tool_name="owls.echo", arguments={"text": "hoo"}), OWNER)).success
    async with browsing(gateway, "vera") as browser:
        page = await shown_when(browser, "/", "owls.echo")

    for title in ("Calls a second", "Run, median / 95 %", "Ended in the last minute", "Lanes", "Modules"):
        assert title in page.text
    assert re.search(r"owls\s+well", page.text)
    assert "/console/live" in page.html


async def test_a_module_that_is_recovering_is_no_error(gateway: KeyedGateway, bed: TestBed) -> None:
    """It says so, and why, on the overview and in the list; one that is left alone is shown as bad, with the reason."""
    breaker = bed.settings.keys.breaker("owls")
    back: dict[Any, Any] = {"open_until": 1, "half_at": 1, "let_in_at": 1, "tokens": 4, "pause": 1000}
    gone: dict[Any, Any] = {"open_until": 9_000_000_000_000, "pause": 9_000_000_000_000, "why": "refused"}
    with Redis.from_url(bed.redis_url) as redis:
        try:
            async with browsing(gateway, "vera") as browser:
                for state, badge, said in (
                    (back, '"badge odd">recovering<', "a few at a time"),
                    (gone, '"badge bad">away<', "Connection refused"),
                ):
                    redis.delete(breaker)
                    redis.hset(breaker, mapping=state)
                    for below in ("/", "/modules"):
                        page = await shown_when(browser, below, said)
                        assert badge in page.html
        finally:
            redis.delete(breaker)


async def test_calls_are_listed_and_told(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """By a filter in the URL; one call with its times as bars, its attempts and its lines."""
    caller = OWNER.model_copy(update={"user_id": "otis"})
    done = await fleet.call(ToolCall(tool_name="owls.echo", arguments={"text": "secret hoo"}), caller)
    failed = await fleet.call(ToolCall(tool_name="owls.fail", arguments={}), caller)
    async with browsing(gateway, "vera") as browser:
        page = await shown_when(browser, "/calls?user=otis", "2 of this filter")
        some = await browser.get("/calls?user=otis&outcome=success")
        none = await browser.get("/calls?user=otis&until=2020-01-31T12:00")
        story = await browser.get(f"/calls/{done.audit.call_id}")

    assert f"/console/calls/{failed.audit.call_id}" in page.links
    assert f"/console/calls/{failed.audit.call_id}" not in some.links
    assert "There are none." in none.text
    shown = [
        bar for bar in re.findall(r'<rect class="(\w+)"', story.html) if bar != "claimed"
    ]  # perhaps as it was fetched
    assert shown == ["queued", "attempt", "module", "stored"]
    assert "secret hoo" not in story.text


async def test_a_result_is_shown_to_whoever_may_see_it(gateway: KeyedGateway) -> None:
    """That is who has begun the call; arguments stand where people have approved them, and what is sensitive for owners only."""
    body = {"tool_name": "owls.echo", "arguments": {"text": "own hoo"}}
    own = (await gateway.post("ada", "/calls", body)).json()["audit"]["call_id"]
    approved = await asked(gateway, n=7, pin="5678")
    async with browsing(gateway, "vera") as viewer, browsing(gateway, "ada") as admin:
        await admin.send((await admin.get(f"/approvals/{approved}")).form(approved), decision="approve")
        await gateway.get("bob", f"/calls/{approved}", headers={"prefer": "wait=20"})
        seen = [await shown_when(each, f"/calls/{own}", "Where its time went") for each in (viewer, admin)]
        others = [await shown_when(each, f"/calls/{approved}", "its approval") for each in (viewer, admin)]

    assert ["own hoo" in page.text for page in seen] == [False, True]
    assert "Nothing that you may see" in seen[0].text
    assert [("5678" in page.text, "[redacted]" in page.text) for page in others] == [(False, True), (True, False)]


async def test_an_approval_shows_a_long_text_whole(gateway: KeyedGateway) -> None:
    """Line by line, with its last one, however long it is."""
    source = "\n".join([*(f"# {'o' * 60}" for _ in range(1_000)), "pay(1)  # \u202e the end"])
    call_id = await asked(gateway, n=1, note=source, pin="1234")
    async with browsing(gateway, "ada") as admin:
        page = await admin.get(f"/approvals/{call_id}")

    assert "  | pay(1)  # \\u202e the end" in page.html


async def test_an_approval_shows_its_arguments_and_is_decided(gateway: KeyedGateway) -> None:
    """What is sensitive is shown only to who may decide: they have the form, and the call goes on with what they have typed."""
    call_id = await asked(gateway, n=1, note=HOSTILE, pin="1234")
    async with browsing(gateway, "vera") as viewer, browsing(gateway, "ada") as admin:
        seen = await viewer.get(f"/approvals/{call_id}")
        page = await admin.get(f"/approvals/{call_id}")
        wrong = await admin.send(page.form(call_id, edits="true"), arguments="{", decision="approve")
        waiting = await admin.get("/approvals")
        settled = await admin.send(page.form(call_id, edits="true"), arguments='{"n": 2}', decision="approve")
        left = await admin.get("/approvals")
        again = await admin.send(page.form(call_id), decision="reject")
    ended = (await gateway.get("bob", f"/calls/{call_id}", headers={"prefer": "wait=20"})).json()

    assert ("1234" in seen.text, "[redacted]" in seen.text) == (False, True)
    assert [form.action for form in seen.forms if call_id in form.action] == []
    assert (wrong.status, "Not done" in wrong.text) == (400, True)
    assert "owls.feed: approved." in settled.text
    here = f"/console/approvals/{call_id}"
    assert (here in waiting.links, here in left.links) == (True, False)
    assert (again.status, "Not done" in again.text) == (409, True)
    assert ended["result"]["result"]["n"] == 2


async def test_a_dead_letter_is_replayed_dropped_and_audited(gateway: KeyedGateway, bed: TestBed) -> None:
    """Each with a confirmation; the audit says who has done it."""
    bury(bed, ["lone-1", "lone-2"])
    async with browsing(gateway, "olga") as browser:
        page = await browser.get("/dead-letters/call/lone-1")
        replayed = await browser.send(page.form("lone-1", action="replay"))
        listed = await browser.get("/dead-letters?about=lone")
        dropped = await browser.send(listed.form("lone-2", action="drop"))
        audit = await browser.get("/audit?changes=true")

    assert "was run once more, and has succeeded" in replayed.text
    assert "Dropped the call lone-2." in dropped.text
    for change in ("lone-1", "lone-2"):
        assert change in audit.text
    assert "olga" in audit.text


@pytest.mark.parametrize("action", ["drop", "replay"])
async def test_letters_of_a_filter_are_handled_step_by_step(gateway: KeyedGateway, bed: TestBed, action: str) -> None:
    """Only those, some at a time, also without JavaScript; what dies meanwhile stays."""
    bury(bed, [f"{action}-many-{number}" for number in range(60 if action == "drop" else 7)])
    bury(bed, [f"{action}-other"], reason="Another fault.")
    async with browsing(gateway, "olga") as browser:
        listed = await browser.get(f"/dead-letters?error=nobody+saw&about={action}-")
        page = await browser.send(listed.form("/bulk", action=action))
        first = page.text
        bury(bed, [f"{action}-later"])
        while any(form.action.endswith("/bulk") for form in page.forms):
            page = await browser.send(page.form("/bulk"))
        left = await browser.get(f"/dead-letters?about={action}-")

    total = 60 if action == "drop" else 7
    assert f"of {total}:" in first
    assert f"{total} of {total}: {total} " in page.text.replace("\n", " "), page.text
    assert "faults" not in page.html
    assert "That is all of them." in page.text
    kept = {link.rpartition("/")[2] for link in left.links if "/dead-letters/call/" in link}
    assert f"{action}-other" in kept
    assert not [letter for letter in kept if "many" in letter]


async def test_a_filter_says_that_it_has_not_seen_all(gateway: KeyedGateway, bed: TestBed) -> None:
    """One question looks at five thousand letters; a link goes on behind them, as far as one wants."""
    bury(bed, ["needle-1", *(f"hay-{number}" for number in range(MOST_SEARCHED + 1))])
    try:
        async with browsing(gateway, "vera") as browser:
            first = await browser.get("/dead-letters?kind=call&about=needle")
            following = next(link for link in first.links if "cursor=" in link)
            second = await browser.get(following.removeprefix("/console"))
    finally:
        await gateway.delete("olga", "/operations/dead-letters?kind=call")

    assert ("Not all were searched:" in first.text, "There are none among these." in first.text) == (True, True)
    assert "Not all were searched:" not in second.text
    assert "/console/dead-letters/call/needle-1" in second.links


async def test_letters_are_paged(gateway: KeyedGateway, bed: TestBed) -> None:
    """Earlier ones by a link, which keeps the filter; the first page of several does not know how many there are."""
    bury(bed, [f"paged-{number}" for number in range(25)])
    async with browsing(gateway, "vera") as browser:
        pages = [await browser.get("/dead-letters?about=paged-&limit=10")]
        while earlier := next((link for link in pages[-1].links if "cursor=" in link), None):
            pages.append(await browser.get(earlier.removeprefix("/console")))
        whole = await browser.get("/dead-letters?about=paged-")

    seen = [link.rpartition("/")[2] for page in pages for link in page.links if "/dead-letters/call/paged-" in link]
    assert seen == [f"paged-{number}" for number in reversed(range(25))]
    assert ("in all" in pages[0].text, "25 in all" in whole.text) == (False, True)


async def test_a_tool_is_disabled_and_enabled(gateway: KeyedGateway) -> None:
    """The page says that nobody may use it, and who has done it is in the audit."""
    async with browsing(gateway, "olga") as browser:
        page = await browser.get("/tools/owls.turn_away")
        await browser.send(page.form("owls.turn_away", action="disable"))
        closed = await shown_when(browser, "/tools/owls.turn_away", "No caller may use it:")
        await browser.send(closed.form("owls.turn_away", action="enable"))

        async def is_open() -> bool:
            return "No caller may use it:" not in (await browser.get("/tools/owls.turn_away")).text

        await wait_until_answered(is_open, "it may be used again")


async def test_a_module_is_pinned_and_unpinned(gateway: KeyedGateway) -> None:
    """Its page says so."""
    async with browsing(gateway, "olga") as browser:
        page = await browser.get("/modules/owls")
        pinned = await browser.send(page.form("/modules/owls", action="pin"))
        unpinned = await browser.send(pinned.form("/modules/owls", action="unpin"))

    assert "Pinned: 11 tools" in pinned.text
    assert "It is not pinned any more." in unpinned.text


async def test_a_changed_definition_is_shown_until_it_is_accepted(gateway: KeyedGateway, bed: TestBed) -> None:
    """On the pages of its tool, its module and all tools, with what has changed."""
    keys = Keys()
    with Redis.from_url(bed.redis_url, decode_responses=True) as redis:
        stored = redis.get(keys.module_manifest("owls"))
        redis.set(keys.module_manifest("owls"), json.dumps({**json.loads(str(stored)), "on_change": "shown"}))
        redis.hset(keys.accepted_tools, "owls.turn_away", f"sha256:{'0' * 64}")
        async with browsing(gateway, "olga") as browser:
            pages = [await browser.get(below) for below in ("/tools", "/modules/owls", "/tools/owls.turn_away")]
            accepted = await browser.send(pages[2].form("owls.turn_away", action="approve"))
            after = await browser.get("/modules/owls")
        redis.set(keys.module_manifest("owls"), str(stored))

    assert all("Changed, and not accepted" in page.text for page in (pages[0], pages[2]))
    assert "It is accepted as it is offered." in accepted.text
    assert "Changed, and not accepted" not in after.text


async def test_a_tool_is_tried_with_the_rights_of_the_key(
    gateway: KeyedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a form made of its schema; a wrong argument is said beside what was typed, and a viewer without rights has no form."""
    monkeypatch.setattr(tools, "_WAIT_SECONDS", 1)
    async with browsing(gateway, "ada") as browser:
        page = await browser.get("/tools/owls.feed/try")
        fields = page.form("/try").fields
        wrong = await browser.send(page.form("/try"), **{"argument.n": "one"})
        waits = await browser.send(page.form("/try"), **{"argument.n": "1", "argument.pin": "9876"})
        again = await browser.send(page.form("/try"), **{"argument.n": "1", "argument.pin": "9876"})
        call_id = next(link for link in waits.links if link.startswith("/console/approvals/")).rpartition("/")[2]
        await gateway.delete("ada", f"/calls/{call_id}")
    async with browsing(gateway, "vera") as browser:
        hidden = await browser.get("/tools/owls.echo/try")

    assert {"argument.n", "argument.note", "argument.pin"} <= fields.keys()
    assert (wrong.status, "must be a whole number" in wrong.text) == (400, True)
    assert 'value="one"' in wrong.html
    assert f"/console/tools/owls.feed/try/{call_id}" in again.links  # the same call: the form has one key
    assert "9876" not in waits.html
    assert hidden.status == 404


async def test_whatever_others_write_is_text(gateway: KeyedGateway, fleet: ToolFleet, bed: TestBed) -> None:
    """Names, descriptions, arguments, errors and what is typed: nobody's markup is the page's."""
    await fleet.call(ToolCall(tool_name=f"owls.{HOSTILE}", arguments={}), OWNER)
    bury(bed, ["hostile-1"], tool="owls.echo", reason=HOSTILE)
    call_id = await asked(gateway, n=3, note=HOSTILE)
    pages = [
        "/audit",
        "/calls",
        "/dead-letters?about=hostile",
        "/dead-letters/call/hostile-1",
        f"/approvals/{call_id}",
        "/tools",
        "/tools/owls.feed",
        "/tools/owls.feed/try",
        "/modules/owls",
    ]
    async with browsing(gateway, "ada") as browser:
        for below in pages:
            page = (
                await browser.get(below)
                if below not in {"/audit", "/calls"}
                else await shown_when(browser, below, HOSTILE)
            )
            assert (page.status, "onerror=alert(2)" in page.text) == (200, True), below
            assert "img" not in page.tags, below
            assert page.tags.count("script") <= 4, below
        typed = await browser.get("/tools", params={"q": HOSTILE})
        await browser.send((await browser.get(f"/approvals/{call_id}")).form(call_id), decision="reject")

    assert "img" not in typed.tags


async def test_lists_are_paged_by_the_url(gateway: KeyedGateway) -> None:
    """Earlier and later pages are links, which keep the filter."""
    async with browsing(gateway, "vera") as browser:
        first = await browser.get("/modules/owls?limit=10")
        second = await browser.get("/modules/owls?limit=10&offset=10")

    assert "/console/modules/owls?offset=10&limit=10" in first.links
    assert "/console/modules/owls?limit=10" in second.links


async def test_colours_are_kept(gateway: KeyedGateway) -> None:
    """In a cookie; then the same page is shown."""
    async with browsing(gateway, "vera") as browser:
        page = await browser.send((await browser.get("/tools")).form("/theme"), theme="dark")
        wrong = await browser.send(page.form("/theme"), theme='"><b>')

    assert 'data-theme="dark"' in page.html
    assert 'data-theme="auto"' in wrong.html


async def test_hints_for_commands_are_whole(gateway: KeyedGateway) -> None:
    """The commands of the form and of the list of keys have what they need, and no backticks."""
    async with browsing(gateway, None) as browser:
        form = await browser.get("/login")
    async with browsing(gateway, "ada") as browser:
        keys = await browser.get("/keys")

    assert "<code>toolfleet keys create --user NAME --role viewer</code>" in form.html
    assert "<code>toolfleet keys create --user NAME</code>" in keys.html
    assert "`" not in form.text + keys.text
    assert ">Agent</th>" in keys.html


async def test_an_empty_list_has_no_number_of_its_first_row(gateway: KeyedGateway) -> None:
    """There is nothing that it could begin with."""
    async with browsing(gateway, "gus") as browser:
        page = await browser.get("/approvals")

    assert "There are none." in page.text
    assert "From 1" not in page.text

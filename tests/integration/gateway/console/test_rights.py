"""Who sees which page of the console, and who may send its forms: one table."""

import pytest

from support.console.plain_browser import browsing
from support.gateways.keyed_gateway import KeyedGateway

# Each page with what it answers to an admin, an operator, a viewer, and a user without a role.
PAGES: list[tuple[str, tuple[int, int, int, int]]] = [
    ("/", (200, 200, 200, 403)),
    ("/calls", (200, 200, 200, 403)),
    ("/calls?module=owls&tool=owls.echo&user=bob&outcome=failed&error=x&since=2026-01-31T12:00", (200, 200, 200, 403)),
    ("/calls?cursor=wrong", (400, 400, 400, 403)),
    ("/calls?since=soon", (400, 400, 400, 403)),
    ("/calls/none", (404, 404, 404, 403)),
    ("/calls?conversation=talk", (200, 200, 200, 403)),
    ("/conversation?id=talk&user=bob", (200, 200, 200, 403)),
    ("/conversation", (400, 400, 400, 403)),
    ("/conversation?id=talk&cursor=wrong", (400, 400, 400, 403)),
    ("/approvals", (200, 200, 200, 200)),
    ("/approvals?settled=true", (200, 200, 200, 200)),
    ("/approvals/none", (404, 404, 404, 404)),
    ("/dead-letters", (200, 200, 200, 403)),
    ("/dead-letters?kind=call&about=owls&error=x&days=1&limit=10&offset=10", (200, 200, 200, 403)),
    ("/dead-letters/call/none", (404, 404, 404, 403)),
    ("/modules", (200, 200, 200, 403)),
    ("/modules/owls", (200, 200, 200, 403)),
    ("/modules/none", (404, 404, 404, 403)),
    ("/tools", (200, 200, 200, 403)),
    ("/tools?q=echo", (200, 200, 200, 403)),
    ("/tools/owls.echo", (200, 200, 200, 403)),
    ("/tools/owls.none", (404, 404, 404, 403)),
    ("/tools/owls.echo/try", (200, 404, 404, 403)),  # whoever may not call it cannot try it
    ("/jobs", (200, 200, 200, 403)),
    ("/jobs?user_id=bob&ended=true", (200, 200, 200, 403)),
    ("/jobs/none", (404, 404, 404, 403)),
    ("/wake-ups", (200, 200, 200, 403)),
    ("/wake-ups?kind=continue&about=owls&error=x&minutes=1&limit=10", (200, 200, 200, 403)),
    ("/wake-ups?cursor=wrong", (400, 400, 400, 403)),
    ("/wake-ups/none", (404, 404, 404, 403)),
    ("/queues", (200, 200, 200, 403)),
    ("/limits", (200, 200, 200, 403)),
    ("/limits?user=bob", (200, 200, 200, 403)),
    ("/agents", (200, 200, 200, 403)),
    ("/agents/none", (404, 404, 404, 403)),
    ("/errors", (200, 200, 200, 403)),
    ("/audit", (200, 200, 200, 403)),
    ("/audit?tool=owls&user=bob&outcome=success&changes=true", (200, 200, 200, 403)),
    ("/audit?cursor=wrong", (400, 400, 400, 403)),
    ("/keys", (200, 403, 403, 403)),
    ("/none", (404, 404, 404, 404)),
]
# Each form with what it answers to the same: 303 is done, 422 is a page that says why not.
FORMS: list[tuple[str, dict[str, str], tuple[int, int, int, int]]] = [
    ("/approvals/none", {"decision": "approve"}, (404, 404, 404, 404)),
    ("/dead-letters/call/none", {"action": "replay"}, (404, 404, 403, 403)),
    ("/dead-letters/call/none", {"action": "drop"}, (404, 404, 403, 403)),
    ("/dead-letters/bulk", {"action": "drop", "about": "nobody's"}, (200, 200, 403, 403)),
    ("/modules/none", {"action": "pin"}, (409, 409, 403, 403)),
    ("/modules/none", {"action": "remove"}, (409, 409, 403, 403)),
    ("/modules/owls", {"action": "sing"}, (400, 400, 403, 403)),
    ("/tools/owls.none", {"action": "disable"}, (409, 409, 403, 403)),
    ("/tools/owls.none", {"action": "approve"}, (409, 409, 403, 403)),
    ("/tools/owls.none", {"action": "rollback", "version": "1"}, (409, 409, 403, 403)),
    ("/tools/owls.echo/try", {"argument.text": "hoo"}, (200, 404, 404, 403)),
    ("/jobs", {"user_id": "none"}, (303, 303, 403, 403)),
    ("/jobs", {}, (400, 400, 403, 403)),
    ("/jobs/none", {}, (404, 404, 403, 403)),
    ("/wake-ups/none", {"action": "replay"}, (404, 404, 403, 403)),
    ("/wake-ups/none", {"action": "drop"}, (404, 404, 403, 403)),
    ("/wake-ups/none", {"action": "sing"}, (400, 400, 403, 403)),
    ("/wake-ups/bulk", {"action": "drop", "about": "nobody's"}, (200, 200, 403, 403)),
    ("/agents/none", {"action": "remove", "seen": "1"}, (404, 403, 403, 403)),
    ("/agents/none", {"action": "rollback", "version": "1", "seen": "1"}, (412, 403, 403, 403)),
    ("/keys/none", {}, (404, 403, 403, 403)),
    ("/queues", {}, (400, 400, 403, 403)),
    ("/queues", {"queue": "none", "action": "pause"}, (404, 404, 403, 403)),
    ("/queues", {"queue": "owls", "action": "sing"}, (400, 400, 403, 403)),
    ("/queues", {"queue": "owls", "action": "resume"}, (303, 303, 403, 403)),
    ("/theme", {"theme": "dark"}, (303, 303, 303, 303)),
]
PEOPLE = ("ada", "olga", "vera", "bob")


@pytest.mark.parametrize("who", PEOPLE)
async def test_each_page_asks_for_its_role(gateway: KeyedGateway, who: str) -> None:
    """What a role may not see is 403 with a page that says so, and an absent thing 404."""
    column = PEOPLE.index(who)
    async with browsing(gateway, who) as browser:
        found = {below: (await browser.get(below)).status for below, _ in PAGES}

    assert found == {below: statuses[column] for below, statuses in PAGES}


@pytest.mark.parametrize("who", PEOPLE)
async def test_each_form_asks_for_its_role(gateway: KeyedGateway, who: str) -> None:
    """The server checks again what the page has not shown."""
    column = PEOPLE.index(who)
    async with browsing(gateway, who) as browser:
        csrf = await browser.csrf()
        answers = [(await browser.post(below, {**form, "csrf": csrf})).status_code for below, form, _ in FORMS]

    assert list(zip([below for below, _, _ in FORMS], answers, strict=True)) == [
        (below, statuses[column]) for below, _, statuses in FORMS
    ]


async def test_the_navigation_leads_to_what_a_role_may_see(gateway: KeyedGateway) -> None:
    """Keys are an admin's; who has no role is led to approvals only, and is told so."""
    seen = dict[str, list[str]]()
    for who in PEOPLE:
        async with browsing(gateway, who) as browser:
            seen[who] = (await browser.get("/approvals")).links

    assert "/console/keys" in seen["ada"]
    assert "/console/keys" not in seen["olga"]
    assert "/console/audit" in seen["vera"]
    assert {link.split("/")[2].partition("?")[0] for link in seen["bob"] if link.startswith("/console/")} == {
        "",
        "approvals",
    }
    async with browsing(gateway, "bob") as browser:
        assert "It has no role" in (await browser.get()).text


async def test_a_viewer_is_shown_no_form_that_changes_something(gateway: KeyedGateway) -> None:
    """Only the way to other colours and out is left."""
    async with browsing(gateway, "vera") as browser:
        for below, statuses in PAGES:
            if statuses[2] == 200:
                forms = [form.action for form in (await browser.get(below)).forms if form.method == "post"]
                assert forms == ["/console/theme", "/console/logout"], below

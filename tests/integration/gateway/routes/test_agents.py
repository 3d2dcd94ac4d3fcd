"""What viewers see of agents over HTTP, and admins change; and whose profile a call has."""

import httpx
import pytest

from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until_answered

_ALL = "/operations/agents"
READER = {"permission_at_most": "user", "tools": ["owls.echo"]}


async def put(gateway: KeyedGateway, name: str, body: object, match: str | None = None) -> httpx.Response:
    async with gateway.client("ada") as client:
        headers = {} if match is None else {"if-match": match}
        return await client.put(f"{_ALL}/{name}", json=body, headers=headers)


async def remove(gateway: KeyedGateway, name: str, match: str | None = None) -> httpx.Response:
    async with gateway.client("ada") as client:
        headers = {} if match is None else {"if-match": match}
        return await client.delete(f"{_ALL}/{name}", headers=headers)


async def test_a_profile_is_put_shown_and_removed(gateway: KeyedGateway) -> None:
    """Its versions stay, and an earlier one can be put again."""
    made = await put(gateway, "first", READER)
    shown = await gateway.get("vera", f"{_ALL}/first")
    listed = (await gateway.get("vera", _ALL)).json()
    removed = await remove(gateway, "first")
    gone = await gateway.get("vera", f"{_ALL}/first")
    rolled = await gateway.post("ada", f"{_ALL}/first/rollback", {"version": 1})
    versions = (await gateway.get("vera", f"{_ALL}/first/versions")).json()["versions"]
    audit = (await gateway.get("vera", "/operations/audit", params={"tool": "first"})).json()

    assert (made.status_code, made.json(), made.headers["etag"]) == (200, {"version": 1}, '"1"')
    assert (shown.headers["etag"], shown.json()["permission_at_most"]) == ('"1"', "user")
    assert shown.json() in listed["agents"]
    assert (removed.status_code, gone.status_code) == (204, 404)
    assert (rolled.json(), rolled.headers["etag"]) == ({"version": 3}, '"3"')
    assert [one["version"] for one in versions] == [3, 2, 1]
    assert versions[0]["by"] == f"ada (key {gateway.key_id('ada')})"
    assert [line["change"] for line in audit["lines"]] == ["agent_rolled_back", "agent_removed", "agent_put"]
    await remove(gateway, "first")


async def test_what_somebody_else_has_changed_is_not_replaced(gateway: KeyedGateway) -> None:
    """By `If-Match`; without it whatever is there is."""
    assert (await put(gateway, "second", READER, '"0"')).status_code == 200
    late = await put(gateway, "second", READER, '"0"')
    assert (late.status_code, late.json()["error_code"], late.headers["etag"]) == (412, "profile_changed", '"1"')
    assert (await put(gateway, "second", READER, '"1"')).json() == {"version": 2}
    assert (await put(gateway, "second", READER, "*")).json() == {"version": 3}
    assert (await remove(gateway, "second", '"2"')).status_code == 412
    for wrong in ("2", 'W/"2"', '"two"', ""):
        assert (await put(gateway, "second", READER, wrong)).status_code == 400
    assert (await remove(gateway, "second", '"3"')).status_code == 204


@pytest.mark.parametrize(
    ("name", "body", "status", "words"),
    [
        ("third", {"tools": ["git status"]}, 400, "selects no tools"),
        ("third", {"modes": "all"}, 400, "modes"),
        ("third", {"middleware": [{"name": "x"}]}, 400, "a middleware's name is one of"),
        ("third", {"middleware": [{"name": "limits", "daily_limit": 0}]}, 400, "daily_limit"),
        ("a b", {}, 409, "cannot be named 'a b'"),
        ("third", {"tools": [f"owls.{'x' * 180}{n}" for n in range(200)]}, 409, "at most 32768 bytes"),
        ("third", {"tools": ["status"]}, 409, "can select no tool"),
    ],
)
async def test_a_wrong_profile_is_refused(
    gateway: KeyedGateway, name: str, body: object, status: int, words: str
) -> None:
    """With what is wrong in it; nothing is stored."""
    answer = await put(gateway, name, body)

    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert (await gateway.get("vera", f"{_ALL}/third/versions")).status_code == 404


async def test_a_call_names_its_agent(gateway: KeyedGateway) -> None:
    """Whose profile counts at once: what it does not take is refused, and so is an agent that nobody knows."""
    await put(gateway, "fifth", READER)

    async def outcome(tool: str, agent: str | None, path: str = "/calls") -> tuple[int, object]:
        answer = await gateway.post("ada", path, {"tool_name": tool, "arguments": {}, "agent": agent})
        return answer.status_code, answer.json().get("error_code")

    async def is_known() -> bool:
        return await outcome("owls.echo", "fifth") == (200, None)

    async def is_gone() -> bool:
        return await outcome("owls.echo", "fifth") == (403, "permission_denied")

    await wait_until_answered(is_known, "the profile is known")
    assert await outcome("owls.echo", None) == (200, None)
    assert await outcome("owls.nap", "fifth") == (403, "permission_denied")
    assert await outcome("echo", "fifth", "/api/modules/owls/execute") == (200, None)
    assert await outcome("nap", "fifth", "/api/modules/owls/execute") == (403, "permission_denied")
    assert await outcome("owls.echo", "nobody") == (403, "permission_denied")
    assert (await outcome("owls.echo", "a b"))[0] == 400
    job = await gateway.post(
        "ada", "/jobs", {"start": {"tool_name": "owls.nap"}, "conversation": {"conversation_id": "c"}, "agent": "fifth"}
    )
    assert job.json()["error_code"] == "permission_denied"
    await remove(gateway, "fifth")
    await wait_until_answered(is_gone, "the profile is gone")


async def test_a_key_of_an_agent_takes_no_other_one(gateway: KeyedGateway) -> None:
    """But for those that stand behind it, which only take more."""
    await put(gateway, "sixth", READER)
    await put(gateway, "helper", {"mode": "subagent"})
    made = await gateway.post(
        "ada", "/operations/keys", {"user_id": "ada", "permission": "owner", "allowed_modules": "*", "agent": "sixth"}
    )
    headers = {"authorization": f"Bearer {made.json()['text']}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, trust_env=False) as bot:

        async def status(tool: str, agent: str | None) -> tuple[int, object]:
            answer = await bot.post("/calls", json={"tool_name": tool, "arguments": {}, "agent": agent})
            return answer.status_code, answer.json().get("error_code")

        async def are_known() -> bool:
            return await status("owls.echo", "sixth/helper") == (200, None)

        await wait_until_answered(are_known, "the profiles are known")
        assert await status("owls.echo", None) == (200, None)
        assert await status("owls.echo", "sixth") == (200, None)
        assert await status("owls.nap", None) == (404, "unknown_tool")
        for other in ("helper", "sixths", "other/sixth"):
            assert await status("owls.echo", other) == (403, "agent_of_key")
        listed = [tool["name"] for tool in (await bot.get("/tools")).json()["tools"]]
    assert listed == ["owls.echo"]
    await gateway.delete("ada", f"/operations/keys/{made.json()['key']['id']}")
    for name in ("sixth", "helper"):
        await remove(gateway, name)


async def test_why_is_answered_about_oneself_and_to_operators_about_others(gateway: KeyedGateway) -> None:
    """Who is none learns nothing behind the rule that decides, nothing of others, and of what they do not reach not that it is there."""
    unreached = await gateway.get("gus", "/tools/owls.echo/why")
    own = (await gateway.get("bob", "/tools/owls.echo/why", params={"agent": "nobody"})).json()
    other = await gateway.get("gus", "/tools/owls.echo/why", params={"user_id": "ada", "permission": "owner"})
    asked = {"key": gateway.key_id("gus")}
    same = (await gateway.get("olga", "/tools/owls.echo/why", params=asked)).json()
    allowed = await gateway.get("olga", "/tools/owls.echo/why", params={"permission": "owner", "modules": "owls, cats"})
    absent = await gateway.get("olga", "/tools/owls.echo/why", params={"key": "nobody"})
    both = await gateway.get("olga", "/tools/owls.echo/why", params={**asked, "permission": "owner"})
    unnamed = await gateway.get("olga", "/tools/owls.echo/why", params={"user_id": ""})

    assert (unreached.status_code, unreached.json()["error_code"]) == (404, "unknown_tool")
    assert (own["is_allowed"], own["rules"][-1]["about"], own["rules"][-1]["passes"]) == (False, "agent", False)
    assert (same["is_allowed"], [rule["passes"] for rule in same["rules"]][:2]) == (False, [True, False])
    assert (same["rules"][1]["about"], len(same["rules"]) > 2) == ("reach", True)
    assert allowed.json()["is_allowed"]
    assert [other.status_code, absent.status_code, both.status_code, unnamed.status_code] == [403, 404, 400, 400]


async def test_selectors_that_match_no_tool_are_told(gateway: KeyedGateway) -> None:
    """Where a profile is stored, and where it is shown; the profile is in force all the same."""
    note = "'larks.*' in the profile of agent 'fourth' matches no tool that the fleet knows now."
    made = await put(gateway, "fourth", {"tools": ["larks.*"]})
    shown = (await gateway.get("vera", f"{_ALL}/fourth")).json()
    await remove(gateway, "fourth")

    assert made.json() == {"version": 1, "notes": [note]}
    assert (shown["version"], shown["notes"]) == (1, [note])

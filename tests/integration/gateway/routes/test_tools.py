"""Tools and modules over HTTP: which there are, one of them, in a provider's form, page by page."""

import json
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from support.gateways.keyed_gateway import KeyedGateway
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.waiting import wait_until_answered

pytestmark = pytest.mark.usefixtures("worker")


async def test_tools_are_listed_with_where_they_are_from(gateway: KeyedGateway) -> None:
    """Each has its name, its source and its module, and the answer says how many there are."""
    answer = await gateway.get("bob", "/tools")

    found = answer.json()
    assert answer.status_code == 200
    assert found["count"] == len(found["tools"]) == 9
    assert {"name": "owls.echo", "source": "programmatic", "module": "owls"}.items() <= found["tools"][1].items()
    assert "next" not in found


async def test_only_what_the_key_may_use_is_listed(gateway: KeyedGateway) -> None:
    """An admin's tool is there for the owner and for no user; a guest without modules, and an operator, see none."""
    listed = {
        who: {tool["name"] for tool in (await gateway.get(who, "/tools")).json()["tools"]}
        for who in ("ada", "bob", "gus", "olga")
    }

    assert listed["ada"] - listed["bob"] == {"owls.admin_only"}
    assert listed["gus"] == listed["olga"] == set()


async def test_pages_follow_one_another(gateway: KeyedGateway) -> None:
    """Each page has its number of tools, and together they are all, each once."""
    names, cursor = list[str](), dict[str, str]()
    while True:
        page = (await gateway.get("ada", "/tools", params={"limit": "4", **cursor})).json()
        names += [tool["name"] for tool in page["tools"]]
        assert page["count"] == 10
        if "next" not in page:
            break
        assert len(page["tools"]) == 4
        cursor = {"cursor": page["next"]}

    assert names == sorted(set(names))
    assert len(names) == 10


async def test_a_search_has_pages_too(gateway: KeyedGateway) -> None:
    """The best come first, and `next` goes on behind them; a cursor of the one is none of the other."""
    first = (await gateway.get("ada", "/tools", params={"q": "nap", "limit": "2"})).json()
    second = (await gateway.get("ada", "/tools", params={"q": "nap", "limit": "2", "cursor": first["next"]})).json()
    wrong = await gateway.get("ada", "/tools", params={"cursor": first["next"]})

    found = [tool["name"] for tool in [*first["tools"], *second["tools"]]]
    assert sorted(found) == ["owls.brief_nap", "owls.nap", "owls.nap_once"]
    assert (wrong.status_code, wrong.json()["error_code"]) == (400, "invalid_request")


async def test_tools_are_chosen_by_module_and_tag(gateway: KeyedGateway) -> None:
    """A module that there is not has no tools, and neither has a tag that nobody has."""
    for query, count in (({"module": "owls"}, 9), ({"module": "owl"}, 0), ({"tag": "quiet"}, 0)):
        assert (await gateway.get("bob", "/tools", params=query)).json()["count"] == count, query


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("openai_chat", "function"),
        ("openai_responses", "parameters"),
        ("anthropic", "input_schema"),
        ("mcp", "inputSchema"),
        ("gemini", "functionDeclarations"),  # one list of them all
    ],
)
async def test_tools_come_as_a_provider_takes_them(gateway: KeyedGateway, form: str, key: str) -> None:
    """What stands in `tools` goes into a request to it, and the count stays that of the tools."""
    found = (await gateway.get("bob", "/tools", params={"format": form})).json()

    assert found["count"] == 9
    assert [len(tool[key]) for tool in found["tools"]] == [9] if form == "gemini" else len(found["tools"]) == 9
    assert all(key in tool for tool in found["tools"])


async def test_what_the_client_has_is_not_sent_again(gateway: KeyedGateway) -> None:
    """With the tag of the last answer it is 304 without a body; for another caller the page is another."""
    tag = (await gateway.get("bob", "/tools")).headers["etag"]
    again = await gateway.get("bob", "/tools", headers={"if-none-match": f'"other", W/{tag}'})
    other = await gateway.get("ada", "/tools", headers={"if-none-match": tag})

    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert other.status_code == 200


async def test_one_tool_is_shown(gateway: KeyedGateway) -> None:
    """It is as in the list."""
    answer = await gateway.get("bob", "/tools/owls.echo")

    listed = (await gateway.get("bob", "/tools", params={"module": "owls"})).json()["tools"]
    assert answer.json() == next(tool for tool in listed if tool["name"] == "owls.echo")


async def test_a_misspelt_tool_is_not_found_and_near_ones_are_named(gateway: KeyedGateway) -> None:
    """The hint has names that the caller may use, and no others; what is closed to them looks like what is not there."""
    misspelt = await gateway.get("bob", "/tools/owls.ekho")
    closed = await gateway.get("bob", "/tools/owls.admin_only")
    absent = await gateway.get("bob", "/tools/owls.admin_onli")

    assert (misspelt.status_code, misspelt.json()["error_code"]) == (404, "unknown_tool")
    assert "owls.echo" in misspelt.json()["hint"]
    assert {**closed.json(), "instance": ""} == {**absent.json(), "instance": ""}
    assert "admin" not in closed.json().get("hint", "")


DOORS: list[tuple[str, str, Any]] = [
    ("GET", "/tools/{tool}", None),
    ("GET", "/tools/{tool}/why", None),
    ("POST", "/calls", {"tool_name": "{tool}"}),
    ("POST", "/calls/batch", {"calls": [{"tool_name": "{tool}"}]}),
    ("POST", "/api/modules/{module}/execute", {"tool_name": "{tool}"}),
    ("POST", "/jobs", {"start": {"tool_name": "{tool}"}, "conversation": {"conversation_id": "nest"}}),
    ("POST", "/jobs", {"poll": {"tool_name": "{tool}"}, "conversation": {"conversation_id": "nest"}}),
]
"""The routes that take the name of a tool, with what a request to each says."""


async def at_door(gateway: KeyedGateway, who: str, door: tuple[str, str, Any], tool: str) -> tuple[int, Any]:
    """The status and the problem that a door answers about a tool, without its place and the tool's name."""
    module = tool.partition(".")[0]
    method, path, body = json.loads(json.dumps(door).replace("{tool}", tool).replace("{module}", module))
    async with gateway.client(who) as client:
        answer = await client.request(method, path, **({} if body is None else {"json": body}))
    told = answer.json()
    problem = told["calls"][0]["problem"] if path == "/calls/batch" else told
    text = json.dumps({**problem, "instance": ""}).replace(tool, "{tool}")
    return problem.get("status", answer.status_code), json.loads(text)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door[0]} {door[1]} {' '.join(door[2] or ())}")
@pytest.mark.parametrize(
    ("who", "there", "absent"),
    [
        ("bob", "owls.admin_only", "owls.admin_onlx"),
        ("gus", "owls.echo", "owls.ecxo"),
        ("gus", "owls.echo", "jays.echo"),
        ("vera", "owls.echo", "jays.echo"),
    ],
)
async def test_no_door_tells_what_is_out_of_reach_from_what_is_not_there(
    gateway: KeyedGateway, door: tuple[str, str, Any], who: str, there: str, absent: str
) -> None:
    """For a key that does not reach a tool, or its module, each answer is the 404 of a tool that does not exist."""
    told = await at_door(gateway, who, door, there)

    assert told == await at_door(gateway, who, door, absent)
    assert told == await at_door(gateway, who, DOORS[0], there)
    assert (told[0], told[1]["error_code"]) == (404, "unknown_tool")


@pytest.mark.parametrize("era", ERAS)
async def test_mcp_tells_no_more_than_the_other_doors(gateway: KeyedGateway, era: Era) -> None:
    """A tool that the client's key does not reach is the error of an unknown one, at the fleet's endpoint and a module's."""
    told = dict[tuple[str, str], tuple[int, str]]()
    for path, start in (("/mcp", "owls."), ("/mcp/owls", "")):
        async with mcp_client(gateway.gateway, era, path=path, key=gateway.keys["bob"].text) as client:
            for name in ("admin_only", "admin_onlx"):
                with pytest.raises(MCPError) as refused:
                    await client.call_tool(start + name, {})
                told[path, name] = (refused.value.code, refused.value.message.replace(name, ""))

    assert {path: told[path, "admin_only"] == told[path, "admin_onlx"] for path, _ in told} == {
        "/mcp": True,
        "/mcp/owls": True,
    }
    assert "Unknown tool" in told["/mcp", "admin_only"][1]


async def test_operators_and_who_reaches_a_tool_are_told_why(gateway: KeyedGateway) -> None:
    """An operator's key reads the truth; a tool that is only disabled is no secret to those who could use it."""
    denied = await gateway.post("olga", "/calls", {"tool_name": "owls.echo"})
    explained = await gateway.get("olga", "/tools/owls.echo/why")
    await gateway.post("olga", "/operations/tools/owls.fail_once/disable")
    try:

        async def is_disabled() -> bool:
            answer = await gateway.post("bob", "/calls", {"tool_name": "owls.fail_once"})
            return "disabled" in answer.text and answer.status_code == 403

        await wait_until_answered(is_disabled, "the tool is disabled")
        why = await gateway.get("bob", "/tools/owls.fail_once/why")
        state = (await gateway.get("vera", "/operations/tools")).json()
        hidden = await gateway.post("gus", "/calls", {"tool_name": "owls.fail_once"})
    finally:
        await gateway.post("olga", "/operations/tools/owls.fail_once/enable")

    async def is_listed() -> bool:
        return "owls.fail_once" in (await gateway.get("bob", "/tools")).text

    await wait_until_answered(is_listed, "the tool is enabled")
    assert (denied.status_code, denied.json()["error_code"]) == (403, "permission_denied")
    assert (explained.status_code, explained.json()["is_allowed"]) == (200, False)
    assert (why.status_code, why.json()["rules"][-1]["about"]) == (200, "open")
    assert "owls.fail_once" in state["closed"]
    assert (hidden.status_code, hidden.json()["error_code"]) == (404, "unknown_tool")


async def test_modules_are_listed_by_what_the_key_reaches(gateway: KeyedGateway) -> None:
    """A user sees the module with the tools that they may use; a guest without modules sees none; a viewer all of it."""
    listed = {who: (await gateway.get(who, "/modules")).json() for who in ("bob", "gus", "vera")}

    assert listed["gus"] == {"modules": [], "count": 0}
    owls = next(each for each in listed["bob"]["modules"] if each["module"] == "owls")
    assert (owls["ok"], owls["tools"]) == (True, 9)
    assert "disabled" not in owls
    of_viewer = next(each for each in listed["vera"]["modules"] if each["module"] == "owls")
    assert (of_viewer["tools"], of_viewer["disabled"], of_viewer["load_errors"]) == (10, 0, [])


async def test_modules_come_with_their_tools(gateway: KeyedGateway) -> None:
    """`GET /api/modules` has what the caller may use of each."""
    found = (await gateway.get("bob", "/api/modules")).json()

    owls = next(each for each in found["modules"] if each["module"] == "owls")
    assert len(owls["offers"]) == owls["tools"] == 9
    assert {tool["module"] for tool in owls["offers"]} == {"owls"}


async def test_a_refresh_asks_every_module(gateway: KeyedGateway) -> None:
    """`POST /refresh-tools` answers what was found, and a second one at once does as well."""
    for _ in range(2):
        answer = await gateway.post("ada", "/refresh-tools")

        assert answer.status_code == 200
        assert next(each for each in answer.json()["modules"] if each["module"] == "owls")["ok"]

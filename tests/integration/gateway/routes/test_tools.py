"""Tools over HTTP: which there are, one of them, in a provider's form, page by page."""

import pytest

from support.gateways.keyed_gateway import KeyedGateway

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


@pytest.mark.parametrize("cursor", ["!", "x" * 600, "MDo=", "LTE6", "4oKs"])
async def test_a_cursor_of_nobodys_making_is_refused(gateway: KeyedGateway, cursor: str) -> None:
    """It is 400, whatever it is."""
    answer = await gateway.get("bob", "/tools", params={"cursor": cursor})

    assert (answer.status_code, answer.json()["error_code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("openai_chat", "function"),
        ("openai_responses", "parameters"),
        ("anthropic", "input_schema"),
        ("mcp", "inputSchema"),
    ],
)
async def test_tools_come_as_a_provider_takes_them(gateway: KeyedGateway, form: str, key: str) -> None:
    """What stands in `tools` goes into a request to it, and the count stays that of the tools."""
    found = (await gateway.get("bob", "/tools", params={"format": form})).json()

    assert found["count"] == len(found["tools"]) == 9
    assert all(key in tool for tool in found["tools"])


async def test_gemini_gets_one_list_of_declarations(gateway: KeyedGateway) -> None:
    """Its one element has them all."""
    found = (await gateway.get("bob", "/tools", params={"format": "gemini"})).json()

    assert found["count"] == 9
    assert [len(each["functionDeclarations"]) for each in found["tools"]] == [9]


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

"""Modules over HTTP: what is known of them, and with which tools."""

from support.gateways.keyed_gateway import KeyedGateway


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

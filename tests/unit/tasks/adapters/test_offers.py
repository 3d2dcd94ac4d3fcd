"""A listing for a framework: made once, and anew where a tool has changed."""

from typing import Any

from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_tasks.adapters.calling import ToolLoading, ToolOffers

ADA, EVE = Caller(user_id="ada", permission="user"), Caller(user_id="eve", permission="admin")


class Source:
    """Lists what it is told to."""

    def __init__(self, *names: str) -> None:
        self.listed = {"user": [tool(name) for name in names], "admin": [tool("owls.secret")]}

    async def tools(self, caller: Caller) -> list[ToolDefinition]:
        return list(self.listed[caller.permission])


class Offer:
    def __init__(self, tool: ToolDefinition, name: str) -> None:
        self.tool, self.name = tool, name


def tool(name: str, description: str = "") -> ToolDefinition:
    return ToolDefinition(name=name, description=description)


async def test_while_nothing_changes_a_listing_is_the_same_object() -> None:
    """Whoever keeps it need not compare it, and nothing is written anew for a model's step."""
    offers = ToolOffers(Source("owls.echo", "owls.nap").tools, Offer)

    first = await offers.of(ADA)

    assert await offers.of(Caller(user_id="bob", permission="user")) is first
    assert list(first) == ["owls__echo", "owls__nap"]


async def test_only_what_has_changed_is_made_anew() -> None:
    """A tool that is as it was keeps its offer, also where its manifest was read again."""
    source = Source("owls.echo", "owls.nap")
    offers = ToolOffers(source.tools, Offer)
    first = await offers.of(ADA)

    source.listed["user"] = [tool("owls.echo"), tool("owls.nap", "sleeps"), tool("owls.late")]
    second = await offers.of(ADA)

    assert second["owls__echo"] is first["owls__echo"]
    assert second["owls__nap"].tool.description == "sleeps"
    assert list(second) == ["owls__echo", "owls__nap", "owls__late"]


async def test_agents_that_ask_in_turns_keep_their_own_listings() -> None:
    """Each has what its profile leaves it, and nothing is written anew as long as that stays so."""

    class Profiles(Source):
        async def tools(self, caller: Caller) -> list[ToolDefinition]:
            return [tool(f"owls.{caller.agent}")]

    fleet: Any = Profiles()
    agents = [Caller(permission="user", agent=agent) for agent in ("asks", "reads")]
    for keeper in (ToolOffers(fleet.tools, Offer), ToolLoading(fleet, "search", None, None)):
        first, second = [await keeper.of(agent) for agent in agents], [await keeper.of(agent) for agent in agents]
        assert [one is other for one, other in zip(first, second, strict=True)] == [True, True]
    assert [list(await ToolOffers(fleet.tools, Offer).of(agent)) for agent in agents] == [
        ["owls__asks"],
        ["owls__reads"],
    ]


async def test_each_kind_of_caller_has_its_own() -> None:
    """What one may use is not offered to another."""
    offers = ToolOffers(Source("owls.echo").tools, Offer)

    assert (list(await offers.of(ADA)), list(await offers.of(EVE))) == (["owls__echo"], ["owls__secret"])


async def test_a_choice_leaves_tools_out() -> None:
    """A model is offered fewer than its caller may use."""
    offers = ToolOffers(Source("owls.echo", "owls.nap").tools, Offer, lambda tool: tool.name.endswith("nap"))

    assert list(await offers.of(ADA)) == ["owls__nap"]


async def test_listings_of_many_kinds_of_callers_do_not_grow() -> None:
    """A few are kept."""
    offers = ToolOffers(Source("owls.echo").tools, Offer)
    for number in range(1_000):
        await offers.of(Caller(permission="user", allowed_modules=frozenset({f"module{number}"})))

    assert len(offers._kept) <= 64


async def test_a_search_ranks_only_what_is_offered() -> None:
    """A tool that is offered is found though hundreds of others fit better."""

    class Fleet(Source):
        async def search(self, query: str, caller: Caller, *, limit: int) -> list[ToolDefinition]:
            return self.listed[caller.permission][:limit]

    fleet: Any = Fleet(*(f"owls.t{number}" for number in range(300)), "owls.last")
    loading = ToolLoading(fleet, "search", None, lambda tool: tool.name == "owls.last")
    assert "owls__last" in await loading.answer({"query": "owls"}, ADA)

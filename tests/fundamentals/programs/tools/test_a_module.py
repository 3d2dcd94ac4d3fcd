"""Tests a module with the fixtures that Toolfleet brings: in process, and through a real fleet."""

from toolfleet.sdk import Module
from toolfleet_cli.testing.plugin import OpenModule, StartFleet

module = Module("larks", description="Knows larks.")


@module.tool(effect="read")
async def sing(times: int = 1) -> str:
    """Have a lark sing."""
    return " ".join(["tirili"] * times)


def test_a_lark_sings(toolfleet_module: OpenModule) -> None:
    """Without sockets: what the function returns, and what a model would see."""
    larks = toolfleet_module(module)
    assert larks.call("sing", times=2).result == "tirili tirili"
    assert [tool.name for tool in larks.manifest().tools] == ["larks.sing"]


def test_a_fleet_has_it_sing(toolfleet_fleet: StartFleet) -> None:
    """With a Redis, a worker and the module, which end with the test."""
    fleet = toolfleet_fleet(module)
    assert fleet.call("larks.sing").result == "tirili"

"""The names of tools in programs: each function stands for one tool, and what a caller may not use has none."""

import pytest

from toolfleet_registry.catalog.catalog import ToolSearch
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.local.program_tools import function_name, probe_programs
from toolfleet_registry.manifests.manifest_cache import seen_tools
from toolfleet_registry.settings import Settings

TOOLS = ["crm.list", "crm.list-all", "crm.list_all", "nest-box.open.door", "a.b__c"]


def test_every_function_is_a_name_of_python() -> None:
    """Also of tools with unusual names."""
    assert all(function_name(tool).isidentifier() for tool in [*TOOLS, "9.lives", "x.naïve", f"m.{'y' * 100}"])


def test_a_model_is_told_the_bounds_of_the_fleet() -> None:
    """The description and the schema have those of the settings; without programs there is no tool."""
    key, limits = "0123456789abcdef0123456789abcdef", {"calls": 7, "source_bytes": 99}
    (manifest,) = probe_programs(Settings(programs=limits, signing_key=key)).values()
    tool, shown = manifest.tools

    assert "At most 7 calls" in tool.description
    assert (tool.input_schema or {})["properties"]["source"]["maxLength"] == 99
    assert (tool.effect, tool.required_permission) == ("once", "user")
    assert (shown.name, shown.effect) == ("programs.show", "read")
    assert probe_programs(Settings()) == {}


@pytest.mark.parametrize("asked", ["run python code with a loop", "execute code", "programs"])
def test_the_tool_is_found_on_demand(asked: str) -> None:
    """By what it is for: a model that is not offered it searches for that. Questions about other tools do not find it."""
    key = "0123456789abcdef0123456789abcdef"
    (manifest,) = probe_programs(Settings(programs={}, signing_key=key)).values()
    others = [ToolDefinition(name="crm.list", description="List rows.", required_permission="user")]
    tools = manifest.model_copy(update={"tools": [*others, *manifest.tools]})
    index = ToolSearch(seen_tools(tools, {}))

    def found(text: str) -> list[str]:
        return [each.definition.name for each in index.find(text, may=lambda _: True, tags=frozenset(), limit=5)]

    assert "programs.run" in found(asked)
    assert found("list rows that wait") == ["crm.list"]

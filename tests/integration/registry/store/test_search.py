"""What every registry finds by words and tags: the same, wherever it keeps what it knows."""

import pytest

from toolfleet.stores import InMemoryToolRegistry, ToolRegistry, ToolSpec
from toolfleet_registry.catalog.catalog import ToolSearch
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition, ToolParameter
from toolfleet_registry.manifests.manifest_cache import seen_tools
from toolfleet_registry.specs import spec_of

TOOLS = [
    ToolDefinition(name="mail.send_invoice", description="Send a bill to a customer.", tags=["Money", "mail"]),
    ToolDefinition(name="mail.send", description="Send a letter. Invoices have a tool of their own.", tags=["mail"]),
    ToolDefinition(
        name="calendar.add",
        description="Enter an appointment.",
        parameters=[ToolParameter(name="invitees", type="array", description="Who gets an invitation.")],
    ),
    ToolDefinition(
        name="git.createIssue",
        description="Report a defect.",
        input_schema={"type": "object", "properties": {"title": {"description": "A headline."}, "x": True}},
    ),
]
FOREIGN = [
    ToolSpec(tool_name="🦉 '\"", description="Hoots.", input_schema={"properties": []}, output_schema={}, tags=["Owl"]),
    ToolSpec(
        tool_name="bare", input_schema={}, output_schema={}, details={"has_flat_parameters": True, "parameters": 7}
    ),
]
QUESTIONS = [
    "",
    " ",
    "send",
    "invoice",
    "invit",
    "issue",
    "headline",
    "hoots",
    "send letter",
    '"',
    "xyzzy",
    "the a of",
    "mail",
]


def found(registry: ToolRegistry, text: str = "", **more: object) -> list[str]:
    return [each.spec.tool_name for each in registry.search(text, **more)]  # type: ignore[arg-type] # as the tests say


def filled(registry: ToolRegistry) -> ToolRegistry:
    registry.register_many([*map(spec_of, TOOLS), *FOREIGN])
    return registry


def test_disabled_tools_are_found_on_demand(registry: ToolRegistry) -> None:
    """And what changes is found as it is now."""
    filled(registry)
    assert "mail.send" in found(registry, "letter")
    registry.set_enabled("mail.send", enabled=False)
    assert found(registry, "letter") == []
    assert found(registry, "letter", include_disabled=True) == ["mail.send"]
    registry.remove("mail.send")
    assert found(registry, "letter", include_disabled=True) == []


def test_a_search_has_a_limit(registry: ToolRegistry) -> None:
    """20, or another one above zero."""
    registry.register_many([ToolSpec(tool_name=f"{n:02}", input_schema={}, output_schema={}) for n in range(30)])

    assert found(registry) == [f"{n:02}" for n in range(20)]
    assert found(registry, limit=2) == ["00", "01"]
    with pytest.raises(ValueError, match="limit must be above zero"):
        registry.search(limit=0)


@pytest.mark.parametrize(
    ("question", "tags"),
    [*((each, []) for each in QUESTIONS), ("send", ["MAIL"]), ("", ["mail", "money"]), ("", ["owl", "mail"])],
)
def test_every_registry_finds_the_same(registry: ToolRegistry, question: str, tags: list[str]) -> None:
    """In the same order as the one in memory; and, of tools of modules, as agents do."""
    model = InMemoryToolRegistry()
    for each in (registry, model):
        filled(each).set_enabled("mail.send", enabled=False)
    for is_all in (True, False):
        how = {"include_disabled": is_all, "tags": tags}
        assert found(registry, question, **how) == found(model, question, **how)

    registry.set_enabled("mail.send", enabled=True)
    for spec in FOREIGN:
        registry.remove(spec.tool_name)
    agents = ToolSearch(seen_tools(ModuleManifest(module_name="any", tools=TOOLS), {}))
    seen = agents.find(question, may=lambda _: True, tags=frozenset(tags))
    assert found(registry, question, tags=tags) == [tool.definition.name for tool in seen]
    agents.close()

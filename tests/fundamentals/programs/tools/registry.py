"""Keeps the registry by itself: versions, what an operator has switched off, and the way back."""

from toolfleet.stores import InMemoryToolRegistry, ToolSpec

registry = InMemoryToolRegistry()


def letters(version: str, description: str) -> ToolSpec:
    return ToolSpec(
        tool_name="letters.send", version=version, description=description, input_schema={}, output_schema={}
    )


registry.register(letters("1.0.0", "Sends a letter."))
registry.register(letters("1.1.0", "Sends a letter, by owl."))
print([each.spec.version for each in registry.versions("letters.send")])

registry.rollback("letters.send", "1.0.0")
registry.set_enabled("letters.send", enabled=False)
print(registry.list_all(), "|", [each.spec.description for each in registry.list_all(include_disabled=True)])

# It prints:
# ['1.0.0', '1.1.0']
# [] | ['Sends a letter.']

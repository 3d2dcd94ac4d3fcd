"""A model calls tools by tags in its text."""

from toolfleet import ToolFleet
from toolfleet.tags import TagRegistry, ToolContext, ToolDef, parse_response

ECHO = ToolDef(
    name="echo",
    description="Says what it is told.",
    tag_prefix="ECHO",
    arg_groups=["text"],
    prompt_example="ECHO: [what to say]",
    handler="owls.echo",
    cost="free",
    requires_gate=False,
)


async def test_a_tag_in_a_models_text_is_a_call(fleet: ToolFleet) -> None:
    """You tell the model of your tags, find them in what it writes, and execute them; people see the rest."""
    tags = TagRegistry(fleet)
    tags.register(ECHO)
    assert "ECHO: [what to say]" in tags.prompt_block()

    written = "I shall call the owl.\nECHO: hu hu"
    parsed = parse_response(written, tags, context=ToolContext(raw_arg="", user="ada", user_message="Call the owl!"))
    results = [await tags.execute(call.name, call.context) for call in parsed.tool_calls]

    assert parsed.display_text == "I shall call the owl."
    assert [result.message for result in results] == ['{"text": "hu hu"}']

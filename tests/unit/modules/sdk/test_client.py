"""What a module's own tests call it with: it reads whatever a tool may bring."""

from toolfleet.sdk import Context, Module


async def test_ends_of_line_in_texts_are_no_ends_of_line() -> None:
    """JSON may hold separators that a line of text cannot: results and progress bring them unchanged."""
    module = Module("owls", key="")
    strange = "one\u2028two\u2029three\x85four\x0cfive\r\nsix"

    @module.tool(effect="read")
    async def hoot(context: Context) -> str:
        await context.progress(0.5, strange)
        return strange

    async with module.client() as client:
        result = await client.call("hoot")

    assert (result.success, result.result) == (True, strange)
    assert result.progress == ((0.5, strange),)

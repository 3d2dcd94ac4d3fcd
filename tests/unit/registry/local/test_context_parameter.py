"""Which parameter of a function gets the agent's context."""

from typing import Annotated, Any

import pytest

from support.local_tools.tag_tools import tag
from toolfleet_registry.local.local_function import LocalFunction
from toolfleet_registry.tags import TagResult, ToolContext, handler_in

# As people write handlers, with annotations and without.
# mypy: disable-error-code="no-untyped-def"


async def named(context) -> None: ...  # noqa: ANN001
async def alone(ctx) -> None: ...  # noqa: ANN001
async def annotated(where: ToolContext) -> None: ...
async def as_text(where: "ToolContext") -> None: ...
async def maybe(where: ToolContext | None = None) -> None: ...
async def with_words(where: Annotated[ToolContext, "whatever"]) -> None: ...
async def behind(content: str, where: ToolContext) -> None: ...
async def before(where: ToolContext, content: str = "") -> None: ...
async def for_checkers(where: "tags.ToolContext", content: str = "") -> None: ...  # type: ignore[name-defined] # noqa: F821 - that is the point
async def text(content: str) -> None: ...
async def untyped_text(content) -> None: ...  # noqa: ANN001
async def two(one: ToolContext, other: ToolContext) -> None: ...
async def other_text(query: str) -> None: ...


TAG = tag("t", arg_groups=["content"])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (named, "context"),
        (alone, "ctx"),
        (annotated, "where"),
        (as_text, "where"),
        (maybe, "where"),
        (with_words, "where"),
        (behind, "where"),
        (before, "where"),
        (for_checkers, "where"),
        (text, None),  # a group of the tag
        (untyped_text, None),
    ],
)
def test_a_tags_context_is_found_by_its_annotation_or_as_the_only_parameter(function: Any, name: str | None) -> None:
    """Whatever it is called; what has the name of a group gets that group."""
    local = LocalFunction.of_tag(TAG, function)
    own = local.bind({"content": "owls"}, "@ada", ToolContext("", chat_id=7))

    assert (local.context, local.definition.takes_context) == (name, name is not None)
    if name is not None:
        assert own[name] == ToolContext("owls", user="@ada", chat_id=7, groups={"content": "owls"})
    if function in {behind, before, text, untyped_text}:
        assert own["content"] == "owls"


@pytest.mark.parametrize(("function", "reason"), [(two, "has two contexts"), (other_text, "wants 'query'")])
def test_a_parameter_that_nobody_can_fill_is_refused(function: Any, reason: str) -> None:
    """When the function is loaded."""
    with pytest.raises(ValueError, match=reason):
        LocalFunction.of_tag(TAG, function)


def test_a_function_by_itself_has_a_context_by_annotation_or_name() -> None:
    """One whose only parameter that is takes one text, as a tag's does; one without annotation is an argument."""
    for function in (named, annotated, maybe):
        schema = LocalFunction.of(function).definition.input_schema
        assert schema == {
            "type": "object",
            "properties": {"raw_arg": {"type": "string"}},
            "required": ["raw_arg"],
            "additionalProperties": False,
        }
    beside = LocalFunction.of(behind)
    assert beside.bind({"content": "x"}, "@ada")["where"].user == "@ada"
    assert (LocalFunction.of(alone).definition.input_schema or {})["required"] == ["ctx"]


def test_a_context_and_a_result_are_written_in_the_order_of_their_fields() -> None:
    """Or by name; both at once are told apart."""
    context = ToolContext("owls", "Where?", "@ada", 7, "Barns.", 0.5)
    assert context == ToolContext(
        raw_arg="owls", user_message="Where?", user="@ada", chat_id=7, kb_context="Barns.", confidence=0.5
    )
    assert TagResult(True, "Found.", ["searched"], {"posts": 3}) == TagResult(
        success=True, message="Found.", side_effects=["searched"], audit={"posts": 3}
    )
    with pytest.raises(TypeError, match="'raw_arg' twice"):
        ToolContext("owls", raw_arg="mice")  # type: ignore[misc] # what is tested
    with pytest.raises(TypeError, match="takes 4 fields, and 5 were given"):
        TagResult(True, None, [], {}, 5)  # type: ignore[call-arg] # what is tested
    with pytest.raises(ValueError, match="chat_id"):
        ToolContext("owls", "", "", "seven")  # type: ignore[arg-type] # what is tested


def test_a_modules_tool_is_listed_by_its_module() -> None:
    """A tag cannot hide it."""
    with pytest.raises(ValueError, match="which its module lists"):
        handler_in(tag("t", listed=False))

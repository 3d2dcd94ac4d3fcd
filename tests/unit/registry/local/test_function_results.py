"""What a local function may return, what its decorator says of it, and which parameter gets the agent's context."""

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, computed_field, field_serializer

from support.files.pictures import PDF, PNG, WAV
from toolfleet.tags import Audio, File, Image, TagResult, local_tool
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.errors import BodyTooLarge
from toolfleet_registry.local.local_function import LocalFunction, as_json

LIMIT = 100_000
LABEL = f"image 1 (image/png, {len(PNG)} bytes)"


class Owl(BaseModel):
    """One that may have a picture."""

    name: str
    photo: Image | None = None
    more: Any = None


class Hidden(BaseModel):
    """Cannot be written."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str = "hunter2"

    @field_serializer("name")
    def _write(self, name: str) -> str:
        raise ValueError(f"secret: {name}")


@dataclasses.dataclass
class Unset:
    """Has a field that nobody has set."""

    name: str = dataclasses.field(init=False)


class Computed(BaseModel):
    """Has a field of its own making, which fails."""

    @computed_field
    def name(self) -> str:
        return {"password": "hunter2"}["passwort"]


@dataclasses.dataclass
class Call:
    """What an owl says."""

    sound: Audio
    owl: Owl


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Image(PNG), LABEL),
        ([Image(PNG)], [LABEL]),
        (Owl(name="Strix", photo=Image(PNG)), {"name": "Strix", "photo": LABEL, "more": None}),
        ({"owls": (Owl(name="Strix"),)}, {"owls": [{"name": "Strix", "photo": None, "more": None}]}),
        (Owl(name="Strix", more=[Image(PNG)]), {"name": "Strix", "photo": None, "more": [LABEL]}),
        (
            TagResult(True, "Seen.", audit={"photo": Image(PNG)}),
            {"success": True, "message": "Seen.", "side_effects": [], "audit": {"photo": LABEL}},
        ),
    ],
)
async def test_a_file_stands_anywhere(value: Any, written: Any) -> None:
    """In its place is its label, and it comes beside."""
    content, files = await as_json(value, max_bytes=LIMIT)
    assert content == written
    assert [file.read() for file in files] == ([PNG] if LABEL in str(written) else [])


async def test_files_are_in_the_order_of_their_labels() -> None:
    """Across lists, dataclasses and models, each of its own kind."""
    owl = Owl(name="Strix", photo=Image(PNG))
    content, files = await as_json([File(PDF, name="owls.pdf"), Call(Audio(WAV), owl)], max_bytes=LIMIT)
    assert [file.kind for file in files] == ["file", "audio", "image"]
    assert content[0].startswith("file 1 'owls.pdf' (application/pdf")
    assert content[1]["sound"].startswith("audio 2 (audio/")
    assert content[1]["owl"]["photo"].startswith("image 3 (image/png")


@pytest.mark.parametrize(
    "value",
    [
        [File(b"x" * LIMIT)],
        Owl(name="Strix", more=File(b"x" * LIMIT)),
        [File(b"x" * (LIMIT // 3)) for _ in range(3)],
        [File(b"x" * (LIMIT // 2)), "y" * (LIMIT // 2)],
    ],
    ids=["alone", "in a model", "together", "with the text"],
)
async def test_files_count_among_the_bytes_of_a_result(value: Any) -> None:
    """As base64, wherever they stand."""
    with pytest.raises(BodyTooLarge):
        await as_json(value, max_bytes=LIMIT)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([File(b"x")] * 101, "it has 101 files; at most 100 can be sent"),
        (Hidden(), "a part of it is no JSON"),
        (Unset(), "a part of it cannot be read"),
        ([Computed()], "a part of it cannot be read"),
        (Owl(name="Strix", more=object()), "Object of type object is not JSON serializable"),
        (Owl, "Object of type ModelMetaclass is not JSON serializable"),
        (Call, "Object of type type is not JSON serializable"),
        (b"bytes", "Object of type bytes is not JSON serializable"),
    ],
)
async def test_what_has_no_form_in_json_is_no_result(value: Any, reason: str) -> None:
    """The reason repeats no value."""
    with pytest.raises(ValueError, match=reason) as caught:
        await as_json(value, max_bytes=LIMIT)
    assert "hunter2" not in str(caught.value)


def definition_of(function: Any) -> ToolDefinition:
    return LocalFunction.of(function).definition


@local_tool
async def owls(wood: str) -> str:
    """Count owls."""
    return wood


@local_tool()
async def larks() -> str:
    """Count larks."""
    return "none"


@local_tool(name="birds.count", effect="read", tags=["birds"])
async def count() -> int:
    """Count birds."""
    return 5


async def test_it_stands_with_and_without_parentheses() -> None:
    """Without facts a function is the tool that it is without the decorator, and stays what it was."""
    assert (definition_of(owls).name, definition_of(owls).required_permission) == ("local.owls", "user")
    assert definition_of(larks).description == "Count larks."
    assert await owls("wood") == "wood"


def test_a_tool_may_have_another_name_than_its_function() -> None:
    """Any that a tool may have; the rest is told as before."""
    tool = definition_of(count)
    assert (tool.name, tool.effect, tool.tags) == ("local.birds.count", "read", ["birds"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "1 to 192 characters without blanks"),
        ("two words", "1 to 192 characters without blanks"),
        ("o" * 193, "1 to 192 characters without blanks"),
        ("eule_ä", "more than ASCII letters"),
    ],
)
def test_a_name_that_no_tool_may_have_is_refused(name: str, reason: str) -> None:
    """Where it is written, and not when somebody looks for the tool."""
    with pytest.raises(ValueError, match=reason):
        local_tool(name=name)


def test_what_is_no_function_is_refused() -> None:
    """Such as facts without their names."""
    with pytest.raises(TypeError, match="a function, or facts by their names; not a str"):
        local_tool("guest")  # type: ignore[call-overload] # what somebody may write

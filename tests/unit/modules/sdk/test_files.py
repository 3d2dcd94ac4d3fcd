"""Files that tools take and return."""

import asyncio
import dataclasses
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from support.files.pictures import JPEG, PDF, PNG, WAV, base64
from toolfleet.sdk import Audio, File, Image, Media, Module, ModuleResult
from toolfleet_registry.contracts.calls import MOST_FILES

module = Module("owls")
seen: list[object] = []


class Album(BaseModel):
    title: str
    cover: Image


@dataclasses.dataclass
class Page:
    picture: Image


@module.tool
async def take(data: bytes, rest: list[bytes] = [], more: bytes = b"own") -> int:  # noqa: B006, D417 - as authors write
    """Count bytes.

    Args:
        data: What to count.

    """
    seen.append((data, rest, more))
    return len(data)


@module.tool
async def look(picture: Annotated[bytes, Media("image/png", most_bytes=100)] | None = None) -> int:
    seen.append(picture)
    return 0 if picture is None else len(picture)


@module.tool
async def open_any(picture: Image | None = None, sound: Audio | None = None, file: File | None = None) -> list[str]:
    given = [each for each in (picture, sound, file) if each is not None]
    seen.extend(given)
    return [each.media_type for each in given]


@module.tool
def draw() -> Image:
    return Image(PNG)


@module.tool
def album(many: int = 0) -> dict[str, Any]:
    owls = Album(title="Owls", cover=Image(PNG))
    more = [File(b"x")] * many
    return {"albums": [owls], "page": Page(Image(JPEG)), "sound": (Audio(WAV, name="hoot.wav"),), "more": more}


def call(method: str, **arguments: Any) -> ModuleResult:
    async def run() -> ModuleResult:
        async with module.client() as client:
            return await client.call(method, **arguments)

    seen.clear()
    return asyncio.run(run())


def test_bytes_come_as_base64() -> None:
    """Also in lists, and with line ends as encoders write them; a default is the function's own."""
    wrapped = f"{base64(PNG)[:40]}\n{base64(PNG)[40:]}\n"

    assert call("take", data=wrapped, rest=[base64(b"a")]).result == len(PNG)
    assert seen == [(PNG, [b"a"], b"own")]


def test_a_model_is_told_of_base64() -> None:
    """In the schema, and in words for providers that show no more; a default is not shown, which it would be as text."""
    shown = module.tools["owls.take"].definition.input_schema
    assert shown is not None
    assert shown["properties"]["data"] == {
        "type": "string",
        "contentEncoding": "base64",
        "description": "What to count. As base64, or as a data URL.",
    }
    assert "default" not in shown["properties"]["more"]
    picture = module.tools["owls.look"].definition.input_schema
    assert picture is not None
    assert {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"} in picture["properties"][
        "picture"
    ]["anyOf"]


@pytest.mark.parametrize(
    ("method", "argument", "value", "why"),
    [
        ("take", "data", "no base64!", "This is no base64"),
        ("take", "data", "YWJ", "This is no base64"),  # cut short
        ("take", "data", "", "This has no bytes"),
        ("take", "data", "data:image/png;base64,", "This has no bytes"),
        ("take", "data", "data:text/plain,hello", "a data URL without base64"),
        ("take", "data", "data:%%;base64,YWJj", "This data URL names no media type"),
        ("take", "data", 7, "This is no string"),
        ("take", "data", f"data:image/png;base64,{base64(JPEG)}", "This is image/jpeg, and not image/png"),
        ("take", "data", "data:image/png;base64,YWJj", "This is not image/png, as its data URL says"),
        ("look", "picture", base64(JPEG), "This is image/jpeg; image/png is wanted"),
        ("look", "picture", base64(b"hello"), "This is not image/png"),
        ("look", "picture", base64(PNG + b"x" * 100), "This has 170 bytes; at most 100 are taken"),
        ("open_any", "picture", base64(PDF), "This is application/pdf; image/* is wanted"),
        ("open_any", "picture", base64(b"hello"), "send it as a data URL"),
        ("open_any", "sound", base64(PNG), "This is image/png; audio/* is wanted"),
    ],
)
def test_what_is_wrong_is_one_sentence(method: str, argument: str, value: object, why: str) -> None:
    """Before the function runs, with the argument's name and without its value."""
    result = call(method, **{argument: value})

    assert (result.success, result.effect_state) == (False, "none")
    assert str(result.error).startswith(f"Invalid arguments for owls.{method}: {argument}: ")
    assert why in str(result.error)
    assert seen == []


def test_a_file_knows_what_it_is() -> None:
    """By its first bytes, else by its data URL; what nobody knows is bytes."""
    given = {"picture": base64(PNG), "sound": base64(WAV), "file": "data:text/csv;base64,YQ=="}
    assert call("open_any", **given).result == ["image/png", "audio/wav", "text/csv"]
    assert seen == [Image(PNG), Audio(WAV), File(b"a", "text/csv")]
    assert call("open_any", file=base64(b"a")).result == ["application/octet-stream"]


def test_a_returned_file_is_beside_the_result() -> None:
    """In the result stands what it is."""
    result = call("draw")

    assert result.result == "image 1 (image/png, 70 bytes)"
    assert [(file.kind, file.media_type, file.read()) for file in result.files] == [("image", "image/png", PNG)]


def test_files_may_stand_anywhere_in_a_result() -> None:
    """In models, dataclasses, lists and tuples; their labels are numbered as they stand there."""
    result = call("album")

    assert result.result == {
        "albums": [{"title": "Owls", "cover": "image 1 (image/png, 70 bytes)"}],
        "page": {"picture": "image 2 (image/jpeg, 11 bytes)"},
        "sound": ["audio 3 'hoot.wav' (audio/wav, 16 bytes)"],
        "more": [],
    }
    assert [file.media_type for file in result.files] == ["image/png", "image/jpeg", "audio/wav"]


def test_too_many_files_are_refused() -> None:
    """The thing is done all the same."""
    result = call("album", many=MOST_FILES)

    assert (result.success, result.effect_state) == (False, "done")
    assert f"returned {MOST_FILES + 3} files; at most {MOST_FILES} can be sent" in str(result.error)


def test_a_result_with_files_has_the_bound_of_results() -> None:
    """Of which base64 takes a third more than the bytes."""
    small = Module("owls", max_result_bytes=1000)
    small.add(lambda: File(b"\xfe" * 800), name="draw")

    async def run() -> ModuleResult:
        async with small.client() as client:
            return await client.call("draw")

    result = asyncio.run(run())
    assert (result.success, result.effect_state) == (False, "done")
    assert "more than 1000 bytes" in str(result.error)


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    """Under its own name, which may say what it is."""
    (tmp_path / "counts.csv").write_bytes(b"day,owls\n")
    file = File.open(tmp_path / "counts.csv")

    assert (file.name, file.media_type, file.data) == ("counts.csv", "text/csv", b"day,owls\n")
    with pytest.raises(FileNotFoundError):
        Image.open(tmp_path / "none.png")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Image(b""), "no bytes"),
        (lambda: Image(b"hello"), "needs a media_type"),
        (lambda: Image(PNG, "image/jpeg"), "The bytes are image/png, and not image/jpeg"),
        (lambda: Image(b"hello", "image/png"), "The bytes are not image/png"),
        (lambda: Image(PDF), r"Image takes image/\*, not application/pdf"),
        (lambda: Audio(b"x", "text/plain"), r"Audio takes audio/\*"),
        (lambda: File(b"x", "nonsense"), "is no media type"),
        (lambda: File(b"x", "image/*"), "takes"),
        (lambda: File(b"x", name="a\nb"), "name"),
        (lambda: Media("png"), "is no media type"),
        (lambda: Media(most_bytes=0), "must be positive"),
    ],
)
def test_a_file_is_what_it_says(make: Any, why: str) -> None:
    """A provider refuses the whole conversation for one that is not: so it cannot be made."""
    with pytest.raises(ValueError, match=why):
        make()


def test_a_text_is_no_file() -> None:
    """It must be encoded first."""
    with pytest.raises(TypeError, match="bytes-like object is required"):
        File("text")  # type: ignore[arg-type] # an easy mistake
    assert b64encode(File(bytearray(b"x")).data) == b"eA=="

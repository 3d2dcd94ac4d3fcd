"""Arguments in OpenAPI's styles: what the specification's table says, line by line."""

from typing import Any

import pytest

from toolfleet_modules.hosts.openapi.input_fields import InputField, Place
from toolfleet_modules.hosts.openapi.outgoing_request import (
    ValueRefused,
    cookie_parts,
    header_text,
    path_text,
    query_parts,
)

ARRAY = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}


def field(place: Place, style: str, *, explode: bool, **more: Any) -> InputField:
    return InputField("color", "color", place, True, {}, style, explode, **more)


@pytest.mark.parametrize(
    ("style", "explode", "string", "array", "structure"),
    [
        ("matrix", False, ";color=blue", ";color=blue,black,brown", ";color=R,100,G,200,B,150"),
        ("matrix", True, ";color=blue", ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"),
        ("label", False, ".blue", ".blue,black,brown", ".R,100,G,200,B,150"),
        ("label", True, ".blue", ".blue.black.brown", ".R=100.G=200.B=150"),
        ("simple", False, "blue", "blue,black,brown", "R,100,G,200,B,150"),
        ("simple", True, "blue", "blue,black,brown", "R=100,G=200,B=150"),
    ],
)
def test_a_path_is_written_as_the_table_says(
    style: str, explode: bool, string: str, array: str, structure: str
) -> None:
    """A text, an array and an object, exploded and not."""
    color = field("path", style, explode=explode)

    assert [path_text(color, value) for value in ("blue", ARRAY, OBJECT)] == [string, array, structure]


@pytest.mark.parametrize(
    ("style", "explode", "array", "structure"),
    [
        ("form", False, "color=blue,black,brown", "color=R,100,G,200,B,150"),
        ("form", True, "color=blue&color=black&color=brown", "R=100&G=200&B=150"),
        ("spaceDelimited", False, "color=blue%20black%20brown", "color=R%20100%20G%20200%20B%20150"),
        ("pipeDelimited", False, "color=blue%7Cblack%7Cbrown", "color=R%7C100%7CG%7C200%7CB%7C150"),
        (
            "deepObject",
            True,
            "color%5B0%5D=blue&color%5B1%5D=black&color%5B2%5D=brown",
            "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150",
        ),
    ],
)
def test_a_query_is_written_as_the_table_says(style: str, explode: bool, array: str, structure: str) -> None:
    """An array and an object, exploded and not; cookies are written as forms are."""
    color = field("query", style, explode=explode)

    assert ["&".join(query_parts(color, value)) for value in (ARRAY, OBJECT)] == [array, structure]
    assert query_parts(field("query", "form", explode=True), "") == ["color="]
    assert cookie_parts(field("cookie", "form", explode=True), "blue") == ["color=blue"]


@pytest.mark.parametrize(
    ("explode", "array", "structure"),
    [(False, "blue,black,brown", "R,100,G,200,B,150"), (True, "blue,black,brown", "R=100,G=200,B=150")],
)
def test_a_header_is_written_as_the_table_says(explode: bool, array: str, structure: str) -> None:
    """It is simple, and not quoted."""
    color = field("header", "simple", explode=explode)

    assert [header_text(color, value) for value in (ARRAY, OBJECT, "a b")] == [array, structure, "a b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (1.5, "1.5"),
        (10**20, "100000000000000000000"),
        ([{"a": 1}], "%7B%22a%22%3A1%7D"),
        ("ü&=", "%C3%BC%26%3D"),
    ],
)
def test_values_are_json_s_own_words(value: Any, text: str) -> None:
    """Numbers and truth as JSON has them, nested values as JSON, and all of it quoted."""
    assert query_parts(field("query", "form", explode=True), value) == [f"color={text}"]


def test_a_parameter_with_a_media_type_is_json() -> None:
    """Whatever it holds."""
    color = field("query", "form", explode=True, is_json=True)

    assert query_parts(color, {"a": [1]}) == ["color=%7B%22a%22%3A%5B1%5D%7D"]
    assert query_parts(color, "blue") == ["color=%22blue%22"]


def test_reserved_characters_stay_where_the_document_allows_them() -> None:
    """But for those that would end the value."""
    color = field("query", "form", explode=True, is_reserved=True)

    assert query_parts(color, "a/b?c&d=e#f+g") == ["color=a/b?c%26d%3De%23f%2Bg"]


def test_what_cannot_be_written_is_refused() -> None:
    """Nothing in a path, and line ends in a header."""
    with pytest.raises(ValueRefused):
        path_text(field("path", "simple", explode=False), [])
    for text in ("a\nb", "a\0", "\x7f"):
        with pytest.raises(ValueRefused):
            header_text(field("header", "simple", explode=False), text)

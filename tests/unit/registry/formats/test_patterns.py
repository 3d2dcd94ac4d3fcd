"""Patterns that one provider's engine refuses, and with it the whole request, are not shown to any."""

import json

import pytest

from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.formats import Format, convert

SHOWN = [
    r"^[a-z]+$",
    r"^\d{3}-\d{4}$",
    r"^(?:a|b)*c?$",
    r"^[A-Za-z0-9_.-]{1,64}$",
    r"^https\:\/\/",
    r"[\[\]]",
    r"^.{1,255}$",
    r"^\+[1-9]\d{1,14}$",
    r"^[\w.+-]+@[\w-]+\.[a-z]{2,}?$",
    r"\$\{x\}|ü",
]
NOT_SHOWN = [
    r"^[a-zA-Z0-9@#%^&*()_+\-=[\]{}|;:,.<>?~`]*$",
    r"^(?!.*\.\.)[a-z.]+$",
    r"(?=a)b",
    r"(?<=a)b",
    r"(?<!a)b",
    r"(?P<n>x)",
    r"(a)\1",
    r"(?i)a",
    r"^{a}$",
    r"[\u00e9]",
    r"^.{1,10000}$",
    r"a\Z",
]
FORMATS: list[Format] = ["openai_chat", "openai_responses", "anthropic", "gemini"]


@pytest.mark.parametrize("provider", FORMATS)
@pytest.mark.parametrize(("patterns", "is_shown"), [(SHOWN, True), (NOT_SHOWN, False)], ids=["shown", "not shown"])
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_pattern_that_some_engines_refuse_is_not_shown(
    provider: Format, patterns: list[str], *, is_shown: bool, is_strict: bool
) -> None:
    """With a note, in a property and deeper; any other pattern stays."""
    properties = {f"p{number}": {"type": "string", "pattern": each} for number, each in enumerate(patterns)}
    schema = {
        "type": "object",
        "properties": {**properties, "deep": {"type": "array", "items": {"type": "string", "pattern": patterns[0]}}},
    }
    offer = convert([ToolDefinition(name="m.t", description="t", input_schema=schema)], provider, strict=is_strict)
    written = json.dumps(list(offer))

    if is_shown and provider != "gemini" and not is_strict:
        assert [each for each in patterns if json.dumps(each)[1:-1] not in written] == []
    if not is_shown:
        assert [each for each in patterns if json.dumps(each)[1:-1] in written] == []
        noted = {note.path for note in offer.notes if note.kind == "relaxed"}
        assert {f"/properties/p{number}/pattern" for number in range(len(patterns))} <= noted

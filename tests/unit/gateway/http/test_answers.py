"""What routes answer is JSON that every client reads, whatever an agent has written."""

import json
from typing import Any

from pydantic import BaseModel

from toolfleet_gateway.http.answers import json_answer, json_text


class Said(BaseModel):
    text: str
    value: Any = None


HALF = "\ud83e"


def test_half_a_surrogate_pair_is_answered_as_no_character() -> None:
    """No UTF-8 has one; a program that cuts texts by their length has sent it. Whole pairs, and all else, stay."""
    said = Said(text=f"an owl {HALF}", value={HALF: ["🦉", HALF], "none": None})

    assert json.loads(bytes(json_answer(said).body)) == {
        "text": "an owl \ufffd",
        "value": {"\ufffd": ["🦉", "\ufffd"], "none": None},
    }


def test_what_is_none_is_left_out_or_not() -> None:
    """As the route wants it, also of a model with such a half."""
    for text in ("owl", HALF):
        assert json.loads(json_text(Said(text=text))).keys() == {"text"}
        assert json.loads(json_text(Said(text=text), with_none=True)).keys() == {"text", "value"}

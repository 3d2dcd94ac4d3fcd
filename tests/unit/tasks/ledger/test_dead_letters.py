"""Dead letters: how they are worded, from a call and its end."""

import sys
from typing import Any

import pytest

from support.published_call import published
from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter
from toolfleet_tasks.ledger.contents import dead_letter
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.fleet_results import outcome_unknown

UNKNOWN = ToolResult.failed("owls.pay", "outcome_unknown", "Nobody saw its end.", effect_state="unknown")


def read(text: str) -> DeadLetter:
    assert text.isascii()
    assert "\n" not in text
    return json_text.load(DeadLetter, text)


def test_a_letter_says_what_was_asked_and_how_it_ended() -> None:
    """Call, caller, effect, attempts, reason and times; what is not sensitive as it was."""
    call = published("owls.pay", effect="once", idempotency_key="k", replay_of="call-0", caller=Caller(user_id="ada"))
    attempts = (DeadAttempt(attempt=1, outcome="never closed"),)
    found = read(dead_letter(call, UNKNOWN, attempts=attempts, died_at=7.5))

    assert found == DeadLetter(
        call_id="call-1",
        tool_name="owls.pay",
        arguments={"query": "owls"},
        caller=Caller(user_id="ada"),
        effect="once",
        error_code="outcome_unknown",
        reason="Nobody saw its end.",
        attempts=attempts,
        published_at=call.published_at,
        died_at=7.5,
        idempotency_key="k",
        replay_of="call-0",
    )


def test_a_letter_has_nothing_sensitive() -> None:
    """Neither in its arguments nor in the module's words, which may repeat them."""
    call = published("owls.pay", arguments={"card": {"number": "4111-1111", "of": "Ada"}}, sensitive=("/card/number",))
    text = dead_letter(call, outcome_unknown("owls.pay", "Card 4111-1111 of Ada broke."), died_at=1)

    assert "4111" not in text
    assert read(text).arguments == {"card": {"number": "[redacted]", "of": "Ada"}}
    assert read(text).is_redacted
    assert "Card [redacted] of Ada broke." in read(text).reason


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({"small": "x" * 100, "large": "x" * 70_000}, {"small": "x" * 100, "large": "[not kept]"}),
        ({"a": "x" * 40_000, "b": "x" * 30_000}, {"a": "[not kept]", "b": "x" * 30_000}),
        ({"owls": "🦉" * 20_000, "b": 1}, {"owls": "[not kept]", "b": 1}),
        ({"n": float("nan"), "b": [1]}, {"n": "[not kept]", "b": [1]}),
        ({f"name-{n}": n for n in range(10_000)}, {"*": "[not kept]"}),
    ],
    ids=["one", "the largest", "as it is written", "no JSON", "names alone"],
)
def test_a_letter_is_bounded(arguments: dict[str, Any], kept: dict[str, Any]) -> None:
    """The largest arguments are left out until the rest fits; that they are missing can be seen."""
    call = published("owls.pay", arguments=arguments, idempotency_key="k" * 100_000)
    text = dead_letter(call, outcome_unknown("owls.pay", "x" * 100_000), died_at=1)

    assert read(text).arguments == kept
    assert read(text).is_redacted
    assert len(text) < 70_000


def test_nothing_in_a_call_makes_its_letter_fail() -> None:
    """Half characters, and depth that no JSON has."""
    deep: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit()):
        deep = {"a": deep}
    call = published("owls.pay").model_copy(
        update={"arguments": {"half": "\ud800", "deep": deep}, "sensitive": ("/x",)}
    )

    assert read(dead_letter(call, UNKNOWN, died_at=1)).arguments == {"half": "\ud800", "deep": "[not kept]"}

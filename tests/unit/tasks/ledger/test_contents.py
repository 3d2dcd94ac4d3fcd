"""What is kept of a call's arguments and result: all that is not sensitive, and of each 16 KiB at most."""

import json
from typing import Any

import pytest

from support.published_call import published
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.contents import MOST_BYTES, CallContents, ContentsWriter, contents_for

KEYS = Keys()
PASSWORD = 'hunter"2\n'
LOGIN = {"user": "ada", "password": PASSWORD, "pin": 12345}
SECRET = ("/password", "/pin")
HIDDEN = {"user": "ada", "password": "[redacted]", "pin": "[redacted]"}
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


class Line:
    """Takes the commands that would be sent."""

    def __init__(self) -> None:
        self.texts = list[str]()

    def send(self, *command: Any) -> "Line":
        self.texts += [part for part in command if isinstance(part, str) and part.startswith("{")]
        return self

    def add_done_callback(self, _: object) -> None:
        """Nothing is answered."""


def kept(mode: str, result: ToolResult, **call: Any) -> list[str]:
    line = Line()
    ContentsWriter(Settings(call_contents=mode)).keep(line, published("owls.echo", **call), result)  # type: ignore[arg-type] # all that it needs
    return line.texts


def ok(value: Any) -> ToolResult:
    return ToolResult.ok("owls.echo", value)


def failed(text: str, code: Any = "module_error") -> ToolResult:
    return ToolResult.failed("owls.echo", code, text, effect_state="unknown")


@pytest.mark.parametrize(("mode", "successes", "failures"), [("off", 0, 0), ("failures", 0, 1), ("all", 1, 1)], ids=str)
def test_the_setting_says_of_which_calls_something_is_kept(mode: str, successes: int, failures: int) -> None:
    """Of none, of those that failed, or of all."""
    assert (len(kept(mode, ok(1))), len(kept(mode, failed("no")))) == (successes, failures)


CASES: dict[str, tuple[dict[str, Any], ToolResult, CallContents]] = {
    "as they are": ({"arguments": {"q": "owls"}}, ok({"a": [1, None]}), CallContents({"q": "owls"}, {"a": [1, None]})),
    "a text": ({"arguments": {}}, ok('a "b"'), CallContents({}, 'a "b"')),
    "an error": ({"arguments": {}}, failed("no luck"), CallContents({}, None, "no luck")),
    "sensitive arguments": ({"arguments": LOGIN, "sensitive": SECRET}, ok("in"), CallContents(HIDDEN, "in")),
    "a result that quotes one": (
        {"arguments": LOGIN, "sensitive": SECRET},
        ok({"said": f"<{PASSWORD}>"}),
        CallContents(HIDDEN, {"said": "<[redacted]>"}),
    ),
    "a result with its number": (
        {"arguments": LOGIN, "sensitive": SECRET},
        ok({"pin": 12345}),
        CallContents(HIDDEN, '{"pin":[redacted]}'),
    ),
    "an error that quotes one": (
        {"arguments": LOGIN, "sensitive": SECRET},
        failed(f"{PASSWORD} is wrong, {json.dumps(PASSWORD)} too"),
        CallContents(HIDDEN, None, '[redacted] is wrong, "[redacted]" too'),
    ),
    "everything sensitive": (
        {"arguments": LOGIN, "sensitive": ("",)},
        ok(1),
        CallContents(dict.fromkeys(LOGIN, "[redacted]"), 1),
    ),
    "sensitive results": ({"arguments": {}, "hides_results": True}, ok("secret"), CallContents({}, "[redacted]")),
    "sensitive words": (
        {"arguments": {}, "hides_results": True},
        failed("secret"),
        CallContents({}, None, "[redacted]"),
    ),
    "large and sensitive": (
        {"arguments": LOGIN, "sensitive": SECRET},
        ok("x" * 5 * MOST_BYTES),
        CallContents(HIDDEN, "[redacted]"),
    ),
    "half a surrogate pair": ({"arguments": {"q": "\ud800"}}, ok("\udfff"), CallContents({"q": "\ud800"}, "\udfff")),
    "no JSON": ({"arguments": {}}, ok(CIRCLE), CallContents({}, "[not kept]")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_kept(case: str) -> None:
    """Arguments and result, or error, without what is sensitive wherever it is quoted."""
    call, result, expected = CASES[case]
    (text,) = kept("all", result, **call)
    assert contents_for(KEYS, text.encode(), user_id=None, sees_all=True) == expected


@pytest.mark.parametrize("letter", ["x", "я", "🦉"])
def test_the_beginning_of_what_is_large_is_kept(letter: str) -> None:
    """16 KiB of UTF-8 of the arguments and of the result, whatever they are."""
    large = letter * 2 * MOST_BYTES
    (text,) = kept("all", ok([large]), arguments={"text": large})
    found = contents_for(KEYS, text, user_id=None, sees_all=True)

    assert found is not None
    assert found.cut == ("arguments", "result")
    for shown, begins in ((found.arguments, '{"text":"'), (found.result, '["')):
        assert shown.startswith(begins + letter)
        assert MOST_BYTES - 4 < len(shown.encode()) <= MOST_BYTES
    assert len(text.encode()) < 2.5 * MOST_BYTES


@pytest.mark.parametrize(
    ("of", "reader", "sees_all", "sees"),
    [
        ("ada", "ada", False, True),
        ("ada", "bob", False, False),
        ("ada", None, False, False),
        (None, None, False, False),
        (None, "ada", False, False),
        ("", None, False, False),
        (None, None, True, True),
        ("ada", "bob", True, True),
    ],
)
def test_who_sees_it(of: str | None, reader: str | None, sees_all: bool, sees: bool) -> None:
    """Those who see all, and the user that the call was for; no user is nobody's."""
    (text,) = kept("all", ok(1), user_id=of)
    assert (contents_for(KEYS, text, user_id=reader, sees_all=sees_all) is not None) == sees


@pytest.mark.parametrize(
    ("sees_tool", "sees_all", "sees"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_a_reader_who_sees_no_calls_of_its_tool_does_not_see_it(sees_tool: bool, sees_all: bool, sees: bool) -> None:
    """Though it acts for the call's own user."""
    (text,) = kept("all", ok(1), user_id="ada")
    asked = list[str]()

    def sees_calls_of(tool: str) -> bool:
        asked.append(tool)
        return sees_tool

    found = contents_for(KEYS, text, user_id="ada", sees_all=sees_all, sees_tool=sees_calls_of)
    assert (found is not None) == sees
    assert set(asked) <= {"owls.echo"}


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "7", "{}", '{"cut": 3}', '{"owner": null, "cut": [], "result": 3}']
)
def test_what_another_program_has_written_is_nothing(text: str | None) -> None:
    """It is not shown, and raises nothing."""
    assert contents_for(KEYS, text, user_id=None, sees_all=True) is None

"""On which line of a TOML document something begins."""

import pytest

from toolfleet_registry.config.setting_sources import line_of

TEXT = """\
# agents
default_agent = "production"
dotted.key = 1

[agents.production]
tools = [
  "git.*",
  # all of them
  "mail.*",
]
description = '''
[agents.other]
middleware = 3
'''

[[agents.production.middleware]]
name = "tool_retry"

[[agents.production.middleware]]
name = "limits"
daily_limit = 3

[agents]
inline = { mode = "all", tools = ["a.b"] }
"quoted name" = {}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("default_agent",), 2),
        (("dotted",), 3),
        (("dotted", "key"), 3),
        (("agents",), 5),
        (("agents", "production"), 5),
        (("agents", "production", "tools"), 6),
        (("agents", "production", "tools", 1), 6),  # an array is one statement, and begins with its key
        (("agents", "production", "description"), 11),
        (("agents", "production", "middleware"), 16),
        (("agents", "production", "middleware", 0, "name"), 17),
        (("agents", "production", "middleware", 1), 19),
        (("agents", "production", "middleware", 1, "daily_limit"), 21),
        (("agents", "other"), None),  # it only stands in a text
        (("agents", "production", "middleware", 2), None),
        (("agents", "production", "middleware", "name"), None),
        (("nothing",), None),
        ((), None),
    ],
)
def test_a_line_is_that_of_the_statement(path: tuple[str | int, ...], line: int | None) -> None:
    """That says it first, also over several lines, in arrays of tables, and in text that looks like a table."""
    assert line_of(path, TEXT.replace("[agents]\ninline", "[agents.more]\ninline")) == line


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_document_that_cannot_be_read_has_no_lines(newline: str) -> None:
    """Nor has an empty one."""
    assert line_of(("a",), f"a = 1{newline}b = ") is None
    assert line_of(("a",), "") is None
    assert line_of(("b",), f"a = 1{newline}{newline}b = 2{newline}") == 3

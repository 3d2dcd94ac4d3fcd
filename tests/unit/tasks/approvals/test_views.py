"""How arguments are shown to people who decide about a call."""

import json

from toolfleet_tasks.approvals.views import readable


def test_plain_arguments_are_json() -> None:
    """Every character that people can see stays."""
    arguments = {"to": "Jürgen 🦉", "sum": 5}

    assert json.loads(readable(arguments)) == arguments
    assert "Jürgen 🦉" in readable(arguments)
    assert readable({}) == "{}"


def test_a_text_of_several_lines_is_shown_as_lines() -> None:
    """Each stands after a bar, so that no line of a text looks like another argument."""
    shown = readable({"n": 1, "source": 'pay("bob")\n\n"n":\nreturn 1'})

    assert shown == '{\n  "n": 1\n}\n\n"source":\n  | pay("bob")\n  | \n  | "n":\n  | return 1'


def test_nothing_is_unseen() -> None:
    """What turns the direction of a line, ends it, or takes no room is escaped, in names as well."""
    shown = readable({"a\u202eb": "x\u200by", "source": "pay(1)\r\n\u2028# \u2066tag\U000e0041\x1b[2K"})

    assert shown.isascii()
    for each in ("a\\u202eb", "x\\u200by", "pay(1)\\u000d\n", "  | \\u2028# \\u2066tag\\U000e0041\\u001b[2K"):
        assert each in shown

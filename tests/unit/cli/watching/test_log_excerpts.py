"""What is picked of a module's log for whoever develops it."""

import pytest

from toolfleet_cli.commands.logs import LogExcerpts

CHAINED = """\
ERROR: toolfleet.sdk: owls.boom failed
Traceback (most recent call last):
  File "tools.py", line 12, in boom
    raise KeyError("inner")
KeyError: 'inner'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "tools.py", line 14, in boom
    raise ValueError("boom") from e
           ^^^^^^^^^^
ValueError: boom"""

BOXED = """\
╭───────────── Traceback (most recent call last) ─────────────╮
│ tools.py:14 in boom                                         │
│ ❱ 14     raise ValueError("boom")                           │
╰─────────────────────────────────────────────────────────────╯
ValueError: boom"""

GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "tools.py", line 3, in boom
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: boom
    +------------------------------------
done"""


@pytest.mark.parametrize("text", [CHAINED, BOXED, GROUP])
def test_a_traceback_is_shown_whole(text: str) -> None:
    """Python's, one that was caused by another, rich's, and that of a group."""
    lines = text.splitlines()

    assert LogExcerpts().feed(["before", *lines, "after"], 0) == [line for line in lines if line]


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("WARNING: root: the disk is nearly full", True),
        ("ERROR:    Exception in ASGI application", True),
        ("2026-01-02 03:04:05,678 - owls - CRITICAL - gone", True),
        ("2026-01-02T03:04:05Z [warning  ] disk_nearly_full   free=3", True),
        ('{"event": "gone", "level": "error"}', True),
        ('INFO:     127.0.0.1:1 - "POST /execute HTTP/1.1" 500 Internal Server Error', False),
        ("2026-01-02T03:04:05Z [info     ] no_warning", False),
        ("hello", False),
    ],
)
def test_lines_from_warning_on_are_shown(line: str, *, is_shown: bool) -> None:
    """However the usual loggers write their level."""
    assert LogExcerpts().feed([line], 0) == ([line] if is_shown else [])


def test_of_a_long_traceback_the_end_is_shown() -> None:
    frames = [f'  File "tools.py", line {number}, in again' for number in range(1_000)]
    shown = LogExcerpts().feed(["Traceback (most recent call last):", *frames, "RecursionError: deep"], 0)

    assert shown[0] == "… (its beginning is in the log)"
    assert shown[-2:] == [frames[-1], "RecursionError: deep"]
    assert len(shown) < 40


def test_of_very_many_lines_some_are_shown_and_the_others_counted() -> None:
    """A module that logs in a loop does not drown the others; later it is shown again."""
    excerpts = LogExcerpts()
    shown = [line for _ in range(10) for line in excerpts.feed(["ERROR: again"] * 100, 1.0)]

    assert len(shown) == 200
    assert excerpts.feed(["ERROR: later"], 20.0) == ["… 800 lines more are in its log", "ERROR: later"]

"""Picks the parts of a module's log for its developer: tracebacks, and lines at WARNING or above."""

import re
from collections import deque
from collections.abc import Iterable

_LONGEST_TRACEBACK = 30  # lines; of a longer one the last: they say where it happened, and what
_MOST_LINES, _WINDOW_SECONDS = 200, 10.0  # a module that logs in a loop must not drown the others
_LONGEST_LINE = 2_000  # characters

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception, another")
# The frames of a traceback: indented, or in the boxes of rich and of exception groups.
_WITHIN = re.compile(r"\s|[│╭╰╮❱|+]|$")
# As structlog's console prints a level, as its JSON does, and as logging and uvicorn do.
_SERIOUS = re.compile(
    r"\[(?:warning|error|critical)\s*\]"
    r'|"level": ?"(?:warning|error|critical)"'
    r"|^.{0,80}?\b(?:WARNING|ERROR|CRITICAL)\b"
)


class LogExcerpts:
    """One log's; `feed` it all its lines."""

    def __init__(self) -> None:
        self._traceback: deque[str] | None = None
        self._is_cut = False
        self._window_ends = 0.0
        self._shown = self._left_out = 0

    def feed(self, lines: Iterable[str], now: float) -> list[str]:
        """Return the lines to show; `now` in seconds. If there are too many, their number is shown."""
        shown: list[str] = []
        if now >= self._window_ends:
            if self._left_out:
                shown.append(f"… {self._left_out} lines more are in its log")
            self._window_ends, self._shown, self._left_out = now + _WINDOW_SECONDS, 0, 0
        picked = [each for line in lines for each in self._pick(line[:_LONGEST_LINE])]
        lines_left = max(0, _MOST_LINES - self._shown)
        self._shown += len(picked[:lines_left])
        self._left_out += len(picked[lines_left:])
        return shown + picked[:lines_left]

    def _pick(self, line: str) -> list[str]:
        if self._traceback is not None:
            return self._go_on(self._traceback, line)
        if _TRACEBACK.search(line):
            self._traceback, self._is_cut = deque([line], maxlen=_LONGEST_TRACEBACK), False
            return []
        return [line] if _SERIOUS.search(line) or line.startswith(_CHAINED) else []

    def _go_on(self, traceback: deque[str], line: str) -> list[str]:
        self._is_cut |= len(traceback) == traceback.maxlen
        traceback.append(line)
        if _WITHIN.match(line):
            return []
        self._traceback = None
        return ["… (its beginning is in the log)", *traceback] if self._is_cut else [*traceback]

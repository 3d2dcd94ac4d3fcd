"""Holds some thousands of calls that ended one after the other, in columns: 56 bytes each, and every name once."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from math import nan
from typing import Any

from toolfleet_registry.contracts.decisions import CONVERSATION
from toolfleet_tasks.ledger.audit import AuditLine
from toolfleet_tasks.operations.calls.call_filter import CallField, CallFilter, module_of

MOST_CALLS = 5_000
"""Of one segment: also how many lines are read from Redis at once."""

EntryId = tuple[int, int]
"""Where a line stands in the audit's stream: milliseconds since the epoch, and a number."""

_ID_BYTES = 16
_NO_NAME = ""
_NO_CONVERSATION, _CONVERSATION_BYTES = 0, 8


class _NameColumn:
    """A column of names, each of which is stored once."""

    def __init__(self) -> None:
        self.codes = array("H")
        self._code_of = dict[str, int]()
        self._calls = array("I")  # by code

    def add(self, name: Any) -> None:
        text = name if isinstance(name, str) else _NO_NAME
        code = self._code_of.setdefault(text, len(self._code_of))
        self.codes.append(code)
        if code == len(self._calls):
            self._calls.append(0)
        self._calls[code] += 1

    def names(self) -> list[str]:
        return list(self._code_of)

    def code_of(self, name: str) -> int | None:
        return self._code_of.get(name)

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield each non-empty name, and the number of its calls."""
        return ((name, calls) for name, calls in zip(self._code_of, self._calls, strict=True) if name)


class CallSegment:
    """At most `MOST_CALLS` calls, oldest first. Lines of operators' changes are skipped."""

    def __init__(self, entries: Iterable[tuple[EntryId, AuditLine]] = ()) -> None:
        self._ended, self._numbers = array("Q"), array("Q")
        self._tools, self._users, self._outcomes, self._errors = (_NameColumn() for _ in range(4))
        self._queued, self._ran = array("f"), array("f")
        self._ids = bytearray()
        # Nearly each has few calls: their names would be most of the index.
        self._conversations = array("Q")
        for entry_id, line in entries:
            self.add(entry_id, line)

    def __len__(self) -> int:
        return len(self._ended)

    @property
    def is_full(self) -> bool:
        """Whether the next call goes into another segment."""
        return len(self) >= MOST_CALLS

    def add(self, entry_id: EntryId, line: AuditLine) -> None:
        """Take a call that ended after all the others."""
        if "change" in line or not isinstance(line.get("call_id"), str):
            return
        self._ended.append(entry_id[0])
        self._numbers.append(entry_id[1])
        self._tools.add(line.get("tool"))
        self._users.add(line.get("user_id"))
        self._outcomes.add(line.get("outcome"))
        self._errors.add(line.get("error_code"))
        self._queued.append(_milliseconds(line.get("queued_ms")))
        self._ran.append(_milliseconds(line.get("duration_ms")))
        self._ids += _digest(line["call_id"])
        self._conversations.append(_conversation_of(line))

    def starts_before(self, entry_id: EntryId) -> bool:
        """Return whether its first call's line is at or before an entry."""
        return len(self) > 0 and self.entry(0) <= entry_id

    def entry(self, row: int) -> EntryId:
        """Return the entry id of a call's line."""
        return self._ended[row], self._numbers[row]

    def rows(self, wanted: CallFilter, *, before: EntryId | None = None) -> list[int]:
        """Return the matching calls, the newest first; `before`: of those whose lines are before it."""
        first = 0 if wanted.since is None else self.first_at(wanted.since)
        last = len(self) if wanted.until is None else self.first_at(wanted.until)
        if before is not None:
            last = min(last, self._row_of(before))
        fitting = self._fitting(wanted)
        if fitting is None or first >= last:
            return []
        rows: Iterable[int] = range(first, last)
        for codes, column in fitting:
            rows = [row for row in rows if column[row] in codes]
        return list(rows)[::-1]

    def rows_of(self, call_id: str) -> list[int]:
        """The rows of one call: it has several where its line was written twice."""
        digest, found, at = _digest(call_id), list[int](), -1
        while (at := self._ids.find(digest, at + 1)) >= 0:
            if at % _ID_BYTES == 0:
                found.append(at // _ID_BYTES)
        return found

    def outcomes(self, rows: Sequence[int]) -> Counter[str]:
        """Return how many of some calls had each outcome."""
        names, codes = self._outcomes.names(), self._outcomes.codes
        return Counter({names[code]: count for code, count in Counter([codes[row] for row in rows]).items()})

    def times(self, rows: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return how many ms each call waited, and how many it ran; NaN: unknown."""
        return [self._queued[row] for row in rows], [self._ran[row] for row in rows]

    def first_at(self, moment: int) -> int:
        """The first row that ended at a moment (ms since the epoch) or later."""
        return bisect_left(self._ended, moment)

    def counts(self, field: CallField) -> Counter[str]:
        """Return how many calls each value of a field has."""
        if field == "module":
            modules = Counter[str]()
            for name, count in self._tools.counts():
                modules[module_of(name)] += count
            return modules
        columns = {"tool": self._tools, "user": self._users, "outcome": self._outcomes, "error": self._errors}
        return Counter(dict(columns[field].counts()))

    def _row_of(self, entry_id: EntryId) -> int:
        """Return the row of the first call whose line is not before the entry."""
        row = bisect_left(self._ended, entry_id[0])
        while row < len(self) and self.entry(row) < entry_id:
            row += 1
        return row

    def _fitting(self, wanted: CallFilter) -> list[tuple[frozenset[int], Sequence[int]]] | None:
        """The codes that fit, for each column that matters; `None`: no call of this segment does."""
        fitting = list[tuple[frozenset[int], Sequence[int]]]()
        if wanted.chooses_tools:
            codes = frozenset(code for code, name in enumerate(self._tools.names()) if wanted.fits_tool(name))
            fitting.append((codes, self._tools.codes))
        users = (wanted.user, wanted.hidden_user)
        named = ((users, self._users), ((wanted.outcome,), self._outcomes), ((wanted.error,), self._errors))
        for names, column in named:
            if names[0] is not None:
                found = (column.code_of(name) for name in names if name is not None)
                fitting.append((frozenset(code for code in found if code is not None), column.codes))
        if wanted.conversation is not None:
            codes = frozenset(map(_code_of, {wanted.conversation, wanted.hidden_conversation or wanted.conversation}))
            fitting.insert(0, (codes, self._conversations))
        return None if any(not codes for codes, _ in fitting) else fitting


def _conversation_of(line: AuditLine) -> int:
    """Return a line's conversation; a worker of an earlier version has it in another field."""
    name = line.get(CONVERSATION)
    if name is None and isinstance(decisions := line.get("decisions"), dict):
        name = decisions.get(CONVERSATION)
    return _code_of(name) if isinstance(name, str) and name else _NO_CONVERSATION


def _code_of(conversation: str) -> int:
    digest = blake2b(conversation.encode("utf-8", "replace"), digest_size=_CONVERSATION_BYTES).digest()
    return int.from_bytes(digest, "big")


def _digest(call_id: str) -> bytes:
    return blake2b(call_id.encode("utf-8", "replace"), digest_size=_ID_BYTES).digest()


def _milliseconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else nan  # noqa: PLR2004 - thirty years

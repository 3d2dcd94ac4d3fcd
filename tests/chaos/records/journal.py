"""What modules did, as they wrote it down: one line for each step of an execution, in a file that outlives them."""

import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chaos.plan import LOOK

Mark = Literal["start", "effect", "reply", "denied"]
"""A request has come; the effect has happened; an answer is about to leave; the module has said that it never will run this call."""


@dataclass(frozen=True)
class Entry:
    """One line. `port` is the worker's end of the connection; `reply` what the module would answer, for an effect.

    `execution` is the same for all lines about one.
    """

    mark: Mark
    call_id: str
    ref: str
    tool: str
    at: float
    pid: int
    port: int = 0
    reply: dict[str, Any] = field(default_factory=dict)
    execution: str = ""

    @property
    def is_look(self) -> bool:
        """Whether it is about a job's poll: one intention has many, each a call of its own."""
        return self.tool.endswith(f".{LOOK}")


class JournalWriter:
    """Appends lines, each in one write: a process that is killed leaves whole lines only."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, mark: Mark, call_id: str, ref: str, tool: str, **more: Any) -> None:
        line = {
            "mark": mark,
            "call_id": call_id,
            "ref": ref,
            "tool": tool,
            "at": time.time(),
            "pid": os.getpid(),
            **more,
        }
        os.write(self._file, (json.dumps(line, separators=(",", ":")) + "\n").encode())


class JournalTail:
    """Reads what has been written since the last look."""

    def __init__(self, path: Path, *, from_start: bool) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""
        if not from_start:
            self._file.seek(0, os.SEEK_END)

    def new(self) -> list[Entry]:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [Entry(**json.loads(line)) for line in lines if line]

    def close(self) -> None:
        self._file.close()


class Journal:
    """All that was written, by call and by intention."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.by_call: defaultdict[str, list[Entry]] = defaultdict(list)
        self.effects: defaultdict[str, list[Entry]] = defaultdict(list)
        self.effects_of_ref: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            self.by_call[entry.call_id].append(entry)
            if entry.mark == "effect":
                self.effects[entry.call_id].append(entry)
                if not entry.is_look:
                    self.effects_of_ref[entry.ref].append(entry)


def read_journal(path: Path) -> Journal:
    """The whole journal, once nobody writes any more."""
    tail = JournalTail(path, from_start=True)
    try:
        return Journal(tail.new())
    finally:
        tail.close()

"""What a provider was not told as the tool has it, and the list that carries these notes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

NoteKind = Literal["relaxed", "dropped", "renamed", "closed", "refused"]
"""`relaxed`: the provider sees less than what is checked here. `dropped`: something that decides nothing is not shown.
`renamed`: a property goes by another name, and comes back by its own. `closed`: strict, so that arguments the schema does
not name cannot be sent. `refused`: the provider may not take it, or not so, and nothing could be done."""


@dataclass(frozen=True, slots=True)
class Note:
    """One difference. `path` is a JSON pointer into the arguments' schema, or `name`, `description`, `strict`, `tools`."""

    tool: str
    path: str
    kind: NoteKind
    why: str

    def __str__(self) -> str:
        return f"{self.tool} {self.path or '/'}: {self.kind}: {self.why}"


class Converted(list[dict[str, Any]]):
    """A provider's list of tools, ready to be sent, with what is different in it from the tools' own definitions."""

    def __init__(self, offers: Iterable[dict[str, Any]], notes: Iterable[Note]) -> None:
        super().__init__(offers)
        self.notes = tuple(notes)


@dataclass
class Notes:
    """Gathers the notes on one tool."""

    tool: str
    taken: list[Note] = field(default_factory=list[Note])

    def add(self, path: str, kind: NoteKind, why: str) -> None:
        """Take one more."""
        self.taken.append(Note(self.tool, path, kind, why))

    def mark(self) -> int:
        """Where we are now, for the two below."""
        return len(self.taken)

    def lost_since(self, mark: int) -> bool:
        """Whether something was noted since that changes what the schema allows."""
        return any(note.kind != "dropped" for note in self.taken[mark:])

    def undo(self, mark: int) -> None:
        """Forget what was noted since."""
        del self.taken[mark:]

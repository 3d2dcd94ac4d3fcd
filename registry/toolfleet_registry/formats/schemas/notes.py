"""Notes what a provider does not get as the tool has it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

NoteKind = Literal["relaxed", "dropped", "renamed", "closed", "refused"]
"""`relaxed`: the provider sees less than what is checked here. `dropped`: something that decides nothing is not shown.
`renamed`: a property goes by another name, and comes back by its own. `closed`: strict, so that arguments the schema does
not name cannot be sent. `refused`: the provider may not take it, or not so, and nothing could be done."""


@dataclass(frozen=True, slots=True)
class Note:
    """One difference between a tool and what a provider is shown of it."""

    tool: str
    """The tool's name; empty: of all of them."""
    path: str
    """A JSON pointer into the arguments' schema, or `name`, `description`, `strict`, `tools`."""
    kind: NoteKind
    """What was done about it."""
    why: str
    """The reason, in words."""

    def __str__(self) -> str:
        return f"{self.tool} {self.path or '/'}: {self.kind}: {self.why}"


class Converted(list[Any]):
    """A provider's list of tools, ready to be sent, with notes on what differs from the tools' own definitions.

    Each element is a plain dictionary. To type checkers it is `Any`, since each provider's package asks for its own
    types, none of which is known here: the list can be passed, or assigned, where they are wanted.
    """

    notes: tuple[Note, ...]
    """What the provider is not told as the tools have it."""

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
        """Return the present position, for `lost_since` and `undo`."""
        return len(self.taken)

    def lost_since(self, mark: int) -> bool:
        """Return whether a note since `mark` changes what the schema allows."""
        return any(note.kind != "dropped" for note in self.taken[mark:])

    def undo(self, mark: int) -> None:
        """Forget what was noted since."""
        del self.taken[mark:]

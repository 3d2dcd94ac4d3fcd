"""The tools of `knowledge`."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from modules.files.names import owner_of, visible_line
from modules.knowledge.notes import Note, Notes
from modules.knowledge.words import excerpt, wanted_words
from toolfleet.sdk import ToolError

_MOST_TAGS = 10

Title = Annotated[str, Field(min_length=1, max_length=200, description="The note's title, such as 'Wifi at home'.")]
Tag = Annotated[str, Field(min_length=1, max_length=50)]
Tags = Annotated[list[Tag], Field(max_length=_MOST_TAGS)]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Each user's own notes. Everything may raise `FilesUnavailable`, after some seconds."""

    notes: Notes
    max_chars: int

    def save(
        self, title: Title, text: Annotated[str, Field(min_length=1)], user_id: str | None, tags: Tags | None = None
    ) -> dict[str, Any]:
        """Remember a note for the user. Replaces a note of the same title, its tags included.

        Args:
            text: All that is to be remembered.
            tags: Words to group notes by, such as 'travel'.
        """
        if len(text) > self.max_chars:
            raise _refused(f"The text has {len(text)} characters; {self.max_chars} are allowed. Save several notes.")
        owner, title, text = _owner(user_id), _line(title, "title"), _storable(text)
        is_new = self.notes.save(owner, title, text, _tags(tags or []))
        return {"title": title, "created": is_new}

    def search(
        self,
        query: Annotated[str, Field(max_length=1000)],
        user_id: str | None,
        max_results: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> dict[str, Any]:
        """Search the user's notes for words. Returns those that have any of them, the best first, each with an excerpt.

        Args:
            query: The words to look for, such as 'hotel berlin'. A word of three letters or more finds longer ones, too.
            max_results: How many notes to return.
        """
        owner, wanted = _owner(user_id), wanted_words(query)
        if not wanted:
            raise _refused("The query has no word to look for.")
        found = self.notes.search(owner, wanted, max_results)
        return {"results": [{**_entry(note), "excerpt": excerpt(note.text, wanted)} for note in found]}

    def get(self, title: Title, user_id: str | None) -> dict[str, Any]:
        """Read a note of the user."""
        owner, title = _owner(user_id), _line(title, "title")
        note = self.notes.find(owner, title)
        if note is None:
            raise _refused(f"There is no note {title!r}; search, or list the notes to see which there are.")
        return {**_entry(note), "text": note.text}

    def list(
        self,
        user_id: str | None,
        tag: Tag | None = None,
        after: str = "",
        max_results: Annotated[int, Field(ge=1, le=100)] = 50,
    ) -> dict[str, Any]:
        """List the user's notes by title, without their texts.

        Args:
            tag: Only those with this tag.
            after: Go on behind this title: that in `next` of the list before, if there was one.
            max_results: How many notes to return.
        """
        wanted = None if tag is None else _tags([tag])[0]
        notes = [note for note in self.notes.of(_owner(user_id)) if wanted is None or wanted in note.tags]
        rest = [note for note in notes if note.title > after]
        more = {"next": rest[max_results - 1].title} if len(rest) > max_results else {}
        return {"notes": [_entry(note) for note in rest[:max_results]], "total": len(notes), **more}

    def delete(self, title: Title, user_id: str | None) -> dict[str, Any]:
        """Forget a note of the user for good. Deleting a note that is not there does nothing."""
        owner, title = _owner(user_id), _line(title, "title")
        return {"title": title, "deleted": self.notes.remove(owner, title)}


def _entry(note: Note) -> dict[str, Any]:
    return {"title": note.title, "tags": [*note.tags], "updated": note.updated_at.isoformat(timespec="seconds")}


def _owner(user_id: str | None) -> str:
    if not user_id:
        raise _refused("Notes belong to a user, and this call has no user_id.")
    return owner_of(user_id)


def _tags(tags: list[str]) -> list[str]:
    """In one spelling, each once."""
    return list(dict.fromkeys(_line(tag, "tag").casefold() for tag in tags))


def _line(text: str, what: str) -> str:
    """In the one spelling that is stored: what is invisible would make two that look the same."""
    line = visible_line(text)
    if line is None:
        raise _refused(f"{text!r} is no {what}: it must be one line of visible characters.")
    return line


def _storable(text: str) -> str:
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise _refused("The text has characters that cannot be stored: NUL, or halves of one.")
    return text


def _refused(message: str) -> ToolError:
    return ToolError(message, effect_state="none")
